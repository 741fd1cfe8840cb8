//! `VolumeAttachment`.

use serde_json::{Value, json};

use super::volume::{SOURCES, validate_csi};
use crate::error::Cause;
use crate::registry::rules::{driver_name, same, subdomain, text, unset};
use crate::registry::strategy::{Context, Strategy, Traits};

/// The rules of attachments.
pub struct Attachment;

const MAX_METADATA_BYTES: usize = 256 * 1024;
const MAX_MESSAGE_BYTES: usize = 1024;

impl Strategy for Attachment {
    fn traits(&self) -> Traits {
        Traits { status_metadata: false, unconditional_update: false, ..Traits::WITH_STATUS }
    }

    fn prepare_create(&self, object: &mut Value, _cx: &Context<'_>) {
        object["status"] = json!({"attached": false});
    }

    fn validate_create(&self, object: &Value) -> Vec<Cause> {
        let mut causes = Vec::new();
        let spec = &object["spec"];
        driver_name(&mut causes, "spec.attacher", text(spec, "/attacher"));
        match text(spec, "/nodeName") {
            "" => causes.push(Cause::required("spec.nodeName", "")),
            name => subdomain(&mut causes, "spec.nodeName", name),
        }
        validate_source(&mut causes, &spec["source"]);
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<Cause> {
        let mut causes = self.validate_create(new);
        if !same(&new["spec"], &old["spec"]) {
            causes.push(Cause::invalid("spec", &Value::Null, "field is immutable"));
        }
        causes
    }

    fn validate_status(&self, new: &Value, _old: &Value) -> Vec<Cause> {
        let mut causes = Vec::new();
        let status = &new["status"];
        let size: usize = status["attachmentMetadata"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(k, v)| k.len() + v.as_str().map_or(0, str::len))
            .sum();
        if size > MAX_METADATA_BYTES {
            causes.push(Cause::too_long("status.attachmentMetadata", MAX_METADATA_BYTES));
        }
        for error in ["attachError", "detachError"] {
            if text(&status[error], "/message").len() > MAX_MESSAGE_BYTES {
                let field = format!("status.{error}.message");
                causes.push(Cause::too_long(field, MAX_MESSAGE_BYTES));
            }
            let code = &status[error]["errorCode"];
            if code.as_i64().is_some_and(|code| code < 0) {
                let field = format!("status.{error}.errorCode");
                causes.push(Cause::invalid(field, code, "must be greater than or equal to 0"));
            }
        }
        causes
    }
}

fn validate_source(causes: &mut Vec<Cause>, source: &Value) {
    const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let (name, inline) = (&source["persistentVolumeName"], &source["inlineVolumeSpec"]);
    match (name.as_str(), inline.is_null()) {
        (None, true) => causes.push(Cause::required("spec.source", ONE)),
        (Some(_), false) => causes.push(Cause::forbidden("spec.source", ONE)),
        (Some(""), true) => {
            let why = "must specify non empty persistentVolumeName";
            causes.push(Cause::required("spec.source.persistentVolumeName", why));
        }
        (Some(name), true) => subdomain(causes, "spec.source.persistentVolumeName", name),
        (None, false) => validate_inline(causes, inline),
    }
}

fn validate_inline(causes: &mut Vec<Cause>, inline: &Value) {
    const BASE: &str = "spec.source.inlineVolumeSpec";
    let mut forbid =
        |field: &str, why: &str| causes.push(Cause::forbidden(format!("{BASE}.{field}"), why));
    for source in SOURCES.iter().filter(|s| **s != "csi" && !unset(inline, &format!("/{s}"))) {
        forbid(source, "only CSI volumes can be attached inline");
    }
    for field in ["claimRef", "capacity", "nodeAffinity", "storageClassName"] {
        let value = &inline[field];
        if !value.is_null() && *value != json!({}) && *value != json!("") {
            forbid(field, "may not be specified in the context of inline volumes");
        }
    }
    if !matches!(text(inline, "/persistentVolumeReclaimPolicy"), "" | "Retain") {
        let why = "may only be \"Retain\" in the context of inline volumes";
        forbid("persistentVolumeReclaimPolicy", why);
    }
    if !matches!(text(inline, "/volumeMode"), "" | "Filesystem") {
        forbid("volumeMode", "may not specify volumeMode for inline volumes");
    }
    if unset(inline, "/csi") {
        causes.push(Cause::required(format!("{BASE}.csi"), ""));
    } else {
        validate_csi(causes, &format!("{BASE}.csi"), &inline["csi"]);
    }
}
