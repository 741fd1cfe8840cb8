use super::*;
use Mounted::{No, Unknown, Yes};

const V: &str = "kubernetes.io/csi/d^h";

fn world() -> World {
    World { ready_to_unmount: true, ..World::default() }
}

fn wanted(attachable: bool, pods: &[&str]) -> Wanted {
    let pods = pods.iter().map(|pod| Uid::from(*pod)).collect();
    Wanted { attachable, pods, ..Wanted::default() }
}

fn known(device: Mounted, pods: &[(&str, Mounted)]) -> Known {
    let pods = pods
        .iter()
        .map(|(pod, state)| (Uid::from(*pod), PodMount { state: *state, ..PodMount::default() }));
    Known { device, pods: pods.collect(), ..Known::default() }
}

fn mount(pod: &str) -> Action {
    Action::Mount { volume: V.into(), pod: pod.into() }
}

fn unpublish(pod: &str) -> Action {
    Action::Unpublish { volume: V.into(), pod: pod.into() }
}

fn unstage() -> Action {
    Action::Unstage { volume: V.into() }
}

fn forget() -> Action {
    Action::Forget { volume: V.into() }
}

type Row = (&'static str, Option<Wanted>, Option<Known>, Vec<Action>);

#[test]
fn steps_for_one_volume() {
    let rows: Vec<Row> = vec![
        ("new", Some(wanted(false, &["a"])), None, vec![mount("a")]),
        ("mounted", Some(wanted(false, &["a"])), Some(known(Yes, &[("a", Yes)])), vec![]),
        (
            "uncertain is mounted again",
            Some(wanted(false, &["a"])),
            Some(known(Yes, &[("a", Unknown)])),
            vec![mount("a")],
        ),
        (
            "second pod publishes only",
            Some(wanted(false, &["a", "b"])),
            Some(known(Yes, &[("a", Yes)])),
            vec![mount("b")],
        ),
        (
            "one device operation at a time",
            Some(wanted(false, &["a", "b"])),
            None,
            vec![mount("a")],
        ),
        ("pod gone", None, Some(known(Yes, &[("a", Yes)])), vec![unpublish("a")]),
        (
            "case: node/N58 uncertain pod mount is unpublished",
            None,
            Some(known(Yes, &[("a", Unknown)])),
            vec![unpublish("a")],
        ),
        ("last mount gone", None, Some(known(Yes, &[])), vec![unstage()]),
        (
            "case: node/N55 uncertain device is unstaged",
            None,
            Some(known(Unknown, &[])),
            vec![unstage()],
        ),
        ("case: node/N56 certainly not staged", None, Some(known(No, &[])), vec![forget()]),
        (
            "other pod still there",
            Some(wanted(false, &["b"])),
            Some(known(Yes, &[("a", Yes), ("b", Yes)])),
            vec![unpublish("a")],
        ),
    ];
    for (case, desired, actual, expected) in rows {
        let mut world = world();
        world.desired.extend(desired.map(|wanted| (V.into(), wanted)));
        world.actual.extend(actual.map(|known| (V.into(), known)));
        assert_eq!(decide(&world), expected, "{case}");
    }
}

#[test]
fn attachable_volumes_wait_for_the_node_object() {
    let mut world = world();
    world.desired.insert(V.into(), wanted(true, &["a"]));
    // case: node/N54
    assert_eq!(attach_gate(&world, &V.into()), Err(Waiting::NotReportedInUse));
    assert_eq!(decide(&world), vec![]);
    world.node.in_use.insert(V.into());
    assert_eq!(attach_gate(&world, &V.into()), Err(Waiting::NotAttached));
    assert_eq!(decide(&world), vec![]);
    world.node.attached.insert(V.into());
    assert_eq!(decide(&world), vec![mount("a")]);
}

#[test]
fn nothing_is_unmounted_before_all_pods_are_known() {
    // case: node/N59
    let mut world = World::default();
    world.actual.insert(V.into(), known(Unknown, &[("a", Unknown), ("b", Unknown)]));
    assert_eq!(decide(&world), vec![]);
    world.ready_to_unmount = true;
    assert_eq!(decide(&world), vec![unpublish("a"), unpublish("b")]);
}

#[test]
fn work_in_flight_and_back_off_hold_steps_back() {
    let mut world = world();
    world.actual.insert(V.into(), known(Yes, &[("a", Yes), ("b", Yes)]));
    world.busy.insert(Slot::pod(V, "a"));
    assert_eq!(decide(&world), vec![unpublish("b")]);
    world.busy = BTreeSet::from([Slot::volume(V)]);
    assert_eq!(decide(&world), vec![]);
    world.busy.clear();
    world.backing_off.insert(unpublish("b"));
    assert_eq!(decide(&world), vec![unpublish("a")]);
}

#[test]
fn a_failing_pod_does_not_hold_back_its_neighbour() {
    let mut world = world();
    world.desired.insert(V.into(), wanted(false, &["a", "b"]));
    world.backing_off.insert(mount("a"));
    assert_eq!(decide(&world), vec![mount("b")]);
}

#[test]
fn a_failed_action_holds_back_only_itself() {
    let mut world = world();
    world.actual.insert(V.into(), known(Yes, &[("a", Unknown)]));
    world.backing_off.extend([mount("a"), unstage()]);
    assert_eq!(decide(&world), [unpublish("a")]);
    world.backing_off.insert(unpublish("a"));
    assert_eq!(decide(&world), []);
    world.actual.insert(V.into(), known(Yes, &[]));
    world.backing_off.remove(&unstage());
    assert_eq!(decide(&world), [unstage()]);
}

#[test]
fn success_ends_the_back_off_of_what_it_was_in_the_way_of() {
    let expand = || Action::Expand { volume: V.into(), pod: "a".into() };
    let other = Action::Mount { volume: "w".into(), pod: "a".into() };
    for (case, done, failed, ends) in [
        ("itself", mount("a"), mount("a"), true),
        ("the same for another pod", mount("a"), mount("b"), false),
        ("given up by one pod, wanted by another", unpublish("a"), mount("b"), true),
        ("given up by one pod, stuck in another", unpublish("a"), unpublish("b"), false),
        ("given up by the last pod", unpublish("a"), unstage(), true),
        ("unstaged, to be staged with another label", unstage(), mount("b"), true),
        ("mounted, to be given up", mount("a"), unpublish("b"), false),
        ("mounted, cannot grow", mount("a"), expand(), false),
        ("nothing is left", forget(), unstage(), true),
        ("another volume", unpublish("a"), other, false),
    ] {
        assert_eq!(done.ends_backoff_of(&failed), ends, "{case}");
    }
}

#[test]
fn in_use_is_the_union_and_only_spoken_when_known() {
    let mut world = World::default();
    world.desired.insert("b".into(), wanted(true, &["p"]));
    world.desired.insert("n".into(), wanted(false, &["p"]));
    world.actual.insert("a".into(), Known { attachable: true, ..known(Yes, &[]) });
    world.actual.insert("b".into(), Known { attachable: true, ..known(Yes, &[]) });
    // case: node/N61
    assert_eq!(world.volumes_in_use(true), None);
    world.ready_to_unmount = true;
    assert_eq!(world.volumes_in_use(true), Some(vec!["a".into(), "b".into()]));
    // Staged without being attached: whoever deletes volumes wants to know. Directories do not count.
    world.actual.insert("kubernetes.io/csi/d^h".into(), known(Yes, &[]));
    world.actual.insert("kubernetes.io/host-path/p-h".into(), known(Yes, &[("p", Yes)]));
    let listed = world.volumes_in_use(true).expect("known");
    assert_eq!(listed, ["a", "b", "kubernetes.io/csi/d^h"]);
    assert_eq!(world.volumes_in_use(false).expect("known"), ["a", "b"]);
    world.actual.insert("kubernetes.io/csi/d^h".into(), known(No, &[]));
    assert_eq!(world.volumes_in_use(true).expect("known"), ["a", "b"]);
}

#[test]
fn a_single_pod_volume_is_refused_while_another_pod_may_have_it() {
    // case: node/N62
    let mut world = world();
    world.actual.insert(V.into(), known(Yes, &[("a", Unknown)]));
    assert!(world.used_by_other_pod(&V.into(), &"b".into()));
    assert!(!world.used_by_other_pod(&V.into(), &"a".into()));
}

#[test]
fn mounts_of_a_pod_whose_wishes_are_unknown_stay() {
    let mut world = world();
    world.actual.insert(V.into(), known(Unknown, &[("a", Unknown)]));
    world.unresolved.insert("a".into());
    assert_eq!(decide(&world), vec![]);
    world.unresolved.clear();
    assert_eq!(decide(&world), vec![unpublish("a")]);
}

#[test]
fn a_larger_volume_grows_through_a_mounted_pod() {
    let mut world = world();
    world.desired.insert(V.into(), Wanted { size: 2, ..wanted(false, &["a", "b"]) });
    let expand = Action::Expand { volume: V.into(), pod: "b".into() };
    let mounted = Known { size: 1, ..known(Yes, &[("a", Yes), ("b", Yes)]) };
    for (case, actual, expected) in [
        (
            "through the first that has it",
            Known { size: 1, ..known(Yes, &[("b", Yes)]) },
            vec![mount("a")],
        ),
        ("unknown size", Known { size: 0, ..mounted.clone() }, vec![]),
        ("large enough", Known { size: 2, ..mounted.clone() }, vec![]),
        ("not as long as it is attached", Known { no_expand: true, ..mounted.clone() }, vec![]),
        ("waits for news", Known { hold_size: true, ..mounted.clone() }, vec![]),
        ("due", mounted.clone(), vec![Action::Expand { volume: V.into(), pod: "a".into() }]),
    ] {
        world.actual.insert(V.into(), actual);
        assert_eq!(decide(&world), expected, "{case}");
    }
    world.desired.insert(V.into(), Wanted { size: 2, ..wanted(false, &["b"]) });
    world.actual.insert(V.into(), Known { size: 1, ..known(Yes, &[("b", Yes)]) });
    assert_eq!(decide(&world), [expand]);
}

#[test]
fn a_volume_with_another_label_goes_before_it_comes() {
    let mut world = world();
    world.desired.insert(V.into(), Wanted { label: "new".into(), ..wanted(false, &["b"]) });
    let old = |pods: &[(&str, Mounted)]| Known { context: "old".into(), ..known(Yes, pods) };
    world.actual.insert(V.into(), old(&[("a", Yes)]));
    assert_eq!(decide(&world), [unpublish("a")]);
    world.actual.insert(V.into(), old(&[]));
    assert_eq!(decide(&world), [unstage()]);
    world.actual.insert(V.into(), Known { context: "old".into(), ..known(No, &[]) });
    assert_eq!(decide(&world), [mount("b")]);
}
