//! CreateVolume and GetCapacity.

use std::collections::BTreeMap;

use jiff::Timestamp;
use longshore_core::words;
use longshore_csi::v1::{
    CreateVolumeRequest, CreateVolumeResponse, GetCapacityRequest, GetCapacityResponse, Volume,
};

use super::size::Range;
use super::source::{self, Origin};
use super::topology;
use crate::access::{Access, AccessKind};
use crate::config::FsType;
use crate::driver::Inner;
use crate::format::{self, FormatError, FormatOptions};
use crate::mutable::Mutable;
use crate::pool::Pool;
use crate::pool::record::{Content, OVERCOMMIT, PROVISIONING, Record, Source, VERSION};
use crate::refusal::{Refusal, required_short};

/// Chooses the pool.
const POOL: &str = "pool";
/// Kubernetes' name for the filesystem; usually taken out by the provisioner and passed in the
/// capability instead.
const FSTYPE: &str = "csi.storage.k8s.io/fstype";
/// Names of the claim, which the provisioner adds on request. They say nothing about the volume.
const CLAIM_NAMES: [&str; 3] = [
    "csi.storage.k8s.io/pv/name",
    "csi.storage.k8s.io/pvc/name",
    "csi.storage.k8s.io/pvc/namespace",
];
/// Words of the disks of a cloud that classes of common tutorials carry along. Here they mean nothing
/// and do no harm; anything else that is not known may be a slip of the pen and is refused.
const PASSED_OVER: [&str; 4] = ["type", "zone", "zones", "replication-type"];

/// A checked request.
struct Wanted<'a> {
    pool: &'a Pool,
    range: Range,
    fstype: Option<FsType>,
    format: FormatOptions,
    block: bool,
    source: Option<Source>,
}

impl Wanted<'_> {
    /// Size of the new volume; a copy is at least as large as its source.
    fn size(&self, minimum_bytes: u64, origin: Option<&Origin<'_>>) -> Result<u64, Refusal> {
        let Some(origin) = origin else { return self.range.choose(minimum_bytes) };
        let least = origin.size_bytes();
        let mut range = self.range;
        if range.required_bytes == 0 {
            range.required_bytes = least;
        }
        let size = range.choose(minimum_bytes)?;
        if size < least {
            return Err(Refusal::OutOfRange(format!(
                "{} is too small for a copy of {}, which has {}",
                words::size(size),
                origin.label(),
                words::size(least)
            )));
        }
        Ok(size)
    }

    fn check_origin(&self, origin: &Origin<'_>) -> Result<(), Refusal> {
        if self.pool.name() != origin.pool().name() {
            return Err(Refusal::Invalid(format!(
                "volume_content_source {} is in pool {}, and copies are made in the same pool, \
                 not in {}",
                origin.label(),
                origin.pool().name(),
                self.pool.name()
            )));
        }
        origin.check_use(self.fstype, self.block)
    }
}

impl Inner {
    /// Makes a volume, or finds the one that an earlier identical call made.
    pub(crate) fn create_volume(
        &self,
        request: &CreateVolumeRequest,
    ) -> Result<CreateVolumeResponse, Refusal> {
        check_name(&request.name)?;
        // Mistakes in the request come before anything that needs a read of the pools.
        Access::parse_all(&request.volume_capabilities, self.config.kind)?;
        let id = self.id_for(&request.name);
        if let Some((pool, record)) = self.find(&id)? {
            let like = record.source.is_some().then_some((pool, record.fstype));
            let wanted = self.check_create(request, like)?;
            check_same(&record, pool, &wanted, &request.name)?;
            return Ok(self.created(pool, &record));
        }
        let origin = self.origin(request.volume_content_source.as_ref())?;
        let like = origin.as_ref().map(|origin| (origin.pool(), origin.fstype()));
        let wanted = self.check_create(request, like)?;
        let minimum_bytes = wanted.fstype.map_or(1, |fstype| wanted.format.minimum_bytes(fstype));
        let thick = request.parameters.get(PROVISIONING).is_some_and(|how| how == "thick");
        // A thick volume gets its filesystem now: later it would need its room twice.
        let formatted = (thick && !wanted.block && origin.is_none()).then_some(wanted.fstype);
        let formatted = formatted.flatten();
        let blank = if formatted.is_some() { Content::Filesystem } else { Content::Blank };
        let mut mutable_parameters = request.mutable_parameters.clone();
        mutable_parameters.retain(|_, value| !value.is_empty());
        let mut record = Record {
            version: VERSION,
            id,
            name: request.name.clone(),
            capacity_bytes: wanted.size(minimum_bytes, origin.as_ref())?,
            fstype: wanted.fstype,
            block: wanted.block,
            ephemeral: false,
            parameters: request.parameters.clone(),
            mutable_parameters,
            content: origin.as_ref().map_or(blank, Origin::content),
            source: origin.as_ref().map(Origin::source),
            shares: false,
            attachments: vec![],
            created: Timestamp::now(),
        };
        let bytes = record.capacity_bytes;
        match (&origin, formatted) {
            (None, None) => wanted.pool.create(&record)?,
            (None, Some(fstype)) => wanted.pool.create_from(&mut record, |image| {
                image.set_len(bytes).map_err(FormatError::Probe)?;
                format::make(image, fstype, &wanted.format)?;
                Ok::<_, Refusal>(None)
            })?,
            (Some(origin), _) => {
                wanted.check_origin(origin)?;
                wanted.pool.create_from(&mut record, |image| self.fill(origin, image, !thick))?;
            }
        }
        Ok(self.created(wanted.pool, &record))
    }

    /// `like` is where a copy's source is and what it holds, which count unless the request says
    /// otherwise.
    fn check_create<'a>(
        &'a self,
        request: &CreateVolumeRequest,
        like: Option<(&'a Pool, Option<FsType>)>,
    ) -> Result<Wanted<'a>, Refusal> {
        let accesses = Access::parse_all(&request.volume_capabilities, self.config.kind)?;
        let (pool, from_class) = self.check_parameters(&request.parameters)?;
        topology::check(
            &self.config,
            request.accessibility_requirements.as_ref(),
            topology::Made::Volume,
        )?;
        let default_pool = like.map(|(pool, _)| pool);
        let default_fstype = from_class.or(like.and_then(|(_, fstype)| fstype));
        let default_fstype = default_fstype.unwrap_or(self.config.default_fstype);
        let fstype = one_fstype(&accesses, default_fstype)?;
        Mutable::parse(&request.mutable_parameters, fstype)?;
        Ok(Wanted {
            pool: default_pool.filter(|_| !request.parameters.contains_key(POOL)).unwrap_or(pool),
            range: Range::parse(request.capacity_range.as_ref())?,
            block: accesses.iter().any(Access::is_block),
            format: FormatOptions::parse(&request.parameters, fstype)?,
            fstype,
            source: source::named(request.volume_content_source.as_ref()),
        })
    }

    /// The pool and the filesystem that parameters name. Unknown ones are refused: a misspelt
    /// parameter must not silently mean something else. The refusal says what there is.
    fn check_parameters(
        &self,
        parameters: &BTreeMap<String, String>,
    ) -> Result<(&Pool, Option<FsType>), Refusal> {
        let mut pool = &self.pools[0];
        let mut fstype = None;
        for (key, value) in parameters {
            match key.as_str() {
                POOL => {
                    let named = self.pools.iter().find(|pool| pool.name() == value);
                    let names: Vec<&str> = self.pools.iter().map(Pool::name).collect();
                    pool = named.ok_or_else(|| {
                        let names = names.join(", ");
                        Refusal::Invalid(format!(
                            "parameter {POOL}: there is no pool {value:?}; choose from: {names}"
                        ))
                    })?;
                }
                key if key == FSTYPE || key.eq_ignore_ascii_case("fstype") => {
                    let parsed = value.parse();
                    fstype = Some(
                        parsed.map_err(|e| Refusal::Invalid(format!("parameter {key}: {e}")))?,
                    );
                }
                OVERCOMMIT => drop(overcommit(parameters)?),
                PROVISIONING if ["thin", "thick"].contains(&value.as_str()) => {}
                PROVISIONING => {
                    let text = format!("parameter {PROVISIONING}: {value:?} is not thin or thick");
                    return Err(Refusal::Invalid(text));
                }
                key if CLAIM_NAMES.contains(&key) || FormatOptions::knows(key) => {}
                key if PASSED_OVER.contains(&key) => {}
                key => return Err(unknown(key)),
            }
        }
        Ok((pool, fstype))
    }

    fn created(&self, pool: &Pool, record: &Record) -> CreateVolumeResponse {
        CreateVolumeResponse { volume: Some(self.describe(pool, record)) }
    }

    /// A volume as callers see it.
    pub(crate) fn describe(&self, pool: &Pool, record: &Record) -> Volume {
        Volume {
            capacity_bytes: record.capacity_bytes.cast_signed(),
            volume_id: record.id.to_string(),
            volume_context: [(POOL.to_owned(), pool.name().to_owned())].into(),
            content_source: record.source.as_ref().map(source::describe),
            accessible_topology: topology::here(&self.config).into_iter().collect(),
        }
    }

    /// Bytes that volumes of a class may still have here; zero elsewhere, and for access that is
    /// never given.
    pub(crate) fn get_capacity(
        &self,
        request: &GetCapacityRequest,
    ) -> Result<GetCapacityResponse, Refusal> {
        let elsewhere = request.accessible_topology.as_ref().is_some_and(|topology| {
            topology::here(&self.config).is_some()
                && !topology::includes_here(&self.config, topology)
        });
        let unsupported = !request.volume_capabilities.is_empty()
            && Access::parse_all(&request.volume_capabilities, self.config.kind).is_err();
        if elsewhere || unsupported {
            return Ok(GetCapacityResponse {
                available_capacity: 0,
                maximum_volume_size: Some(0),
                minimum_volume_size: None,
            });
        }
        // A class comes with parameters that are not for us, and perhaps with wrong ones. Those are
        // for CreateVolume to refuse: without a response here no provisioner would ever call it,
        // and the user would read of too little room instead.
        let named = request.parameters.get(POOL);
        let pool = self.pools.iter().find(|pool| Some(pool.name()) == named.map(String::as_str));
        let ratio = overcommit(&request.parameters).unwrap_or(1.0);
        let bytes = pool.unwrap_or(&self.pools[0]).allocatable_bytes(ratio)?;
        Ok(GetCapacityResponse {
            available_capacity: bytes.cast_signed(),
            maximum_volume_size: Some(bytes.cast_signed()),
            minimum_volume_size: None,
        })
    }
}

fn unknown(key: &str) -> Refusal {
    let known = [FSTYPE, POOL, PROVISIONING, OVERCOMMIT].into_iter().chain(FormatOptions::names());
    let known: Vec<&str> = known.collect();
    Refusal::Invalid(format!(
        "parameter {key:?} is not known; remove it from the class, or use one of: {}",
        known.join(", ")
    ))
}

/// How often a class lets free space be promised.
fn overcommit(parameters: &BTreeMap<String, String>) -> Result<f64, Refusal> {
    let Some(text) = parameters.get(OVERCOMMIT) else { return Ok(1.0) };
    match text.parse::<f64>() {
        Ok(ratio) if ratio.is_finite() && (1.0..=1000.0).contains(&ratio) => Ok(ratio),
        _ => Err(Refusal::Invalid(format!(
            "parameter {OVERCOMMIT}: {text:?} is not a number from 1 to 1000"
        ))),
    }
}

/// A volume has one filesystem, so all capabilities must agree on it.
fn one_fstype(accesses: &[Access], default: FsType) -> Result<Option<FsType>, Refusal> {
    let mut chosen = None;
    for access in accesses {
        let AccessKind::Mount { fstype, .. } = &access.kind else { continue };
        let fstype = fstype.unwrap_or(default);
        if chosen.is_some_and(|chosen| chosen != fstype) {
            let text = "volume_capabilities ask for different filesystems";
            return Err(Refusal::Invalid(text.to_owned()));
        }
        chosen = Some(fstype);
    }
    Ok(chosen)
}

pub(crate) fn check_name(name: &str) -> Result<(), Refusal> {
    let banned = |c: char| matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{7f}'..='\u{9f}');
    if required_short("name", name)?.contains(banned) {
        return Err(Refusal::Invalid("name contains a control character".to_owned()));
    }
    Ok(())
}

fn check_same(
    record: &Record,
    pool: &Pool,
    wanted: &Wanted<'_>,
    name: &str,
) -> Result<(), Refusal> {
    let differs = if record.name != name {
        "belongs to another volume"
    } else if !wanted.range.admits(record.capacity_bytes) {
        "exists with another size"
    } else if record.source != wanted.source {
        "exists with another source"
    } else if pool.name() != wanted.pool.name() {
        "exists in another pool"
    } else if (record.fstype, record.block) != (wanted.fstype, wanted.block) {
        "exists for another filesystem or kind of access"
    } else if FormatOptions::parse(&record.parameters, record.fstype).as_ref() != Ok(&wanted.format)
    {
        "exists with other format options"
    } else {
        return Ok(());
    };
    Err(Refusal::Exists(format!(
        "volume name {name:?} {differs} (size {}, pool {})",
        words::size(record.capacity_bytes),
        pool.name()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for name in ["pvc-1", "ü", "a\tb", "a/b", "..", &"x".repeat(128)] {
            check_name(name).expect(name);
        }
        for name in ["", "a\0b", "a\u{7f}", "a\u{1b}[0m", "a\u{85}", &"x".repeat(129)] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
