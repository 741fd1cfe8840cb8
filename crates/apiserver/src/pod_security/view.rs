//! A pod as the checks see it.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Annotations and spec of a pod.
#[derive(Debug, Clone, Copy)]
pub struct Pod<'a> {
    object: &'a Value,
}

impl<'a> Pod<'a> {
    /// A view of a pod.
    pub fn of(object: &'a Value) -> Self {
        Self { object }
    }

    pub fn spec(&self) -> &'a Value {
        &self.object["spec"]
    }

    /// Its security context, null when there is none.
    pub fn security(&self) -> &'a Value {
        &self.object["spec"]["securityContext"]
    }

    pub fn annotations(&self) -> Option<&'a Map<String, Value>> {
        self.object["metadata"]["annotations"].as_object()
    }

    /// All its containers, in the order of the messages.
    pub fn containers(&self) -> impl Iterator<Item = &'a Value> + use<'a> {
        let spec = self.spec();
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        lists.into_iter().flat_map(|list| spec[list].as_array().into_iter().flatten())
    }

    /// Names of the containers of which something holds.
    pub fn containers_where(&self, mut holds: impl FnMut(&'a Value) -> bool) -> Vec<&'a str> {
        self.containers().filter(|container| holds(container)).map(name).collect()
    }

    /// Whether it has users of its own: its root is not that of the node.
    pub fn has_own_users(&self) -> bool {
        self.spec()["hostUsers"] == false
    }

    /// Whether it is for Windows.
    pub fn is_for_windows(&self) -> bool {
        self.spec()["os"]["name"] == "windows"
    }
}

/// The name of a container or volume.
pub fn name(item: &Value) -> &str {
    item["name"].as_str().unwrap_or_default()
}

/// `container "a"`, `containers "a", "b"`.
pub fn named(one: &str, names: &[&str]) -> String {
    format!("{} {}", plural(one, names.len()), quoted(names))
}

/// The word for that many.
pub fn plural(one: &str, count: usize) -> String {
    if count == 1 { one.to_owned() } else { format!("{one}s") }
}

/// `"a", "b"`.
pub fn quoted<T: AsRef<str>>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.as_ref().to_owned()).collect();
    if items.is_empty() { String::new() } else { format!("\"{}\"", items.join("\", \"")) }
}

/// Who sets something: the pod, some containers, or both.
pub fn setters(pod: bool, containers: &[&str]) -> Vec<String> {
    let pod = pod.then(|| "pod".to_owned());
    let containers = (!containers.is_empty()).then(|| named("container", containers));
    pod.into_iter().chain(containers).collect()
}

/// A sorted list without repetitions.
pub type Set = BTreeSet<String>;
