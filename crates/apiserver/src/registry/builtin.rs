//! The table of built-in kinds.

use std::sync::{Arc, OnceLock};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::rbac::v1 as roles;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::api::storagemigration::v1::StorageVersionMigration;
use k8s_openapi::api::{authentication::v1 as authentication, authorization::v1 as authorization};
use k8s_openapi::api::{core::v1 as core, events::v1 as events};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

use super::codec::{Codec, Typed, of};
use super::kinds::{
    attachment, capacity, claim, class, config, csi_driver, csi_node, event, lease, migration,
    namespace, node, pod, rbac, volume,
};
use super::strategy::{Plain, Strategy, Traits};
use super::{Resource, Subresource, View};
use crate::crd::definition;

const ALL: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const NO_COLLECTION: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
const STATUS_VERBS: &[&str] = &["get", "patch", "update"];

const CLAIM_QUANTITIES: &[&str] =
    &["spec.resources.*.*", "status.capacity.*", "status.allocatedResources.*"];
const VOLUME_QUANTITIES: &[&str] = &["spec.capacity.*"];
const POD_QUANTITIES: &[&str] = &[
    "spec.containers.*.resources.*.*",
    "spec.initContainers.*.resources.*.*",
    "spec.volumes.*.emptyDir.sizeLimit",
    "spec.volumes.*.ephemeral.volumeClaimTemplate.spec.resources.*.*",
    "spec.overhead.*",
    "spec.resources.*.*",
    "spec.ephemeralContainers.*.resources.*.*",
    "spec.containers.*.env.*.valueFrom.resourceFieldRef.divisor",
    "spec.initContainers.*.env.*.valueFrom.resourceFieldRef.divisor",
    "spec.volumes.*.downwardAPI.items.*.resourceFieldRef.divisor",
    "spec.volumes.*.projected.sources.*.downwardAPI.items.*.resourceFieldRef.divisor",
    "status.containerStatuses.*.allocatedResources.*",
    "status.containerStatuses.*.resources.*.*",
    "status.initContainerStatuses.*.allocatedResources.*",
    "status.initContainerStatuses.*.resources.*.*",
];
const ATTACHMENT_QUANTITIES: &[&str] = &["spec.source.inlineVolumeSpec.capacity.*"];
const NODE_QUANTITIES: &[&str] = &["status.capacity.*", "status.allocatable.*"];
const CAPACITY_QUANTITIES: &[&str] = &["capacity", "maximumVolumeSize"];

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.podIPs",
    "status.nominatedNodeName",
];
const CORE_EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];
const EVENT_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];

fn resource(
    group_version: (&str, &str),
    kind: &str,
    plural: &str,
    namespaced: bool,
    typed: Typed,
    strategy: impl Strategy,
) -> Resource {
    let (group, version) = group_version;
    let storage = if group.is_empty() { plural.to_owned() } else { format!("{group}/{plural}") };
    let mut resource = Resource {
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
        list_kind: format!("{kind}List"),
        plural: plural.into(),
        singular: kind.to_lowercase(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced,
        verbs: ALL.to_vec(),
        subresources: Vec::new(),
        fields: Vec::new(),
        quantities: &[],
        storage: Arc::from(storage),
        codec: Codec::Typed(typed.codec),
        strategy: Arc::new(strategy),
        transient: false,
        view: None,
        alias: false,
        custom: None,
        typed: Some(typed),
        shape: OnceLock::new(),
    };
    if resource.traits().status {
        resource.subresources.push(Subresource {
            name: "status",
            kind: (String::new(), String::new(), kind.into()),
            verbs: STATUS_VERBS,
        });
    }
    resource
}

impl Resource {
    fn short(mut self, names: &[&str]) -> Self {
        self.short_names = names.iter().map(|n| (*n).to_owned()).collect();
        self
    }

    fn category(mut self, name: &str) -> Self {
        self.categories.push(name.into());
        self
    }

    fn fields(mut self, fields: &[&str]) -> Self {
        self.fields = fields.iter().map(|f| (*f).to_owned()).collect();
        self
    }

    fn quantities(mut self, patterns: &'static [&'static str]) -> Self {
        self.quantities = patterns;
        self
    }

    fn verbs(mut self, verbs: &[&'static str]) -> Self {
        self.verbs = verbs.to_vec();
        self
    }

    fn sub(self, name: &'static str, kind: &str, verbs: &'static [&'static str]) -> Self {
        self.foreign_sub(name, ("", "", kind), verbs)
    }

    fn foreign_sub(
        mut self,
        name: &'static str,
        kind: (&str, &str, &str),
        verbs: &'static [&'static str],
    ) -> Self {
        let kind = (kind.0.to_owned(), kind.1.to_owned(), kind.2.to_owned());
        self.subresources.push(Subresource { name, kind, verbs });
        self.subresources.sort_by_key(|s| s.name);
        self
    }
}

const CORE: (&str, &str) = ("", "v1");
const STORAGE: (&str, &str) = ("storage.k8s.io", "v1");

fn core_kinds() -> Vec<Resource> {
    vec![
        resource(CORE, "ConfigMap", "configmaps", true, of::<core::ConfigMap>(), config::ConfigMap)
            .short(&["cm"]),
        resource(CORE, "Event", "events", true, of::<core::Event>(), event::CoreEvent)
            .short(&["ev"])
            .fields(CORE_EVENT_FIELDS),
        resource(
            CORE,
            "Namespace",
            "namespaces",
            false,
            of::<core::Namespace>(),
            namespace::Namespace,
        )
        .short(&["ns"])
        .verbs(NO_COLLECTION)
        .fields(&["status.phase"])
        .sub("finalize", "Namespace", &["update"]),
        resource(CORE, "Node", "nodes", false, of::<core::Node>(), node::Node)
            .short(&["no"])
            .fields(&["spec.unschedulable"])
            .quantities(NODE_QUANTITIES),
        resource(
            CORE,
            "PersistentVolumeClaim",
            "persistentvolumeclaims",
            true,
            of::<core::PersistentVolumeClaim>(),
            claim::Claim,
        )
        .short(&["pvc"])
        .quantities(CLAIM_QUANTITIES),
        resource(
            CORE,
            "PersistentVolume",
            "persistentvolumes",
            false,
            of::<core::PersistentVolume>(),
            volume::Volume,
        )
        .short(&["pv"])
        .quantities(VOLUME_QUANTITIES),
        resource(CORE, "Pod", "pods", true, of::<core::Pod>(), pod::Pod)
            .short(&["po"])
            .category("all")
            .fields(POD_FIELDS)
            .quantities(POD_QUANTITIES)
            .sub("binding", "Binding", &["create"])
            .foreign_sub("eviction", ("policy", "v1", "Eviction"), &["create"])
            .sub("log", "Pod", &["get"]),
        resource(CORE, "Secret", "secrets", true, of::<core::Secret>(), config::Secret)
            .fields(&["type"]),
        resource(
            CORE,
            "ServiceAccount",
            "serviceaccounts",
            true,
            of::<core::ServiceAccount>(),
            Plain(Traits { returns_deleted: true, ..Traits::PLAIN }),
        )
        .short(&["sa"])
        .foreign_sub("token", ("authentication.k8s.io", "v1", "TokenRequest"), &["create"]),
    ]
}

fn storage_kinds() -> Vec<Resource> {
    vec![
        resource(
            STORAGE,
            "CSIDriver",
            "csidrivers",
            false,
            of::<storage::CSIDriver>(),
            csi_driver::CsiDriver,
        ),
        resource(
            STORAGE,
            "CSINode",
            "csinodes",
            false,
            of::<storage::CSINode>(),
            csi_node::CsiNode,
        ),
        resource(
            STORAGE,
            "CSIStorageCapacity",
            "csistoragecapacities",
            true,
            of::<storage::CSIStorageCapacity>(),
            capacity::StorageCapacity,
        )
        .quantities(CAPACITY_QUANTITIES),
        resource(
            STORAGE,
            "StorageClass",
            "storageclasses",
            false,
            of::<storage::StorageClass>(),
            class::StorageClass,
        )
        .short(&["sc"]),
        resource(
            STORAGE,
            "VolumeAttachment",
            "volumeattachments",
            false,
            of::<storage::VolumeAttachment>(),
            attachment::Attachment,
        )
        .quantities(ATTACHMENT_QUANTITIES),
        resource(
            STORAGE,
            "VolumeAttributesClass",
            "volumeattributesclasses",
            false,
            of::<storage::VolumeAttributesClass>(),
            class::AttributesClass,
        )
        .short(&["vac"]),
    ]
}

fn review_kinds() -> Vec<Resource> {
    const AUTHENTICATION: (&str, &str) = ("authentication.k8s.io", "v1");
    const AUTHORIZATION: (&str, &str) = ("authorization.k8s.io", "v1");
    let review = |group, kind: &str, namespaced, typed: Typed| {
        let plural = format!("{}s", kind.to_lowercase());
        let mut review = resource(group, kind, &plural, namespaced, typed, Plain(Traits::PLAIN));
        review.transient = true;
        review.verbs(&["create"])
    };
    vec![
        review(
            AUTHENTICATION,
            "SelfSubjectReview",
            false,
            of::<authentication::SelfSubjectReview>(),
        ),
        review(AUTHENTICATION, "TokenReview", false, of::<authentication::TokenReview>()),
        review(
            AUTHORIZATION,
            "LocalSubjectAccessReview",
            true,
            of::<authorization::LocalSubjectAccessReview>(),
        ),
        review(
            AUTHORIZATION,
            "SelfSubjectAccessReview",
            false,
            of::<authorization::SelfSubjectAccessReview>(),
        ),
        review(
            AUTHORIZATION,
            "SelfSubjectRulesReview",
            false,
            of::<authorization::SelfSubjectRulesReview>(),
        ),
        review(
            AUTHORIZATION,
            "SubjectAccessReview",
            false,
            of::<authorization::SubjectAccessReview>(),
        ),
    ]
}

fn role_kinds() -> Vec<Resource> {
    const RBAC: (&str, &str) = ("rbac.authorization.k8s.io", "v1");
    let binding = |cluster| rbac::Binding { cluster };
    let role = |cluster| rbac::Role { cluster };
    vec![
        resource(
            RBAC,
            "ClusterRoleBinding",
            "clusterrolebindings",
            false,
            of::<roles::ClusterRoleBinding>(),
            binding(true),
        ),
        resource(
            RBAC,
            "ClusterRole",
            "clusterroles",
            false,
            of::<roles::ClusterRole>(),
            role(true),
        ),
        resource(
            RBAC,
            "RoleBinding",
            "rolebindings",
            true,
            of::<roles::RoleBinding>(),
            binding(false),
        ),
        resource(RBAC, "Role", "roles", true, of::<roles::Role>(), role(false)),
    ]
}

/// Custom resource definitions.
fn definition() -> Resource {
    resource(
        ("apiextensions.k8s.io", "v1"),
        "CustomResourceDefinition",
        "customresourcedefinitions",
        false,
        of::<CustomResourceDefinition>().checked_by(definition::codec),
        definition::Definition,
    )
    .short(&["crd", "crds"])
    .category("api-extensions")
}

/// Every built-in kind, in the order of discovery.
pub(super) fn resources() -> Vec<Resource> {
    let mut all = core_kinds();
    all.push(resource(
        ("coordination.k8s.io", "v1"),
        "Lease",
        "leases",
        true,
        of::<Lease>().checked_by(lease::codec),
        lease::Lease,
    ));
    let mut shown = resource(
        ("events.k8s.io", "v1"),
        "Event",
        "events",
        true,
        of::<events::Event>(),
        event::Event,
    )
    .short(&["ev"])
    .fields(EVENT_FIELDS);
    shown.storage = Arc::from("events");
    shown.alias = true;
    shown.view = Some(View { show: event::show, store: event::store });
    all.push(shown);
    all.extend(storage_kinds());
    all.push(resource(
        ("storagemigration.k8s.io", "v1"),
        "StorageVersionMigration",
        "storageversionmigrations",
        false,
        of::<StorageVersionMigration>(),
        migration::Migration,
    ));
    all.extend(role_kinds());
    all.extend(review_kinds());
    all.push(definition());
    all
}
