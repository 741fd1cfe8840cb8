//! Server-side apply, and who manages which fields after any write.

use std::sync::Arc;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::create::Origin;
use super::update::{Changed, Part, Source, check_identity, check_name, check_version, copy_field};
use super::{Core, MAX_ATTEMPTS, Outcome, Target, WriteOptions, check_kind, decode, write_failed};
use crate::apply::{
    Changes, FieldSet, Managers, Shape, Writer, compare, conflict, merge, named, remove, strip,
};
use crate::error::{ApiResult, Status};
use crate::patch::Patch;
use crate::registry::{Resource, codec};
use crate::store::{MANAGED_FIELDS, Stored, WriteError};

/// The manager that `kubectl apply --server-side` names itself.
const KUBECTL: &str = "kubectl";
/// Where `kubectl apply` keeps what it applied last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// How the managers of a changed object are found.
#[derive(Clone)]
pub(super) enum Track<'a> {
    /// A plain write by this manager.
    Write(&'a str),
    /// The same on an object whose managers are kept apart as text.
    Apart(&'a str, Option<&'a RawValue>),
    /// They are known already.
    Done(Value),
}

/// The managers of an object that is to be stored.
#[derive(Clone)]
pub(super) enum Managed {
    /// They go into the object.
    Tree(Value),
    /// They stay apart.
    Text(String),
}

impl Managed {
    /// The list without managers.
    const NO_MANAGERS: &str = "[]";

    fn none(apart: bool) -> Self {
        if apart { Self::Text(Self::NO_MANAGERS.to_owned()) } else { Self::Tree(json!([])) }
    }

    fn of(managers: &Managers, apart: bool) -> Self {
        if apart { Self::Text(managers.to_text()) } else { Self::Tree(managers.to_value()) }
    }

    /// Puts them into the object, or returns them if they stay apart.
    pub(super) fn put_into(self, object: &mut Value) -> Option<String> {
        match self {
            Self::Tree(list) if list.as_array().is_some_and(|list| !list.is_empty()) => {
                object["metadata"][MANAGED_FIELDS] = list;
                None
            }
            Self::Tree(_) => {
                take_managers(object);
                None
            }
            Self::Text(text) => {
                take_managers(object);
                Some(text).filter(|text| text != Self::NO_MANAGERS)
            }
        }
    }
}

fn take_managers(object: &mut Value) {
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.remove(MANAGED_FIELDS);
    }
}

impl Core {
    /// Who manages a new object: its maker, for all that was sent.
    pub(super) fn first_managers(
        &self,
        resource: &Resource,
        object: &Value,
        options: WriteOptions<'_>,
        applied: Option<FieldSet>,
    ) -> Managed {
        let traits = resource.traits;
        let mut stripped;
        let object = if traits.status && !traits.status_at_creation && !object["status"].is_null() {
            stripped = object.clone();
            copy_field(&mut stripped, &Value::Null, "status");
            &stripped
        } else {
            object
        };
        let (api_version, now) = (resource.api_version(), self.env.now_text());
        let writer = Writer {
            manager: options.manager,
            apply: applied.is_some(),
            api_version: &api_version,
            subresource: "",
            now: &now,
        };
        let set = applied.unwrap_or_else(|| compare(resource.shape(), &json!({}), object).set);
        Managed::of(&Managers::initial(writer, set), resource.keeps_managers_apart())
    }

    /// Who manages a changed object.
    pub(super) fn next_managers(
        &self,
        resource: &Resource,
        part: Part,
        asked: &Value,
        old: &Value,
        new: &Value,
        track: Track<'_>,
    ) -> Managed {
        let (manager, apart) = match track {
            Track::Done(managers) => return Managed::Tree(managers),
            Track::Write(manager) => (manager, None),
            Track::Apart(manager, text) => (manager, Some(text.map_or("[]", RawValue::get))),
        };
        let known = || match apart {
            Some(text) => Managers::parse_text(text).unwrap_or_default(),
            None => Managers::parse(&old["metadata"][MANAGED_FIELDS]).unwrap_or_default(),
        };
        let apart = apart.is_some();
        let mut managers = match asked.as_array() {
            _ if part != Part::Main => known(),
            // An empty list, or an empty entry, clears it.
            Some(list) if list.iter().all(|e| e.as_object().is_some_and(|e| e.is_empty())) => {
                return Managed::none(apart);
            }
            Some(_) => Managers::parse(asked).unwrap_or_else(known),
            None => known(),
        };
        // The managers of an object that has none yet are first recorded by an apply.
        if managers.is_empty() {
            return Managed::none(apart);
        }
        let (api_version, now) = (resource.api_version(), self.env.now_text());
        let writer = Writer {
            manager,
            apply: false,
            api_version: &api_version,
            subresource: part.name(),
            now: &now,
        };
        let changes = changes(resource.shape(), old, new);
        if !changes.set.is_empty() || !changes.gone.is_empty() {
            managers.note(writer, &changes, None);
        }
        Managed::of(&managers, apart)
    }

    /// Applies a configuration; true when the object is new.
    /// Fails with 409 when others hold fields that would change, unless forced.
    pub(crate) async fn apply(
        &self,
        target: &Target,
        part: Part,
        config: &Value,
        force: bool,
        options: WriteOptions<'_>,
    ) -> ApiResult<(Outcome, bool)> {
        let result = self.try_apply(target, part, config, force, options).await;
        self.visible(&target.key(), result).await
    }

    async fn try_apply(
        &self,
        target: &Target,
        part: Part,
        config: &Value,
        force: bool,
        options: WriteOptions<'_>,
    ) -> ApiResult<(Outcome, bool)> {
        let config = clean(target, part, config)?;
        for _ in 0..MAX_ATTEMPTS {
            let Some(stored) = self.store.head(&target.key()) else {
                if part != Part::Main {
                    return Err(target.not_found());
                }
                match self.apply_new(target, &config, options).await {
                    Err(status) if status.reason == "AlreadyExists" => continue,
                    other => return other.map(|outcome| (outcome, true)),
                }
            };
            let done = self.apply_to(target, part, &config, force, options, stored).await?;
            if let Some(outcome) = done {
                return Ok((outcome, false));
            }
        }
        Err(write_failed(&WriteError::Conflict(target.key())))
    }

    async fn apply_new(
        &self,
        target: &Target,
        config: &Config,
        options: WriteOptions<'_>,
    ) -> ApiResult<Outcome> {
        let resource = &target.resource;
        if let Some(uid) = config.sent["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(Status::conflict(resource, &target.name, &why));
        }
        let mut body = config.sent.clone();
        copy_field(&mut body["metadata"], &Value::Null, "resourceVersion");
        let origin = Origin::Apply(config.fields.clone());
        self.create_as(target, body, &[], options, origin).await
    }

    async fn apply_to(
        &self,
        target: &Target,
        part: Part,
        config: &Config,
        force: bool,
        options: WriteOptions<'_>,
        stored: Arc<Stored>,
    ) -> ApiResult<Option<Outcome>> {
        let resource = &target.resource;
        let old = resource.to_version(stored.value());
        let (mut merged, managers) =
            self.bring_together(resource, part, config, force, options, &old)?;
        for field in ["uid", "resourceVersion"] {
            let sent = &config.sent["metadata"];
            if sent.get(field).is_some() {
                copy_field(&mut merged["metadata"], sent, field);
            }
        }
        merged["kind"] = json!(resource.kind);
        merged["apiVersion"] = json!(resource.api_version());
        let (sent, mut warnings) = decode(resource, merged, &[], options)?;
        check_identity(target, &sent, &old, &Source::Patch(Patch::Merge(Value::Null)))?;
        if let Some(author) = options.author {
            author.check_grant(target, &sent, Some(&old))?;
        }
        check_version(target, &sent, &stored, true)?;
        let (new, managers) = self.merge(resource, part, sent, &old, Track::Done(managers))?;
        warnings.extend(resource.strategy.warnings(&new));
        let change = Changed { part, new, managers, before: None, warnings };
        self.finish_update(target, stored, change, options).await
    }

    /// The object with the configuration in it, and its managers.
    fn bring_together(
        &self,
        resource: &Resource,
        part: Part,
        config: &Config,
        force: bool,
        options: WriteOptions<'_>,
        old: &Value,
    ) -> ApiResult<(Value, Value)> {
        let (api_version, now) = (resource.api_version(), self.env.now_text());
        let shape = resource.shape();
        let mut managers = Managers::parse(&old["metadata"][MANAGED_FIELDS]).unwrap_or_default();
        if managers.is_empty() {
            let mut everything = changes(shape, &json!({}), old).set;
            if resource.traits.status {
                everything.prune(&["f:status"]);
            }
            managers = Managers::before_apply(everything, &api_version, &now);
        }
        let writer = Writer {
            manager: options.manager,
            apply: true,
            api_version: &api_version,
            subresource: part.name(),
            now: &now,
        };
        let mut merged = merge(shape, old, &config.object);
        let mut gone = managers.of(writer);
        let mut keep = config.fields.clone();
        keep.union(&managers.union_of_others(writer));
        gone.subtract(&keep);
        remove(shape, &mut merged, &gone, &keep);
        let changes = changes(shape, old, &merged);
        let mut held = managers.conflicts(writer, &changes.set);
        if !force && !held.is_empty() && options.manager == KUBECTL {
            let own = last_applied(resource, old).unwrap_or_default();
            held.iter_mut().for_each(|(_, set)| set.subtract(&own));
            held.retain(|(_, set)| !set.is_empty());
        }
        if !force && !held.is_empty() {
            return Err(conflict(&held));
        }
        managers.note(writer, &changes, Some(config.fields.clone()));
        if options.manager == KUBECTL {
            keep_last_applied(&mut merged, &config.sent);
        }
        Ok((merged, managers.to_value()))
    }
}

/// What kubectl applied client-side and no other manager changed since: it may take that over without force.
fn last_applied(resource: &Resource, live: &Value) -> Option<FieldSet> {
    let note = live["metadata"]["annotations"][LAST_APPLIED].as_str()?;
    let note: Value = serde_json::from_str(note).ok()?;
    let decoded = codec::decode(&resource.codec, note, false).ok()?;
    let shape = resource.shape();
    let mut own = named(shape, &decoded.object);
    strip(&mut own);
    let since = changes(shape, &decoded.object, live);
    own.subtract(&since.set);
    own.subtract(&since.gone);
    Some(own)
}

/// What kubectl remembers of an object that was applied the old way follows what it applies the new
/// way, so that going back works. The annotation gets no new manager for that.
fn keep_last_applied(object: &mut Value, sent: &Value) {
    let notes = &mut object["metadata"]["annotations"];
    if notes.get(LAST_APPLIED).and_then(Value::as_str).is_none_or(str::is_empty) {
        return;
    }
    let mut sent = sent.clone();
    if let Some(own) = sent["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
        own.remove(LAST_APPLIED);
    }
    // As Go writes JSON: these three could end a script in a page.
    let text = sent.to_string();
    let text = text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026") + "\n";
    notes[LAST_APPLIED] = json!(text);
}

/// The fields that differ, as far as they can have a manager.
fn changes(shape: &Shape, old: &Value, new: &Value) -> Changes {
    let mut changes = compare(shape, old, new);
    strip(&mut changes.set);
    strip(&mut changes.gone);
    changes
}

/// A configuration that was checked.
struct Config {
    sent: Value,
    /// What of it is applied.
    object: Value,
    fields: FieldSet,
}

fn clean(target: &Target, part: Part, config: &Value) -> ApiResult<Config> {
    let resource = &target.resource;
    let text = |field: &str| config[field].as_str().unwrap_or_default();
    if text("kind").is_empty() || text("apiVersion").is_empty() {
        let (group, version) = match text("apiVersion").split_once('/') {
            Some(pair) => pair,
            None => ("", text("apiVersion")),
        };
        let kind = text("kind");
        return Err(Status::bad_request(format!(
            "invalid object type: {group}/{version}, Kind={kind}"
        )));
    }
    check_kind(resource, config)?;
    if config["metadata"][MANAGED_FIELDS].as_array().is_some_and(|list| !list.is_empty()) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let mut sent = config.clone();
    if !sent["metadata"].is_object() {
        sent["metadata"] = json!({});
    }
    if sent["metadata"]["name"].as_str().unwrap_or_default().is_empty() {
        return Err(Status::bad_request(format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            target.name
        )));
    }
    check_name(target, &sent["metadata"])?;
    let decoded = codec::decode(&resource.codec, sent.clone(), false)
        .map_err(|fault| undeclared(resource, &target.name, &resource.explain(fault)))?;
    if let Some(path) = decoded.unknown.first() {
        let why = format!(".{path}: field not declared in schema");
        return Err(undeclared(resource, &target.name, &why));
    }
    let object = only(resource, part, decoded.object);
    let mut fields = named(resource.shape(), &object);
    strip(&mut fields);
    Ok(Config { sent, object, fields })
}

fn undeclared(resource: &Resource, name: &str, why: &str) -> Status {
    Status::bad_request(format!(
        "failed to create typed patch object (/{name}; {}/{}, Kind={}): {why}",
        resource.group, resource.version, resource.kind
    ))
}

/// The part of a configuration that can be applied through a path.
fn only(resource: &Resource, part: Part, mut object: Value) -> Value {
    if part == Part::Main {
        if resource.traits.status
            && let Some(map) = object.as_object_mut()
        {
            map.remove("status");
        }
        return object;
    }
    let mut kept = json!({"metadata": {}});
    copy_field(&mut kept, &object, "status");
    if resource.traits.status_metadata {
        for field in ["labels", "annotations", "finalizers"] {
            copy_field(&mut kept["metadata"], &object["metadata"], field);
        }
    }
    kept
}
