//! Slim views of API objects.
//!
//! Each record holds the fields that some rule uses and nothing else, and is read straight from the
//! API's JSON. Records are for looking. A write starts from the live object as raw JSON, so that
//! fields unknown here survive it.

mod claim;
mod cluster;
mod csi;
mod group_snapshot;
mod health;
mod in_tree;
mod meta;
mod pod;
mod snapshot;
mod source;
mod volume;

pub use claim::*;
pub use cluster::*;
pub use csi::*;
pub use group_snapshot::*;
pub use health::*;
pub use in_tree::*;
pub use meta::*;
pub use pod::*;
pub use snapshot::*;
pub use source::*;
pub use volume::*;

/// Where a kind lives in the API.
pub trait Kind {
    /// API group; empty for core.
    const GROUP: &'static str;
    /// API version.
    const VERSION: &'static str;
    /// The kind's name.
    const KIND: &'static str;
    /// The resource's name in paths.
    const PLURAL: &'static str;
    /// Whether its objects live in namespaces.
    const NAMESPACED: bool;

    /// `v1` or `group/version`.
    #[must_use]
    fn api_version() -> String {
        if Self::GROUP.is_empty() {
            Self::VERSION.to_owned()
        } else {
            format!("{}/{}", Self::GROUP, Self::VERSION)
        }
    }
}

/// A record with metadata.
pub trait HasMeta {
    /// The record's metadata.
    fn meta(&self) -> &Meta;

    /// The object's namespace and name.
    fn key(&self) -> ObjectKey {
        self.meta().key()
    }
}

macro_rules! kinds {
    ($($type:ident: $group:literal, $version:literal, $kind:literal, $plural:literal, $namespaced:literal;)*) => {
        $(
            impl Kind for $type {
                const GROUP: &'static str = $group;
                const VERSION: &'static str = $version;
                const KIND: &'static str = $kind;
                const PLURAL: &'static str = $plural;
                const NAMESPACED: bool = $namespaced;
            }
            impl HasMeta for $type {
                fn meta(&self) -> &Meta {
                    &self.metadata
                }
            }
        )*
    };
}

kinds! {
    Claim: "", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true;
    Volume: "", "v1", "PersistentVolume", "persistentvolumes", false;
    Pod: "", "v1", "Pod", "pods", true;
    Node: "", "v1", "Node", "nodes", false;
    Namespace: "", "v1", "Namespace", "namespaces", false;
    Secret: "", "v1", "Secret", "secrets", true;
    ConfigMap: "", "v1", "ConfigMap", "configmaps", true;
    Event: "", "v1", "Event", "events", true;
    ServiceAccount: "", "v1", "ServiceAccount", "serviceaccounts", true;
    Lease: "coordination.k8s.io", "v1", "Lease", "leases", true;
    StorageClass: "storage.k8s.io", "v1", "StorageClass", "storageclasses", false;
    VolumeAttributesClass: "storage.k8s.io", "v1", "VolumeAttributesClass", "volumeattributesclasses", false;
    VolumeAttachment: "storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", false;
    CsiDriver: "storage.k8s.io", "v1", "CSIDriver", "csidrivers", false;
    CsiNode: "storage.k8s.io", "v1", "CSINode", "csinodes", false;
    VolumeSnapshotClass: "snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass", "volumesnapshotclasses", false;
    VolumeSnapshot: "snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots", true;
    VolumeSnapshotContent: "snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent", "volumesnapshotcontents", false;
    VolumeGroupSnapshotClass: "groupsnapshot.storage.k8s.io", "v1", "VolumeGroupSnapshotClass", "volumegroupsnapshotclasses", false;
    VolumeGroupSnapshot: "groupsnapshot.storage.k8s.io", "v1", "VolumeGroupSnapshot", "volumegroupsnapshots", true;
    VolumeGroupSnapshotContent: "groupsnapshot.storage.k8s.io", "v1", "VolumeGroupSnapshotContent", "volumegroupsnapshotcontents", false;
    ReferenceGrant: "gateway.networking.k8s.io", "v1beta1", "ReferenceGrant", "referencegrants", true;
    CsiStorageCapacity: "storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", true;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_api_json() {
        let claim: Claim = serde_json::from_value(serde_json::json!({
            "kind": "PersistentVolumeClaim", "apiVersion": "v1",
            "metadata": {"name": "data", "namespace": "default", "uid": "u1", "resourceVersion": "7",
                "creationTimestamp": "2026-11-15T22:05:23Z", "managedFields": [{"manager": "x"}],
                "finalizers": ["kubernetes.io/pvc-protection"], "annotations": null},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
                "resources": {"requests": {"storage": "10Mi"}}},
            "status": {"phase": "Pending"}
        }))
        .unwrap();
        assert_eq!(claim.key().to_string(), "default/data");
        assert_eq!(claim.request().bytes(), 10 << 20);
        assert_eq!(claim.spec.storage_class_name.as_deref(), Some(""));
        assert_eq!(claim.metadata.revision(), 7);
    }

    #[test]
    fn health_reads_the_same_whether_null_empty_or_absent() {
        for status in [
            serde_json::json!({}),
            serde_json::json!({"healthStatus": null}),
            serde_json::json!({"healthStatus": {}}),
            serde_json::json!({"healthStatus": {"healthConditions": null}}),
            serde_json::json!({"healthStatus": {"healthConditions": []}}),
        ] {
            let claim = serde_json::json!({"metadata": {"name": "c"}, "status": status});
            let claim: Claim = serde_json::from_value(claim).unwrap();
            assert!(claim.status.health_status.health_conditions.is_empty(), "{status}");
        }
        let bad = serde_json::json!({"status": "DataLoss", "reason": "ImageMissing"});
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "p"},
            "status": {"volumeHealth": [{"name": "data", "healthConditions": [bad.clone()],
                "lastTransitionTime": null}]}}))
        .unwrap();
        assert_eq!(pod.status.volume_health[0].health_conditions[0].reason, "ImageMissing");
        let node: CsiNode = serde_json::from_value(serde_json::json!({"metadata": {"name": "n"},
            "status": {"storageHealth": [{"name": "d", "healthConditions": [{
                "status": "StorageDegraded", "reason": "PoolFull", "message": "no room",
                "accessMode": "ReadWriteOncePod", "volumeMode": "Block",
                "lastTransitionTime": null}]}]}}))
        .unwrap();
        let condition = &node.status.storage_health[0].health_conditions[0];
        assert_eq!(condition.access_mode, Some(crate::model::AccessMode::ReadWriteOncePod));
        assert_eq!(condition.status, crate::model::StorageHealthType::StorageDegraded);
    }

    #[test]
    fn a_bare_object_reads_as_defaults() {
        let pod: Pod =
            serde_json::from_value(serde_json::json!({"metadata": {"name": "p"}})).unwrap();
        assert_eq!(pod.spec.node_name, "");
        assert!(pod.status.phase.is_empty());
    }
}
