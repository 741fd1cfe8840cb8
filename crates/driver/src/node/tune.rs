//! Mutable parameters, put into effect.

use std::fs::File;

use longshore_files::mounts::Mount;

use super::Observed;
use crate::config::FsType;
use crate::driver::Inner;
use crate::format;
use crate::loopdev::{self, LoopDevice, LoopError};
use crate::mount::{checked_path::CheckedPath, reconfigure};
use crate::mutable::Mutable;
use crate::pool::Pool;
use crate::pool::record::Record;
use crate::quiesce::client;
use crate::refusal::Refusal;

impl Inner {
    /// What a volume's record says now.
    pub(super) fn mutable(&self, record: &Record) -> Result<Mutable, Refusal> {
        Ok(Mutable::parse(&record.mutable_parameters, record.fstype)?)
    }

    /// Whether the device of a volume takes discards. For a thick volume they would give back what
    /// was set aside for good.
    pub(super) fn wants_discards(&self, record: &Record) -> Result<bool, Refusal> {
        Ok(self.mutable(record)?.discard.unwrap_or(true) && !record.is_thick())
    }

    /// Sets up a bound device.
    pub(super) fn tune_device(&self, device: LoopDevice, record: &Record) -> Result<(), Refusal> {
        if !self.wants_discards(record)? {
            loopdev::tune::refuse_discards(device)?;
        }
        if let Some(direct) = self.mutable(record)?.direct_io {
            log_failure(record, loopdev::tune::set_direct_io(device, direct));
        }
        Ok(())
    }

    /// Sets up a filesystem that is not mounted.
    pub(super) fn tune_image(
        &self,
        image: &File,
        record: &Record,
        fstype: FsType,
    ) -> Result<(), Refusal> {
        match self.mutable(record)?.reserved_percent {
            Some(percent) if fstype == FsType::Ext4 => Ok(format::reserve_blocks(image, percent)?),
            _ => Ok(()),
        }
    }

    /// Puts changed parameters into effect at once, as far as the volume is staged here.
    ///
    /// # Errors
    /// Also when the kernel changes one of them only while the volume is staged nowhere.
    pub(crate) fn tune_staged(&self, pool: &Pool, record: &Record) -> Result<(), Refusal> {
        if !self.config.mode.node() {
            return Ok(());
        }
        let observed = self.observe(pool, &record.id)?;
        let Some(device) = observed.device else { return Ok(()) };
        self.tune_device(device, record)?;
        if device.read_only {
            return Ok(());
        }
        let mounted = observed.mounts().iter().any(|entry| entry.fstype == FsType::Ext4.as_str());
        if let Some(percent) = self.mutable(record)?.reserved_percent
            && mounted
        {
            format::reserve_blocks_mounted(&device.path(), percent)?;
        }
        self.tune_discards(pool, &observed, device, record)
    }

    /// Has the mounted filesystem send discards, or not.
    fn tune_discards(
        &self,
        pool: &Pool,
        observed: &Observed,
        device: LoopDevice,
        record: &Record,
    ) -> Result<(), Refusal> {
        if !self.wants_discards(record)? {
            // The device refuses them, whatever the filesystem sends.
            return Ok(());
        }
        if !loopdev::tune::takes_discards(device)? {
            return Err(later(
                record,
                "its device was told to refuse discards and cannot be told otherwise",
            ));
        }
        let sends = self.mutable(record)?.discard == Some(true);
        let mounts = observed.mounts();
        let Some(entry) = mounts.iter().find(|entry| observed.is_filesystem(entry)) else {
            return Ok(());
        };
        if sends_discards(entry) == sends {
            return Ok(());
        }
        let option = match (sends, entry.fstype.as_str()) {
            (true, _) => ("discard", None),
            // What it does unless told otherwise.
            (false, "btrfs") => ("discard", Some("async")),
            (false, _) => ("nodiscard", None),
        };
        let at = CheckedPath::resolve(&super::show(&entry.path))?;
        let changed = reconfigure(&at.open()?, option);
        let after = self.observe(pool, &record.id)?;
        let has = after.mounts().into_iter().find(|entry| after.is_filesystem(entry));
        if has.is_none_or(|entry| sends_discards(entry) == sends) {
            return Ok(());
        }
        let why = changed.err().map(|error| format!(" ({error})")).unwrap_or_default();
        Err(later(record, &format!("a mounted {} cannot be told{why}", entry.fstype)))
    }

    /// Has other nodes of this machine, which may have the volume staged, do the same. What a node of
    /// another machine has staged changes when it is staged there next.
    pub(crate) fn tune_elsewhere(&self, pool: &Pool, record: &Record) -> Result<(), Refusal> {
        let here = &self.config.node_id;
        for other in record.attachments.iter().filter(|one| one.node != *here) {
            if pool.is_staged(&record.id, &other.node)? {
                client::tune(pool, &record.id, &other.node)?;
            }
        }
        Ok(())
    }
}

/// Whether the filesystem sends a discard with each freed block.
fn sends_discards(entry: &Mount) -> bool {
    entry.options.split(',').any(|option| option == "discard")
}

fn later(record: &Record, why: &str) -> Refusal {
    Refusal::Precondition(format!(
        "the new discard setting of volume {} is recorded, but {why}; it takes effect when the pod starts \
         next",
        record.id
    ))
}

/// A pool whose filesystem cannot do it does not fail the call: the data can be used without.
fn log_failure(record: &Record, set: Result<(), LoopError>) {
    if let Err(error) = set {
        tracing::warn!(volume = %record.id, %error, "the volume works without it");
    }
}
