//! One-line JSON of a message for logs, with every secret replaced.
//!
//! The fields to hide are read from the `csi_secret` option in the embedded descriptors, so a secret field that
//! is added to the protocol file is hidden without further work here.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use longshore_core::redact::{scrub, scrub_tokens};
use longshore_core::stage::tokens;
use prost::{Message, Name};
use prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, FieldDescriptor, Kind, MapKey,
    Value as Field,
};
use serde_json::{Map, Value};

pub use longshore_core::redact::STRIPPED;

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
        Field::String(v) => scrub_tokens(v).into(),
        Field::Bytes(v) => format!("<{} bytes>", v.len()).into(),
        Field::EnumNumber(number) => enum_json(kind, *number),
        Field::Message(inner) => message_json(inner),
        Field::List(items) => items.iter().map(|item| value_json(kind, item)).collect(),
        Field::Map(entries) => {
            let entry = kind.as_message().map(|entry| entry.map_entry_value_field().kind());
            let entry = entry.unwrap_or(Kind::String);
            let shown = |key: &MapKey, value: &Field| match is_token(key) {
                true => STRIPPED.into(),
                false => value_json(&entry, value),
            };
            let sorted: BTreeMap<_, _> = entries
                .iter()
                .map(|(key, value)| (scrub_tokens(&key_text(key)).into_owned(), shown(key, value)))
                .collect();
            Value::Object(Map::from_iter(sorted))
        }
    }
}

/// Tokens of service accounts travel in a map that the protocol does not mark as secret.
fn is_token(key: &MapKey) -> bool {
    matches!(key, MapKey::String(key) if key == tokens::KEY)
}

/// An encoded copy of a request, from which its secrets are read when its response is redacted.
pub(crate) struct SentRequest {
    name: String,
    bytes: Vec<u8>,
}

impl SentRequest {
    pub(crate) fn new<M: Message + Name>(request: &M) -> Self {
        Self { name: M::full_name(), bytes: request.encode_to_vec() }
    }

    /// Takes the request's secrets out of a driver's text: drivers like to repeat what they were
    /// given, and their words end up in events and in the status of objects.
    pub(crate) fn scrub(&self, text: &str) -> Option<String> {
        let kind = POOL.get_message_by_name(&self.name)?;
        let message = DynamicMessage::decode(kind, self.bytes.as_slice()).ok()?;
        let mut secrets = Vec::new();
        collect(&message, false, &mut secrets);
        match scrub(text, &secrets) {
            std::borrow::Cow::Borrowed(_) => None,
            std::borrow::Cow::Owned(clean) => Some(clean),
        }
    }
}

/// Collects the values of secret fields, and tokens.
fn collect(message: &DynamicMessage, secret: bool, into: &mut Vec<String>) {
    for (field, value) in message.fields() {
        collect_value(value, secret || is_secret(&field), into);
    }
}

fn collect_value(value: &Field, secret: bool, into: &mut Vec<String>) {
    match value {
        Field::String(text) if secret => into.push(text.clone()),
        Field::Message(inner) => collect(inner, secret, into),
        Field::List(items) => items.iter().for_each(|item| collect_value(item, secret, into)),
        Field::Map(entries) => {
            for (key, value) in entries {
                collect_value(value, secret || is_token(key), into);
            }
        }
        _ => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    fn secrets() -> BTreeMap<String, String> {
        BTreeMap::from([("key".to_owned(), "hunter2".to_owned())])
    }

    #[test]
    fn all_twenty_two_secret_fields_are_known() {
        let fields = POOL.all_messages().flat_map(|m| m.fields().collect::<Vec<_>>());
        let secret = fields.filter(is_secret).map(|field| field.full_name().to_owned());
        let mut found: Vec<String> = secret.collect();
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
            "ControllerListVolumeHealth",
            "ControllerGetVolumeHealth",
            "NodeGetStorageHealth",
        ]
        .map(|call| format!("csi.v1.{call}Request.secrets"))
        .into();
        expected.sort();
        assert_eq!(found.len(), 22);
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
        use v1::volume_capability::access_mode::Mode;
        use v1::volume_capability::{AccessMode, AccessType, MountVolume};
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

    /// case: csi-1.13/C28
    #[test]
    fn secrets_of_the_health_calls_are_replaced() {
        let stripped = |text: String| {
            assert!(text.contains(r#""secrets":"***stripped***""#), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        };
        let list =
            v1::ControllerListVolumeHealthRequest { secrets: secrets(), ..Default::default() };
        stripped(text(&list));
        let volume_id = "v".to_owned();
        stripped(text(&v1::ControllerGetVolumeHealthRequest { volume_id, secrets: secrets() }));
        stripped(text(&v1::NodeGetStorageHealthRequest { secrets: secrets() }));
    }

    /// case: csi-protocol/14.8
    #[test]
    fn absent_secrets_are_not_shown_as_replaced() {
        let request = v1::DeleteVolumeRequest { volume_id: "v".into(), secrets: BTreeMap::new() };
        assert_eq!(text(&request), r#"{"volume_id":"v"}"#);
        assert_eq!(text(&v1::ProbeRequest {}), "{}");
    }

    const CANARY: &str = "eyJjYW5hcnki.eyJzdWIiOiJ4.c2lnbmF0dXJl";

    /// A message with the canary in every string that it can hold, nested ones included.
    fn canaries(kind: &prost_reflect::MessageDescriptor, depth: u32) -> DynamicMessage {
        let mut message = DynamicMessage::new(kind.clone());
        for field in kind.fields() {
            let one = |kind: &Kind| match kind {
                Kind::String => Some(Field::String(format!("see {CANARY}!"))),
                Kind::Message(inner) if depth > 0 => {
                    Some(Field::Message(canaries(inner, depth - 1)))
                }
                _ => None,
            };
            let value = if field.is_map() {
                let entry = field.kind();
                let value = entry.as_message().map(|entry| entry.map_entry_value_field().kind());
                value.as_ref().and_then(one).map(|value| {
                    let keys = [tokens::KEY.to_owned(), format!("k-{CANARY}")];
                    Field::Map(keys.map(|key| (MapKey::String(key), value.clone())).into())
                })
            } else if field.is_list() {
                one(&field.kind()).map(|value| Field::List(vec![value]))
            } else {
                one(&field.kind())
            };
            if let Some(value) = value.filter(|value| value.is_valid_for_field(&field)) {
                message.set_field(&field, value);
            }
        }
        message
    }

    #[test]
    fn a_token_in_any_string_of_any_message_is_stripped() {
        let mut held = 0;
        for kind in POOL.all_messages().filter(|kind| kind.full_name().starts_with("csi.v1.")) {
            let message = canaries(&kind, 4);
            let shown = message_json(&message).to_string();
            assert!(!shown.contains("eyJ"), "{}: {shown}", kind.full_name());
            held += usize::from(shown.contains(STRIPPED));
        }
        assert!(held > 67, "only {held} messages have strings");
    }

    #[test]
    fn tokens_in_the_volume_context_are_stripped_whatever_they_look_like() {
        let request = v1::NodePublishVolumeRequest {
            volume_id: "v".into(),
            volume_context: BTreeMap::from([
                (tokens::KEY.to_owned(), r#"{"":{"token":"opaque"}}"#.to_owned()),
                ("pool".to_owned(), "default".to_owned()),
            ]),
            ..Default::default()
        };
        let shown = text(&request);
        assert!(!shown.contains("opaque") && shown.contains(r#""pool":"default""#), "{shown}");
    }

    #[test]
    fn what_a_driver_repeats_of_its_secrets_is_taken_out_of_its_error() {
        let request = v1::NodePublishVolumeRequest {
            secrets: secrets(),
            volume_context: BTreeMap::from([(tokens::KEY.to_owned(), "opaque-token".to_owned())]),
            ..Default::default()
        };
        let sent = SentRequest::new(&request);
        let clean = sent.scrub("bad password \"hunter2\" or token opaque-token").unwrap();
        assert_eq!(clean, "bad password \"***stripped***\" or token ***stripped***");
        assert_eq!(sent.scrub("no such pool"), None);
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
