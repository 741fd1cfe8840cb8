//! Types that several kinds use, as `ObjectMeta`.

/// Facts about them; see [`crate::registry::facts`].
pub(in crate::registry) const FACTS: &[&str] = &[
    "list ObjectMeta.finalizers",
    "list ObjectMeta.ownerReferences uid",
    "atomic LabelSelector",
    "atomic OwnerReference",
    "atomic core.v1.LocalObjectReference",
    "atomic core.v1.NodeSelector",
    "atomic core.v1.NodeSelectorTerm",
    "atomic core.v1.ObjectReference",
    "enum core.v1.AzureDiskVolumeSource.cachingMode None ReadOnly ReadWrite",
    "enum core.v1.AzureDiskVolumeSource.kind Dedicated Managed Shared",
    "enum core.v1.HostPathVolumeSource.type \"\" BlockDevice CharDevice Directory \
    DirectoryOrCreate File FileOrCreate Socket",
    "enum core.v1.NodeSelectorRequirement.operator DoesNotExist Exists Gt In Lt NotIn",
    "enum core.v1.VolumeHealthCondition.status DataLoss Degraded Inaccessible",
    "required OwnerReference apiVersion kind name uid",
    "required core.v1.LocalObjectReference",
    "type ObjectMeta.uid types.UID",
    "type OwnerReference.uid types.UID",
];

/// Their protobuf messages; see `http::protobuf`.
pub(crate) const PROTOBUF: &str = include_str!("common_protobuf.txt");
