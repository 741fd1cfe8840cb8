//! Every annotation, label, finalizer and parameter key that Longshore reads or writes.
//!
//! A key that is spelled anywhere else is a mistake waiting to happen: typos compile.

/// Annotation keys.
pub mod annotations {
    /// On a claim: the node the scheduler chose for it.
    pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
    /// On a claim: the older form of [`SELECTED_NODE`], still read.
    pub const ALPHA_SELECTED_NODE: &str = "volume.alpha.kubernetes.io/selected-node";
    /// On a claim: which provisioner shall answer it.
    pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
    /// On a claim: the older form of [`STORAGE_PROVISIONER`], written too.
    pub const BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
    /// On a claim or volume: the class, in its oldest form.
    pub const BETA_STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
    /// On a claim: the bind is complete.
    pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
    /// On a claim or volume: the binder, not a person, made the bind.
    pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
    /// On a volume: who made it.
    pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
    /// On volumes: which in-tree plugin of the binder made it.
    pub const CREATED_BY: &str = "kubernetes.io/createdby";
    /// On a claim or volume: the CSI driver that took over from an in-tree plugin.
    pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
    /// On a volume: the deletion secret's name.
    pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";
    /// On a volume: the deletion secret's namespace.
    pub const DELETION_SECRET_NAMESPACE: &str =
        "volume.kubernetes.io/provisioner-deletion-secret-namespace";
    /// On a volume: the claim's size before an expansion that waits for the node.
    pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
    /// On a claim: which resizer shall expand its volume.
    pub const STORAGE_RESIZER: &str = "volume.kubernetes.io/storage-resizer";
    /// On a claim: the driver has said that nodes need not expand the volume.
    pub const NODE_EXPANSION_NOT_REQUIRED: &str =
        "volume.kubernetes.io/node-expansion-not-required";
    /// On a volume: the secret for ControllerModifyVolume.
    pub const MODIFY_SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
    /// On a volume: the namespace of the secret for ControllerModifyVolume.
    pub const MODIFY_SECRET_NAMESPACE: &str =
        "volume.kubernetes.io/controller-modify-secret-namespace";
    /// On a snapshot content: volumes made from it may be used in another mode than its source.
    pub const ALLOW_VOLUME_MODE_CHANGE: &str =
        "snapshot.storage.kubernetes.io/allow-volume-mode-change";
    /// On a snapshot content: CreateSnapshot was called and has no verdict yet.
    pub const SNAPSHOT_BEING_CREATED: &str =
        "snapshot.storage.kubernetes.io/volumesnapshot-being-created";
    /// On a snapshot content: its snapshot is being deleted.
    pub const SNAPSHOT_BEING_DELETED: &str =
        "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
    /// On a snapshot content: the name of the secret for CreateSnapshot and DeleteSnapshot.
    pub const SNAPSHOT_SECRET_NAME: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";
    /// On a snapshot content: the namespace of that secret.
    pub const SNAPSHOT_SECRET_NAMESPACE: &str =
        "snapshot.storage.kubernetes.io/deletion-secret-namespace";
    /// On a snapshot class: it answers snapshots that name none.
    pub const SNAPSHOT_IS_DEFAULT_CLASS: &str = "snapshot.storage.kubernetes.io/is-default-class";
    /// On the content of a member of a group: the driver's id of the group snapshot.
    pub const GROUP_SNAPSHOT_HANDLE: &str =
        "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";
    /// On a group snapshot content: CreateVolumeGroupSnapshot was called and has no verdict yet.
    pub const GROUP_SNAPSHOT_BEING_CREATED: &str =
        "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created";
    /// On a group snapshot content: its group snapshot is being deleted.
    pub const GROUP_SNAPSHOT_BEING_DELETED: &str =
        "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";
    /// On a group snapshot content: the name of the secret for the calls that create and delete it.
    pub const GROUP_SNAPSHOT_SECRET_NAME: &str =
        "groupsnapshot.storage.kubernetes.io/deletion-secret-name";
    /// On a group snapshot content: the namespace of that secret.
    pub const GROUP_SNAPSHOT_SECRET_NAMESPACE: &str =
        "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace";
    /// On a group snapshot class: it answers group snapshots that name none.
    pub const GROUP_SNAPSHOT_IS_DEFAULT_CLASS: &str =
        "groupsnapshot.storage.kubernetes.io/is-default-class";
    /// On a class: it answers claims that name none.
    pub const IS_DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
    /// On a class: the older form of [`IS_DEFAULT_CLASS`].
    pub const BETA_IS_DEFAULT_CLASS: &str = "storageclass.beta.kubernetes.io/is-default-class";
    /// On a node: JSON map from driver name to the driver's id for this node.
    pub const CSI_NODE_ID: &str = "csi.volume.kubernetes.io/nodeid";
    /// On a `VolumeAttachment`: the node id that the detach needs once the node is gone.
    pub const ATTACH_NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";
    /// On a node: whether the attach-detach controller manages it.
    pub const CONTROLLER_MANAGED_ATTACH: &str =
        "volumes.kubernetes.io/controller-managed-attach-detach";
    /// On an object applied by kubectl: what was applied last.
    pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
    /// On a volume of a plain provisioner: the node whose provisioner may remove its directory.
    pub const PROVISIONER_IDENTITY: &str = "longshore.dev/provisioner-identity";
    /// On a volume of the NFS provisioner: what becomes of its directory.
    pub const ON_DELETE: &str = "longshore.dev/on-delete";
    /// On an intent record: the claim it stands for, as `namespace/name`.
    pub const INTENT_CLAIM: &str = "longshore.dev/claim";
}

/// Label keys.
pub mod labels {
    /// The node's host name.
    pub const HOSTNAME: &str = "kubernetes.io/hostname";
    /// The node's operating system.
    pub const OS: &str = "kubernetes.io/os";
    /// The node's processor architecture.
    pub const ARCH: &str = "kubernetes.io/arch";
    /// On a snapshot content: the node whose snapshotter serves it.
    pub const SNAPSHOT_MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";
    /// On an intent record: what kind of work was begun.
    pub const INTENT: &str = "longshore.dev/intent";
    /// On an intent record: the driver it was begun with.
    pub const INTENT_DRIVER: &str = "longshore.dev/driver";
    /// On an intent record: the node whose instance of the driver it was begun with.
    pub const INTENT_NODE: &str = "longshore.dev/node";
}

/// Taint keys.
pub mod taints {
    /// The node is unschedulable.
    pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
    /// Nobody hears from the node.
    pub const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
    /// An operator says that the node is off.
    pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
}

/// Finalizers.
pub mod finalizers {
    /// A claim that a pod uses stays.
    pub const PVC_PROTECTION: &str = "kubernetes.io/pvc-protection";
    /// A volume that a claim is bound to stays.
    pub const PV_PROTECTION: &str = "kubernetes.io/pv-protection";
    /// A volume attributes class in use stays.
    pub const VAC_PROTECTION: &str = "kubernetes.io/vac-protection";
    /// A volume's backing asset is deleted before the object goes.
    pub const EXTERNAL_PROVISIONER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
    /// A claim that is being cloned stays.
    pub const CLONING_PROTECTION: &str = "provisioner.storage.kubernetes.io/cloning-protection";
    /// A snapshot from which a volume is being made stays.
    pub const SNAPSHOT_SOURCE_PROTECTION: &str =
        "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
    /// A claim that a snapshot is being taken of stays.
    pub const CLAIM_AS_SOURCE: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
    /// A snapshot that a claim is restored from stays.
    pub const SNAPSHOT_AS_SOURCE: &str =
        "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
    /// A snapshot stays until its content is gone.
    pub const SNAPSHOT_BOUND: &str =
        "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
    /// A member of a group snapshot stays while the group does.
    pub const SNAPSHOT_IN_GROUP: &str =
        "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection";
    /// A content stays until the driver's snapshot is dealt with.
    pub const CONTENT_BOUND: &str =
        "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
    /// A group snapshot stays until its content is gone.
    pub const GROUP_SNAPSHOT_BOUND: &str =
        "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection";
    /// A group content stays until the driver's group snapshot is dealt with.
    pub const GROUP_CONTENT_BOUND: &str =
        "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";
    /// What the finalizers of the snapshot programs begin with.
    pub const SNAPSHOT_DOMAIN: &str = "snapshot.storage.kubernetes.io/";
    /// What a populator's finalizer on a claim that it fills ends with; its own prefix comes before.
    pub const POPULATOR_SUFFIX: &str = "/populate-target-protection";
    /// In-tree volumes deleted by the binder.
    pub const PV_CONTROLLER: &str = "kubernetes.io/pv-controller";
    /// Deletion waits for dependents.
    pub const FOREGROUND: &str = "foregroundDeletion";
    /// Deletion leaves dependents.
    pub const ORPHAN: &str = "orphan";
}

/// Keys of the manifest that a driver answers GetPluginInfo with.
pub mod manifest {
    /// All parameters that ControllerModifyVolume takes, with commas between them. The driver takes an
    /// empty value for its default, so a resizer can undo what the last class had and the next does not name.
    pub const MUTABLE_PARAMETERS: &str = "longshore.dev/mutable-parameters";
}

/// The names of the drivers and classes of the embedded mode.
pub mod embedded {
    /// The node-local driver.
    pub const LOCAL_DRIVER: &str = "local.csi.longshore.dev";
    /// The driver on a directory that all nodes see.
    pub const SHARED_DRIVER: &str = "shared.csi.longshore.dev";
    /// The default class: local, waits for the first consumer.
    pub const LOCAL_CLASS: &str = "longshore-local";
    /// Local, provisioned at once.
    pub const LOCAL_IMMEDIATE_CLASS: &str = "longshore-local-immediate";
    /// Shared, waits for the first consumer.
    pub const SHARED_CLASS: &str = "longshore-shared";
    /// Snapshots of local volumes.
    pub const LOCAL_SNAPSHOT_CLASS: &str = "longshore-local";
    /// Snapshots of shared volumes.
    pub const SHARED_SNAPSHOT_CLASS: &str = "longshore-shared";
}
