use serde_json::{Value, json};

use super::*;
use crate::bind::fixtures::{claim, merge, volume};

const RWO_ROX: [&str; 2] = ["ReadWriteOnce", "ReadOnlyMany"];
const ALL: [&str; 3] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"];

fn pv(name: &str, size: &str, modes: &[&str], over: Value) -> Volume {
    let mut base = json!({"metadata": {"name": name},
        "spec": {"capacity": {"storage": size}, "accessModes": modes}});
    merge(&mut base, over);
    volume(base)
}

fn pvc(size: &str, modes: &[&str], over: Value) -> Claim {
    let mut base =
        json!({"spec": {"accessModes": modes, "resources": {"requests": {"storage": size}}}});
    merge(&mut base, over);
    claim(base)
}

fn taken() -> Value {
    json!({"spec": {"claimRef": {"namespace": "default", "name": "other", "uid": "o"}}})
}

fn kept() -> Value {
    json!({"spec": {"claimRef": {"namespace": "default", "name": "claim"}}})
}

struct Case {
    id: &'static str,
    claim: Claim,
    delayed: bool,
    reserved: &'static [&'static str],
    node: Option<&'static str>,
    want: Option<&'static str>,
}

fn case(id: &'static str, claim: Claim, want: Option<&'static str>) -> Case {
    Case { id, claim, delayed: false, reserved: &[], node: None, want }
}

fn check(volumes: &[Volume], cases: &[Case]) {
    let volumes: Vec<&Volume> = volumes.iter().collect();
    for case in cases {
        let node: Option<Node> = case.node.map(|label| {
            serde_json::from_value(json!({"metadata": {"name": "n", "labels": {"key": label}}}))
                .unwrap()
        });
        let search = Search {
            node: node.as_ref(),
            reserved: &case.reserved.iter().map(|name| (*name).into()).collect(),
            delayed: case.delayed,
            attributes_classes: true,
        };
        let got = match case.node {
            Some(_) => smallest(&case.claim, &volumes, &search),
            None => find(&case.claim, &volumes, &search),
        };
        let got = got.unwrap().map(|volume| volume.metadata.name.as_str());
        assert_eq!(got, case.want, "{}", case.id);
    }
}

#[test]
fn sizes_and_modes() {
    let volumes = [
        pv("gce-10", "10G", &RWO_ROX, json!({})),
        pv("gce-20", "20G", &RWO_ROX, taken()),
        pv("gce-5", "5G", &RWO_ROX, json!({})),
        pv("gce-1", "1G", &RWO_ROX, taken()),
        pv("nfs-1", "1G", &ALL, json!({})),
        pv("nfs-5", "5G", &ALL, json!({})),
        pv("nfs-10", "10G", &ALL, json!({})),
        pv(
            "labelled",
            "20000G",
            &["ReadWriteOnce"],
            json!({"metadata": {"labels": {"key": "value"}}}),
        ),
    ];
    let labelled = || json!({"spec": {"selector": {"matchLabels": {"key": "value"}}}});
    check(
        &volumes,
        &[
            case("case: pv-controller/match-8G", pvc("8G", &RWO_ROX, json!({})), Some("gce-10")),
            case("case: pv-controller/match-nfs", pvc("5G", &ALL, json!({})), Some("nfs-5")),
            case("case: pv-controller/match-skip", pvc("1G", &RWO_ROX, json!({})), Some("gce-5")),
            case("case: pv-controller/match-label modes", pvc("1G", &RWO_ROX, labelled()), None),
            case(
                "case: pv-controller/match-label",
                pvc("1G", &["ReadWriteOnce"], labelled()),
                Some("labelled"),
            ),
            Case {
                delayed: true,
                ..case("case: pv-controller/delayed", pvc("1G", &RWO_ROX, json!({})), None)
            },
            Case {
                reserved: &["gce-10"],
                ..case("promised to another", pvc("8G", &RWO_ROX, json!({})), Some("nfs-10"))
            },
        ],
    );
}

#[test]
fn classes_and_huge_sizes() {
    let class = |name: &str| json!({"spec": {"storageClassName": name}});
    let labelled =
        json!({"metadata": {"labels": {"key": "value"}}, "spec": {"storageClassName": "silver"}});
    let select = json!({"spec": {"storageClassName": "silver", "selector": {"matchLabels": {"key": "value"}}}});
    let volumes = [
        pv("s-10000", "10000G", &ALL, labelled),
        pv("s-100", "100G", &ALL, class("silver")),
        pv("l-200", "200E", &ALL, class("large")),
        pv("l-800", "800E", &ALL, class("large")),
    ];
    check(
        &volumes,
        &[
            case(
                "case: pv-controller/match-class",
                pvc("1G", &ALL, class("silver")),
                Some("s-100"),
            ),
            case(
                "case: pv-controller/match-class selector",
                pvc("1G", &ALL, select),
                Some("s-10000"),
            ),
            case(
                "case: pv-controller/match-huge 1E",
                pvc("1E", &ALL, class("large")),
                Some("l-200"),
            ),
            case(
                "case: pv-controller/match-huge 800E",
                pvc("800E", &ALL, class("large")),
                Some("l-800"),
            ),
            case("case: pv-controller/match-huge 950E", pvc("950E", &ALL, class("large")), None),
        ],
    );
}

#[test]
fn volumes_match_by_attributes_class() {
    let vac = |name: &str| json!({"spec": {"volumeAttributesClassName": name}});
    let volumes = [pv("silver", "1G", &ALL, vac("silver")), pv("plain", "1G", &ALL, json!({}))];
    check(
        &volumes,
        &[
            case(
                "case: pv-controller/match-vac silver",
                pvc("1G", &ALL, vac("silver")),
                Some("silver"),
            ),
            case("case: pv-controller/match-vac missing", pvc("1G", &ALL, vac("gold")), None),
            case("case: pv-controller/match-vac empty", pvc("1G", &ALL, vac("")), Some("plain")),
        ],
    );
}

#[test]
fn a_volume_with_fewer_extra_modes_wins() {
    let all = |one: Value, two: Value| {
        [
            pv("three", "10G", &ALL, json!({})),
            pv("two", "10G", &RWO_ROX, two),
            pv("one", "10G", &["ReadWriteOnce"], one),
        ]
    };
    let want = |name| {
        [case(
            "case: pv-controller/modes-up",
            pvc("10G", &["ReadWriteOnce"], json!({})),
            Some(name),
        )]
    };
    check(&all(json!({}), json!({})), &want("one"));
    check(&all(taken(), json!({})), &want("two"));
    check(&all(taken(), taken()), &want("three"));
}

#[test]
fn volumes_kept_for_the_claim() {
    let small = [pv("kept", "1G", &RWO_ROX, kept()), pv("free", "5G", &RWO_ROX, json!({}))];
    check(
        &small,
        &[case("case: pv-controller/prebound-size", pvc("5G", &RWO_ROX, json!({})), Some("free"))],
    );
    let mode =
        [pv("kept", "5G", &["ReadWriteOnce"], kept()), pv("free", "5G", &RWO_ROX, json!({}))];
    check(
        &mode,
        &[case("case: pv-controller/prebound-mode", pvc("5G", &RWO_ROX, json!({})), Some("free"))],
    );
    let deleting =
        pv("d", "5G", &RWO_ROX, json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    let claim = pvc("5G", &RWO_ROX, json!({}));
    // case: pv-controller/deleting
    assert_eq!(
        mismatch(&claim, &deleting, true).as_deref(),
        Some("the volume is marked for deletion \"d\"")
    );
    check(&[deleting], &[case("deleting", claim, None)]);
}

#[test]
fn volumes_match_only_on_nodes_that_reach_them() {
    let at = |value: &str| {
        json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "key", "operator": "In", "values": [value]}]}]}}}})
    };
    let claim = || pvc("100G", &["ReadWriteOnce"], json!({}));
    let rwo = ["ReadWriteOnce"];
    let on =
        |id, node, reserved, want| Case { node: Some(node), reserved, ..case(id, claim(), want) };
    let volumes = [
        pv("100", "100G", &rwo, at("value1")),
        pv("150", "150G", &rwo, at("value1")),
        pv("200", "200G", &rwo, at("value2")),
    ];
    check(
        &volumes,
        &[
            on("case: pv-controller/node-1", "value1", &[], Some("100")),
            on("case: pv-controller/node-1 excluded", "value1", &["100"], Some("150")),
        ],
    );
    let mut pinned = at("value1");
    merge(&mut pinned, kept());
    let volumes = [pv("kept", "100G", &rwo, pinned), pv("fits", "100G", &rwo, at("value3"))];
    check(&volumes, &[on("case: pv-controller/node-2", "value3", &[], None)]);
    let nowhere = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": []}}}});
    check(
        &[pv("v", "100G", &rwo, nowhere)],
        &[on("case: pv-controller/aff-empty", "value1", &[], None)],
    );
}

#[test]
fn searches_that_cannot_match_are_errors() {
    let search = Search {
        node: None,
        reserved: &BTreeSet::new(),
        delayed: false,
        attributes_classes: false,
    };
    let vac = pvc("1G", &ALL, json!({"spec": {"volumeAttributesClassName": "gold"}}));
    assert!(matches!(find(&vac, &[], &search), Err(MatchError::AttributesClassOff(_))));
    let bad =
        json!({"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}}});
    assert!(matches!(find(&pvc("1G", &ALL, bad), &[], &search), Err(MatchError::Selector(..))));
}

/// A volume that is bound to the claim already, but that the claim does not name yet, comes before
/// another one that is kept for it, however well that fits.
#[test]
fn a_bind_that_was_begun_is_finished() {
    let begun = json!({"status": {"phase": "Bound"}, "spec": {"claimRef":
        {"namespace": "default", "name": "claim", "uid": "claim-uid"}}});
    let volumes = [
        pv("by-hand", "1Gi", &["ReadWriteOnce"], kept()),
        pv("made", "2Gi", &RWO_ROX, begun.clone()),
    ];
    let small = pvc("1Gi", &["ReadWriteOnce"], json!({"metadata": {"uid": "claim-uid"}}));
    let anew = pvc("1Gi", &["ReadWriteOnce"], json!({"metadata": {"uid": "another"}}));
    let large = pvc("3Gi", &["ReadWriteOnce"], json!({"metadata": {"uid": "claim-uid"}}));
    check(
        &volumes,
        &[
            case("begun", small.clone(), Some("made")),
            Case { delayed: true, ..case("delayed", small, Some("made")) },
            case("another claim of that name", anew, Some("by-hand")),
            case("too small", large, None),
        ],
    );
}
