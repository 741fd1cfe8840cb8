//! `ConfigMap` and `Secret`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::{Cause, Causes};
use crate::registry::names;
use crate::registry::rules::{same, set_default, text};
use crate::registry::strategy::Strategy;
use crate::words::json_fault;

/// All values of one object together.
const MAX_BYTES: usize = 1024 * 1024;
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

fn validate_keys(causes: &mut Causes, object: &Value, field: &str) -> usize {
    let mut size = 0;
    for (key, value) in object[field].as_object().into_iter().flatten() {
        causes.extend(Cause::each(&format!("{field}[{key}]"), key, names::config_key(key)));
        size += value.as_str().map_or(0, str::len);
    }
    size
}

fn validate_frozen(causes: &mut Causes, new: &Value, old: &Value, fields: &[&str]) {
    const WHY: &str = "field is immutable when `immutable` is set";
    if old["immutable"] != true {
        return;
    }
    if new["immutable"] != true {
        causes.push(Cause::forbidden("immutable", WHY));
    }
    for field in fields {
        if !same(&new[*field], &old[*field]) {
            causes.push(Cause::forbidden(*field, WHY));
        }
    }
}

/// The rules of config maps.
pub struct ConfigMap;

impl Strategy for ConfigMap {
    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        let size = validate_keys(&mut causes, object, "data")
            + validate_keys(&mut causes, object, "binaryData");
        for key in object["data"].as_object().into_iter().flatten().map(|(k, _)| k) {
            if !object["binaryData"][key].is_null() {
                let why = "duplicate of key present in binaryData";
                causes.push(Cause::invalid(format!("data[{key}]"), &json!(key), why));
            }
        }
        if size > MAX_BYTES {
            causes.push(Cause::too_long("[]", MAX_BYTES));
        }
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = Causes::new();
        validate_frozen(&mut causes, new, old, &["data", "binaryData"]);
        causes.extend(self.validate_create(new));
        causes
    }
}

/// The rules of secrets.
pub struct Secret;

impl Strategy for Secret {
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
