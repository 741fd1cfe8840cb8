//! Holds the protocol file and the generated code against the plain table of `wire_table.txt`.

use std::collections::{BTreeMap, BTreeSet};

use prost::{Message, Name};
use prost_reflect::{Cardinality, FieldDescriptor, Kind, MessageDescriptor};

use crate::redact::POOL;
use crate::{Call, v1};

struct Field {
    name: String,
    number: u32,
    kind: String,
    oneof: Option<String>,
    marks: BTreeSet<String>,
}

#[derive(Default)]
struct Table {
    rpcs: Vec<Vec<String>>,
    enums: BTreeMap<String, Vec<(String, i32, bool)>>,
    messages: BTreeMap<String, Vec<Field>>,
}

fn table() -> Table {
    let mut table = Table::default();
    for line in include_str!("wire_table.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match words[0].as_str() {
            "rpc" => table.rpcs.push(words[1..].to_vec()),
            "enum" => {
                let number = words[3].parse().expect("a number");
                let value = (words[2].clone(), number, words.len() > 4);
                table.enums.entry(words[1].clone()).or_default().push(value);
            }
            "empty" => drop(table.messages.insert(words[1].clone(), vec![])),
            "field" => {
                let rest = &words[5..];
                let oneof = rest.iter().find_map(|word| word.strip_prefix("oneof="));
                let field = Field {
                    name: words[2].clone(),
                    number: words[3].parse().expect("a number"),
                    kind: words[4].clone(),
                    oneof: oneof.map(str::to_owned),
                    marks: rest.iter().filter(|word| !word.contains('=')).cloned().collect(),
                };
                table.messages.entry(words[1].clone()).or_default().push(field);
            }
            other => panic!("unknown row {other}"),
        }
    }
    table
}

impl Table {
    /// The full name of a type named inside a message: the innermost scope wins.
    fn resolve(&self, scope: &str, name: &str) -> String {
        let mut scopes: Vec<&str> = scope.match_indices('.').map(|(at, _)| &scope[..at]).collect();
        scopes.push(scope);
        let nested = scopes.iter().rev().map(|scope| format!("{scope}.{name}"));
        let known =
            |name: &String| self.messages.contains_key(name) || self.enums.contains_key(name);
        nested.chain([name.to_owned()]).find(known).unwrap_or_else(|| name.to_owned())
    }
}

/// Field type in the words of the table, with nested types by full name.
fn kind_words(field: &FieldDescriptor) -> String {
    if field.is_map() {
        return "map".to_owned();
    }
    let own = |name: &str| name.strip_prefix("csi.v1.").unwrap_or(name).to_owned();
    let kind = match field.kind() {
        Kind::String => "string".to_owned(),
        Kind::Bool => "bool".to_owned(),
        Kind::Int32 => "int32".to_owned(),
        Kind::Int64 => "int64".to_owned(),
        Kind::Message(message) => own(message.full_name()),
        Kind::Enum(kind) => own(kind.full_name()),
        other => panic!("{other:?} is not used in this protocol"),
    };
    if field.cardinality() == Cardinality::Repeated { format!("repeated:{kind}") } else { kind }
}

fn marks(field: &FieldDescriptor) -> BTreeSet<String> {
    let set = |name: &str| {
        let option = POOL.get_extension_by_name(&format!("csi.v1.{name}")).expect("an option");
        field.options().has_extension(&option)
    };
    let named = [("secret", "csi_secret"), ("alpha", "alpha_field")];
    named.into_iter().filter(|(_, name)| set(name)).map(|(mark, _)| mark.to_owned()).collect()
}

#[test]
fn the_protocol_file_has_exactly_the_messages_of_the_table() {
    let table = table();
    let ours = |message: &MessageDescriptor| {
        message.full_name().starts_with("csi.v1.") && !message.is_map_entry()
    };
    let found: BTreeMap<String, MessageDescriptor> = POOL
        .all_messages()
        .filter(ours)
        .map(|message| (message.full_name()["csi.v1.".len()..].to_owned(), message))
        .collect();
    let names: BTreeSet<&String> = found.keys().collect();
    let mut expected: BTreeSet<&String> = table.messages.keys().collect();
    let outer: BTreeSet<String> =
        expected.iter().filter_map(|name| Some(name.split_once('.')?.0.to_owned())).collect();
    expected.extend(&outer);
    assert_eq!(names, expected);
    for (name, rows) in &table.messages {
        let message = &found[name];
        assert_eq!(message.fields().count(), rows.len(), "{name}");
        for row in rows {
            let what = format!("{name}.{}", row.name);
            let field = message.get_field(row.number).unwrap_or_else(|| panic!("{what}"));
            assert_eq!(field.name(), row.name, "{what}");
            let (prefix, kind) = row.kind.split_once(':').unwrap_or(("", &row.kind));
            let kind = table.resolve(name, kind);
            let kind = if prefix.is_empty() { kind } else { format!("{prefix}:{kind}") };
            assert_eq!(kind_words(&field), kind, "{what}");
            let oneof = field.containing_oneof().map(|oneof| oneof.name().to_owned());
            assert_eq!(oneof, row.oneof, "{what}");
            assert_eq!(marks(&field), row.marks, "{what}");
        }
    }
}

#[test]
fn the_protocol_file_has_exactly_the_enums_and_services_of_the_table() {
    let table = table();
    let alpha = POOL.get_extension_by_name("csi.v1.alpha_enum_value").expect("an option");
    let ours = POOL.all_enums().filter(|kind| kind.full_name().starts_with("csi.v1."));
    let mut found = BTreeMap::new();
    for kind in ours {
        let values = kind.values().map(|value| {
            let marked = value.options().has_extension(&alpha);
            (value.name().to_owned(), value.number(), marked)
        });
        found.insert(kind.full_name()["csi.v1.".len()..].to_owned(), values.collect::<Vec<_>>());
    }
    assert_eq!(found, table.enums);

    let mut rpcs = Vec::new();
    let alpha = POOL.get_extension_by_name("csi.v1.alpha_method").expect("an option");
    for service in POOL.services().filter(|s| s.full_name().starts_with("csi.v1.")) {
        for method in service.methods() {
            let mut row = vec![
                service.name().to_owned(),
                method.name().to_owned(),
                method.input().name().to_owned(),
                method.output().name().to_owned(),
            ];
            row.extend(method.is_server_streaming().then(|| "stream".to_owned()));
            row.extend(method.options().has_extension(&alpha).then(|| "alpha".to_owned()));
            rpcs.push(row);
        }
    }
    let calls: Vec<_> = Call::ALL.iter().map(|call| (call.service(), call.name())).collect();
    let listed: Vec<_> = rpcs.iter().map(|row| (row[0].as_str(), row[1].as_str())).collect();
    assert_eq!(calls, listed);
    for call in Call::ALL {
        assert_eq!(call.path(), format!("/csi.v1.{}/{}", call.service(), call.name()));
    }
    rpcs.sort();
    let mut expected = table.rpcs;
    expected.sort();
    assert_eq!(rpcs, expected);
}

/// A reference encoder that knows nothing but the table.
struct Encoder<'a> {
    table: &'a Table,
    /// Which member of each oneof is set.
    arm: usize,
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes(number: u32, content: &[u8], out: &mut Vec<u8>) {
    varint(u64::from(number) << 3 | 2, out);
    varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

fn scalar(number: u32, value: u64, out: &mut Vec<u8>) {
    varint(u64::from(number) << 3, out);
    varint(value, out);
}

impl Encoder<'_> {
    fn message(&self, name: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let rows = self.table.messages.get(name).map(Vec::as_slice).unwrap_or_default();
        let members = rows.iter().filter(|row| row.oneof.is_some()).count().max(1);
        let mut seen = 0;
        let mut rows: Vec<&Field> = rows
            .iter()
            .filter(|row| {
                let member = row.oneof.is_some();
                seen += usize::from(member);
                !member || (seen - 1) % members == self.arm % members
            })
            .collect();
        rows.sort_by_key(|row| row.number);
        for row in rows {
            self.field(name, row, &mut out);
        }
        out
    }

    fn field(&self, scope: &str, row: &Field, out: &mut Vec<u8>) {
        if row.kind == "map" {
            for key in ["a", "b"] {
                let mut entry = Vec::new();
                bytes(1, key.as_bytes(), &mut entry);
                bytes(2, row.name.as_bytes(), &mut entry);
                bytes(row.number, &entry, out);
            }
            return;
        }
        let (times, kind) = match row.kind.strip_prefix("repeated:") {
            Some(kind) => (2, kind),
            None => (1, row.kind.as_str()),
        };
        for _ in 0..times {
            self.value(scope, row, kind, out);
        }
    }

    fn value(&self, scope: &str, row: &Field, kind: &str, out: &mut Vec<u8>) {
        let number = row.number;
        match kind {
            "string" => bytes(number, row.name.as_bytes(), out),
            "bool" => scalar(number, 1, out),
            "int32" => scalar(number, 300 + u64::from(number), out),
            "int64" => scalar(number, u64::MAX - u64::from(number), out),
            "google.protobuf.BoolValue" => bytes(number, &[8, 1], out),
            "google.protobuf.Int64Value" => bytes(number, &[8, 5], out),
            "google.protobuf.Timestamp" => bytes(number, &[8, 7, 16, 9], out),
            _ => {
                let name = self.table.resolve(scope, kind);
                match self.table.enums.get(&name) {
                    Some(values) => {
                        let (_, value, _) = values.last().expect("a value");
                        scalar(number, *value as u64, out);
                    }
                    None => bytes(number, &self.message(&name), out),
                }
            }
        }
    }
}

/// Decodes the reference bytes with generated code and encodes them again.
fn round_trip<M: Message + Name + Default>(table: &Table, done: &mut BTreeSet<String>) {
    let name = M::full_name()["csi.v1.".len()..].to_owned();
    for arm in 0..2 {
        let reference = Encoder { table, arm }.message(&name);
        let decoded = M::decode(reference.as_slice()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(decoded.encode_to_vec(), reference, "{name} arm {arm}");

        // A later version's field is accepted and left out.
        let mut extended = reference.clone();
        bytes(15_000, b"from the future", &mut extended);
        let decoded = M::decode(extended.as_slice()).expect("decodable");
        assert_eq!(decoded.encode_to_vec(), reference, "{name}");
    }
    done.insert(name);
}

macro_rules! round_trips {
    ($table:expr, $done:expr, $($message:ident),* $(,)?) => {
        $(round_trip::<v1::$message>($table, $done);)*
    };
}

/// case: csi-protocol/14.1, case: csi-protocol/14.2, case: csi-1.13/C1
#[test]
fn generated_code_writes_what_the_table_says_and_ignores_unknown_fields() {
    let (table, mut done) = (table(), BTreeSet::new());
    #[rustfmt::skip]
    round_trips!(
        &table,
        &mut done,
        GetPluginInfoRequest, GetPluginInfoResponse, GetPluginCapabilitiesRequest,
        GetPluginCapabilitiesResponse, ProbeRequest, ProbeResponse, CreateVolumeRequest,
        CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse,
        ControllerPublishVolumeRequest, ControllerPublishVolumeResponse,
        ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse,
        ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, ListVolumesRequest,
        ListVolumesResponse, GetCapacityRequest, GetCapacityResponse,
        ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, CreateSnapshotRequest,
        CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
        ListSnapshotsRequest, ListSnapshotsResponse, GetSnapshotRequest, GetSnapshotResponse,
        ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetVolumeRequest,
        ControllerGetVolumeResponse, ControllerModifyVolumeRequest, ControllerModifyVolumeResponse,
        GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse,
        CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse,
        DeleteVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotResponse,
        GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse, GetMetadataAllocatedRequest,
        GetMetadataAllocatedResponse, GetMetadataDeltaRequest, GetMetadataDeltaResponse,
        NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnstageVolumeRequest,
        NodeUnstageVolumeResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
        NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeGetVolumeStatsRequest,
        NodeGetVolumeStatsResponse, NodeExpandVolumeRequest, NodeExpandVolumeResponse,
        NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest,
        NodeGetInfoResponse, ControllerListVolumeHealthRequest, ControllerListVolumeHealthResponse,
        ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
        NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, NodeGetStorageHealthRequest,
        NodeGetStorageHealthResponse,
    );
    for row in &table.rpcs {
        assert!(done.contains(&row[2]) && done.contains(&row[3]), "{row:?} was not tried");
    }
}

#[test]
fn the_registration_wire_is_fixed() {
    use crate::registration::{PluginInfo, RegistrationStatus};
    let info = PluginInfo {
        r#type: "CSIPlugin".into(),
        name: "n".into(),
        endpoint: "/e".into(),
        supported_versions: vec!["1.0.0".into()],
    };
    let mut expected = Vec::new();
    for (number, text) in [(1, "CSIPlugin"), (2, "n"), (3, "/e"), (4, "1.0.0")] {
        bytes(number, text.as_bytes(), &mut expected);
    }
    assert_eq!(info.encode_to_vec(), expected);
    let status = RegistrationStatus { plugin_registered: true, error: "x".into() };
    assert_eq!(status.encode_to_vec(), [8, 1, 18, 1, b'x']);
    let service = POOL.get_service_by_name("pluginregistration.Registration").expect("service");
    let methods: Vec<_> = service.methods().map(|method| method.name().to_owned()).collect();
    assert_eq!(methods, ["GetInfo", "NotifyRegistrationStatus"]);
}

/// The descriptors of another version of the protocol file: ours without some fields.
fn pool_without(removed: &[(&str, &str)]) -> prost_reflect::DescriptorPool {
    let mut files: Vec<_> = POOL.file_descriptor_protos().cloned().collect();
    for message in files.iter_mut().flat_map(|file| &mut file.message_type) {
        let name = message.name().to_owned();
        let gone = |field: &str| removed.contains(&(name.as_str(), field));
        message.field.retain(|field| !gone(field.name()));
    }
    let mut pool = prost_reflect::DescriptorPool::new();
    pool.add_file_descriptor_protos(files).expect("still whole");
    pool
}

/// What a peer with these descriptors reads from a message of ours, as text.
fn read_by<M: Message + Name>(pool: &prost_reflect::DescriptorPool, message: &M) -> String {
    let kind = pool.get_message_by_name(&M::full_name()).expect("known");
    let bytes = message.encode_to_vec();
    let read = prost_reflect::DynamicMessage::decode(kind, bytes.as_slice()).expect("decodes");
    let known = read.fields().map(|(field, value)| format!("{} {value}", field.name()));
    known.collect::<Vec<_>>().join("; ")
}

/// case: csi-1.13/C2
#[test]
fn conditions_of_1_12_drivers_are_read() {
    // entries { volume { volume_id: "v" } status { volume_condition { abnormal: true message: "bad" } } }
    let condition = [8, 1, 18, 3, b'b', b'a', b'd'];
    let (mut status, mut entry, mut list, mut stats) = (vec![], vec![], vec![], vec![]);
    bytes(2, &condition, &mut status);
    bytes(1, &[18, 1, b'v'], &mut entry);
    bytes(2, &status, &mut entry);
    bytes(1, &entry, &mut list);
    bytes(2, &condition, &mut stats);
    let expected = Some(v1::VolumeCondition { abnormal: true, message: "bad".into() });
    let listed = v1::ListVolumesResponse::decode(list.as_slice()).expect("decodes");
    let one = listed.entries[0].status.as_ref().expect("a status");
    assert_eq!(one.volume_condition, expected);
    // ControllerGetVolumeResponse has volume 1 and status 2, as an entry of the list has.
    let got = v1::ControllerGetVolumeResponse::decode(entry.as_slice()).expect("decodes");
    assert_eq!(got.status.expect("a status").volume_condition, expected);
    let stats = v1::NodeGetVolumeStatsResponse::decode(stats.as_slice()).expect("decodes");
    assert_eq!(stats.volume_condition, expected);
}

/// case: csi-1.13/C3
#[test]
fn peers_of_either_version_skip_what_they_do_not_know() {
    let old = pool_without(&[
        ("Snapshot", "accessible_topology"),
        ("CreateSnapshotRequest", "accessibility_requirements"),
    ]);
    let topology = v1::Topology { segments: [("zone".to_owned(), "a".to_owned())].into() };
    let snapshot = v1::Snapshot {
        snapshot_id: "s".into(),
        ready_to_use: true,
        accessible_topology: vec![topology.clone()],
        ..Default::default()
    };
    assert_eq!(read_by(&old, &snapshot), r#"snapshot_id "s"; ready_to_use true"#);
    let requirement = v1::TopologyRequirement { requisite: vec![topology], preferred: vec![] };
    let request = v1::CreateSnapshotRequest {
        name: "n".into(),
        accessibility_requirements: Some(requirement),
        ..Default::default()
    };
    assert_eq!(read_by(&old, &request), r#"name "n""#);

    let new = pool_without(&[("NodeGetVolumeStatsResponse", "volume_condition")]);
    let stats = v1::NodeGetVolumeStatsResponse {
        usage: vec![],
        volume_condition: Some(v1::VolumeCondition { abnormal: true, message: "bad".into() }),
    };
    assert_eq!(read_by(&new, &stats), "");
}

#[test]
fn parts_that_1_13_removed_say_so_in_the_protocol_file() {
    let file = include_str!("../proto/csi.proto");
    let lines: Vec<&str> = file.lines().collect();
    let removed = |line: &str| {
        line.contains("VOLUME_CONDITION =")
            || line.contains("volume_condition =")
            || line.starts_with("message VolumeCondition ")
    };
    let found: Vec<usize> = (0..lines.len()).filter(|at| removed(lines[*at])).collect();
    assert_eq!(found.len(), 6);
    for at in found {
        assert!(lines[at - 1].contains("Removed in 1.13"), "{}", lines[at]);
    }
}
