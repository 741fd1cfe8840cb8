//! A pod as the checks see it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Annotations and spec of a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pod<'a> {
    object: &'a Value,
}

impl<'a> Pod<'a> {
    /// A view of a pod.
    pub(crate) fn of(object: &'a Value) -> Self {
        Self { object }
    }

    pub(crate) fn spec(&self) -> &'a Value {
        &self.object["spec"]
    }

    /// Its security context, null when there is none.
    pub(crate) fn security(&self) -> &'a Value {
        &self.object["spec"]["securityContext"]
    }

    pub(crate) fn annotations(&self) -> Option<&'a Map<String, Value>> {
        self.object["metadata"]["annotations"].as_object()
    }

    /// All its containers, in the order of the messages.
    pub(crate) fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let spec = self.spec();
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        lists.into_iter().flat_map(|list| spec[list].as_array().into_iter().flatten())
    }

    /// Names of the containers of which something holds.
    pub(crate) fn containers_where(
        &self,
        mut holds: impl FnMut(&'a Value) -> bool,
    ) -> Vec<&'a str> {
        self.containers().filter(|container| holds(container)).map(name).collect()
    }

    /// Whether it has users of its own: its root is not that of the node.
    pub(crate) fn has_own_users(&self) -> bool {
        self.spec()["hostUsers"] == false
    }

    /// Whether it is for Windows.
    pub(crate) fn is_for_windows(&self) -> bool {
        self.spec()["os"]["name"] == "windows"
    }
}

/// The name of a container or volume.
pub(super) fn name(item: &Value) -> &str {
    item["name"].as_str().unwrap_or_default()
}

/// `container "a"`, `containers "a", "b"`.
pub(super) fn named(one: &str, names: &[&str]) -> String {
    format!("{} {}", plural(one, names.len()), quoted(names))
}

/// The word for that many.
pub(super) fn plural(one: &str, count: usize) -> String {
    if count == 1 { one.to_owned() } else { format!("{one}s") }
}

/// `"a", "b"`.
pub(super) fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.as_ref().to_owned()).collect();
    if items.is_empty() { String::new() } else { format!("\"{}\"", items.join("\", \"")) }
}

/// Who sets something: the pod, some containers, or both.
pub(super) fn setters(pod: bool, containers: &[&str]) -> Vec<String> {
    let pod = pod.then(|| "pod".to_owned());
    let containers = (!containers.is_empty()).then(|| named("container", containers));
    pod.into_iter().chain(containers).collect()
}

/// A sorted list without repetitions.
pub(super) type Set = BTreeSet<String>;
