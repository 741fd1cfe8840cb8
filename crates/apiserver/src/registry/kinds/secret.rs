//! `Secret`.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1 as core;
use serde_json::{Value, json};

use super::config_map::{MAX_BYTES, validate_frozen, validate_keys};
use crate::error::{Cause, Causes};
use crate::go_errors::json_fault;
use crate::registry::builtin::{ALL, BuiltinKind, CORE, Names, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::rules::{set_default, text};
use crate::registry::strategy::{Strategy, Traits};
use crate::registry::table::{AGE, NAME, Row, Table, column};

pub(super) static SECRET: BuiltinKind = BuiltinKind {
    group_version: CORE,
    names: Names { kind: "Secret", plural: "secrets", short: &[], categories: &[] },
    scope: Scope::Namespaced,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<core::Secret>,
    rules: || Arc::new(Secret),
    table: Table { columns: &[NAME, column("Type"), column("Data"), AGE], cells },
    selectors: &["type"],
    quantities: &[],
    patch_keys: &[],
    facts: &["type core.v1.Secret.type v1.SecretType"],
    protobuf: &[
        "core.Secret: 1 metadata meta.ObjectMeta, 2 data {}y, 3 type s, 4 stringData {}s, \
         5 immutable =b",
    ],
};

fn cells(row: &Row<'_>) -> Value {
    let entries = row.object["data"].as_object().map_or(0, serde_json::Map::len);
    json!([row.name, text(row.object, "/type"), entries, row.age])
}

const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

/// The rules of secrets.
pub(super) struct Secret;

impl Strategy for Secret {
    fn traits(&self) -> Traits {
        Traits::PLAIN
    }

    fn default(&self, object: &mut Value) {
        set_default(object, "type", "Opaque");
        let Some(plain) = object.as_object_mut().and_then(|o| o.remove("stringData")) else {
            return;
        };
        for (key, value) in plain.as_object().into_iter().flatten() {
            let encoded = STANDARD.encode(value.as_str().unwrap_or_default());
            object["data"][key] = json!(encoded);
        }
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        if validate_keys(&mut causes, object, "data") > MAX_BYTES / 3 * 4 {
            causes.push(Cause::too_long("data", MAX_BYTES));
        }
        let needed: &[&str] = match text(object, "/type") {
            "kubernetes.io/tls" => &["tls.crt", "tls.key"],
            "kubernetes.io/dockerconfigjson" => &[".dockerconfigjson"],
            "kubernetes.io/dockercfg" => &[".dockercfg"],
            "kubernetes.io/ssh-auth" => &["ssh-privatekey"],
            _ => &[],
        };
        let kind = text(object, "/type");
        let has = |key: &str| !object["data"][key].is_null();
        if kind == "kubernetes.io/basic-auth" && !has("username") && !has("password") {
            for key in ["username", "password"] {
                causes.push(Cause::required(format!("data[{key}]"), ""));
            }
        }
        for key in [".dockercfg", ".dockerconfigjson"] {
            let sent = object["data"][key].as_str().and_then(|text| STANDARD.decode(text).ok());
            let fault = sent.and_then(|bytes| json_fault(&bytes));
            if let Some(why) = fault.filter(|_| needed.contains(&key)) {
                let hidden = "<secret contents redacted>".into();
                causes.push(Cause::invalid(format!("data[{key}]"), &hidden, &why));
            }
        }
        for key in needed.iter().filter(|key| object["data"][**key].is_null()) {
            causes.push(Cause::required(format!("data[{key}]"), ""));
        }
        if text(object, "/type") == "kubernetes.io/service-account-token"
            && object["metadata"]["annotations"][ACCOUNT_NAME].as_str().is_none_or(str::is_empty)
        {
            causes.push(Cause::required(format!("metadata.annotations[{ACCOUNT_NAME}]"), ""));
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = Causes::new();
        if new["type"] != old["type"] {
            causes.push(Cause::invalid("type", &new["type"], "field is immutable"));
        }
        validate_frozen(&mut causes, new, old, &["data"]);
        causes.extend(self.validate_create(new));
        causes
    }
}
