//! What a claim asks for, read from the places where it may be written down.

use crate::model::{
    keys::annotations,
    kinds::{Claim, StorageClass},
};

/// Whether the claim names a class at all. An explicit empty class counts: it says "none, and do
/// not give me the default one".
#[must_use]
pub fn has_class(claim: &Claim) -> bool {
    claim.spec.storage_class_name.is_some()
        || claim.metadata.annotation(annotations::BETA_STORAGE_CLASS).is_some()
}

/// Who shall make a volume for this claim. Presence decides between the two keys: the current one
/// wins even when it names somebody else.
#[must_use]
pub fn storage_provisioner(claim: &Claim) -> Option<&str> {
    claim
        .metadata
        .annotation(annotations::STORAGE_PROVISIONER)
        .or_else(|| claim.metadata.annotation(annotations::BETA_STORAGE_PROVISIONER))
}

/// The node that the scheduler chose; an empty value is none.
#[must_use]
pub fn selected_node(claim: &Claim) -> Option<&str> {
    claim.metadata.annotation(annotations::SELECTED_NODE).filter(|node| !node.is_empty())
}

/// The class that answers claims without one: the newest marked as default, the smallest name
/// among equally new ones.
pub fn default_class<'a>(
    classes: impl IntoIterator<Item = &'a StorageClass>,
) -> Option<&'a StorageClass> {
    let is_default = |class: &&StorageClass| {
        [annotations::IS_DEFAULT_CLASS, annotations::BETA_IS_DEFAULT_CLASS]
            .iter()
            .any(|key| class.metadata.annotation(key) == Some("true"))
    };
    classes.into_iter().filter(is_default).min_by(|a, b| {
        let newest = b.metadata.creation_timestamp.cmp(&a.metadata.creation_timestamp);
        newest.then_with(|| a.metadata.name.cmp(&b.metadata.name))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(annotations: serde_json::Value, class: Option<&str>) -> Claim {
        serde_json::from_value(json!({
            "metadata": {"name": "c", "annotations": annotations},
            "spec": {"storageClassName": class}
        }))
        .unwrap()
    }

    #[test]
    fn provisioner_node_and_class_are_read_from_a_claim() {
        let beta = "volume.beta.kubernetes.io/storage-provisioner";
        let both = json!({beta: "ours", "volume.kubernetes.io/storage-provisioner": "theirs"});
        assert_eq!(storage_provisioner(&claim(both, None)), Some("theirs"));
        assert_eq!(storage_provisioner(&claim(json!({beta: "ours"}), None)), Some("ours"));
        let node = "volume.kubernetes.io/selected-node";
        assert_eq!(selected_node(&claim(json!({node: ""}), None)), None);
        assert_eq!(selected_node(&claim(json!({node: "n1"}), None)), Some("n1"));
        let old = json!({"volume.beta.kubernetes.io/storage-class": ""});
        assert!(has_class(&claim(old, None)));
        assert!(has_class(&claim(json!({}), Some(""))));
        assert!(!has_class(&claim(json!({}), None)));
    }

    #[test]
    fn the_newest_default_class_is_chosen() {
        let class = |name: &str, time: &str, marked: &str| -> StorageClass {
            serde_json::from_value(json!({"metadata": {"name": name, "creationTimestamp": time,
                "annotations": {"storageclass.kubernetes.io/is-default-class": marked}}}))
            .unwrap()
        };
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z");
        let cases: [(&str, Vec<StorageClass>, Option<&str>); 4] = [
            ("none", vec![], None),
            ("only true marks", vec![class("a", new, "yes")], None),
            ("newest", vec![class("a", old, "true"), class("b", new, "true")], Some("b")),
            (
                "case: pv-controller/15-2 equal age",
                vec![class("silver", new, "true"), class("gold", new, "true")],
                Some("gold"),
            ),
        ];
        for (name, classes, want) in cases {
            let got = default_class(&classes).map(|class| class.metadata.name.as_str());
            assert_eq!(got, want, "{name}");
        }
    }
}
