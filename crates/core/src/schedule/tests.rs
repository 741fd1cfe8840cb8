//! The scheduler's tables: one row or function per case of the specification.

use std::{collections::BTreeSet, sync::Arc};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::model::{
    ClaimPhase, Uid,
    keys::annotations,
    kinds::{
        Claim, CsiDriver, CsiNode, CsiStorageCapacity, Node, Pod, StorageClass, TopologyTerm,
        Volume,
    },
};

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("valid test object")
}

fn node(name: &str) -> Node {
    read(json!({"metadata": {"name": name, "labels": {"host": name}}}))
}

fn claim(name: &str, size: &str) -> Claim {
    read(json!({"metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "wait",
            "resources": {"requests": {"storage": size}}},
        "status": {"phase": "Pending"}}))
}

fn bound(name: &str, volume: &str) -> Claim {
    let mut claim = claim(name, "1Gi");
    claim.spec.volume_name = volume.into();
    claim.status.phase = ClaimPhase::Bound;
    claim.metadata.annotations.insert(annotations::BIND_COMPLETED.into(), "yes".into());
    claim
}

fn selected(name: &str, node: &str) -> Claim {
    let mut claim = claim(name, "1Gi");
    claim.metadata.annotations.insert(annotations::SELECTED_NODE.into(), node.into());
    claim
}

/// A volume that only one node reaches.
fn volume(name: &str, node: &str, size: &str) -> Volume {
    read(json!({"metadata": {"name": name}, "status": {"phase": "Available"},
        "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
            "storageClassName": "wait", "csi": {"driver": "d", "volumeHandle": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions":
                [{"key": "host", "operator": "In", "values": [node]}]}]}}}}))
}

fn class(provisioner: &str, mode: &str) -> StorageClass {
    read(json!({"metadata": {"name": "wait"}, "provisioner": provisioner,
        "volumeBindingMode": mode}))
}

fn waiting() -> StorageClass {
    class("d", "WaitForFirstConsumer")
}

fn by_hand() -> StorageClass {
    class("kubernetes.io/no-provisioner", "WaitForFirstConsumer")
}

fn pod_with(volumes: Value) -> Pod {
    read(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "p1"},
        "spec": {"volumes": volumes}}))
}

fn naming(claims: &[&str]) -> Pod {
    let volume = |name: &&str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    pod_with(claims.iter().map(volume).collect())
}

fn facts<'a>(claim: &'a Claim, class: &'a StorageClass) -> ClaimFacts<'a> {
    ClaimFacts { claim, class: Some(class), volume: None, driver: None }
}

fn delayed<'a>(claims: &'a [Claim], class: &'a StorageClass) -> PodClaims<'a> {
    let delayed = claims.iter().map(|claim| facts(claim, class)).collect();
    PodClaims { bound: vec![], delayed }
}

/// Checks the volumes on a node of a cluster without capacities.
fn check(
    claims: &PodClaims<'_>,
    node: &Node,
    volumes: &[Volume],
) -> Result<NodePlan, BTreeSet<Reason>> {
    let volumes: Vec<Arc<Volume>> = volumes.iter().cloned().map(Arc::new).collect();
    let cluster = Cluster { volumes: &volumes, capacities: &[], taken: &BTreeSet::new() };
    check_volumes(claims, node, &cluster)
}

fn bind_of(plan: &NodePlan) -> Vec<(&str, &str)> {
    plan.bind.iter().map(|(claim, volume)| (claim.name.as_str(), volume.as_str())).collect()
}

fn only(reason: Reason) -> Result<NodePlan, BTreeSet<Reason>> {
    Err(BTreeSet::from([reason]))
}

#[test]
fn a_pod_without_claims_needs_nothing() {
    // case: scheduler-and-api/S1
    let pod = pod_with(json!([{"name": "scratch", "emptyDir": {}}]));
    let sorted = sort_claims(&pod, |_| None).expect("no claims");
    assert!(sorted.bound.is_empty() && sorted.all_bound());
}

#[test]
fn claims_that_no_node_can_help() {
    let (plain, class) = (claim("c", "1Gi"), waiting());
    let immediate = self::class("d", "Immediate");
    let mut lost = bound("c", "gone");
    lost.status.phase = ClaimPhase::Lost;
    let mut deleting = claim("c", "1Gi");
    deleting.metadata.deletion_timestamp = Some(jiff::Timestamp::UNIX_EPOCH);
    let mut prebound = claim("c", "1Gi");
    prebound.spec.volume_name = "pv".into();

    let sort = |claim: Option<ClaimFacts<'_>>| {
        sort_claims(&naming(&["c"]), |_| claim).map(|_| ()).map_err(|error| error.to_string())
    };
    let unbound = "pod has unbound immediate PersistentVolumeClaims";
    let cases = [
        ("delayed", Some(facts(&plain, &class)), Ok(())),
        (
            "case: scheduler-and-api/S2",
            None,
            Err("persistentvolumeclaim \"c\" not found".to_owned()),
        ),
        ("case: scheduler-and-api/S5", Some(facts(&prebound, &class)), Err(unbound.to_owned())),
        ("case: scheduler-and-api/S11", Some(facts(&plain, &immediate)), Err(unbound.to_owned())),
        (
            "lost",
            Some(facts(&lost, &class)),
            Err("persistentvolumeclaim \"c\" bound to non-existent persistentvolume \"gone\""
                .to_owned()),
        ),
        (
            "going",
            Some(facts(&deleting, &class)),
            Err("persistentvolumeclaim \"c\" is being deleted".to_owned()),
        ),
    ];
    for (name, claim, want) in cases {
        assert_eq!(sort(claim), want, "{name}");
    }
}

#[test]
fn ephemeral_claims_must_belong_to_the_pod() {
    let pod = pod_with(json!([{"name": "v", "ephemeral": {}}]));
    let class = waiting();
    let mut claim = claim("p-v", "1Gi");
    // case: scheduler-and-api/S12
    let refused = sort_claims(&pod, |_| Some(facts(&claim, &class))).expect_err("not the owner");
    assert_eq!(refused.to_string(), "PVC ns/p-v was not created for pod ns/p (pod is not owner)");
    // case: scheduler-and-api/S39
    let missing = sort_claims(&pod, |_| None).expect_err("not made yet");
    let want =
        "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-v\"";
    assert_eq!(missing.to_string(), want);
    claim.metadata.owner_references = vec![read(json!({"uid": "p1", "controller": true}))];
    assert_eq!(sort_claims(&pod, |_| Some(facts(&claim, &class))).expect("owned").delayed.len(), 1);
}

#[test]
fn bound_claims_go_where_their_volume_is() {
    let (claim, class) = (bound("c", "pv"), waiting());
    let there = volume("pv", "node1", "1Gi");
    let with = |volume| {
        let facts = ClaimFacts { volume, ..facts(&claim, &class) };
        PodClaims { bound: vec![facts], delayed: vec![] }
    };
    // case: scheduler-and-api/S3
    assert_eq!(check(&with(Some(&there)), &node("node1"), &[]), Ok(NodePlan::default()));
    // case: scheduler-and-api/S4
    assert_eq!(check(&with(None), &node("node1"), &[]), only(Reason::VolumeMissing));
    // case: scheduler-and-api/S10
    assert_eq!(check(&with(Some(&there)), &node("node2"), &[]), only(Reason::VolumeAffinity));
}

#[test]
fn zones_are_sets() {
    // case: scheduler-and-api/S41
    let (claim, class) = (bound("c", "pv"), waiting());
    let mut volume = volume("pv", "n", "1Gi");
    volume.spec.node_affinity = Default::default();
    volume.metadata.labels.insert("topology.kubernetes.io/zone".into(), "a__b".into());
    let facts = ClaimFacts { volume: Some(&volume), ..facts(&claim, &class) };
    let claims = PodClaims { bound: vec![facts], delayed: vec![] };
    let in_zone = |zone: &str| -> Node {
        read(json!({"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": zone}}}))
    };
    assert!(check(&claims, &in_zone("b"), &[]).is_ok());
    assert_eq!(check(&claims, &in_zone("c"), &[]), only(Reason::Zone));
    assert!(check(&claims, &node("n"), &[]).is_ok(), "a node without zones fits");
}

#[test]
fn existing_volumes_are_matched_by_node_and_size() {
    let hand = by_hand();
    let node1 = node("node1");
    // case: scheduler-and-api/S6
    let one = [claim("c", "5Gi")];
    let volumes = [
        volume("far", "node2", "5Gi"),
        volume("big", "node1", "20Gi"),
        volume("fit", "node1", "10Gi"),
    ];
    let plan = check(&delayed(&one, &hand), &node1, &volumes).expect("a volume fits");
    assert_eq!(bind_of(&plan), [("c", "fit")]);
    // case: scheduler-and-api/S7
    let far = [volume("far", "node2", "5Gi")];
    assert_eq!(check(&delayed(&one, &hand), &node1, &far), only(Reason::BindConflict));
    // case: scheduler-and-api/S8
    let two = [claim("large", "10Gi"), claim("small", "1Gi")];
    let volumes = [volume("ten", "node1", "10Gi"), volume("two", "node1", "2Gi")];
    let plan = check(&delayed(&two, &hand), &node1, &volumes).expect("both fit");
    assert_eq!(bind_of(&plan), [("small", "two"), ("large", "ten")]);
    // case: scheduler-and-api/S9
    let lone = [volume("two", "node1", "2Gi")];
    assert_eq!(check(&delayed(&two, &hand), &node1, &lone), only(Reason::BindConflict));
}

#[test]
fn volumes_kept_for_a_claim_come_first() {
    let (one, hand, node1) = ([claim("c", "1Gi")], by_hand(), node("node1"));
    let mut kept = volume("kept", "node1", "20Gi");
    kept.spec.claim_ref = Some(read(json!({"namespace": "ns", "name": "c"})));
    let volumes = [volume("small", "node1", "1Gi"), kept.clone()];
    let plan = check(&delayed(&one, &hand), &node1, &volumes).expect("kept for it");
    assert_eq!(bind_of(&plan), [("c", "kept")]);
    kept.spec.claim_ref = Some(read(json!({"namespace": "ns", "name": "c", "uid": "other"})));
    let plan = check(&delayed(&one, &hand), &node1, &[kept]);
    assert_eq!(plan, only(Reason::BindConflict), "kept for an earlier claim of that name");
}

#[test]
fn new_volumes_are_made_where_the_class_allows() {
    let node1 = node("node1");
    let one = [claim("c", "1Gi")];
    // case: scheduler-and-api/S13
    let plan = check(&delayed(&one, &waiting()), &node1, &[]).expect("can be made");
    assert_eq!(plan.provision, [one[0].metadata.key()]);
    // case: scheduler-and-api/S14
    let chosen = [selected("c", "node1")];
    let there = [volume("pv", "node1", "1Gi")];
    let plan = check(&delayed(&chosen, &waiting()), &node1, &there).expect("chosen before");
    assert_eq!((plan.bind.len(), plan.provision.len()), (0, 1));
    let elsewhere = check(&delayed(&chosen, &waiting()), &node("node2"), &there);
    assert_eq!(elsewhere, only(Reason::BindConflict));
    // case: scheduler-and-api/S15
    assert_eq!(check(&delayed(&one, &by_hand()), &node1, &[]), only(Reason::BindConflict));
    // case: scheduler-and-api/S16
    let term = |value: Value| -> Vec<TopologyTerm> { vec![read(value)] };
    let in_host =
        |host: &str| json!({"matchLabelExpressions": [{"key": "host", "values": [host]}]});
    let mut limited = waiting();
    for (terms, want) in
        [(term(in_host("node1")), true), (term(in_host("node2")), false), (term(json!({})), false)]
    {
        limited.allowed_topologies = terms;
        let answer = check(&delayed(&one, &limited), &node1, &[]);
        assert_eq!(answer.is_ok(), want, "{:?}", limited.allowed_topologies);
    }
}

#[test]
fn published_capacity_counts() {
    let driver = |publishes: bool| -> CsiDriver {
        read(json!({"metadata": {"name": "d"}, "spec": {"storageCapacity": publishes}}))
    };
    let capacity = |change: Value| -> Vec<Arc<CsiStorageCapacity>> {
        let mut object = json!({"metadata": {"name": "x"}, "storageClassName": "wait",
            "nodeTopology": {}, "capacity": "1Gi"});
        for (key, value) in change.as_object().expect("an object") {
            object[key] = value.clone();
        }
        vec![Arc::new(read(object))]
    };
    let (one, class, node1) = (claim("c", "1Gi"), waiting(), node("node1"));
    let fits = |publishes: bool, capacities: &[Arc<CsiStorageCapacity>]| {
        let driver = driver(publishes);
        let facts = ClaimFacts { driver: Some(&driver), ..facts(&one, &class) };
        let claims = PodClaims { bound: vec![], delayed: vec![facts] };
        let cluster = Cluster { volumes: &[], capacities, taken: &BTreeSet::new() };
        check_volumes(&claims, &node1, &cluster)
    };
    let elsewhere = json!({"nodeTopology": {"matchLabels": {"host": "node2"}}});
    let cases = [
        ("case: scheduler-and-api/S27", json!({}), true),
        ("case: scheduler-and-api/S28", elsewhere, false),
        ("other class", json!({"storageClassName": "other"}), false),
        ("case: scheduler-and-api/S29", json!({"maximumVolumeSize": "1Mi"}), false),
        ("case: scheduler-and-api/S30", json!({"capacity": null}), false),
        ("no topology is nowhere", json!({"nodeTopology": null}), false),
    ];
    for (name, change, want) in cases {
        let answer = fits(true, &capacity(change));
        assert_eq!(answer.is_ok(), want, "{name}");
        if !want {
            assert_eq!(answer, only(Reason::NoCapacity), "{name}");
        }
    }
    // case: scheduler-and-api/S31
    assert!(fits(false, &[]).is_ok());
}

/// Name, limit, handles in use, handles wanted, whether they fit.
type LimitCase = (&'static str, Value, &'static [&'static str], &'static [&'static str], bool);

#[test]
fn volumes_beyond_the_limit_of_a_node_do_not_fit() {
    let csi_node = |limit: Value| -> CsiNode {
        read(json!({"metadata": {"name": "n"}, "spec": {"drivers": [
            {"name": "d", "nodeID": "n", "allocatable": {"count": limit}}]}}))
    };
    let uses = |handles: &[&str]| -> BTreeSet<VolumeUse> {
        let one = |handle: &&str| VolumeUse { driver: "d".into(), handle: (*handle).into() };
        handles.iter().map(one).collect()
    };
    let cases: [LimitCase; 7] = [
        ("case: scheduler-and-api/S33", json!(2), &["a"], &["b"], true),
        ("one too many", json!(2), &["a"], &["b", "c"], false),
        ("case: scheduler-and-api/S34", json!(2), &["a", "b"], &["b"], true),
        // Attachments without pods are part of what is used.
        ("case: scheduler-and-api/S36", json!(2), &["va1", "va2"], &["c"], false),
        ("case: scheduler-and-api/S37", Value::Null, &["a", "b"], &["c"], true),
        ("zero blocks", json!(0), &[], &["a"], false),
        ("nothing wanted", json!(0), &["a"], &[], true),
    ];
    for (name, limit, used, wanted, fits) in cases {
        let (node, used, wanted) = (csi_node(limit), uses(used), uses(wanted));
        let view = LimitView { csi_node: Some(&node), used: &used, wanted: &wanted };
        let want = if fits { Ok(()) } else { Err(Reason::VolumeCount) };
        assert_eq!(check_limits(&view, |_| None), want, "{name}");
    }
}

#[test]
fn what_counts_against_a_limit() {
    let (pending, class) = (claim("c", "1Gi"), waiting());
    // case: scheduler-and-api/S35
    let used = volume_use(&facts(&pending, &class)).expect("it will be a volume of the driver");
    assert_eq!(used.driver, "d");
    let there = volume("pv", "n", "1Gi");
    let with_volume = ClaimFacts { volume: Some(&there), ..facts(&pending, &class) };
    let want = VolumeUse { driver: "d".into(), handle: "pv".into() };
    assert_eq!(volume_use(&with_volume), Some(want));
    let classless = ClaimFacts { class: None, ..facts(&pending, &class) };
    assert_eq!(volume_use(&classless), None);
}

#[test]
fn a_driver_may_insist_on_being_there() {
    // case: scheduler-and-api/S38
    let driver: CsiDriver = read(json!({"metadata": {"name": "d"},
        "spec": {"preventPodSchedulingIfMissing": true}}));
    let wanted = BTreeSet::from([VolumeUse { driver: "d".into(), handle: "a".into() }]);
    let view = LimitView { csi_node: None, used: &BTreeSet::new(), wanted: &wanted };
    let refused = check_limits(&view, |_| Some(&driver)).expect_err("not on the node");
    assert_eq!(refused.to_string(), "d CSI driver is not installed on the node");
    assert_eq!(check_limits(&view, |_| None), Ok(()));
}

#[test]
fn the_emptiest_node_wins() {
    let scored = |node: &str, pods: usize, score: i64| Candidate {
        node: node.into(),
        pods,
        score,
        plan: NodePlan::default(),
    };
    let candidate = |node: &str, pods: usize| scored(node, pods, 0);
    let picked = |list: Vec<Candidate>| pick_node(list).map(|one| one.node);
    assert_eq!(picked(vec![]), None);
    assert_eq!(picked(vec![candidate("a", 3), candidate("b", 1)]).as_deref(), Some("b"));
    assert_eq!(picked(vec![candidate("b", 1), candidate("a", 1)]).as_deref(), Some("a"));
    let (roomy, full) = (scored("roomy", 9, 90), scored("full", 1, 50));
    assert_eq!(picked(vec![full, roomy]).as_deref(), Some("roomy"));
    let (busy, idle) = (scored("busy", 9, 99), scored("idle", 1, 95));
    assert_eq!(picked(vec![busy, idle]).as_deref(), Some("idle"), "about the same room");
}

#[test]
fn nodes_without_enough_published_capacity_do_not_fit() {
    // case: scheduler-and-api/S32
    let driver: CsiDriver =
        read(json!({"metadata": {"name": "d"}, "spec": {"storageCapacity": true}}));
    let room = |node: &str, free: Value| -> Arc<CsiStorageCapacity> {
        Arc::new(read(json!({"metadata": {"name": node}, "storageClassName": "wait",
            "nodeTopology": {"matchLabels": {"host": node}}, "capacity": free,
            "maximumVolumeSize": "100Gi"})))
    };
    let capacities =
        [room("node1", json!("100Gi")), room("node2", json!("20Gi")), room("node3", Value::Null)];
    let volumes = [Arc::new(volume("pv", "node2", "40Gi"))];
    let cluster = Cluster { volumes: &volumes, capacities: &capacities, taken: &BTreeSet::new() };
    let (one, two, class) = (claim("c1", "10Gi"), claim("c2", "10Gi"), waiting());
    let score = |claims: &[&Claim], node_name: &str, bind: &[(&Claim, &str)]| {
        let with = |claim| ClaimFacts { driver: Some(&driver), ..facts(claim, &class) };
        let delayed = claims.iter().map(|claim| with(claim)).collect();
        let key = |claim: &Claim| claim.metadata.key();
        let plan = NodePlan {
            bind: bind.iter().map(|(claim, pv)| (key(claim), (*pv).into())).collect(),
            provision: claims.iter().map(|claim| key(claim)).collect(),
        };
        let claims = PodClaims { bound: vec![], delayed };
        volume_score(&claims, &plan, &node(node_name), &cluster)
    };
    assert_eq!(score(&[&one], "node1", &[]), 90);
    assert_eq!(score(&[&one], "node2", &[]), 50);
    assert_eq!(score(&[&one, &two], "node1", &[]), 80, "both draw on the same room");
    assert_eq!(score(&[&one], "node3", &[]), 0, "a driver that names only a largest size");
    assert_eq!(score(&[&one], "node4", &[]), 0, "nothing is known");
    assert_eq!(score(&[&one, &two], "node2", &[(&one, "pv")]), 75, "existing volumes alone count");
    assert_eq!(score(&[], "node1", &[]), 0);
}

#[test]
fn messages_count_the_nodes() {
    let node = |name: &str, reason| (name.into(), BTreeSet::from([reason]));
    let unfit = [
        node("a", Reason::VolumeCount),
        node("b", Reason::VolumeAffinity),
        node("c", Reason::VolumeCount),
    ];
    assert_eq!(
        no_fit_message(&unfit),
        "0/3 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity, \
         2 node(s) exceed max volume count. a: node(s) exceed max volume count; \
         b: node(s) didn't match PersistentVolume's node affinity; \
         c: node(s) exceed max volume count."
    );
    let one = "0/1 nodes are available: 1 node(s) exceed max volume count.";
    assert_eq!(no_fit_message(&unfit[..1]), one);
    let many: Vec<_> = (0..11).map(|at| node(&at.to_string(), Reason::VolumeCount)).collect();
    assert!(no_fit_message(&many).ends_with("7: node(s) exceed max volume count; and 3 more."));
    assert_eq!(no_fit_message(&[]), "no nodes available to schedule pods");
    let refused = refused_message(1, &NotReady::Immediate.to_string());
    let want = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    assert_eq!(refused, want);
}

#[test]
fn binding_of_existing_volumes() {
    let node1 = node("node1");
    let mut kept = volume("pv", "node1", "1Gi");
    kept.spec.claim_ref = Some(read(json!({"namespace": "ns", "name": "c", "uid": "c"})));
    let mut reset = kept.clone();
    reset.spec.claim_ref.as_mut().expect("set").uid = Uid::default();
    let mut prebound = claim("c", "1Gi");
    prebound.spec.volume_name = "pv".into();
    let done = bound("c", "pv");
    let progress = |claim: Option<&Claim>, volume: Option<&Volume>, pod_waits: bool| {
        let bind = [StaticClaim { name: "c", volume_name: &"pv".into(), claim, volume }];
        let view = BindingView { node: Some(&node1), pod_waits, bind: &bind, provision: &[] };
        binding_progress(&view)
    };
    // case: scheduler-and-api/S21
    assert_eq!(progress(Some(&done), Some(&kept), true), Progress::Bound);
    // case: scheduler-and-api/S22
    assert_eq!(progress(Some(&prebound), Some(&kept), true), Progress::Waiting);
    // case: scheduler-and-api/S23
    let want = Progress::Failed("binding volumes: ClaimRef got reset for pv \"pv\"".into());
    assert_eq!(progress(Some(&prebound), Some(&reset), true), want);
    // case: scheduler-and-api/S26
    assert!(matches!(progress(Some(&done), Some(&kept), false), Progress::Failed(_)));
    assert!(matches!(progress(Some(&done), None, true), Progress::Failed(_)));
    assert!(matches!(progress(None, Some(&kept), true), Progress::Failed(_)));
    let far = Volume { spec: volume("pv", "node2", "1Gi").spec, ..kept.clone() };
    assert!(matches!(progress(Some(&done), Some(&far), true), Progress::Failed(_)));
}

#[test]
fn binding_of_new_volumes() {
    let node1 = node("node1");
    let there = volume("pv", "node1", "1Gi");
    let mut done = bound("c", "pv");
    done.metadata.annotations.insert(annotations::SELECTED_NODE.into(), "node1".into());
    let progress = |claim: &Claim, volume: Option<&Volume>| {
        let provision = [ProvisionedClaim { name: "c", claim: Some(claim), volume }];
        let view =
            BindingView { node: Some(&node1), pod_waits: true, bind: &[], provision: &provision };
        binding_progress(&view)
    };
    assert_eq!(progress(&selected("c", "node1"), None), Progress::Waiting);
    assert_eq!(progress(&done, Some(&there)), Progress::Bound);
    // case: scheduler-and-api/S24
    let want = Progress::Failed("binding volumes: provisioning failed for PVC \"c\"".into());
    assert_eq!(progress(&claim("c", "1Gi"), None), want);
    assert_eq!(progress(&selected("c", "node2"), None), want);
    // case: scheduler-and-api/S25
    assert_eq!(progress(&done, None), Progress::Waiting);
    assert!(matches!(progress(&done, Some(&volume("pv", "node2", "1Gi"))), Progress::Failed(_)));
    let gone = BindingView { node: None, pod_waits: true, bind: &[], provision: &[] };
    assert!(matches!(binding_progress(&gone), Progress::Failed(_)));
}
