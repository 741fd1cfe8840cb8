//! Updates and patches: both replace an object by one made from it.

use std::sync::Arc;

use serde_json::Value;

use super::apply::Track;
use super::{
    Core, MAX_ATTEMPTS, Outcome, Target, WriteOptions, Written, check_kind, decode, judge,
    write_failed,
};
use crate::error::{ApiResult, Cause, Status};
use crate::extent::check_extent;
use crate::patch::Patch;
use crate::registry::{Resource, meta, shown};
use crate::store::{Expect, Stored, Write, WriteError};
use crate::words;

/// Which part of the object a request may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything but the status.
    Main,
    /// The status.
    Status,
    /// A namespace's `spec.finalizers`.
    Finalize,
}

impl Part {
    /// The last part of the path.
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Finalize => "finalize",
        }
    }
}

/// Where the new object comes from.
pub enum Source {
    /// The client sent all of it.
    Whole {
        /// The object.
        body: Value,
        /// Fields that stood in it twice.
        doubles: Vec<String>,
    },
    /// The client sent changes.
    Patch(Patch),
}

impl Core {
    /// Replaces an object, or one part of it.
    ///
    /// # Errors
    /// The refusal.
    pub async fn update(
        &self,
        target: &Target,
        part: Part,
        source: &Source,
        options: WriteOptions<'_>,
    ) -> ApiResult<Outcome> {
        let resource = &target.resource;
        if let Source::Whole { body, .. } = source {
            check_kind(resource, body)?;
            check_name(target, &body["metadata"])?;
        }
        for _ in 0..MAX_ATTEMPTS {
            let stored = self.store.head(&target.key()).ok_or_else(|| target.not_found())?;
            let old = resource.show(stored.value());
            let (sent, mut warnings) = make(resource, &old, source, options)?;
            check_identity(target, &sent, &old, source)?;
            check_version(target, &sent, &stored, resource.traits().unconditional_update)?;
            let track = Track::Write(options.manager);
            let new = self.merge(resource, part, sent, &old, track)?;
            warnings.extend(resource.strategy.warnings(&new));
            if let Some(outcome) =
                self.finish_update(target, stored, new, warnings, options).await?
            {
                return Ok(outcome);
            }
        }
        Err(write_failed(&WriteError::Conflict(target.key())))
    }

    /// Stores a changed object; `None` when somebody else was faster.
    pub(super) async fn finish_update(
        &self,
        target: &Target,
        stored: Arc<Stored>,
        new: Value,
        warnings: Vec<String>,
        options: WriteOptions<'_>,
    ) -> ApiResult<Option<Outcome>> {
        let new = target.resource.unshow(new);
        check_extent(&new)?;
        if new == stored.value() {
            return Ok(Some(Outcome { written: Written::Stored(stored), warnings }));
        }
        if options.dry_run {
            return Ok(Some(Outcome { written: Written::Dry(new), warnings }));
        }
        let delete = is_finished(&new);
        let write = Write {
            key: target.key(),
            expect: Expect::Revision(stored.revision),
            delete,
            // Watchers see a removed object as it last was; the client sees what it made.
            object: if delete { stored.value() } else { new.clone() },
            guards: Vec::new(),
        };
        match self.write(write).await {
            Ok(_) if delete => Ok(Some(Outcome { written: Written::Dry(new), warnings })),
            Ok(stored) => Ok(Some(Outcome { written: Written::Stored(stored), warnings })),
            // Look again: a stale version given by the client is found there.
            Err(WriteError::Conflict(_)) => Ok(None),
            Err(failed) => Err(write_failed(&failed)),
        }
    }

    /// Brings what was sent and what was there together, and judges the result.
    pub(super) fn merge(
        &self,
        resource: &Resource,
        part: Part,
        sent: Value,
        old: &Value,
        track: Track<'_>,
    ) -> ApiResult<Value> {
        let asked = sent["metadata"]["managedFields"].clone();
        let managed =
            |new: &Value| self.next_managers(resource, part, &asked, old, new, track.clone());
        let cx = self.context();
        let strategy = &resource.strategy;
        match part {
            Part::Main => {
                let mut new = sent;
                meta::restore(&mut new, old);
                if resource.traits().status {
                    copy_field(&mut new, old, "status");
                }
                let managed = managed(&new);
                strategy.prepare_update(&mut new, old, &cx);
                set_managers(&mut new, managed);
                meta::count_generation(&mut new, old, resource);
                let mut causes = meta::validate_update(&new, old);
                causes.extend(strategy.validate_update(&new, old));
                judge(resource, &new, causes)?;
                strategy.admit_update(&new, old, &cx)?;
                Ok(new)
            }
            Part::Status => {
                let mut new = old.clone();
                copy_field(&mut new, &sent, "status");
                if resource.traits().status_metadata {
                    for field in ["labels", "annotations", "finalizers"] {
                        copy_field(&mut new["metadata"], &sent["metadata"], field);
                    }
                }
                let managed = managed(&new);
                strategy.prepare_status(&mut new, old, &cx);
                set_managers(&mut new, managed);
                let mut causes = meta::validate_update(&new, old);
                causes.extend(strategy.validate_status(&new, old));
                judge(resource, &new, causes)?;
                Ok(new)
            }
            Part::Finalize => {
                let mut new = old.clone();
                copy_field(&mut new["spec"], &sent["spec"], "finalizers");
                let managed = managed(&new);
                set_managers(&mut new, managed);
                Ok(new)
            }
        }
    }
}

pub(super) fn set_managers(object: &mut Value, managed: Value) {
    if managed.as_array().is_some_and(|list| !list.is_empty()) {
        object["metadata"]["managedFields"] = managed;
    } else if let Some(meta) = object["metadata"].as_object_mut() {
        meta.remove("managedFields");
    }
}

pub(super) fn copy_field(to: &mut Value, from: &Value, field: &str) {
    match from.get(field).filter(|value| !value.is_null()) {
        Some(value) => to[field] = value.clone(),
        None => {
            if let Some(map) = to.as_object_mut() {
                map.remove(field);
            }
        }
    }
}

/// The object as the client wants it.
fn make(
    resource: &Resource,
    old: &Value,
    source: &Source,
    options: WriteOptions<'_>,
) -> ApiResult<(Value, Vec<String>)> {
    match source {
        Source::Whole { body, doubles } => decode(resource, body.clone(), doubles, options),
        Source::Patch(patch) => {
            let mut typed = old.clone();
            typed["kind"] = resource.kind.clone().into();
            typed["apiVersion"] = resource.api_version().into();
            let patched = patch.apply(typed.clone())?;
            decode(resource, patched, &[], options)
                .map_err(|status| as_patch_error(status, resource, patch, typed))
        }
    }
}

/// A patch whose result is no object of the kind is invalid, not undecodable.
fn as_patch_error(status: Status, resource: &Resource, patch: &Patch, object: Value) -> Status {
    let handled = status.message.split_once(" cannot be handled as a ");
    let Some((_, why)) = handled.and_then(|(_, rest)| rest.split_once(": ")) else {
        return status;
    };
    let shown = match (patch, patch.apply(object)) {
        (Patch::Strategic(sent), _) => words::map_text(sent),
        (_, Ok(patched)) => {
            let ordered = resource.custom.is_none() && !patch.touches_metadata();
            shown::object(&patched, ordered)
        }
        (_, Err(_)) => String::new(),
    };
    let cause = Cause::invalid_whole("patch", &shown, why);
    Status::invalid_kind("", "", "", vec![cause])
}

/// Name, namespace and uid must be those of the object.
pub(super) fn check_identity(
    target: &Target,
    sent: &Value,
    old: &Value,
    source: &Source,
) -> ApiResult<()> {
    let text = |field: &str| sent["metadata"][field].as_str().unwrap_or_default();
    check_name(target, &sent["metadata"])?;
    let is = old["metadata"]["uid"].as_str().unwrap_or_default();
    let uid = text("uid");
    if !uid.is_empty() && uid != is {
        return Err(match source {
            Source::Whole { .. } => {
                Status::other_uid(&target.resource, &target.namespace, &target.name, uid, is)
            }
            Source::Patch(_) => immutable(target, "metadata.uid", &uid.into()),
        });
    }
    let deleted = &sent["metadata"]["deletionTimestamp"];
    if !deleted.is_null() && *deleted != old["metadata"]["deletionTimestamp"] {
        return Err(immutable(target, "metadata.deletionTimestamp", deleted));
    }
    Ok(())
}

pub(super) fn check_name(target: &Target, meta: &Value) -> ApiResult<()> {
    let name = meta["name"].as_str().unwrap_or_default();
    if name != target.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        )));
    }
    let namespace = meta["namespace"].as_str().unwrap_or_default();
    if !namespace.is_empty() && namespace != target.namespace {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

fn immutable(target: &Target, field: &str, value: &Value) -> Status {
    let causes = vec![Cause::invalid(field, value, "field is immutable")];
    Status::invalid(&target.resource, &target.name, causes)
}

pub(super) fn check_version(
    target: &Target,
    sent: &Value,
    stored: &Stored,
    unconditional: bool,
) -> ApiResult<()> {
    let field = "metadata.resourceVersion";
    let version = sent["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    if version.is_empty() {
        if unconditional {
            return Ok(());
        }
        let cause = Cause::invalid(field, &0.into(), "must be specified for an update");
        let (group, plural) = (&target.resource.group, &target.resource.plural);
        return Err(Status::invalid_kind(group, plural, &target.name, vec![cause]));
    }
    match version.parse::<u64>() {
        Err(_) => {
            let cause = Cause::invalid(field, &version.into(), "must be a number");
            Err(Status::invalid(&target.resource, &target.name, vec![cause]))
        }
        Ok(version) if version != stored.revision => {
            Err(Status::modified(&target.resource, &target.name))
        }
        Ok(_) => Ok(()),
    }
}

/// Whether nothing holds a deleted object back any more.
pub(super) fn is_finished(object: &Value) -> bool {
    let meta = &object["metadata"];
    let empty = |list: &Value| list.as_array().is_none_or(Vec::is_empty);
    !meta["deletionTimestamp"].is_null()
        && empty(&meta["finalizers"])
        && empty(&object["spec"]["finalizers"])
        && meta["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
}
