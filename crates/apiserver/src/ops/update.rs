//! Updates and patches: both replace an object by one made from it.

use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;

use super::apply::Track;
use super::create::Origin;
use super::security::Admission;
use super::{
    Core, MAX_ATTEMPTS, Outcome, Target, WriteOptions, Written, check_kind, decode, decode_with,
    judge, write_failed,
};
use crate::error::{ApiResult, Cause, Status};
use crate::field_manager;
use crate::go_errors;
use crate::patch::Patch;
use crate::registry::{Resource, go_values, meta};
use crate::size_limits::{check_memory, check_size, leaves_room, too_deep};
use crate::store::{Expect, MANAGED_FIELDS, Room, SplitObject, Stored, Write, WriteError};

/// Which part of the object a request may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything but the status.
    Main,
    Status,
    /// A namespace's `spec.finalizers`.
    Finalize,
}

impl Part {
    /// The last part of the path.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Finalize => "finalize",
        }
    }
}

/// Where the new object comes from.
pub(crate) enum Source {
    /// The client sent all of it.
    Whole {
        body: Value,
        /// Fields that stood in it twice.
        duplicate_fields: Vec<String>,
    },
    /// The client sent changes.
    Patch(Patch),
}

impl Source {
    /// Whether it can be carried out without a look at the managers.
    fn spares_managers(&self) -> bool {
        match self {
            Self::Whole { .. } => true,
            Self::Patch(Patch::Json(_)) => false,
            Self::Patch(patch) => !patch.touches_metadata(),
        }
    }
}

impl Core {
    /// Replaces an object, or one part of it.
    pub(crate) async fn update(
        &self,
        target: &Target,
        part: Part,
        source: &Source,
        options: WriteOptions<'_>,
    ) -> ApiResult<Outcome> {
        let result = self.try_update(target, part, source, options).await;
        self.visible(&target.key(), result).await
    }

    async fn try_update(
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
            let Some(stored) = self.store.head(&target.key()) else {
                match self.update_new(target, part, source, options).await {
                    Err(status) if status.reason == "AlreadyExists" => continue,
                    other => return other,
                }
            };
            let change = match source.spares_managers() && resource.keeps_managers_apart() {
                // A refusal may show the object, and then it has to be whole.
                true => self
                    .change(target, part, source, options, &stored, true)
                    .or_else(|_| self.change(target, part, source, options, &stored, false))?,
                false => self.change(target, part, source, options, &stored, false)?,
            };
            if let Some(outcome) = self.finish_update(target, stored, change, options).await? {
                return Ok(outcome);
            }
        }
        Err(write_failed(&WriteError::Conflict(target.key())))
    }

    /// Some kinds are created by an update when they are not there.
    async fn update_new(
        &self,
        target: &Target,
        part: Part,
        source: &Source,
        options: WriteOptions<'_>,
    ) -> ApiResult<Outcome> {
        let resource = &target.resource;
        let Source::Whole { body, duplicate_fields } = source else {
            return Err(target.not_found());
        };
        if part != Part::Main || !resource.traits.create_on_update {
            return Err(target.not_found());
        }
        if let Some(uid) = body["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
            let (namespace, name) = (&target.namespace, &target.name);
            return Err(Status::other_uid(resource, namespace, name, uid, ""));
        }
        let mut body = body.clone();
        copy_field(&mut body["metadata"], &Value::Null, "resourceVersion");
        let made = self.create_as(target, body, duplicate_fields, options, Origin::Update).await?;
        Ok(Outcome { created: true, ..made })
    }

    /// The object as it is to be; with its managers as text if they are kept apart.
    fn change(
        &self,
        target: &Target,
        part: Part,
        source: &Source,
        options: WriteOptions<'_>,
        stored: &Stored,
        apart: bool,
    ) -> ApiResult<Changed> {
        let resource = &target.resource;
        let (old, managers) = if apart {
            let SplitObject { object, managers } = stored.split_managed_fields();
            (object, managers)
        } else {
            (resource.to_version(stored.value()), None)
        };
        let spare = apart.then_some(part);
        let (sent, mut warnings) = make(resource, &old, source, options, spare)?;
        check_identity(target, &sent, &old, source)?;
        if let Some(author) = options.author {
            author.check_grant(target, &sent, Some(&old))?;
        }
        check_version(target, &sent, stored, resource.traits.unconditional_update)?;
        let track = match apart {
            true => Track::Apart(options.manager, managers.as_deref()),
            false => Track::Write(options.manager),
        };
        let (new, next) = self.merge(resource, part, sent, &old, track)?;
        warnings.extend(resource.strategy.warnings(&new));
        let before = apart.then_some(SplitObject { object: old, managers });
        Ok(Changed { part, new, managers: next, before, warnings })
    }

    /// Stores a changed object; `None` when another client was faster.
    pub(super) async fn finish_update(
        &self,
        target: &Target,
        stored: Arc<Stored>,
        change: Changed,
        options: WriteOptions<'_>,
    ) -> ApiResult<Option<Outcome>> {
        let unchanged = change.is_as_before();
        let Changed { part, new, managers, mut warnings, before: _ } = change;
        if !unchanged && part == Part::Main {
            warnings.extend(self.admit_security(&Admission {
                resource: &target.resource,
                namespace: &target.namespace,
                name: &target.name,
                new: &new,
                old: Some(&stored),
            })?);
        }
        let new = target.resource.to_storage(new);
        check_memory(&new, &target.resource.kind)?;
        let (new, managers) = settle(new, managers)?;
        if unchanged || (managers.is_none() && new == stored.value()) {
            // What is returned may be another client's write that is not on disk yet.
            self.store.settled(&target.key()).await;
            return Ok(Some(Outcome::of(Written::Stored(stored), warnings)));
        }
        if options.dry_run {
            return Ok(Some(Outcome::of(Written::Dry(whole(new, managers)?), warnings)));
        }
        let (key, expect) = (target.key(), Expect::Revision(stored.revision));
        if is_finished(&new) {
            // Watchers see a removed object as it last was; the client sees what it made.
            let object = stored.value();
            let (guards, room) = (Vec::new(), Room::Reserve);
            let write = Write { key, expect, delete: true, object, managers: None, guards, room };
            return match self.write(write).await {
                Ok(_) => {
                    let written = Written::Dry(whole(new, managers)?);
                    Ok(Some(Outcome::of(written, warnings)))
                }
                Err(WriteError::Conflict(_)) => Ok(None),
                Err(failed) => Err(write_failed(&failed)),
            };
        }
        let room = options.room(&target.resource.storage, part);
        let guards = Vec::new();
        let mut write = Write { key, expect, delete: false, object: new, managers, guards, room };
        match self.write_kept(&mut write).await {
            Ok(stored) => Ok(Some(Outcome::stored(stored, write, warnings))),
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
    ) -> ApiResult<(Value, Option<String>)> {
        let asked = sent["metadata"]["managedFields"].clone();
        let managed =
            |new: &Value| self.next_managers(resource, part, &asked, old, new, track.clone());
        let cx = self.context();
        let strategy = &resource.strategy;
        match part {
            Part::Main => {
                let mut new = sent;
                meta::restore(&mut new, old);
                if resource.traits.status {
                    copy_field(&mut new, old, "status");
                }
                let managed = managed(&new);
                strategy.prepare_update(&mut new, old, &cx);
                let managers = managed.put_into(&mut new);
                meta::count_generation(&mut new, old, resource);
                let mut causes = meta::validate_update(&new, old);
                field_manager::validate_entries(&mut causes, &asked);
                causes.extend(strategy.validate_update(&new, old));
                judge(resource, &new, causes)?;
                strategy.admit_update(&new, old, &cx)?;
                Ok((new, managers))
            }
            Part::Status => {
                let mut new = old.clone();
                copy_field(&mut new, &sent, "status");
                if resource.traits.status_metadata {
                    for field in ["labels", "annotations", "finalizers"] {
                        copy_field(&mut new["metadata"], &sent["metadata"], field);
                    }
                }
                let managed = managed(&new);
                strategy.prepare_status(&mut new, old, &cx);
                let managers = managed.put_into(&mut new);
                let mut causes = meta::validate_update(&new, old);
                causes.extend(strategy.validate_status(&new, old));
                judge(resource, &new, causes)?;
                Ok((new, managers))
            }
            Part::Finalize => {
                let mut new = old.clone();
                copy_field(&mut new["spec"], &sent["spec"], "finalizers");
                let managed = managed(&new);
                let managers = managed.put_into(&mut new);
                Ok((new, managers))
            }
        }
    }
}

/// A change on its way to the store.
pub(super) struct Changed {
    /// What of the object the request may change.
    pub(super) part: Part,
    pub(super) new: Value,
    /// The text of its managers, if they are not in it.
    pub(super) managers: Option<String>,
    /// What was there, if its managers were kept apart.
    pub(super) before: Option<SplitObject>,
    pub(super) warnings: Vec<String>,
}

impl Changed {
    /// Whether nothing is changed; false if that takes a closer look.
    fn is_as_before(&self) -> bool {
        let Some(before) = &self.before else { return false };
        let managers = before.managers.as_deref().map(RawValue::get);
        managers == self.managers.as_deref() && before.object == self.new
    }
}

/// Checks how large an object is. Managers that could make it too large go into it first.
pub(super) fn settle(
    object: Value,
    managers: Option<String>,
) -> ApiResult<(Value, Option<String>)> {
    if managers.as_deref().is_some_and(|managers| leaves_room(&object, managers)) {
        return Ok((object, managers));
    }
    let object = whole(object, managers)?;
    check_size(&object)?;
    Ok((object, None))
}

/// The object with its managers in it.
pub(super) fn whole(mut object: Value, managers: Option<String>) -> ApiResult<Value> {
    if let Some(text) = managers {
        // Only what is nested too deep cannot be read.
        object["metadata"][MANAGED_FIELDS] = serde_json::from_str(&text).map_err(|_| too_deep())?;
    }
    Ok(object)
}

pub(crate) fn copy_field(to: &mut Value, from: &Value, field: &str) {
    match from.get(field).filter(|value| !value.is_null()) {
        Some(value) => to[field] = value.clone(),
        None => {
            if let Some(map) = to.as_object_mut() {
                map.remove(field);
            }
        }
    }
}

/// The object as the client wants it. `spare`: fields that are as they were need no second look, and are
/// left out where that part of the object is not made from them.
fn make(
    resource: &Resource,
    old: &Value,
    source: &Source,
    options: WriteOptions<'_>,
    spare: Option<Part>,
) -> ApiResult<(Value, Vec<String>)> {
    match (source, spare) {
        (Source::Whole { body, duplicate_fields }, Some(part)) => {
            decode_changed(resource, part, body, old, duplicate_fields, options)
        }
        (Source::Whole { body, duplicate_fields }, None) => {
            decode(resource, body.clone(), duplicate_fields, options)
        }
        (Source::Patch(patch), spare) => {
            let mut typed = old.clone();
            typed["kind"] = resource.kind.clone().into();
            typed["apiVersion"] = resource.api_version().into();
            if let Some(part) = spare {
                return decode_changed(resource, part, &patch.apply(typed)?, old, &[], options);
            }
            let patched = patch.apply(typed.clone())?;
            decode(resource, patched, &[], options)
                .map_err(|status| as_patch_error(status, resource, patch, typed))
        }
    }
}

/// Decodes the fields of an object (`spec`, `status`, …) that differ from what is stored. The others were
/// decoded when they were stored.
fn decode_changed(
    resource: &Resource,
    part: Part,
    object: &Value,
    old: &Value,
    duplicate_fields: &[String],
    options: WriteOptions<'_>,
) -> ApiResult<(Value, Vec<String>)> {
    let parts = object.as_object().into_iter().flatten();
    let (kept, changed): (Vec<_>, Vec<_>) =
        parts.partition(|(name, part)| old.get(*name) == Some(part));
    // The rest comes from what is stored anyway.
    let counts = |name: &str| match part {
        Part::Main => name != "status" || !resource.traits.status,
        Part::Status => matches!(name, "metadata" | "status"),
        Part::Finalize => true,
    };
    let kept = kept.into_iter().filter(|(name, _)| counts(name.as_str()));
    let copies = |(name, part): (&String, &Value)| (name.clone(), part.clone());
    let changed = Value::Object(changed.into_iter().map(copies).collect());
    decode_with(resource, changed, duplicate_fields, options, |decoded| {
        if let Value::Object(decoded) = decoded {
            decoded.extend(kept.map(copies));
        }
    })
}

/// A patch whose result is no object of the kind is invalid, not undecodable.
fn as_patch_error(status: Status, resource: &Resource, patch: &Patch, object: Value) -> Status {
    let handled = status.message.split_once(" cannot be handled as a ");
    let Some((_, why)) = handled.and_then(|(_, rest)| rest.split_once(": ")) else {
        return status;
    };
    let shown = match (patch, patch.apply(object)) {
        (Patch::Strategic(sent), _) => go_errors::map_text(sent),
        (_, Ok(patched)) => {
            let ordered = resource.custom.is_none() && !patch.touches_metadata();
            go_values::object(&patched, ordered)
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
