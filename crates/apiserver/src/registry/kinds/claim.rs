//! `PersistentVolumeClaim`.

use longshore_core::model::Quantity;
use longshore_core::model::keys::annotations::{
    BETA_IS_DEFAULT_CLASS, BETA_STORAGE_CLASS, IS_DEFAULT_CLASS,
};
use longshore_core::model::keys::finalizers::PVC_PROTECTION;

use super::health;
use super::prelude::*;
use super::volume::add_finalizer;

pub(super) static CLAIM: BuiltinKind = BuiltinKind {
    group_version: CORE,
    names: Names::new("PersistentVolumeClaim", "persistentvolumeclaims", &["pvc"], &[]),
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<core::PersistentVolumeClaim>,
    traits: Traits::WITH_STATUS,
    rules: || Arc::new(Claim),
    table: Table {
        columns: &[
            NAME,
            column("Status"),
            column("Volume"),
            column("Capacity"),
            column("Access Modes"),
            column("StorageClass"),
            column("VolumeAttributesClass"),
            AGE,
            wide("VolumeMode"),
        ],
        cells,
    },
    selectors: &[],
    quantities: &["spec.resources.*.*", "status.capacity.*", "status.allocatedResources.*"],
    patch_keys: &[("status.conditions", "type")],
    facts: &[include_str!("claim_facts.txt")],
    protobuf: &[include_str!("claim_protobuf.txt")],
};

fn cells(row: &Row<'_>) -> Value {
    let Row { object, name, age, .. } = row;
    let bound = !text(object, "/spec/volumeName").is_empty();
    let capacity = if bound { text(object, "/status/capacity/storage") } else { "" };
    let access = if bound { short_modes(object, "/status/accessModes") } else { String::new() };
    json!([
        name,
        phase(object),
        text(object, "/spec/volumeName"),
        capacity,
        access,
        text(object, "/spec/storageClassName"),
        or(text(object, "/spec/volumeAttributesClassName"), "<unset>"),
        age,
        or(text(object, "/spec/volumeMode"), "<unset>"),
    ])
}

pub(super) struct Claim;

const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";
/// What a claim's status leaves out when it is empty.
const OMITTED: [&str; 5] =
    ["accessModes", "capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"];
const REQUEST: &str = "/spec/resources/requests/storage";

impl Strategy for Claim {
    fn default(&self, object: &mut Value) {
        set_default(&mut object["spec"], "volumeMode", "Filesystem");
        if !object["status"].is_null() {
            set_default(&mut object["status"], "phase", "Pending");
            drop_empty(&mut object["status"], &OMITTED);
            if let Some(health) = object["status"].get_mut("healthStatus") {
                drop_empty(health, &["healthConditions"]);
            }
        }
    }

    fn prepare_create(&self, object: &mut Value, _cx: &Context<'_>) {
        object["status"] = json!({"phase": "Pending"});
        settle_sources(&mut object["spec"]);
    }

    fn admit_create(&self, object: &mut Value, cx: &Context<'_>) -> ApiResult<()> {
        add_finalizer(object, PVC_PROTECTION);
        let annotated = !object["metadata"]["annotations"][BETA_STORAGE_CLASS].is_null();
        if !annotated
            && unset(object, "/spec/storageClassName")
            && let Some(class) = default_class(cx)
        {
            object["spec"]["storageClassName"] = json!(class);
        }
        Ok(())
    }

    fn validate_create(&self, object: &Value) -> Causes {
        validate(&object["spec"])
    }

    fn prepare_update(&self, new: &mut Value, _old: &Value, _cx: &Context<'_>) {
        settle_sources(&mut new["spec"]);
    }

    fn admit_update(&self, new: &Value, old: &Value, cx: &Context<'_>) -> ApiResult<()> {
        admit_resize(new, old, cx)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = validate(&new["spec"]);
        causes.extend(validate_change(new, old));
        causes
    }

    fn prepare_status(&self, new: &mut Value, old: &Value, cx: &Context<'_>) {
        health::drop_disabled(new, old, "healthStatus", cx);
    }

    fn validate_status(&self, new: &Value, _old: &Value) -> Causes {
        let mut causes = validate_resize_status(&new["status"]);
        health::validate_claim(&mut causes, new);
        causes
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        let mut warnings = Vec::new();
        if object["metadata"]["annotations"][BETA_STORAGE_CLASS].is_string() {
            warnings.push(format!(
                "metadata.annotations[{BETA_STORAGE_CLASS}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
            ));
        }
        if quantity(object, REQUEST).is_some_and(|q| !q.is_whole()) {
            warnings.push(format!(
                "spec.resources.requests[storage]: fractional byte value {:?} is invalid, must be an integer",
                text(object, REQUEST)
            ));
        }
        warnings
    }
}

/// Makes the two data source fields agree; sources that only the newer field may name are dropped
/// from the older one.
fn settle_sources(spec: &mut Value) {
    let Some(map) = spec.as_object_mut() else { return };
    if map.get("dataSourceRef").is_some_and(|r| !text(r, "/namespace").is_empty()) {
        map.remove("dataSourceRef");
    }
    let reference = map.get("dataSourceRef").filter(|r| !r.is_null()).cloned();
    let source = map.get("dataSource").filter(|s| !s.is_null()).cloned();
    match (source, reference) {
        (None, Some(reference)) => {
            map.insert("dataSource".into(), reference);
        }
        (Some(source), None) if is_classic_source(&source) => {
            map.insert("dataSourceRef".into(), source);
        }
        (Some(_), None) => {
            map.remove("dataSource");
        }
        _ => {}
    }
}

fn is_classic_source(source: &Value) -> bool {
    match text(source, "/kind") {
        "PersistentVolumeClaim" => text(source, "/apiGroup").is_empty(),
        "VolumeSnapshot" => text(source, "/apiGroup") == SNAPSHOT_GROUP,
        _ => false,
    }
}

/// The newest class marked as default; of equally old ones the first by name.
fn default_class(cx: &Context<'_>) -> Option<String> {
    let classes = cx.registry.find("storage.k8s.io", "v1", "storageclasses")?;
    let marked = |class: &Value| {
        [IS_DEFAULT_CLASS, BETA_IS_DEFAULT_CLASS]
            .iter()
            .any(|key| class["metadata"]["annotations"][*key] == "true")
    };
    let mut defaults: Vec<(String, String)> = cx
        .store
        .list(&classes.storage, None)
        .objects
        .iter()
        .map(|stored| stored.value())
        .filter(marked)
        .map(|c| {
            (text(&c, "/metadata/creationTimestamp").into(), text(&c, "/metadata/name").into())
        })
        .collect();
    defaults.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    defaults.into_iter().next().map(|(_, name)| name)
}

fn class_of(claim: &Value) -> &str {
    match claim["metadata"]["annotations"][BETA_STORAGE_CLASS].as_str() {
        Some(class) => class,
        None => text(claim, "/spec/storageClassName"),
    }
}

/// Growing needs a bound claim of a class that allows it.
fn admit_resize(new: &Value, old: &Value, cx: &Context<'_>) -> ApiResult<()> {
    let (Some(wanted), Some(had)) = (quantity(new, REQUEST), quantity(old, REQUEST)) else {
        return Ok(());
    };
    if wanted <= had {
        return Ok(());
    }
    let claims = cx.registry.core("persistentvolumeclaims");
    let refuse = |why| Err(Status::forbidden(claims, text(new, "/metadata/name"), why));
    if text(old, "/status/phase") != "Bound" {
        return refuse("Only bound persistent volume claims can be expanded");
    }
    let (class, old_class) = (class_of(new), class_of(old));
    let allows = |name: &str| {
        let classes = cx.registry.find("storage.k8s.io", "v1", "storageclasses")?;
        let class = cx.store.get(&classes.key("", name))?.value();
        Some(class["allowVolumeExpansion"] == true)
    };
    if class.is_empty() || class != old_class || allows(class) != Some(true) {
        return refuse(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        );
    }
    Ok(())
}

fn validate(spec: &Value) -> Causes {
    let mut causes = Causes::new();
    access_modes(&mut causes, spec, "spec.accessModes", "at least 1 access mode is required");
    match quantity(spec, "/resources/requests/storage") {
        None => causes.push(Cause::required("spec.resources[storage]", "")),
        Some(size) if size.is_negative() || size.is_zero() => {
            let value = &spec["resources"]["requests"]["storage"];
            let why = "must be greater than zero";
            causes.push(Cause::invalid("spec.resources[storage]", value, why));
        }
        Some(_) => {}
    }
    if !unset(spec, "/selector") {
        label_selector(&mut causes, "spec.selector", &spec["selector"]);
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        let name = text(spec, &format!("/{field}"));
        if !name.is_empty() {
            subdomain(&mut causes, &format!("spec.{field}"), name);
        }
    }
    one_of(&mut causes, "spec.volumeMode", text(spec, "/volumeMode"), &["Block", "Filesystem"]);
    for source in ["dataSource", "dataSourceRef"] {
        if !unset(spec, &format!("/{source}")) {
            validate_source(&mut causes, &format!("spec.{source}"), &spec[source]);
        }
    }
    let (source, reference) = (&spec["dataSource"], &spec["dataSourceRef"]);
    if !source.is_null() && !reference.is_null() && !same(source, reference) {
        causes.push(Cause::invalid_shown("spec", "{}", "must match dataSourceRef"));
    }
    causes
}

fn validate_source(causes: &mut Causes, field: &str, source: &Value) {
    if text(source, "/name").is_empty() {
        causes.push(Cause::required(format!("{field}.name"), ""));
    }
    let (kind, group) = (text(source, "/kind"), text(source, "/apiGroup"));
    if kind.is_empty() {
        causes.push(Cause::required(format!("{field}.kind"), ""));
    }
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        causes.push(Cause::invalid(field, &kind.into(), why));
    }
    if !group.is_empty() {
        subdomain(causes, &format!("{field}.apiGroup"), group);
    }
}

/// What may change: the binder's choice once, the class once, and for bound claims size and
/// attributes class.
fn validate_change(new: &Value, old: &Value) -> Causes {
    let mut causes = Causes::new();
    let bound = text(old, "/status/phase") == "Bound";
    let (new_spec, old_spec) = (&new["spec"], &old["spec"]);
    // What may change is made equal, each time on the side that a person would expect to see.
    let (mut before, mut after) = (old_spec.clone(), new_spec.clone());
    let mut allow = |field: &str| before[field] = new_spec[field].clone();
    if text(old_spec, "/volumeName").is_empty() {
        allow("volumeName");
    }
    let beta = new["metadata"]["annotations"][BETA_STORAGE_CLASS].as_str();
    if unset(old_spec, "/storageClassName")
        && beta.is_none_or(|class| class == text(new_spec, "/storageClassName"))
    {
        allow("storageClassName");
    }
    if bound {
        allow("volumeAttributesClassName");
        if !unset(&after, "/resources/requests/storage") {
            let request = at(old_spec, "/resources/requests/storage").clone();
            after["resources"]["requests"]["storage"] = request;
        }
    }
    if !same(&after, &before) {
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        let changes = go_values::difference(go_values::CLAIM, &before, &after);
        causes.push(Cause::forbidden("spec", &format!("{why}\n{changes}")));
    }
    if !same(&new_spec["volumeMode"], &old_spec["volumeMode"]) {
        causes.push(Cause::invalid("volumeMode", &new_spec["volumeMode"], "field is immutable"));
    }
    if bound {
        validate_shrink(&mut causes, new, old);
        validate_attributes_change(&mut causes, new, old);
    }
    validate_beta_class(&mut causes, new, old);
    causes
}

/// A request may shrink only while it stays above what the volume already has.
fn validate_shrink(causes: &mut Causes, new: &Value, old: &Value) {
    let (Some(wanted), Some(had)) = (quantity(new, REQUEST), quantity(old, REQUEST)) else {
        return;
    };
    let capacity: Option<Quantity> = quantity(old, "/status/capacity/storage");
    if wanted < had && capacity.is_none_or(|has| wanted <= has) {
        let why = "field can not be less than status.capacity";
        causes.push(Cause::forbidden("spec.resources.requests.storage", why));
    }
}

/// Once a class was applied to the volume, the claim always names one.
fn validate_attributes_change(causes: &mut Causes, new: &Value, old: &Value) {
    let applied = !text(old, "/status/currentVolumeAttributesClassName").is_empty();
    let changed = text(old, "/spec/volumeAttributesClassName")
        != text(new, "/spec/volumeAttributesClassName");
    if applied && changed && text(new, "/spec/volumeAttributesClassName").is_empty() {
        let why = "update to an empty name is forbidden once a class was applied";
        causes.push(Cause::forbidden("spec.volumeAttributesClassName", why));
    }
}

/// The old class annotation may only move its value into the field.
fn validate_beta_class(causes: &mut Causes, new: &Value, old: &Value) {
    let get = |claim: &Value| claim["metadata"]["annotations"][BETA_STORAGE_CLASS].clone();
    let (is, was) = (get(new), get(old));
    let moved = is.is_null() && was == new["spec"]["storageClassName"];
    if !same(&is, &was) && !moved {
        let field = format!("metadata.annotations.{BETA_STORAGE_CLASS}");
        causes.push(Cause::invalid(field, &is, "field is immutable"));
    }
}

fn validate_resize_status(status: &Value) -> Causes {
    const KNOWN: &[&str] = &[
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizePending",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
    ];
    let mut causes = Causes::new();
    for (key, value) in status["allocatedResourceStatuses"].as_object().into_iter().flatten() {
        let field = format!("status.allocatedResourceStatuses[{key}]");
        if key != "storage" && !(key.contains('/') && names::is_qualified_name(key)) {
            causes.push(Cause::not_supported(field.clone(), key, &["storage"]));
        }
        one_of(&mut causes, &field, value.as_str().unwrap_or_default(), KNOWN);
    }
    causes
}
