//! `VolumeAttachment`.

use std::sync::Arc;

use k8s_openapi::api::storage::v1 as storage;
use serde_json::{Value, json};

use super::volume::{SOURCES, validate_csi};
use crate::error::{Cause, Causes};
use crate::registry::builtin::{ALL, BuiltinKind, Names, STORAGE, Scope, Storage};
use crate::registry::codec::of;
use crate::registry::names;
use crate::registry::rules::{access_modes, same, subdomain, text, unset};
use crate::registry::strategy::{Context, Strategy, Traits};
use crate::registry::table::{AGE, NAME, Row, Table, column, flag};

pub(super) static ATTACHMENT: BuiltinKind = BuiltinKind {
    group_version: STORAGE,
    names: Names {
        kind: "VolumeAttachment",
        plural: "volumeattachments",
        short: &[],
        categories: &[],
    },
    scope: Scope::Cluster,
    verbs: ALL,
    subresources: &[],
    storage: Storage::Own,
    typed: of::<storage::VolumeAttachment>,
    rules: || Arc::new(Attachment),
    table: Table {
        columns: &[
            NAME,
            ("Attacher", "string", "name", 0),
            column("PV"),
            column("Node"),
            flag("Attached"),
            AGE,
        ],
        cells,
    },
    selectors: &[],
    quantities: &["spec.source.inlineVolumeSpec.capacity.*"],
    patch_keys: &[],
    facts: &["standing storage.v1.VolumeAttachmentSpec.source"],
    protobuf: &[
        "storage.VolumeAttachment: 1 metadata meta.ObjectMeta, \
         2 spec storage.VolumeAttachmentSpec, 3 status storage.VolumeAttachmentStatus",
        "storage.VolumeAttachmentSource: 1 persistentVolumeName =s, \
         2 inlineVolumeSpec core.PersistentVolumeSpec",
        "storage.VolumeAttachmentSpec: 1 attacher =s, 2 source storage.VolumeAttachmentSource, \
         3 nodeName =s",
        "storage.VolumeAttachmentStatus: 1 attached =b, 2 attachmentMetadata {}s, \
         3 attachError storage.VolumeError, 4 detachError storage.VolumeError",
        "storage.VolumeError: 1 time t, 2 message s, 3 errorCode =i",
    ],
};

fn cells(row: &Row<'_>) -> Value {
    let object = row.object;
    json!([
        row.name,
        text(object, "/spec/attacher"),
        text(object, "/spec/source/persistentVolumeName"),
        text(object, "/spec/nodeName"),
        object["status"]["attached"] == true,
        row.age,
    ])
}

/// The rules of attachments.
pub(super) struct Attachment;

const MAX_METADATA_BYTES: usize = 256 * 1024;
const MAX_MESSAGE_BYTES: usize = 1024;
const MAX_ATTACHER_CHARS: usize = 63;

impl Strategy for Attachment {
    fn traits(&self) -> Traits {
        Traits { status_metadata: false, unconditional_update: false, ..Traits::WITH_STATUS }
    }

    fn prepare_create(&self, object: &mut Value, _cx: &Context<'_>) {
        object["status"] = json!({"attached": false});
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        let spec = &object["spec"];
        let source = &spec["source"];
        validate_source(&mut causes, source);
        subdomain(&mut causes, "spec.nodeName", text(spec, "/nodeName"));
        if let Some(name) = source["persistentVolumeName"].as_str()
            && source["inlineVolumeSpec"].is_null()
        {
            subdomain(&mut causes, "spec.source.persistentVolumeName", name);
        }
        validate_attacher(&mut causes, text(spec, "/attacher"));
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = self.validate_create(new);
        if !same(&new["spec"], &old["spec"]) {
            causes.push(Cause::invalid("spec", &Value::Null, "field is immutable"));
        }
        causes
    }

    fn validate_status(&self, new: &Value, _old: &Value) -> Causes {
        let mut causes = Causes::new();
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

fn validate_attacher(causes: &mut Causes, name: &str) {
    const FIELD: &str = "spec.attacher";
    if name.is_empty() {
        causes.push(Cause::required(FIELD, ""));
    } else if name.len() > MAX_ATTACHER_CHARS {
        causes.push(Cause::too_long_chars(FIELD, MAX_ATTACHER_CHARS));
    } else {
        causes.extend(Cause::each(FIELD, name, names::subdomain_any_case(name)));
    }
}

fn validate_source(causes: &mut Causes, source: &Value) {
    const ONE: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let (name, inline) = (&source["persistentVolumeName"], &source["inlineVolumeSpec"]);
    match (name.as_str(), inline.is_null()) {
        (None, true) => causes.push(Cause::required("spec.source", ONE)),
        (Some(_), false) => causes.push(Cause::forbidden("spec.source", ONE)),
        (Some(""), true) => {
            let why = "must specify non empty persistentVolumeName";
            causes.push(Cause::required("spec.source.persistentVolumeName", why));
        }
        (Some(_), true) => {}
        (None, false) => validate_inline(causes, inline),
    }
}

fn validate_inline(causes: &mut Causes, inline: &Value) {
    const BASE: &str = "spec.source.inlineVolumeSpec";
    const WHY: &str = "may not be specified in the context of inline volumes";
    let field = |name: &str| format!("{BASE}.{name}");
    let set = |name: &str| {
        let value = &inline[name];
        !value.is_null() && *value != "" && (name != "capacity" || *value != json!({}))
    };
    let forbid = |causes: &mut Causes, name: &str, why: &str| {
        causes.push(Cause::forbidden(field(name), why));
    };
    for name in ["claimRef", "capacity"] {
        if set(name) {
            forbid(causes, name, WHY);
        }
    }
    if unset(inline, "/csi") {
        let why = "has to be specified in the context of inline volumes";
        causes.push(Cause::required(field("csi"), why));
    }
    access_modes(causes, inline, &field("accessModes"), "");
    if SOURCES.iter().all(|source| unset(inline, &format!("/{source}"))) {
        causes.push(Cause::required(BASE, "must specify a volume type"));
    } else if !unset(inline, "/csi") {
        validate_csi(causes, &field("csi"), &inline["csi"]);
    }
    if !matches!(text(inline, "/persistentVolumeReclaimPolicy"), "" | "Retain") {
        let why = "may only be Retain in the context of inline volumes";
        forbid(causes, "persistentVolumeReclaimPolicy", why);
    }
    for name in ["nodeAffinity", "storageClassName"] {
        if set(name) {
            forbid(causes, name, WHY);
        }
    }
    if !matches!(text(inline, "/volumeMode"), "" | "Filesystem") {
        let why =
            "may not specify volumeMode other than Filesystem in the context of inline volumes";
        forbid(causes, "volumeMode", why);
    }
}
