//! Volumes of a pod whose files come from the API: config maps, secrets, fields of the pod, tokens.

use std::collections::BTreeSet;

use super::prelude::*;

/// What a file of a volume may show of its pod.
const FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const MIN_TOKEN_SECONDS: i64 = 600;
const MAX_TOKEN_SECONDS: i64 = 1 << 32;
const DEFAULT_TOKEN_SECONDS: i64 = 3600;

/// Fills in what a reference to a field, or to a container's resource, leaves out.
pub(super) fn default_reference(holder: &mut Value) {
    if holder["fieldRef"].is_object() {
        set_default(&mut holder["fieldRef"], "apiVersion", "v1");
    }
    if holder["resourceFieldRef"].is_object() {
        set_default(&mut holder["resourceFieldRef"], "divisor", "0");
    }
}

/// Fills in what such a volume leaves out.
pub(super) fn default_files(volume: &mut Value) {
    let default_items = |source: &mut Value| {
        let items = source.pointer_mut("/downwardAPI/items").and_then(Value::as_array_mut);
        items.into_iter().flatten().for_each(default_reference);
    };
    default_items(volume);
    let sources = volume.pointer_mut("/projected/sources").and_then(Value::as_array_mut);
    for source in sources.into_iter().flatten() {
        default_items(source);
        if source["serviceAccountToken"].is_object() {
            let token = &mut source["serviceAccountToken"];
            set_default(token, "expirationSeconds", DEFAULT_TOKEN_SECONDS);
        }
    }
}

/// Judges the files of a `downwardAPI` volume.
pub(super) fn validate_downward(causes: &mut Causes, field: &str, source: &Value) {
    for (i, item) in items(source, "/items").iter().enumerate() {
        validate_downward_file(causes, &format!("{field}.items[{i}]"), item);
    }
}

/// Judges the files of a `configMap` or `secret` volume.
pub(super) fn validate_items(causes: &mut Causes, field: &str, source: &Value) {
    for (i, item) in items(source, "/items").iter().enumerate() {
        let field = format!("{field}.items[{i}]");
        if text(item, "/key").is_empty() {
            causes.push(Cause::required(format!("{field}.key"), ""));
        }
        validate_path(causes, &format!("{field}.path"), text(item, "/path"));
        validate_mode(causes, &field, item);
    }
}

/// Judges a `projected` volume.
pub(super) fn validate_projected(causes: &mut Causes, field: &str, projected: &Value) {
    let mut paths = BTreeSet::new();
    for (i, source) in items(projected, "/sources").iter().enumerate() {
        let field = format!("{field}.sources[{i}]");
        let kinds = ["secret", "configMap", "downwardAPI", "serviceAccountToken"];
        let set = kinds.into_iter().filter(|kind| !unset(source, &format!("/{kind}")));
        for (n, kind) in set.enumerate() {
            let field = format!("{field}.{kind}");
            if n > 0 {
                let why = "may not specify more than 1 volume type per source";
                causes.push(Cause::forbidden(field, why));
                continue;
            }
            validate_part(causes, &field, kind, &source[kind]);
            for path in paths_of(kind, &source[kind]) {
                if !paths.insert(path) {
                    let why = "conflicting duplicate paths";
                    causes.push(Cause::invalid(field.clone(), &path.into(), why));
                }
            }
        }
    }
}

fn validate_part(causes: &mut Causes, field: &str, kind: &str, part: &Value) {
    match kind {
        "downwardAPI" => validate_downward(causes, field, part),
        "serviceAccountToken" => {
            validate_path(causes, &format!("{field}.path"), text(part, "/path"));
            let seconds = &part["expirationSeconds"];
            let why = match seconds.as_i64() {
                Some(few) if few < MIN_TOKEN_SECONDS => {
                    "may not specify a duration less than 10 minutes"
                }
                Some(many) if many > MAX_TOKEN_SECONDS => {
                    "may not specify a duration larger than 2^32 seconds"
                }
                _ => return,
            };
            causes.push(Cause::invalid(format!("{field}.expirationSeconds"), seconds, why));
        }
        _ => {
            if text(part, "/name").is_empty() {
                causes.push(Cause::required(format!("{field}.name"), ""));
            }
            validate_items(causes, field, part);
        }
    }
}

/// The paths that a source names; a whole config map or secret names none.
fn paths_of<'a>(kind: &str, part: &'a Value) -> Vec<&'a str> {
    if kind == "serviceAccountToken" {
        return vec![text(part, "/path")];
    }
    items(part, "/items").iter().map(|item| text(item, "/path")).collect()
}

fn validate_downward_file(causes: &mut Causes, field: &str, item: &Value) {
    validate_path(causes, &format!("{field}.path"), text(item, "/path"));
    validate_mode(causes, field, item);
    match (item["fieldRef"].is_object(), item["resourceFieldRef"].is_object()) {
        (true, true) => {
            let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
            causes.push(Cause::invalid(field, &"resource".into(), why));
        }
        (false, false) => {
            let why = "one of fieldRef and resourceFieldRef is required";
            causes.push(Cause::required(field, why));
        }
        (true, false) => {
            let field = format!("{field}.fieldRef.fieldPath");
            match text(&item["fieldRef"], "/fieldPath") {
                "" => causes.push(Cause::required(field, "")),
                path if is_subscript(path) => {}
                path => one_of(causes, &field, path, FIELDS),
            }
        }
        (false, true) => {
            let reference = &item["resourceFieldRef"];
            if text(reference, "/containerName").is_empty() {
                let field = format!("{field}.resourceFieldRef.containerName");
                causes.push(Cause::required(field, ""));
            }
            let field = format!("{field}.resourceFieldRef.resource");
            match text(reference, "/resource") {
                "" => causes.push(Cause::required(field, "")),
                huge if huge.contains(".hugepages-") => {}
                resource => one_of(causes, &field, resource, RESOURCES),
            }
        }
    }
}

/// `metadata.labels['key']` or `metadata.annotations['key']`.
fn is_subscript(path: &str) -> bool {
    let key = ["metadata.labels['", "metadata.annotations['"]
        .iter()
        .find_map(|prefix| path.strip_prefix(prefix)?.strip_suffix("']"));
    key.is_some_and(|key| names::qualified(key).is_empty())
}

fn validate_path(causes: &mut Causes, field: &str, path: &str) {
    let why = match path {
        "" => return causes.push(Cause::required(field, "")),
        path if path.starts_with('/') => "must be a relative path",
        path if path.split('/').any(|part| part == "..") => "must not contain '..'",
        path if path.starts_with("..") => "must not start with '..'",
        _ => return,
    };
    causes.push(Cause::invalid(field, &path.into(), why));
}

fn validate_mode(causes: &mut Causes, field: &str, item: &Value) {
    let mode = &item["mode"];
    if mode.as_i64().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        let why = "must be a number between 0 and 0777 (octal), both inclusive";
        causes.push(Cause::invalid(format!("{field}.mode"), mode, why));
    }
}
