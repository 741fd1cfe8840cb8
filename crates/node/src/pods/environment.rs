//! A container's environment variables.

use std::collections::BTreeMap;
use std::io;

use longshore_cluster::{Api, ApiError, secrets::decode_value};
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{ConfigMap, Container, EnvVar, Pod, Secret};
use serde_json::Value;

use super::admission::UnsupportedProfile;
use super::downward;
use super::shim_client::ShimError;
use crate::agent::ApiAddress;
use crate::shim::rights::UnknownCapability;

/// Why a container is not started. The text is the message of its status.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Shim(#[from] ShimError),
    #[error("failed to prepare subPath {part:?} for container {container:?}: {source}")]
    SubPath { part: String, container: String, source: io::Error },
    #[error(transparent)]
    Capability(#[from] UnknownCapability),
    #[error(transparent)]
    Seccomp(#[from] UnsupportedProfile),
    /// The container cannot be run as it is written.
    #[error("{0}")]
    Spec(String),
}

impl From<String> for StartError {
    fn from(text: String) -> Self {
        Self::Spec(text)
    }
}

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment of a container, in order, or why it cannot be known. `services` come before what
/// the pod says, so it can say otherwise.
pub(crate) async fn environment(
    api: &Api,
    services: &[(String, String)],
    pod: &Pod,
    container: &Container,
) -> Result<Vec<(String, String)>, StartError> {
    let root = container
        .security_context
        .run_as_user
        .or(pod.spec.security_context.run_as_user)
        .unwrap_or(0)
        == 0;
    let mut env = Environment::default();
    env.set("PATH", PATH);
    env.set("HOME", if root { "/root" } else { "/" });
    env.set("HOSTNAME", &hostname(pod));
    for (name, value) in services {
        env.set(name, value);
    }
    for source in &container.env_from {
        let prefix = source["prefix"].as_str().unwrap_or_default();
        for (key, value) in whole_object(api, pod, source).await? {
            env.set(&format!("{prefix}{key}"), &value);
        }
    }
    for variable in &container.env {
        let value = match &variable.value_from {
            None => expand(&variable.value, &env.values),
            Some(source) => match from_source(api, (pod, container), variable, source).await? {
                Some(value) => value,
                None => continue,
            },
        };
        env.set(&variable.name, &value);
    }
    Ok(env.order.iter().map(|name| (name.clone(), env.values[name].clone())).collect())
}

/// The variables by which programs in pods find the API server, as the kubelet sets them.
pub(crate) fn api_variables(address: &ApiAddress) -> Vec<(String, String)> {
    let ApiAddress { host, port } = address;
    [
        ("KUBERNETES_SERVICE_HOST", host.clone()),
        ("KUBERNETES_SERVICE_PORT", port.to_string()),
        ("KUBERNETES_SERVICE_PORT_HTTPS", port.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Longest host name.
const HOSTNAME_MAX: usize = 63;

/// A pod's host name: the node's with the node's network, else what it asks for or its own name,
/// cut as the kubelet cuts it.
pub(crate) fn hostname(pod: &Pod) -> String {
    let spec = &pod.spec;
    let name = match (spec.host_network, spec.hostname.is_empty()) {
        (true, _) => spec.node_name.as_str(),
        (false, false) => &spec.hostname,
        (false, true) => &pod.metadata.name,
    };
    let end = name.char_indices().nth(HOSTNAME_MAX).map_or(name.len(), |(at, _)| at);
    name[..end].trim_end_matches(['-', '.']).to_owned()
}

/// What a pod has in `/etc/hosts` beside the host's lines: its own name and its aliases.
pub(crate) fn hosts(pod: &Pod) -> Vec<String> {
    let own = (!pod.spec.host_network).then(|| format!("127.0.0.1\t{}", hostname(pod)));
    let aliases = pod.spec.host_aliases.iter().map(|alias| {
        let names = alias["hostnames"].as_array().into_iter().flatten();
        let names: Vec<&str> = names.filter_map(Value::as_str).collect();
        format!("{}\t{}", alias["ip"].as_str().unwrap_or_default(), names.join("\t"))
    });
    own.into_iter().chain(aliases).collect()
}

#[derive(Default)]
struct Environment {
    order: Vec<String>,
    values: BTreeMap<String, String>,
}

impl Environment {
    fn set(&mut self, name: &str, value: &str) {
        if self.values.insert(name.to_owned(), value.to_owned()).is_none() {
            self.order.push(name.to_owned());
        }
    }
}

async fn whole_object(
    api: &Api,
    pod: &Pod,
    source: &Value,
) -> Result<BTreeMap<String, String>, StartError> {
    let (reference, is_secret) = match (source.get("secretRef"), source.get("configMapRef")) {
        (Some(reference), _) => (reference, true),
        (None, Some(reference)) => (reference, false),
        (None, None) => {
            let text = "envFrom names neither a secret nor a config map";
            return Err(StartError::Spec(text.to_owned()));
        }
    };
    let name = reference["name"].as_str().unwrap_or_default();
    match values(api, pod, name, is_secret).await? {
        Some(values) => Ok(values),
        None if reference["optional"] == true => Ok(BTreeMap::new()),
        None => Err(not_found(name, is_secret).into()),
    }
}

async fn from_source(
    api: &Api,
    (pod, container): (&Pod, &Container),
    variable: &EnvVar,
    source: &Value,
) -> Result<Option<String>, StartError> {
    let named = |what: String| format!("variable {}: {what}", variable.name).into();
    if let Some(path) = source["fieldRef"]["fieldPath"].as_str() {
        let value = downward::field(pod, path).map(Some);
        return value.ok_or_else(|| named(format!("unknown field {path}")));
    }
    if source["resourceFieldRef"].is_object() {
        let value = downward::resource(pod, Some(container), &source["resourceFieldRef"]);
        return value.map(Some).map_err(|error| named(error.to_string()));
    }
    let (reference, is_secret) = match (source.get("secretKeyRef"), source.get("configMapKeyRef")) {
        (Some(reference), _) => (reference, true),
        (None, Some(reference)) => (reference, false),
        (None, None) => {
            let kinds = source.as_object().into_iter().flat_map(|source| source.keys());
            let kinds = kinds.map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(named(format!(
                "a source of kind {kinds} is not served by this node; use one of: configMapKeyRef, \
                 secretKeyRef, fieldRef, resourceFieldRef"
            )));
        }
    };
    let (name, key) = (
        reference["name"].as_str().unwrap_or_default(),
        reference["key"].as_str().unwrap_or_default(),
    );
    let values = values(api, pod, name, is_secret).await?;
    match values.as_ref().map(|values| values.get(key)) {
        Some(Some(value)) => Ok(Some(value.clone())),
        _ if reference["optional"] == true => Ok(None),
        Some(None) => {
            let kind = if is_secret { "Secret" } else { "ConfigMap" };
            let namespace = &pod.metadata.namespace;
            Err(format!("couldn't find key {key} in {kind} {namespace}/{name}").into())
        }
        None => Err(not_found(name, is_secret).into()),
    }
}

async fn values(
    api: &Api,
    pod: &Pod,
    name: &str,
    is_secret: bool,
) -> Result<Option<BTreeMap<String, String>>, StartError> {
    let key = ObjectKey::new(&pod.metadata.namespace, name);
    if !is_secret {
        let map = api.get::<ConfigMap>(&key).await?;
        return Ok(map.map(|map| map.data));
    }
    let secret = api.get::<Secret>(&key).await?;
    let decode = |value: &String| {
        String::from_utf8_lossy(&decode_value(value).unwrap_or_default()).into_owned()
    };
    Ok(secret.map(|secret| {
        secret.data.iter().map(|(key, value)| (key.clone(), decode(value))).collect()
    }))
}

fn not_found(name: &str, is_secret: bool) -> String {
    format!("{} \"{name}\" not found", if is_secret { "secret" } else { "configmap" })
}

/// Replaces `$(NAME)` by a known variable's value; `$$` stands for one dollar sign.
pub(crate) fn expand(text: &str, values: &BTreeMap<String, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let tail = &rest[at + 1..];
        let reference = tail.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        if let Some(after) = tail.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = reference {
            match values.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            out.push('$');
            rest = tail;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_expanded() {
        let values = BTreeMap::from([("A".to_owned(), "x".to_owned())]);
        for (text, expected) in [
            ("$(A)/$(A)", "x/x"),
            ("$(B)", "$(B)"),
            ("$$(A)", "$(A)"),
            ("cost: 5$", "cost: 5$"),
            ("$A", "$A"),
            ("$(A", "$(A"),
        ] {
            assert_eq!(expand(text, &values), expected, "{text}");
        }
    }

    #[test]
    fn the_host_name_is_the_pods_or_with_the_nodes_network_the_nodes() {
        let long = "a".repeat(62) + "-b";
        for (name, spec, expected) in [
            ("p", serde_json::json!({}), "p"),
            ("p", serde_json::json!({"hostname": "h"}), "h"),
            ("p", serde_json::json!({"hostNetwork": true, "nodeName": "n", "hostname": "h"}), "n"),
            (long.as_str(), serde_json::json!({}), &long[..62]),
        ] {
            let pod = serde_json::json!({"metadata": {"name": name}, "spec": spec});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            assert_eq!(hostname(&pod), expected, "{name}");
        }
    }

    #[test]
    fn a_pod_knows_its_own_name_and_its_aliases() {
        let aliases = serde_json::json!([{"ip": "10.0.0.1", "hostnames": ["a", "b"]}]);
        let pod = serde_json::json!({"metadata": {"name": "p"}, "spec": {"hostAliases": aliases}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(hosts(&pod), ["127.0.0.1\tp", "10.0.0.1\ta\tb"]);
    }
}
