//! `ServiceAccount`: it has no rules of its own.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use serde_json::json;

use crate::registry::Subresource;
use crate::registry::builtin::{ALL, BuiltinKind, CORE, Names, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::strategy::{Plain, Traits};
use crate::registry::table::{AGE, NAME, Table};

pub(super) static SERVICE_ACCOUNT: BuiltinKind = BuiltinKind {
    group_version: CORE,
    names: Names {
        kind: "ServiceAccount",
        plural: "serviceaccounts",
        short: &["sa"],
        categories: &[],
    },
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[Subresource::new(
        "token",
        ("authentication.k8s.io", "v1", "TokenRequest"),
        &["create"],
    )],
    storage: Storage::Own,
    typed: of::<core::ServiceAccount>,
    rules: || Arc::new(Plain(Traits { returns_deleted: true, ..Traits::PLAIN })),
    table: Table { columns: &[NAME, AGE], cells: |row| json!([row.name, row.age]) },
    selectors: &[],
    quantities: &[],
    patch_keys: &[("secrets", "name"), ("imagePullSecrets", "name")],
    facts: &["list core.v1.ServiceAccount.secrets name"],
    protobuf: &[
        "core.ServiceAccount: 1 metadata meta.ObjectMeta, 2 secrets []core.ObjectReference, \
         3 imagePullSecrets []core.LocalObjectReference, 4 automountServiceAccountToken =b",
        "authentication.BoundObjectReference: 1 kind s, 2 apiVersion s, 3 name s, 4 uid s",
        "authentication.TokenRequest: 1 metadata meta.ObjectMeta, \
         2 spec authentication.TokenRequestSpec, 3 status authentication.TokenRequestStatus",
        "authentication.TokenRequestSpec: 1 audiences []s, \
         3 boundObjectRef authentication.BoundObjectReference, 4 expirationSeconds =i",
        "authentication.TokenRequestStatus: 1 token s, 2 expirationTimestamp t",
    ],
};
