//! `Lease`.

use serde_json::Value;

use crate::error::Cause;
use crate::registry::codec::typed;
use crate::registry::strategy::{Strategy, Traits};
use crate::words::time_fault;

/// The rules of leases.
pub struct Lease;

/// Checks that times have exactly six fraction digits, as clients of every version expect.
pub fn codec(object: &Value) -> Result<Value, String> {
    for field in ["acquireTime", "renewTime"] {
        let Some(time) = object["spec"][field].as_str() else { continue };
        if let Some(why) = time_fault(time, true) {
            return Err(why);
        }
    }
    typed::<k8s_openapi::api::coordination::v1::Lease>(object)
}

impl Strategy for Lease {
    fn traits(&self) -> Traits {
        Traits { unconditional_update: false, create_on_update: true, ..Traits::PLAIN }
    }

    fn validate_create(&self, object: &Value) -> Vec<Cause> {
        let mut causes = Vec::new();
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
