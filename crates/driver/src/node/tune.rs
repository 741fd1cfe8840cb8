//! Mutable parameters, put into effect.

use std::fs::File;

use crate::config::FsType;
use crate::driver::Inner;
use crate::format;
use crate::loopdev::{self, LoopDevice, LoopError};
use crate::mutable::Mutable;
use crate::pool::Pool;
use crate::pool::record::Record;
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
    pub(crate) fn tune_staged(&self, pool: &Pool, record: &Record) -> Result<(), Refusal> {
        if !self.config.mode.node() {
            return Ok(());
        }
        let observed = self.observe(pool, &record.id)?;
        let Some(device) = observed.device else { return Ok(()) };
        self.tune_device(device, record)?;
        let mounted = observed.mounts().iter().any(|entry| entry.fstype == FsType::Ext4.as_str());
        match self.mutable(record)?.reserved_percent {
            Some(percent) if mounted && !device.read_only => {
                Ok(format::reserve_blocks_mounted(&device.path(), percent)?)
            }
            _ => Ok(()),
        }
    }
}

/// A pool whose filesystem cannot do it does not fail the call: the data can be used without.
fn log_failure(record: &Record, set: Result<(), LoopError>) {
    if let Err(error) = set {
        tracing::warn!(volume = %record.id, %error, "the volume works without it");
    }
}
