//! `CSIDriver`.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::storage::v1 as storage;
use serde_json::{Value, json};

use crate::error::{Cause, Causes};
use crate::registry::builtin::{ALL, BuiltinKind, Names, STORAGE, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::rules::{items, one_of, same, set_default, text};
use crate::registry::strategy::{Generation, Strategy, Traits};
use crate::registry::table::{AGE, NAME, Row, Table, column, flag, or};

pub(super) static CSI_DRIVER: BuiltinKind = BuiltinKind {
    group_version: STORAGE,
    names: Names { kind: "CSIDriver", plural: "csidrivers", short: &[], categories: &[] },
    scope: Scope::Cluster,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<storage::CSIDriver>,
    rules: || Arc::new(CsiDriver),
    table: Table {
        columns: &[
            NAME,
            flag("AttachRequired"),
            flag("PodInfoOnMount"),
            flag("StorageCapacity"),
            column("TokenRequests"),
            flag("RequiresRepublish"),
            column("Modes"),
            AGE,
        ],
        cells,
    },
    selectors: &[],
    quantities: &[],
    patch_keys: &[],
    facts: &[
        "list storage.v1.CSIDriverSpec.volumeLifecycleModes",
        "patch storage.v1.CSIDriverSpec.volumeLifecycleModes replace",
        "type storage.v1.CSIDriverSpec.fsGroupPolicy v1.FSGroupPolicy",
        "type storage.v1.CSIDriverSpec.volumeLifecycleModes []v1.VolumeLifecycleMode",
    ],
    protobuf: &[
        "storage.CSIDriver: 1 metadata meta.ObjectMeta, 2 spec storage.CSIDriverSpec",
        "storage.CSIDriverSpec: 1 attachRequired =b, 2 podInfoOnMount =b, \
         3 volumeLifecycleModes []s, 4 storageCapacity =b, 5 fsGroupPolicy =s, \
         6 tokenRequests []storage.TokenRequest, 7 requiresRepublish =b, 8 seLinuxMount =b, \
         9 nodeAllocatableUpdatePeriodSeconds =i, 10 serviceAccountTokenInSecrets =b, \
         11 preventPodSchedulingIfMissing =b",
        "storage.TokenRequest: 1 audience =s, 2 expirationSeconds =i",
    ],
};

fn cells(row: &Row<'_>) -> Value {
    let Row { object, name, age, .. } = row;
    let audiences: Vec<&str> =
        items(object, "/spec/tokenRequests").iter().map(|t| text(t, "/audience")).collect();
    let tokens = if audiences.is_empty() { "<unset>".into() } else { audiences.join(",") };
    let modes: Vec<&str> =
        items(object, "/spec/volumeLifecycleModes").iter().filter_map(Value::as_str).collect();
    let spec = &object["spec"];
    json!([
        name,
        spec["attachRequired"] == true,
        spec["podInfoOnMount"] == true,
        spec["storageCapacity"] == true,
        tokens,
        spec["requiresRepublish"] == true,
        or(&modes.join(","), "<none>"),
        age,
    ])
}

/// The rules of driver records.
pub(super) struct CsiDriver;

const MIN_TOKEN_SECONDS: i64 = 600;
const MAX_TOKEN_SECONDS: i64 = 1 << 32;
const MIN_UPDATE_SECONDS: i64 = 10;

impl Strategy for CsiDriver {
    fn traits(&self) -> Traits {
        Traits {
            unconditional_update: false,
            returns_deleted: true,
            generation: Generation::FromFirstChange,
            ..Traits::PLAIN
        }
    }

    fn default(&self, object: &mut Value) {
        let spec = &mut object["spec"];
        set_default(spec, "attachRequired", true);
        for flag in [
            "podInfoOnMount",
            "storageCapacity",
            "requiresRepublish",
            "seLinuxMount",
            "preventPodSchedulingIfMissing",
        ] {
            set_default(spec, flag, false);
        }
        set_default(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
        if items(spec, "/volumeLifecycleModes").is_empty() {
            spec["volumeLifecycleModes"] = json!(["Persistent"]);
        }
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        let spec = &object["spec"];
        let policies = ["File", "None", "ReadWriteOnceWithFSType"];
        one_of(&mut causes, "spec.fsGroupPolicy", text(spec, "/fsGroupPolicy"), &policies);
        validate_tokens(&mut causes, spec);
        for mode in items(spec, "/volumeLifecycleModes") {
            let mode = mode.as_str().unwrap_or_default();
            one_of(&mut causes, "spec.volumeLifecycleModes", mode, &["Persistent", "Ephemeral"]);
        }
        let period = &spec["nodeAllocatableUpdatePeriodSeconds"];
        if period.as_i64().is_some_and(|seconds| seconds < MIN_UPDATE_SECONDS) {
            let field = "spec.nodeAllocatableUpdatePeriodSeconds";
            let why = "must be greater than or equal to 10 seconds";
            causes.push(Cause::invalid(field, period, why));
        }
        let in_secrets = &spec["serviceAccountTokenInSecrets"];
        if !in_secrets.is_null() && items(spec, "/tokenRequests").is_empty() {
            let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
            causes.push(Cause::invalid("spec.serviceAccountTokenInSecrets", in_secrets, why));
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = self.validate_create(new);
        let (new, old) = (&new["spec"], &old["spec"]);
        // `attachedRequired` is upstream's spelling of the field in this one error.
        for (field, reported) in [
            ("attachRequired", "spec.attachedRequired"),
            ("volumeLifecycleModes", "spec.volumeLifecycleModes"),
        ] {
            if !same(&new[field], &old[field]) {
                causes.push(Cause::invalid(reported, &new[field], "field is immutable"));
            }
        }
        causes
    }

    fn warnings(&self, object: &Value) -> Vec<String> {
        let spec = &object["spec"];
        let exposed = !items(spec, "/tokenRequests").is_empty()
            && spec["serviceAccountTokenInSecrets"].is_null();
        let warning = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";
        exposed.then(|| warning.to_owned()).into_iter().collect()
    }
}

fn validate_tokens(causes: &mut Causes, spec: &Value) {
    let mut audiences = HashSet::new();
    for (i, request) in items(spec, "/tokenRequests").iter().enumerate() {
        if !audiences.insert(&request["audience"]) {
            let field = format!("spec.tokenRequests[{i}].audience");
            causes.push(Cause::duplicate(field, &request["audience"]));
        }
        let why = match request["expirationSeconds"].as_i64() {
            Some(seconds) if seconds < MIN_TOKEN_SECONDS => {
                "may not specify a duration less than 10 minutes"
            }
            Some(seconds) if seconds > MAX_TOKEN_SECONDS => {
                "may not specify a duration larger than 2^32 seconds"
            }
            _ => continue,
        };
        let field = format!("spec.tokenRequests[{i}].expirationSeconds");
        causes.push(Cause::invalid(field, &request["expirationSeconds"], why));
    }
}
