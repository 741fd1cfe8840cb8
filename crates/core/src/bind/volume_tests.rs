use serde_json::{Value, json};

use super::*;
use crate::bind::fixtures::{claim, merge, render, volume, volume_json};

struct Case {
    id: &'static str,
    volume: Value,
    claim: Option<Value>,
    name_taken: bool,
    users: &'static [&'static str],
    want: &'static str,
}

fn case(id: &'static str, volume: Value, claim: Option<Value>, want: &'static str) -> Case {
    Case { id, volume, claim, name_taken: false, users: &[], want }
}

fn check(case: &Case) {
    let volume = volume(case.volume.clone());
    let claim = case.claim.clone().map(claim);
    let users: Vec<String> = case.users.iter().map(|pod| (*pod).to_string()).collect();
    let view = VolumeView {
        volume: &volume,
        claim: claim.as_ref(),
        name_taken: case.name_taken,
        users: &users,
        options: Options::default(),
    };
    assert_eq!(render(&decide_volume(&view)), case.want, "{}", case.id);
}

fn pointing(phase: &str, over: Value) -> Value {
    let mut base = json!({"status": {"phase": phase},
        "spec": {"claimRef": {"namespace": "default", "name": "claim", "uid": "uid-c"}}});
    merge(&mut base, over);
    base
}

fn bbc() -> Value {
    json!({"metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}})
}

fn policy(policy: &str, over: Value) -> Value {
    let mut base = pointing("Bound", json!({"spec": {"persistentVolumeReclaimPolicy": policy}}));
    merge(&mut base, over);
    base
}

fn made_by(who: &str) -> Value {
    json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": who}},
        "spec": {"hostPath": null, "csi": {"driver": who, "volumeHandle": "h"}}})
}

#[test]
fn phases() {
    let bound_to = |name: &str| Some(json!({"spec": {"volumeName": name}}));
    let open = || Some(json!({}));
    let cases = [
        case(
            "case: pv-controller/4-1",
            json!({"status": {"phase": "Pending"}}),
            None,
            "volume Available",
        ),
        case(
            "case: pv-controller/4-2",
            json!({"spec": {"claimRef": {"namespace": "default", "name": "claim"}}, "status": {"phase": "Pending"}}),
            None,
            "volume Available",
        ),
        case("case: pv-controller/4-3", pointing("Bound", json!({})), None, "volume Released"),
        case("case: pv-controller/4-5", pointing("Bound", json!({})), open(), "look"),
        case("case: pv-controller/4-5 with BBC", pointing("Bound", bbc()), open(), "look"),
        case(
            "case: pv-controller/4-6",
            pointing("Available", json!({})),
            bound_to("volume"),
            "volume Bound",
        ),
        case(
            "case: pv-controller/4-7",
            pointing("Bound", bbc()),
            bound_to("other"),
            "unbind volume; volume Available",
        ),
        case(
            "case: pv-controller/4-8",
            pointing("Bound", json!({})),
            bound_to("other"),
            "unbind volume; volume Available",
        ),
        case("case: pv-controller/4-9", policy("Delete", json!({})), bound_to("volume"), ""),
        case("case: pv-controller/L-6", pointing("Failed", json!({})), None, ""),
        case(
            "case: pv-controller/14-13",
            pointing("Bound", bbc()),
            Some(json!({"spec": {"volumeMode": "Block"}})),
            "Warning Volume VolumeMismatch; Warning Claim VolumeMismatch",
        ),
        case("case: pv-controller/14-14", pointing("Bound", bbc()), open(), "look"),
    ];
    cases.iter().for_each(check);
}

#[test]
fn reclaim_policies() {
    let failed =
        "volume Released; deletion fails; volume Failed; Warning Volume VolumeFailedDelete";
    let migrated = json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "kubernetes.io/gce-pd",
        "pv.kubernetes.io/migrated-to": "pd.csi.storage.gke.io"}}});
    let recycle_failed = "volume Released; volume Failed; Warning Volume VolumeFailedRecycle";
    let bound_elsewhere = Some(json!({"spec": {"volumeName": "other"}}));
    let cases = [
        case(
            "case: pv-controller/4-10 case: pv-controller/8-3",
            policy("Delete", json!({})),
            None,
            failed,
        ),
        case(
            "case: pv-controller/8-10-1",
            policy("Delete", made_by("external.io/test")),
            None,
            "volume Released; deletion begins",
        ),
        case(
            "case: pv-controller/8-10-2",
            policy(
                "Delete",
                json!({"spec": {"hostPath": null, "csi": {"driver": "d", "volumeHandle": "h"}}}),
            ),
            None,
            "volume Released; deletion begins",
        ),
        case("case: pv-controller/8-10-3", policy("Delete", migrated), None, "volume Released"),
        case(
            "case: pv-controller/8-12",
            policy("Delete", made_by("external.io/test")),
            bound_elsewhere,
            "volume Released; deletion begins",
        ),
        case(
            "already failed",
            policy("Delete", json!({"status": {"phase": "Failed"}})),
            None,
            "deletion fails",
        ),
        case(
            "an in-tree plugin that nobody took over from",
            policy("Delete", made_by("kubernetes.io/rbd")),
            None,
            "sync volume; volume Released; deletion fails; volume Failed; Warning Volume VolumeFailedDelete",
        ),
        case("case: pv-controller/6-3", policy("Recycle", json!({})), None, recycle_failed),
        case(
            "case: pv-controller/6-10",
            policy("Unknown", json!({})),
            None,
            "volume Released; volume Failed; Warning Volume VolumeUnknownReclaimPolicy",
        ),
        Case {
            users: &["default/pod"],
            ..case(
                "case: pv-controller/6-11, pv-controller/6-12",
                policy("Recycle", json!({})),
                None,
                "volume Released; Normal Volume VolumeFailedRecycle",
            )
        },
        Case {
            users: &["default/pod"],
            name_taken: true,
            ..case(
                "a new claim of that name is the pod's",
                policy("Recycle", json!({})),
                None,
                recycle_failed,
            )
        },
    ];
    cases.iter().for_each(check);
}

#[test]
fn why_nobody_deletes() {
    let nobody = "error getting deleter volume plugin for volume \"volume4-10\":";
    let source = |source: Value| {
        let mut spec = json!({"hostPath": null});
        merge(&mut spec, source);
        json!({"spec": spec})
    };
    let cases = [
        // case: pv-controller/4-10
        (source(json!({"local": {"path": "/p"}})), format!("{nobody} no volume plugin matched")),
        (
            source(json!({"nfs": {"server": "s", "path": "/"}})),
            format!("{nobody} no deletable volume plugin matched"),
        ),
        (
            source(json!({"hostPath": {"path": "/srv/x"}})),
            "host_path deleter only supports /tmp/.+ but received provided /srv/x".into(),
        ),
        (
            source(json!({"hostPath": {"path": "/tmp/x"}})),
            format!(
                "{nobody} the plugin for directories of the host is off; remove /tmp/x and the volume by hand"
            ),
        ),
        (
            json!({"metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": "kubernetes.io/rbd"}}}),
            format!("{nobody} no volume plugin matched name: kubernetes.io/rbd"),
        ),
    ];
    for (over, want) in cases {
        let mut pv = volume_json(policy("Delete", json!({"metadata": {"name": "volume4-10"}})));
        merge(&mut pv, over);
        let volume = serde_json::from_value(pv).expect("a volume");
        let view = VolumeView {
            volume: &volume,
            claim: None,
            name_taken: false,
            users: &[],
            options: Options::default(),
        };
        let actions = decide_volume(&view);
        let said = actions.iter().find_map(|action| match action {
            Action::Write(Write::SetVolumePhase {
                phase: VolumePhase::Failed, message, ..
            }) => Some(message.clone()),
            _ => None,
        });
        assert_eq!(said, Some(want.clone()));
        assert!(actions.contains(&Action::warn_volume("VolumeFailedDelete", want)), "{actions:?}");
    }
}

#[test]
fn released() {
    let pv = volume(pointing("Released", json!({})));
    let other_uid = claim(json!({"metadata": {"uid": "new"}}));
    let elsewhere = claim(json!({"spec": {"volumeName": "other"}}));
    let cases = [
        ("no claim", None, true),
        ("another claim of that name", Some(&other_uid), true),
        ("bound elsewhere", Some(&elsewhere), true),
        ("still open", Some(&claim(json!({}))), false),
        (
            "case: pv-controller/8-7 bound to it",
            Some(&claim(json!({"spec": {"volumeName": "volume"}}))),
            false,
        ),
    ]
    .map(|(name, claim, want): (&str, Option<&Claim>, bool)| (name, claim.cloned(), want));
    for (name, claim, want) in cases {
        assert_eq!(is_released(&pv, claim.as_ref()), want, "{name}");
    }
    assert!(!is_released(&volume(json!({})), None), "points at nobody");
}

#[test]
fn the_plugin_inside_deletes_what_it_made() {
    let decide = |over: Value| {
        let volume = volume(policy("Delete", over));
        let options = Options { host_path: HostPathPlugin::Deletes, ..Options::default() };
        let view =
            VolumeView { volume: &volume, claim: None, name_taken: false, users: &[], options };
        render(&decide_volume(&view))
    };
    assert_eq!(decide(json!({})), "volume Released; delete");
    let made = "sync volume; volume Released; delete";
    assert_eq!(decide(made_by("kubernetes.io/host-path")), made);
    assert_eq!(decide(made_by("external.io/test")), "volume Released; deletion begins");
}
