//! One-line JSON of a message for logs, with every secret replaced.
//!
//! The fields to hide are read from the `csi_secret` option in the embedded descriptors, so a secret field that
//! is added to the protocol file is hidden without further work here.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use prost::{Message, Name};
use prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, FieldDescriptor, Kind, MapKey,
    Value as Field,
};
use serde_json::{Map, Value};

/// What stands in a log where a secret was.
pub const STRIPPED: &str = "***stripped***";

static DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

pub(crate) static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(DESCRIPTORS).expect("the embedded descriptors are made by the build")
});

static SECRET: LazyLock<ExtensionDescriptor> = LazyLock::new(|| {
    POOL.get_extension_by_name("csi.v1.csi_secret")
        .expect("the protocol file defines the csi_secret option")
});

/// Renders a message as one line of JSON keyed by field name, without its secrets.
///
/// Only populated fields appear, keys are sorted, enums are written by name.
///
/// ```
/// use longshore_csi::{redact, v1};
///
/// let request = v1::DeleteVolumeRequest {
///     volume_id: "vol-1".into(),
///     secrets: [("password".to_string(), "hunter2".to_string())].into(),
/// };
/// assert_eq!(redact::text(&request), r#"{"secrets":"***stripped***","volume_id":"vol-1"}"#);
/// ```
pub fn text<M: Message + Name>(message: &M) -> String {
    json(message).to_string()
}

/// The same as [`text`], as a JSON value.
pub fn json<M: Message + Name>(message: &M) -> Value {
    let name = M::full_name();
    let known = POOL.get_message_by_name(&name);
    let decoded = known
        .and_then(|kind| DynamicMessage::decode(kind, message.encode_to_vec().as_slice()).ok());
    match decoded {
        Some(message) => message_json(&message),
        // Never fall back to the debug form: it would show secrets.
        None => Value::String(format!("<{name}>")),
    }
}

/// Cuts a logged response to `limit` characters and says so; `None` and zero mean no limit.
pub fn cap(text: String, limit: Option<usize>) -> String {
    let Some(limit) = limit.filter(|limit| *limit > 0) else { return text };
    match text.char_indices().nth(limit) {
        None => text,
        Some((end, _)) => {
            format!("{} [response body too large, log capped to {limit} chars]", &text[..end])
        }
    }
}

fn is_secret(field: &FieldDescriptor) -> bool {
    let options = field.options();
    options.has_extension(&SECRET) && options.get_extension(&SECRET).as_ref() == &Field::Bool(true)
}

fn message_json(message: &DynamicMessage) -> Value {
    // Sorted by hand: a JSON map keeps either key or insertion order, depending on the build.
    let mut out = BTreeMap::new();
    for (field, value) in message.fields() {
        let shown = if is_secret(&field) {
            Value::String(STRIPPED.to_owned())
        } else {
            value_json(&field.kind(), value)
        };
        out.insert(field.name().to_owned(), shown);
    }
    Value::Object(Map::from_iter(out))
}

fn value_json(kind: &Kind, value: &Field) -> Value {
    match value {
        Field::Bool(v) => (*v).into(),
        Field::I32(v) => (*v).into(),
        Field::I64(v) => (*v).into(),
        Field::U32(v) => (*v).into(),
        Field::U64(v) => (*v).into(),
        Field::F32(v) => (*v).into(),
        Field::F64(v) => (*v).into(),
        Field::String(v) => v.clone().into(),
        Field::Bytes(v) => format!("<{} bytes>", v.len()).into(),
        Field::EnumNumber(number) => enum_json(kind, *number),
        Field::Message(inner) => message_json(inner),
        Field::List(items) => items.iter().map(|item| value_json(kind, item)).collect(),
        Field::Map(entries) => {
            let entry = kind.as_message().map(|entry| entry.map_entry_value_field().kind());
            let entry = entry.unwrap_or(Kind::String);
            let sorted: BTreeMap<_, _> =
                entries.iter().map(|(key, v)| (key_text(key), value_json(&entry, v))).collect();
            Value::Object(Map::from_iter(sorted))
        }
    }
}

fn enum_json(kind: &Kind, number: i32) -> Value {
    let name = kind.as_enum().and_then(|e| e.get_value(number)).map(|v| v.name().to_owned());
    name.map_or(number.into(), Value::from)
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::Bool(v) => v.to_string(),
        MapKey::I32(v) => v.to_string(),
        MapKey::I64(v) => v.to_string(),
        MapKey::U32(v) => v.to_string(),
        MapKey::U64(v) => v.to_string(),
        MapKey::String(v) => v.clone(),
    }
}

/// The full names of all fields that carry a secret, for example `csi.v1.CreateVolumeRequest.secrets`.
pub fn secret_fields() -> Vec<String> {
    let fields = POOL.all_messages().flat_map(|m| m.fields().collect::<Vec<_>>());
    fields.filter(is_secret).map(|field| field.full_name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    fn secrets() -> BTreeMap<String, String> {
        BTreeMap::from([("key".to_owned(), "hunter2".to_owned())])
    }

    #[test]
    fn all_nineteen_secret_fields_are_known() {
        let mut found = secret_fields();
        found.sort();
        let mut expected: Vec<String> = [
            "CreateVolume",
            "DeleteVolume",
            "ControllerPublishVolume",
            "ControllerUnpublishVolume",
            "ValidateVolumeCapabilities",
            "ControllerModifyVolume",
            "CreateSnapshot",
            "DeleteSnapshot",
            "ListSnapshots",
            "GetSnapshot",
            "ControllerExpandVolume",
            "NodeStageVolume",
            "NodePublishVolume",
            "NodeExpandVolume",
            "CreateVolumeGroupSnapshot",
            "DeleteVolumeGroupSnapshot",
            "GetVolumeGroupSnapshot",
            "GetMetadataAllocated",
            "GetMetadataDelta",
        ]
        .map(|call| format!("csi.v1.{call}Request.secrets"))
        .into();
        expected.sort();
        assert_eq!(found.len(), 19);
        assert_eq!(found, expected);
    }

    #[test]
    fn every_map_named_secrets_is_marked() {
        let named = POOL.all_messages().flat_map(|m| m.fields().collect::<Vec<_>>());
        let named = named
            .filter(|field| field.name().contains("secret"))
            .filter(|field| field.parent_message().full_name().starts_with("csi.v1."));
        for field in named {
            assert!(is_secret(&field), "{}", field.full_name());
        }
    }

    /// case: csi-protocol/14.7
    #[test]
    fn secrets_are_replaced_and_the_rest_is_plain() {
        use v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
        let request = v1::CreateVolumeRequest {
            name: "pvc-1".into(),
            capacity_range: Some(v1::CapacityRange { required_bytes: 1 << 40, limit_bytes: 0 }),
            volume_capabilities: vec![v1::VolumeCapability {
                access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
                access_type: Some(AccessType::Mount(MountVolume {
                    fs_type: "ext4".into(),
                    ..Default::default()
                })),
            }],
            parameters: BTreeMap::from([("pool".to_owned(), "a\"b".to_owned())]),
            secrets: secrets(),
            accessibility_requirements: Some(v1::TopologyRequirement {
                requisite: vec![v1::Topology {
                    segments: BTreeMap::from([("zone".to_owned(), "z1".to_owned())]),
                }],
                preferred: vec![],
            }),
            ..Default::default()
        };
        assert_eq!(
            text(&request),
            concat!(
                r#"{"accessibility_requirements":{"requisite":[{"segments":{"zone":"z1"}}]},"#,
                r#""capacity_range":{"required_bytes":1099511627776},"name":"pvc-1","#,
                r#""parameters":{"pool":"a\"b"},"secrets":"***stripped***","#,
                r#""volume_capabilities":[{"access_mode":{"mode":"SINGLE_NODE_WRITER"},"#,
                r#""mount":{"fs_type":"ext4"}}]}"#
            )
        );
    }

    /// case: csi-protocol/14.8
    #[test]
    fn absent_secrets_stay_absent() {
        let request = v1::DeleteVolumeRequest { volume_id: "v".into(), secrets: BTreeMap::new() };
        assert_eq!(text(&request), r#"{"volume_id":"v"}"#);
        assert_eq!(text(&v1::ProbeRequest {}), "{}");
    }

    #[test]
    fn unknown_enum_numbers_are_printed_as_numbers() {
        let mode = v1::volume_capability::AccessMode { mode: 99 };
        assert_eq!(text(&mode), r#"{"mode":99}"#);
    }

    /// case: csi-protocol/14.9
    #[test]
    fn long_responses_are_cut() {
        let long = || "x".repeat(20);
        assert_eq!(cap(long(), Some(5)), "xxxxx [response body too large, log capped to 5 chars]");
        for (limit, text) in [(None, long()), (Some(0), long()), (Some(20), long())] {
            assert_eq!(cap(text.clone(), limit), text);
        }
    }
}
