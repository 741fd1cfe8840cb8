//! `Lease`.

use k8s_openapi::api::coordination::v1 as coordination;

use super::prelude::*;
use crate::go_errors::time_fault;

pub(super) static LEASE: BuiltinKind = BuiltinKind {
    group_version: ("coordination.k8s.io", "v1"),
    names: Names::new("Lease", "leases", &[], &[]),
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: || of::<coordination::Lease>().checked_by(codec),
    traits: Traits { unconditional_update: false, create_on_update: true, ..Traits::PLAIN },
    rules: || Arc::new(Lease),
    table: Table {
        columns: &[NAME, column("Holder"), AGE],
        cells: |row| json!([row.name, text(row.object, "/spec/holderIdentity"), row.age]),
    },
    selectors: &[],
    quantities: &[],
    patch_keys: &[],
    facts: &[],
    protobuf: &[
        "coordination.Lease: 1 metadata meta.ObjectMeta, 2 spec coordination.LeaseSpec",
        "coordination.LeaseSpec: 1 holderIdentity =s, 2 leaseDurationSeconds =i, \
         3 acquireTime u, 4 renewTime u, 5 leaseTransitions =i, 6 strategy =s, \
         7 preferredHolder =s",
    ],
};

pub(super) struct Lease;

/// Checks that times have exactly six fraction digits, as clients of every version expect.
fn codec(object: &Value) -> Result<Value, Misfit> {
    for field in ["acquireTime", "renewTime"] {
        let Some(time) = object["spec"][field].as_str() else { continue };
        if let Some(why) = time_fault(time, true) {
            return Err(Misfit::Time(why));
        }
    }
    typed::<coordination::Lease>(object)
}

impl Strategy for Lease {
    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        let (seconds, count) =
            (&object["spec"]["leaseDurationSeconds"], &object["spec"]["leaseTransitions"]);
        if seconds.as_i64().is_some_and(|seconds| seconds <= 0) {
            let field = "spec.leaseDurationSeconds";
            causes.push(Cause::invalid(field, seconds, "must be greater than 0"));
        }
        if count.as_i64().is_some_and(|count| count < 0) {
            let field = "spec.leaseTransitions";
            causes.push(Cause::invalid(field, count, "must be greater than or equal to 0"));
        }
        causes
    }
}
