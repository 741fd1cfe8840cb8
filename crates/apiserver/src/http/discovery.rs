//! Discovery: which kinds there are.

use serde_json::{Value, json};

use crate::registry::{Registry, Resource};

/// `/api`.
pub(super) fn core_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

fn group_body(group: &str, versions: &[&str]) -> Value {
    let version = |v: &&str| json!({"groupVersion": format!("{group}/{v}"), "version": v});
    json!({
        "name": group,
        "versions": versions.iter().map(version).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(version),
    })
}

fn named_groups(registry: &Registry) -> Vec<(&str, Vec<&str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for (group, version) in registry.group_versions() {
        match groups.iter_mut().find(|(name, _)| *name == group) {
            Some((_, versions)) => versions.push(version),
            None => groups.push((group, vec![version])),
        }
    }
    groups
}

/// `/apis`.
pub(super) fn groups(registry: &Registry) -> Value {
    let groups: Vec<Value> = named_groups(registry)
        .iter()
        .filter(|(group, _)| !group.is_empty())
        .map(|(group, versions)| group_body(group, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/<group>`.
pub(super) fn group(registry: &Registry, name: &str) -> Option<Value> {
    let groups = named_groups(registry);
    let (group, versions) = groups.iter().find(|(group, _)| *group == name && !group.is_empty())?;
    let mut body = group_body(group, versions);
    body["kind"] = json!("APIGroup");
    body["apiVersion"] = json!("v1");
    Some(body)
}

/// `/api/v1`, `/apis/<group>/<version>`.
pub(super) fn resources(registry: &Registry, group: &str, version: &str) -> Option<Value> {
    let found: Vec<Value> = registry
        .resources()
        .iter()
        .filter(|r| r.group == group && r.version == version)
        .flat_map(|r| resource_entries(r))
        .collect();
    let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    if found.is_empty() {
        return None;
    }
    let mut list = json!({"kind": "APIResourceList", "groupVersion": name, "resources": found});
    if !group.is_empty() {
        // The core list is older than versioned discovery and says none.
        list["apiVersion"] = json!("v1");
    }
    Some(list)
}

fn resource_entries(resource: &Resource) -> Vec<Value> {
    let mut main = json!({
        "name": resource.plural, "singularName": resource.singular,
        "namespaced": resource.namespaced, "kind": resource.kind, "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        main["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        main["categories"] = json!(resource.categories);
    }
    let mut entries = vec![main];
    for sub in &resource.subresources {
        let (group, version, kind) = &sub.kind;
        let mut entry = json!({
            "name": format!("{}/{}", resource.plural, sub.name), "singularName": "",
            "namespaced": resource.namespaced, "kind": kind, "verbs": sub.verbs,
        });
        if !version.is_empty() {
            entry["group"] = json!(group);
            entry["version"] = json!(version);
        }
        entries.push(entry);
    }
    entries
}

/// The aggregated form: core groups for `/api`, all others for `/apis`.
pub(super) fn aggregated(registry: &Registry, core: bool) -> Value {
    let items: Vec<Value> = named_groups(registry)
        .iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> = registry
                        .resources()
                        .iter()
                        .filter(|r| r.group == *group && r.version == *version)
                        .map(|r| aggregated_entry(r))
                        .collect();
                    json!({"version": version, "freshness": "Current", "resources": resources})
                })
                .collect();
            json!({"metadata": {"name": group}, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": items,
    })
}

fn aggregated_entry(resource: &Resource) -> Value {
    let scope = if resource.namespaced { "Namespaced" } else { "Cluster" };
    let mut entry = json!({
        "resource": resource.plural, "singularResource": resource.singular, "scope": scope,
        "responseKind": {"group": "", "version": "", "kind": resource.kind},
        "verbs": resource.verbs,
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
    let subresources: Vec<Value> = resource
        .subresources
        .iter()
        .map(|sub| {
            let (group, version, kind) = &sub.kind;
            json!({
                "subresource": sub.name, "verbs": sub.verbs,
                "responseKind": {"group": group, "version": version, "kind": kind},
            })
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = json!(subresources);
    }
    entry
}
