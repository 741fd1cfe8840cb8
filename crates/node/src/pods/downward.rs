//! What a pod can be told about itself: its fields, and what its containers ask for.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use longshore_core::model::Quantity;
use longshore_core::model::kinds::{Container, Pod};
use serde_json::Value;

/// The address of every pod: all share the host's network.
const ADDRESS: &str = "127.0.0.1";

/// The value of a field, for an environment variable or a file; `None` when there is no such field.
pub(super) fn field(pod: &Pod, path: &str) -> Option<String> {
    let meta = &pod.metadata;
    let quoted = |prefix: &str| Some(path.strip_prefix(prefix)?.strip_suffix("']")?.to_owned());
    if let Some(key) = quoted("metadata.labels['") {
        return Some(meta.labels.get(&key).cloned().unwrap_or_default());
    }
    if let Some(key) = quoted("metadata.annotations['") {
        return Some(meta.annotations.get(&key).cloned().unwrap_or_default());
    }
    Some(match path {
        "metadata.name" => meta.name.clone(),
        "metadata.namespace" => meta.namespace.clone(),
        "metadata.uid" => meta.uid.to_string(),
        "metadata.labels" => lines(&meta.labels),
        "metadata.annotations" => lines(&meta.annotations),
        "spec.nodeName" => pod.spec.node_name.to_string(),
        "spec.serviceAccountName" => pod.spec.service_account_name.clone(),
        "status.hostIP" | "status.podIP" | "status.hostIPs" | "status.podIPs" => ADDRESS.to_owned(),
        _ => return None,
    })
}

/// What is wrong with a `resourceFieldRef`.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResourceError {
    #[error("container {0} not found")]
    Container(String),
    #[error("unsupported container resource: {0}")]
    Resource(String),
}

/// The value of a `resourceFieldRef`. `own` is the container that asks, if one does.
///
/// # Errors
/// The reference names no container of the pod, or no resource.
pub(super) fn resource(
    pod: &Pod,
    own: Option<&Container>,
    reference: &Value,
) -> Result<String, ResourceError> {
    let name = reference["containerName"].as_str().unwrap_or_default();
    let mut all = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let container = if name.is_empty() { own } else { all.find(|one| one.name == name) };
    let container = container.ok_or_else(|| ResourceError::Container(name.to_owned()))?;
    let path = reference["resource"].as_str().unwrap_or_default();
    let unsupported = || ResourceError::Resource(path.to_owned());
    let (list, resource) = path.split_once('.').ok_or_else(unsupported)?;
    if !matches!(list, "limits" | "requests") {
        return Err(unsupported());
    }
    let said = container.resources.as_ref().map(|all| &all[list][resource]).and_then(quantity);
    // A container without a limit may use the whole node.
    let said = said.or_else(|| {
        quantity(&crate::node_object::capacity()[resource]).filter(|_| list == "limits")
    });
    let amount = said.unwrap_or(Quantity::ZERO);
    let divisor = quantity(&reference["divisor"]).filter(|divisor| !divisor.is_zero());
    let value = match (resource, divisor) {
        ("cpu", divisor) => ceiling(amount.millis(), divisor.map_or(1000, |one| one.millis())),
        (_, divisor) => ceiling(amount.bytes(), divisor.map_or(1, |one| one.bytes())),
    };
    Ok(value.to_string())
}

fn quantity(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => number.as_i64().map(Quantity::from_count),
        _ => None,
    }
}

fn ceiling(amount: i64, divisor: i64) -> i64 {
    let divisor = divisor.max(1);
    amount.div_euclid(divisor) + i64::from(amount.rem_euclid(divisor) != 0)
}

/// A map as the kubelet writes it: one `key="value"` a line, by key.
fn lines(map: &BTreeMap<String, String>) -> String {
    let all: Vec<String> =
        map.iter().map(|(key, value)| format!("{key}={}", quote(value))).collect();
    all.join("\n")
}

/// A text as Go's `%q` writes it.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        let escape = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\u{7}' => "\\a",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{b}' => "\\v",
            _ => "",
        };
        match u32::from(c) {
            _ if !escape.is_empty() => out.push_str(escape),
            code @ (0..0x20 | 0x7f) => drop(write!(out, "\\x{code:02x}")),
            code if c.is_control() => drop(write!(out, "\\u{code:04x}")),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n",
                "labels": {"b": "2", "app": "web"}, "annotations": {"note": "a \"b\"\n\\c\u{1}é"}},
            "spec": {"nodeName": "node-1", "containers": [
                {"name": "c", "resources": {"limits": {"cpu": "1500m", "memory": "65Mi"},
                    "requests": {"cpu": "250m"}}},
                {"name": "bare"},
            ]},
        }))
        .unwrap()
    }

    #[test]
    fn fields_are_read_from_the_pod() {
        for (path, value) in [
            ("metadata.labels['app']", "web"),
            ("metadata.labels['none']", ""),
            ("metadata.labels", "app=\"web\"\nb=\"2\""),
            ("metadata.annotations", "note=\"a \\\"b\\\"\\n\\\\c\\x01é\""),
            ("spec.nodeName", "node-1"),
            ("status.podIPs", "127.0.0.1"),
        ] {
            assert_eq!(field(&pod(), path).as_deref(), Some(value), "{path}");
        }
        assert_eq!(field(&pod(), "metadata.nonsense"), None);
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        let cores = std::thread::available_parallelism().unwrap().get();
        for (container, path, divisor, value) in [
            ("c", "limits.cpu", "0", "2".to_owned()),
            ("c", "limits.cpu", "1m", "1500".to_owned()),
            ("c", "requests.cpu", "1", "1".to_owned()),
            ("c", "limits.memory", "0", (65 << 20).to_string()),
            ("c", "limits.memory", "10Mi", "7".to_owned()),
            ("c", "requests.memory", "1", "0".to_owned()),
            ("bare", "limits.cpu", "1", cores.to_string()),
        ] {
            let reference =
                json!({"containerName": container, "resource": path, "divisor": divisor});
            assert_eq!(resource(&pod(), None, &reference), Ok(value), "{reference}");
        }
        let pod = pod();
        let own = Some(&pod.spec.containers[0]);
        assert_eq!(resource(&pod, own, &json!({"resource": "requests.cpu"})), Ok("1".to_owned()));
        for (bad, text) in [
            (json!({"containerName": "x", "resource": "limits.cpu"}), "container x not found"),
            (json!({"resource": "cpu"}), "unsupported container resource: cpu"),
            (json!({"resource": "usage.cpu"}), "unsupported container resource: usage.cpu"),
        ] {
            assert_eq!(resource(&pod, own, &bad).unwrap_err().to_string(), text);
        }
    }
}
