//! Claims and volumes for tables: a base, and what a row changes.

use serde_json::{Value, json};

use crate::model::kinds::{Claim, Volume};

/// Merges `over` into `base`; null removes.
pub(crate) fn merge(base: &mut Value, over: Value) {
    if over.is_object() && !base.is_object() {
        *base = json!({});
    }
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                if value.is_null() {
                    base.remove(&key);
                } else {
                    merge(base.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (base, over) => *base = over,
    }
}

pub(crate) fn claim_json(over: Value) -> Value {
    let mut base = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "claim", "namespace": "default", "uid": "uid-c", "resourceVersion": "5"},
        "spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
            "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"}
    });
    merge(&mut base, over);
    base
}

pub(crate) fn volume_json(over: Value) -> Value {
    let mut base = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": "volume", "uid": "uid-v", "resourceVersion": "3"},
        "spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "capacity": {"storage": "1Gi"},
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/p"}},
        "status": {"phase": "Available"}
    });
    merge(&mut base, over);
    base
}

pub(crate) fn claim(over: Value) -> Claim {
    serde_json::from_value(claim_json(over)).expect("a claim")
}

pub(crate) fn volume(over: Value) -> Volume {
    serde_json::from_value(volume_json(over)).expect("a volume")
}

/// One line per action, short enough for a table.
pub(crate) fn render(actions: &[super::Action]) -> String {
    use super::Action::*;
    let line = |action: &super::Action| match action {
        Write(write) => render_write(write),
        DeletionBegins { external: true } => "deletion begins".into(),
        DeletionBegins { external: false } => "deletion fails".into(),
        ProvisionInTree => "make".into(),
        DeleteInTree => "delete".into(),
        EnqueueClaim => "look".into(),
        Event(note) => {
            let kind = if note.warning { "Warning" } else { "Normal" };
            format!("{kind} {:?} {}", note.about, note.reason)
        }
        Fail(_) => "fail".into(),
    };
    actions.iter().map(line).collect::<Vec<_>>().join("; ")
}

fn render_write(write: &super::Write) -> String {
    use super::Write::*;
    match write {
        PointVolume { volume, chosen_by_us: true } => format!("{volume}->claim+BBC"),
        PointVolume { volume, chosen_by_us: false } => format!("{volume}->claim"),
        SetVolumePhase { volume, phase, .. } => format!("{volume} {phase}"),
        PointClaim { volume } => format!("claim->{volume}"),
        SetClaimBound { .. } => "claim Bound".into(),
        SetClaimPhase(phase) => format!("claim {phase}"),
        Unbind { volume } => format!("unbind {volume}"),
        SetClass(class) => format!("class {class}"),
        AskProvisioner { provisioner } => format!("ask {provisioner}"),
        SyncClaimMigration { .. } => "sync claim".into(),
        SyncVolumeMigration { .. } => "sync volume".into(),
    }
}
