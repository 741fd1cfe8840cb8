use serde_json::{Value, json};

use super::modify::{
    Modification, Refusal, Stage, View, begun, cancelled, decide, finished, pending, refused,
    worth_a_look,
};
use crate::bind::fixtures::claim;
use crate::model::kinds::Claim;

const NOW: &str = "2026-01-01T00:00:00Z";

fn shown(step: Modification<'_>) -> String {
    match step {
        Modification::Nothing => "nothing".into(),
        Modification::Cancel => "cancel".into(),
        Modification::Continue(class) => format!("continue {class}"),
        Modification::Begin(class) => format!("begin {class}"),
    }
}

#[test]
fn the_next_class() {
    use Stage::{InProgress, Infeasible, Pending};
    let (certain, uncertain) = (false, true);
    let rows = [
        ("", "", None, certain, "nothing"),
        ("a", "a", None, certain, "nothing"),
        // case: resizer/36
        ("b", "a", None, certain, "begin b"),
        ("b", "", None, certain, "begin b"),
        // case: resizer/37
        ("b", "a", Some(("", Pending)), certain, "begin b"),
        // case: resizer/40
        ("c", "a", Some(("b", InProgress)), certain, "begin c"),
        // case: resizer/41
        ("c", "a", Some(("b", InProgress)), uncertain, "continue b"),
        // case: resizer/43
        ("", "a", Some(("b", Infeasible)), certain, "cancel"),
        // case: resizer/55
        ("", "", Some(("b", Infeasible)), certain, "cancel"),
        ("", "a", Some(("b", InProgress)), certain, "continue b"),
        ("", "a", Some(("b", InProgress)), uncertain, "continue b"),
        // case: resizer/51
        ("a", "a", Some(("b", Infeasible)), certain, "begin a"),
        // case: resizer/52
        ("a", "a", Some(("b", InProgress)), certain, "begin a"),
        ("a", "a", Some(("b", InProgress)), uncertain, "continue b"),
        ("b", "a", Some(("b", Infeasible)), certain, "begin b"),
        ("b", "a", Some(("b", InProgress)), certain, "begin b"),
        ("", "a", Some(("b", Pending)), certain, "cancel"),
    ];
    for (wanted, current, begun, uncertain, want) in rows {
        let view = View { wanted, current, begun, uncertain, announced: true };
        assert_eq!(shown(decide(&view)), want, "{view:?}");
    }
    let silent = View { wanted: "", current: "a", begun: None, uncertain: false, announced: false };
    assert_eq!(decide(&silent), Modification::Nothing);
}

#[test]
fn only_the_same_change_is_repeated_rarely() {
    // case: resizer/54
    let view =
        |wanted, begun| View { wanted, current: "a", begun, uncertain: false, announced: true };
    assert!(view("b", Some(("b", Stage::Infeasible))).repeats());
    assert!(!view("a", Some(("b", Stage::Infeasible))).repeats());
    assert!(!view("", Some(("", Stage::Infeasible))).repeats());
    assert!(!view("b", None).repeats());
}

fn with(spec: &str, status: Value) -> Claim {
    claim(
        json!({"spec": {"volumeName": "pv", "volumeAttributesClassName": spec}, "status": status}),
    )
}

#[test]
fn changes_worth_a_look() {
    let bound =
        |class| with(class, json!({"phase": "Bound", "currentVolumeAttributesClassName": "a"}));
    assert!(worth_a_look(&bound("a"), &bound("b")));
    assert!(!worth_a_look(&bound("a"), &bound("a")));
    let unbound = with("b", json!({"phase": "Pending"}));
    assert!(worth_a_look(&unbound, &bound("b")), "becomes bound");
}

#[test]
fn patches_touch_what_they_must() {
    let fresh = with("b", json!({"phase": "Bound"}));
    let patch = begun(&fresh, "b", NOW);
    assert_eq!(
        patch["status"]["modifyVolumeStatus"],
        json!({"targetVolumeAttributesClassName": "b", "status": "InProgress"})
    );
    assert_eq!(
        patch["status"]["conditions"],
        json!([{"type": "ModifyingVolume", "status": "True",
        "message": "Modifying volume to \"b\" is in progress.", "lastProbeTime": NOW, "lastTransitionTime": NOW}])
    );
    assert_eq!(pending(&fresh)["status"]["modifyVolumeStatus"], json!({"status": "Pending"}));
    let told = with(
        "b",
        json!({"phase": "Bound",
        "modifyVolumeStatus": {"targetVolumeAttributesClassName": "x", "status": "Pending"},
        "conditions": [{"type": "ModifyingVolume", "status": "True"},
            {"type": "ModifyVolumeError", "status": "True", "reason": "Internal"}]}),
    );
    assert_eq!(
        pending(&told)["status"]["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
        "x"
    );
    let patch = refused(&told, "b", Refusal::Unknown, ("Unavailable", "away"), NOW);
    let all = &patch["status"]["conditions"];
    assert_eq!(all[0]["message"], "Modifying volume to \"b\" is still in progress.");
    assert!(all[0]["lastTransitionTime"].is_null(), "it said the same before");
    assert_eq!(
        (&all[1]["reason"], &all[1]["lastTransitionTime"]),
        (&json!("Unavailable"), &json!(NOW))
    );
    let patch = refused(&told, "b", Refusal::Infeasible, ("InvalidArgument", "no"), NOW);
    assert_eq!(patch["status"]["modifyVolumeStatus"]["status"], "Infeasible");
    assert_eq!(
        patch["status"]["conditions"][0]["message"],
        "Modifying volume to \"b\" failed. Waiting for retry."
    );
    let patch = refused(&told, "b", Refusal::Final, ("Internal", "no"), NOW);
    assert_eq!(patch["status"]["modifyVolumeStatus"]["status"], "InProgress");
    let patch = finished(&told, "b");
    assert_eq!(patch["status"]["conditions"].as_array().map(Vec::len), Some(2));
    assert_eq!(patch["status"]["modifyVolumeStatus"], Value::Null);
    let gone = cancelled(&told);
    assert_eq!(
        gone["status"]["conditions"],
        json!([{"$patch": "delete", "type": "ModifyingVolume"}])
    );
}
