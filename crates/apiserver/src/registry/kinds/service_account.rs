//! `ServiceAccount`: it has no rules of its own.

use super::prelude::*;

pub(super) static SERVICE_ACCOUNT: BuiltinKind = BuiltinKind {
    group_version: CORE,
    names: Names::new("ServiceAccount", "serviceaccounts", &["sa"], &[]),
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[Subresource::new(
        "token",
        ("authentication.k8s.io", "v1", "TokenRequest"),
        &["create"],
    )],
    storage: Storage::Own,
    typed: of::<core::ServiceAccount>,
    traits: Traits { returns_deleted: true, ..Traits::PLAIN },
    rules: || Arc::new(NoRules),
    table: Table { columns: &[NAME, AGE], cells: |row| json!([row.name, row.age]) },
    selectors: &[],
    quantities: &[],
    patch_keys: &[("secrets", "name"), ("imagePullSecrets", "name")],
    facts: &["list core.v1.ServiceAccount.secrets name"],
    protobuf: &[include_str!("service_account_protobuf.txt")],
};
