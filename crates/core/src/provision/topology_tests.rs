use super::*;

type Labels = BTreeMap<String, String>;

fn term(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(k, v)| ((*k).to_string(), (*v).to_string())).collect()
}

fn keys(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_string()).collect()
}

fn zones(names: &[&str]) -> Vec<Labels> {
    names.iter().map(|zone| term(&[("zone", zone)])).collect()
}

fn allowed(expressions: &[(&str, &[&str])]) -> Allowed {
    expressions.iter().map(|(key, values)| ((*key).to_string(), keys(values))).collect()
}

struct Case<'a> {
    name: &'a str,
    claim: &'a str,
    selected: Option<(Option<&'a [&'a str]>, Option<Labels>)>,
    strict: bool,
    immediate: bool,
    allowed: Vec<Allowed>,
    cluster_keys: Option<&'a [&'a str]>,
    nodes: Vec<Labels>,
    want: Result<Option<(Vec<Labels>, usize)>, &'a str>,
}

impl Default for Case<'_> {
    fn default() -> Self {
        Self {
            name: "",
            claim: "testpvc",
            selected: None,
            strict: false,
            immediate: true,
            allowed: vec![],
            cluster_keys: Some(&["zone"]),
            nodes: vec![],
            want: Ok(None),
        }
    }
}

fn check(case: Case<'_>) {
    let node_keys = case.selected.as_ref().and_then(|(names, _)| names.map(keys));
    let cluster_keys = case.cluster_keys.map(keys);
    let node = "node".into();
    let nodes: Vec<&Labels> = case.nodes.iter().collect();
    let view = View {
        claim: case.claim,
        selected: case.selected.as_ref().map(|(_, labels)| SelectedNode {
            name: &node,
            keys: node_keys.as_deref(),
            labels: labels.as_ref(),
        }),
        strict: case.strict,
        immediate: case.immediate,
        allowed: &case.allowed,
        cluster_keys: cluster_keys.as_deref(),
        nodes: &nodes,
    };
    match (requirement(&view), case.want) {
        (Ok(got), Ok(want)) => {
            assert_eq!(
                got,
                want.map(|(requisite, first)| rotated(requisite, first)),
                "{}",
                case.name
            );
        }
        (Err(got), Err(want)) => assert!(got.to_string().contains(want), "{}: {got}", case.name),
        (got, want) => panic!("{}: got {got:?}, want {want:?}", case.name),
    }
}

#[test]
fn places_of_the_cluster() {
    check(Case {
        name: "case: provisioner/100 one zone",
        nodes: zones(&["zone1", "zone1", "zone1"]),
        want: Ok(Some((zones(&["zone1"]), 0))),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/100 two zones; case: provisioner/110 two terms",
        nodes: zones(&["zone1", "zone2", "zone2"]),
        want: Ok(Some((zones(&["zone1", "zone2"]), 0))),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/110 three terms",
        nodes: zones(&["zone1", "zone2", "zone3"]),
        want: Ok(Some((zones(&["zone1", "zone2", "zone3"]), 2))),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/102 no CSINode with keys",
        cluster_keys: None,
        nodes: zones(&["zone1"]),
        want: Err("no available topology found"),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/102 keys on no node",
        cluster_keys: Some(&["rack"]),
        nodes: zones(&["zone1"]),
        want: Err("were not found on any nodes"),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/102 immediate topology off",
        cluster_keys: None,
        immediate: false,
        ..Case::default()
    });
}

#[test]
fn the_selected_node_comes_first_in_the_requirement() {
    let on = |zone: &str| Some((Some(&["zone"][..]), Some(term(&[("zone", zone)]))));
    check(Case {
        name: "case: provisioner/101",
        selected: on("zone1"),
        strict: true,
        nodes: zones(&["zone1", "zone2"]),
        want: Ok(Some((zones(&["zone1"]), 0))),
        ..Case::default()
    });
    check(Case {
        name: "the selected node's place leads",
        selected: on("zone2"),
        nodes: zones(&["zone1", "zone2", "zone3"]),
        want: Ok(Some((zones(&["zone1", "zone2", "zone3"]), 1))),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/104 no CSINode",
        selected: Some((None, Some(term(&[])))),
        want: Err("failed to get selected CSINode node"),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/104 a label is missing",
        selected: Some((Some(&["zone"]), Some(term(&[("rack", "a")])))),
        want: Err("does not match topology keys"),
        ..Case::default()
    });
    check(Case {
        name: "no keys on the node",
        selected: Some((Some(&[]), Some(term(&[])))),
        want: Err("no topology key found for node node"),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/105",
        selected: on("z1"),
        nodes: vec![term(&[("zone", "z1")]), term(&[("zone", "z2"), ("rack", "r")])],
        want: Ok(Some((zones(&["z1", "z2"]), 0))),
        ..Case::default()
    });
}

#[test]
fn allowed_topologies_bound_the_requirement() {
    let two_by_two = || vec![allowed(&[("zone", &["1", "2"]), ("rack", &["A", "B"])])];
    let place = |rack: &str, zone: &str| term(&[("rack", rack), ("zone", zone)]);
    let four = || vec![place("A", "1"), place("A", "2"), place("B", "1"), place("B", "2")];
    let on = |rack: &str, zone: &str| Some((Some(&["zone", "rack"][..]), Some(place(rack, zone))));
    check(Case {
        name: "case: provisioner/107",
        selected: on("A", "2"),
        allowed: two_by_two(),
        want: Ok(Some((four(), 1))),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/106 overlapping terms count once",
        claim: "testset-1",
        allowed: [two_by_two(), vec![allowed(&[("zone", &["1"]), ("rack", &["A"])])]].concat(),
        want: Ok(Some((four(), 0))),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/106 a subset is not a duplicate",
        claim: "testset-1",
        allowed: vec![allowed(&[("zone", &["1"])]), allowed(&[("zone", &["1"]), ("rack", &["A"])])],
        want: Ok(Some((vec![term(&[("zone", "1")]), place("A", "1")], 0))),
        ..Case::default()
    });
    let zone_only = || vec![allowed(&[("zone", &["1", "2"])])];
    check(Case {
        name: "case: provisioner/108 the allowed term leads",
        selected: on("A", "2"),
        allowed: zone_only(),
        want: Ok(Some((zones(&["1", "2"]), 1))),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/108 strict uses the whole place",
        selected: on("A", "2"),
        strict: true,
        allowed: zone_only(),
        want: Ok(Some((vec![place("A", "2")], 0))),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/108 strict and elsewhere",
        selected: on("A", "3"),
        strict: true,
        allowed: zone_only(),
        want: Err("is not in allowed topologies"),
        ..Case::default()
    });
    check(Case {
        name: "case: provisioner/108 elsewhere",
        selected: on("A", "3"),
        allowed: zone_only(),
        want: Err("is not in requisite"),
        ..Case::default()
    });
}

#[test]
fn claims_spread_over_topologies_by_name() {
    assert_eq!(
        [fnv1("testset"), fnv1("testpvc"), fnv1("web")],
        [1_633_848_515, 1_684_622_678, 1_181_096_325]
    );
    // case: provisioner/109
    let cases = [
        ("testpvcA-testset-1", 0),
        ("testpvcB-testset-1", 0),
        ("testset-2", 1),
        ("testpvc-testset-3", 2),
        ("testpvc-testset-4", 3),
    ];
    for (claim, want) in cases {
        assert_eq!(start_index(claim, 4), want, "{claim}");
    }
}

#[test]
fn a_term_is_a_subset_when_all_its_segments_match() {
    // case: provisioner/113
    type Pairs<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Pairs<'_>, Pairs<'_>, bool); 5] = [
        (&[], &[("zone", "a")], true),
        (&[("zone", "a")], &[], false),
        (&[("instance", "i"), ("zone", "a")], &[("zone", "a")], false),
        (&[("zone", "a")], &[("instance", "i"), ("zone", "a")], true),
        (&[("rack", "a")], &[("zone", "a")], false),
    ];
    for (part, whole, want) in cases {
        assert_eq!(is_subset(&term(part), &term(whole)), want, "{part:?} in {whole:?}");
    }
}

#[test]
fn the_affinity_of_a_volume_is_what_the_driver_answered() {
    // case: provisioner/114
    assert_eq!(node_affinity(&[]), None);
    let requirement =
        |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    assert_eq!(
        node_affinity(&[term(&[("zone", "1"), ("rack", "A")])]),
        Some(json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [requirement("rack", "A"), requirement("zone", "1")]}
        ]}}))
    );
    assert_eq!(
        node_affinity(&[term(&[("zone", "1")]), term(&[("zone", "2")]), term(&[])]),
        Some(json!({"required": {"nodeSelectorTerms": [
            {"matchExpressions": [requirement("zone", "1")]},
            {"matchExpressions": [requirement("zone", "2")]}
        ]}}))
    );
    assert_eq!(node_affinity(&[term(&[])]), Some(json!({"required": {"nodeSelectorTerms": []}})));
}
