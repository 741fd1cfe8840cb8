//! Decides whether a namespace has the certificate by which its pods know the API server.

use std::collections::BTreeMap;

use crate::model::kinds::{ConfigMap, Namespace};

/// Name of the `ConfigMap` in every namespace.
pub const CONFIG_MAP: &str = "kube-root-ca.crt";
/// Its one key.
pub const KEY: &str = "ca.crt";
const DESCRIPTION_KEY: &str = "kubernetes.io/description";
/// Upstream's words.
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
    endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
    distributions of Kubernetes clusters.";

/// What to do about one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is as it should be, or the namespace is going.
    Nothing,
    Create,
    /// Somebody changed it, or the CA is another one.
    Replace,
}

/// Decides from the namespace and its `ConfigMap`.
#[must_use]
pub fn decide(namespace: Option<&Namespace>, map: Option<&ConfigMap>, ca: &str) -> Step {
    let alive = namespace.is_some_and(|namespace| !namespace.metadata.deleting());
    match map {
        _ if !alive => Step::Nothing,
        None => Step::Create,
        Some(map) if map.data == data(ca) && is_described(map) => Step::Nothing,
        Some(_) => Step::Replace,
    }
}

fn is_described(map: &ConfigMap) -> bool {
    map.metadata.annotations.get(DESCRIPTION_KEY).is_some_and(|text| text == DESCRIPTION)
}

/// The data of the `ConfigMap`.
#[must_use]
pub fn data(ca: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(KEY.to_owned(), ca.to_owned())])
}

/// The annotations of the `ConfigMap`.
#[must_use]
pub fn annotations() -> BTreeMap<String, String> {
    BTreeMap::from([(DESCRIPTION_KEY.to_owned(), DESCRIPTION.to_owned())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_map_is_made_once_and_kept_as_it_is() {
        let alive: Namespace = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        let going: Namespace = serde_json::from_value(
            json!({"metadata": {"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        )
        .unwrap();
        let good = json!({"metadata": {"annotations": annotations()}, "data": {"ca.crt": "CA"}});
        let bare = json!({"metadata": {}, "data": {"ca.crt": "CA"}});
        let other =
            json!({"metadata": {"annotations": annotations()}, "data": {"ca.crt": "CA", "x": "y"}});
        let map = |value: &serde_json::Value| -> ConfigMap {
            serde_json::from_value(value.clone()).unwrap()
        };
        for (namespace, stored, step) in [
            (Some(&alive), None, Step::Create),
            (Some(&alive), Some(map(&good)), Step::Nothing),
            (Some(&alive), Some(map(&bare)), Step::Replace),
            (Some(&alive), Some(map(&other)), Step::Replace),
            (Some(&going), None, Step::Nothing),
            (Some(&going), Some(map(&other)), Step::Nothing),
            (None, None, Step::Nothing),
        ] {
            assert_eq!(decide(namespace, stored.as_ref(), "CA"), step, "{stored:?}");
        }
        assert_eq!(decide(Some(&alive), Some(&map(&good)), "NEW"), Step::Replace);
    }
}
