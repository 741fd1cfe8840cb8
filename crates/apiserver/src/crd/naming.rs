//! Which names a definition gets, and what its status says about it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Names in use in one group, each with the definition that has it.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Plurals, singulars and short names share one space.
    resources: BTreeMap<String, String>,
    /// Kinds and list kinds share another.
    kinds: BTreeMap<String, String>,
}

impl Names {
    /// Takes in what another definition was granted.
    pub(crate) fn take(&mut self, definition: &Value) {
        let owner = definition["metadata"]["name"].as_str().unwrap_or_default();
        let accepted = &definition["status"]["acceptedNames"];
        for name in ["plural", "singular"].iter().filter_map(|f| accepted[*f].as_str()) {
            insert(&mut self.resources, name, owner);
        }
        for name in accepted["shortNames"].as_array().into_iter().flatten() {
            insert(&mut self.resources, name.as_str().unwrap_or_default(), owner);
        }
        for name in ["kind", "listKind"].iter().filter_map(|f| accepted[*f].as_str()) {
            insert(&mut self.kinds, name, owner);
        }
    }

    fn is_free(names: &BTreeMap<String, String>, name: &str, owner: &str) -> bool {
        names.get(name).is_none_or(|has| has == owner)
    }
}

fn insert(names: &mut BTreeMap<String, String>, name: &str, owner: &str) {
    if !name.is_empty() {
        names.entry(name.to_owned()).or_insert_with(|| owner.to_owned());
    }
}

/// Whether the definition's kinds are served.
pub(crate) fn is_established(definition: &Value) -> bool {
    condition(definition, "Established").is_some_and(|c| c["status"] == "True")
}

fn condition<'a>(definition: &'a Value, kind: &str) -> Option<&'a Value> {
    definition["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind)
}

/// The status a definition should have, given the names others have.
pub(crate) fn settle(definition: &Value, others: &Names, now: &str) -> Value {
    let mut settled = definition.clone();
    let (accepted, conflict) = grant(definition, others);
    settled["status"]["acceptedNames"] = accepted;
    let (status, reason, message) = match &conflict {
        Some((reason, name)) => ("False", *reason, format!("{name:?} is already in use")),
        None => ("True", "NoConflicts", "no conflicts found".to_owned()),
    };
    set(&mut settled, "NamesAccepted", status, reason, &message, now);
    // Once served, always served: later conflicts only concern the new names.
    if !is_established(definition) {
        let (status, reason, message) = match conflict {
            Some(_) => ("False", "NotAccepted", "not all names are accepted"),
            None => ("True", "InitialNamesAccepted", "the initial names have been accepted"),
        };
        set(&mut settled, "Established", status, reason, message, now);
    }
    approve(&mut settled, now);
    if !definition["metadata"]["deletionTimestamp"].is_null() {
        let why = "CustomResource deletion is in progress";
        set(&mut settled, "Terminating", "True", "InstanceDeletionInProgress", why, now);
    }
    settled
}

/// The names that are free, and the last conflict found.
fn grant(definition: &Value, others: &Names) -> (Value, Option<(&'static str, String)>) {
    let owner = definition["metadata"]["name"].as_str().unwrap_or_default();
    let wanted = &definition["spec"]["names"];
    let mut accepted = definition["status"]["acceptedNames"].clone();
    if !accepted.is_object() {
        accepted = json!({});
    }
    let mut conflict = None;
    for (field, names, reason) in [
        ("plural", &others.resources, "PluralConflict"),
        ("singular", &others.resources, "SingularConflict"),
        ("shortNames", &others.resources, "ShortNamesConflict"),
        ("kind", &others.kinds, "KindConflict"),
        ("listKind", &others.kinds, "ListKindConflict"),
    ] {
        let list: Vec<&str> = match &wanted[field] {
            Value::String(name) => vec![name],
            Value::Array(list) => list.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        match list.iter().find(|name| !Names::is_free(names, name, owner)) {
            Some(taken) => conflict = Some((reason, (*taken).to_owned())),
            None if wanted[field].is_null() => {
                if let Some(map) = accepted.as_object_mut() {
                    map.remove(field);
                }
            }
            None => accepted[field] = wanted[field].clone(),
        }
    }
    if !wanted["categories"].is_null() {
        accepted["categories"] = wanted["categories"].clone();
    }
    (accepted, conflict)
}

/// Groups of the project itself say whether their definition was approved.
fn approve(definition: &mut Value, now: &str) {
    let group = definition["spec"]["group"].as_str().unwrap_or_default();
    if !is_protected(group) {
        return;
    }
    let note = definition["metadata"]["annotations"]["api-approved.kubernetes.io"].as_str();
    let (status, reason, message) = match note.unwrap_or_default() {
        "" => ("False", "MissingAnnotation", "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111".to_owned()),
        note if note.starts_with("unapproved") => {
            ("False", "UnapprovedAnnotation", format!("not approved: {note:?}"))
        }
        note => ("True", "ApprovedAnnotation", format!("approved in {note}")),
    };
    set(definition, "KubernetesAPIApprovalPolicyConformant", status, reason, &message, now);
}

/// Whether the group belongs to the project.
pub(super) fn is_protected(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.ends_with(&format!(".{domain}")))
}

/// Sets a condition; its time changes with its status only.
pub(super) fn set(
    definition: &mut Value,
    kind: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: &str,
) {
    let before = condition(definition, kind);
    let same = before.filter(|c| c["status"] == status);
    let time = same.map_or(json!(now), |c| c["lastTransitionTime"].clone());
    let entry = json!({
        "type": kind, "status": status, "lastTransitionTime": time,
        "reason": reason, "message": message,
    });
    let conditions = &mut definition["status"]["conditions"];
    let Some(list) = conditions.as_array_mut() else {
        *conditions = json!([entry]);
        return;
    };
    match list.iter_mut().find(|c| c["type"] == kind) {
        Some(found) => *found = entry,
        None => list.push(entry),
    }
}

/// Orders versions as clients prefer them: finished before beta before alpha, newer first.
pub(crate) fn version_rank(version: &str) -> (u8, Reverse<u64>, Reverse<u64>, String) {
    let unknown = || (3, Reverse(0), Reverse(0), version.to_owned());
    let Some(rest) = version.strip_prefix('v') else { return unknown() };
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let Ok(major) = rest[..digits].parse() else { return unknown() };
    let (stage, minor) = match &rest[digits..] {
        "" => (0, Ok(0)),
        tail if tail.starts_with("beta") => (1, tail[4..].parse()),
        tail if tail.starts_with("alpha") => (2, tail[5..].parse()),
        _ => return unknown(),
    };
    match minor {
        Ok(minor) => (stage, Reverse(major), Reverse(minor), String::new()),
        Err(_) => unknown(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(plural: &str) -> Value {
        json!({"metadata": {"name": format!("{plural}.example.com")}, "spec": {
            "group": "example.com", "names": {"plural": plural, "singular": "w", "kind": "W",
            "listKind": "WList", "shortNames": ["s"]}}})
    }

    fn reason<'a>(definition: &'a Value, kind: &str) -> (&'a str, &'a str) {
        let found = condition(definition, kind).unwrap();
        (found["status"].as_str().unwrap(), found["reason"].as_str().unwrap())
    }

    #[test]
    fn the_first_definition_gets_the_names() {
        let first = settle(&definition("ws"), &Names::default(), "t1");
        assert_eq!(reason(&first, "NamesAccepted"), ("True", "NoConflicts"));
        assert_eq!(reason(&first, "Established"), ("True", "InitialNamesAccepted"));
        assert_eq!(first["status"]["acceptedNames"], first["spec"]["names"]);
        let mut names = Names::default();
        names.take(&first);
        assert_eq!(settle(&first, &names, "t2"), first, "settled stays settled");
        let second = settle(&definition("ws2"), &names, "t2");
        assert_eq!(reason(&second, "NamesAccepted"), ("False", "ListKindConflict"));
        assert_eq!(reason(&second, "Established"), ("False", "NotAccepted"));
        assert_eq!(second["status"]["acceptedNames"], json!({"plural": "ws2"}));
    }

    #[test]
    fn versions_are_ordered_by_maturity() {
        let mut versions = ["v1alpha1", "v2", "foo", "v1", "v1beta2", "v1beta1", "v10"];
        versions.sort_by_key(|v| version_rank(v));
        assert_eq!(versions, ["v10", "v2", "v1", "v1beta2", "v1beta1", "v1alpha1", "foo"]);
    }

    #[test]
    fn protected_groups_are_marked() {
        assert!(is_protected("snapshot.storage.k8s.io"));
        assert!(!is_protected("notk8s.io"));
    }
}
