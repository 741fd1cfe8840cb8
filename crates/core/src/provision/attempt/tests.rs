//! The table, walked through everything that can happen, and wrong tables that the walk must catch.

use std::collections::{BTreeMap, VecDeque};

use serde_json::json;

use super::*;
use crate::provision::topology::Requirement;

fn plan(node: Option<&str>) -> Arc<Plan> {
    let plan = json!({"driver": "d", "claim": {"namespace": "n", "name": "c", "uid": "u"},
        "volume": "pvc-u", "selectedNode": node, "bytes": 1, "parameters": {}, "capabilities": [],
        "topologyInUse": false, "secrets": {}, "accessModes": [], "fsType": "", "mountOptions": [],
        "readOnly": false});
    Arc::new(serde_json::from_value(plan).unwrap())
}

fn volume() -> Arc<Value> {
    Arc::new(json!({"kind": "PersistentVolume"}))
}

fn rest() -> Rest {
    use std::sync::OnceLock;
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "an instant can only be made from now")]
    let since = *BEGIN.get_or_init(Instant::now);
    Rest { class_uid: "class".into(), since }
}

/// Whose table it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A CSI driver, with the leak guard.
    Csi,
    /// A provisioner that keeps no record: a final error of it is the truth, and a crash forgets.
    Plain,
}

/// What is really the case, as far as anybody could know it. Kept apart from the table on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Truth {
    /// A volume may exist that no PersistentVolume stands for.
    may_exist: bool,
    /// A call had no verdict, so a refusal alone proves nothing.
    doubt: bool,
    /// Refusals in a row since then.
    refusals: u32,
    /// The intent record is in the API.
    record: bool,
    /// The process has restarted and has not read the record yet.
    restarted: bool,
}

/// One thing that can happen: an event, or the end of the process.
#[derive(Debug, Clone)]
enum Move {
    Event(Event),
    Crash,
}

type Table = fn(Attempt, Event) -> Option<Attempt>;

fn shipped(state: Attempt, event: Event) -> Option<Attempt> {
    state.after(event).ok()
}

fn moves() -> Vec<Move> {
    let asker = Asker::default();
    let refused = |infeasible, claim_waits| {
        Event::Refused(Refusal { infeasible, claim_waits, guarded: true })
    };
    let mut all: Vec<Move> = [
        Event::Recorded(plan(Some("a"))),
        Event::Recovered(plan(Some("a"))),
        Event::Resumed,
        Event::Abandoned,
        Event::NoVerdict,
        refused(false, true),
        refused(false, false),
        refused(true, true),
        refused(true, false),
        Event::Absent,
        Event::Kept(asker.clone()),
        Event::LetGo,
        Event::Made(volume(), asker),
        Event::Saved,
        Event::NotSaved,
        Event::RecordDropped,
        Event::Rest(rest()),
        Event::Rested,
    ]
    .map(Move::Event)
    .into();
    all.push(Move::Crash);
    all
}

fn has_plan(state: &Attempt) -> bool {
    matches!(state.next(None), Next::Repeat(_) | Next::Abandon(_))
}

/// Whether the outside can make this happen. What the loops never do is not tried.
fn can_happen(kind: Kind, state: &Attempt, truth: Truth, event: &Event) -> bool {
    let csi = kind == Kind::Csi;
    match event {
        // The API refuses a second record of that name.
        Event::Recorded(_) => csi && !(truth.restarted && truth.record),
        Event::Recovered(_) => csi && truth.record,
        // The driver has been called.
        Event::NoVerdict | Event::Refused(_) => csi && has_plan(state),
        Event::Made(..) => !csi || has_plan(state),
        // Somebody has a volume in hand.
        Event::Absent | Event::Saved => truth.may_exist && !truth.restarted,
        Event::Resumed
        | Event::Abandoned
        | Event::Kept(_)
        | Event::LetGo
        | Event::NotSaved
        | Event::RecordDropped
        | Event::Rest(_)
        | Event::Rested => true,
    }
}

/// What the event says about the world, by the promises in docs/guarantees.md.
fn witness(kind: Kind, mut truth: Truth, event: &Event) -> Truth {
    let plain = kind == Kind::Plain;
    match event {
        Event::Recorded(_) => {
            truth = Truth { may_exist: true, doubt: false, refusals: 0, record: true, ..truth };
        }
        Event::Recovered(_) => truth.restarted = false,
        Event::NoVerdict => (truth.doubt, truth.refusals) = (true, 0),
        Event::Refused(refusal) => {
            truth.refusals += 1;
            let enough = match refusal.claim_waits {
                true => refusal.infeasible || truth.refusals >= 3,
                false => truth.refusals >= 10,
            };
            truth.may_exist &= truth.doubt && !enough;
        }
        Event::Made(..) => truth.may_exist = true,
        Event::Absent | Event::Saved => truth.may_exist = false,
        Event::Kept(_) => truth.may_exist |= plain,
        Event::LetGo | Event::NotSaved => truth.may_exist &= !plain,
        // Nobody knows whether the call that is taken up again was sent.
        Event::Resumed | Event::Abandoned => truth.doubt = true,
        Event::RecordDropped => truth.record = false,
        Event::Rest(_) | Event::Rested => {}
    }
    if !truth.may_exist {
        (truth.doubt, truth.refusals) = (false, 0);
    }
    truth
}

fn crash(kind: Kind, truth: Truth) -> Truth {
    let may_exist = truth.may_exist && kind == Kind::Csi;
    Truth { may_exist, doubt: truth.record, refusals: 0, restarted: truth.record, ..truth }
}

/// What is wrong after an event, if anything is.
fn fault(
    kind: Kind,
    before: Truth,
    event: &Event,
    state: &Attempt,
    truth: Truth,
) -> Option<String> {
    let owed = matches!(state.owes(), Debt::Repeat | Debt::Delete | Debt::Save);
    if matches!(event, Event::Recorded(_)) && before.may_exist {
        return Some("a new plan is made while a volume of the earlier one may exist".into());
    }
    if truth.may_exist && !owed && !truth.restarted {
        return Some("a volume may exist and nothing is owed for it".into());
    }
    if truth.may_exist && kind == Kind::Csi && !truth.record {
        return Some("a volume may exist that a crash would forget".into());
    }
    None
}

/// Every state that can be reached, each once, and how; the first fault on the way.
fn walk(kind: Kind, table: Table) -> Result<usize, String> {
    let calm =
        Truth { may_exist: false, doubt: false, refusals: 0, record: false, restarted: false };
    let begin = (Attempt::default(), calm);
    let name = |node: &(Attempt, Truth)| format!("{node:?}");
    let mut from: BTreeMap<String, Vec<String>> = BTreeMap::from([(name(&begin), Vec::new())]);
    let mut line = VecDeque::from([begin.clone()]);
    while let Some((state, truth)) = line.pop_front() {
        for one in moves() {
            let next = match &one {
                Move::Crash => (Attempt::default(), crash(kind, truth)),
                Move::Event(event) if !can_happen(kind, &state, truth, event) => continue,
                Move::Event(event) => {
                    let Some(after) = table(state.clone(), event.clone()) else { continue };
                    let now = witness(kind, truth, event);
                    if let Some(fault) = fault(kind, truth, event, &after, now) {
                        return Err(format!("{fault}: {event:?} in {state:?} leads to {after:?}"));
                    }
                    (after, now)
                }
            };
            let here = name(&(state.clone(), truth));
            let known = from.entry(name(&next)).or_insert_with(|| {
                line.push_back(next);
                Vec::new()
            });
            known.push(here);
        }
    }
    // Whatever happens, there is a way back to the beginning.
    let mut back = vec![name(&begin)];
    let mut ends = std::collections::BTreeSet::new();
    while let Some(node) = back.pop() {
        if ends.insert(node.clone()) {
            back.extend(from.get(&node).into_iter().flatten().cloned());
        }
    }
    match from.keys().find(|node| !ends.contains(*node)) {
        Some(stuck) => Err(format!("there is no way out of {stuck}")),
        None => Ok(from.len()),
    }
}

#[test]
fn whatever_happens_a_volume_that_may_exist_is_owed_a_save_a_repeat_or_a_delete() {
    // The walk ends when it finds nothing new, so it stands for sequences of any length.
    assert_eq!(walk(Kind::Csi, shipped), Ok(221));
    assert_eq!(walk(Kind::Plain, shipped), Ok(5));
}

#[test]
fn wrong_tables_are_caught() {
    let rows: [(&str, Table, &str); 12] = [
        (
            "forgets a call without a verdict",
            |state, event| match event {
                Event::NoVerdict => Some(Attempt::default()),
                event => shipped(state, event),
            },
            "nothing is owed",
        ),
        (
            "takes the first refusal for the truth",
            |state, event| match event {
                Event::Refused(_) => Some(Attempt::Settled { rest: None }),
                event => shipped(state, event),
            },
            "nothing is owed",
        ),
        (
            "counts refusals that are not in a row",
            |state, event| match (&state, &event) {
                (Attempt::Uncertain { .. } | Attempt::Abandoned { .. }, Event::NoVerdict) => {
                    Some(state)
                }
                _ => shipped(state, event),
            },
            "nothing is owed",
        ),
        (
            "takes an infeasible error for the truth when the claim is gone",
            |state, event| match event {
                Event::Refused(refusal) => {
                    let claim_waits = refusal.claim_waits || refusal.infeasible;
                    shipped(state, Event::Refused(Refusal { claim_waits, ..refusal }))
                }
                event => shipped(state, event),
            },
            "nothing is owed",
        ),
        (
            "plans anew while it is uncertain",
            |state, event| match event {
                Event::Recorded(plan) if has_plan(&state) => Some(Attempt::Asked { plan }),
                event => shipped(state, event),
            },
            "a new plan",
        ),
        (
            "trusts the first refusal of a call that is taken up again",
            |state, event| match (&state, &event) {
                (Attempt::Asked { .. }, Event::Resumed) => Some(state),
                _ => shipped(state, event),
            },
            "nothing is owed",
        ),
        (
            "forgets the plan with the claim",
            |state, event| match event {
                Event::LetGo => Some(Attempt::default()),
                event => shipped(state, event),
            },
            "nothing is owed",
        ),
        (
            "drops the record of an abandoned call",
            |state, event| match (&state, &event) {
                (Attempt::Abandoned { .. }, Event::RecordDropped) => Some(state),
                _ => shipped(state, event),
            },
            "a crash would forget",
        ),
        (
            "forgets a volume that nobody could save",
            |state, event| match event {
                Event::NotSaved => shipped(state, Event::Saved),
                event => shipped(state, event),
            },
            "nothing is owed",
        ),
        (
            "rests while a volume may exist",
            |state, event| match event {
                Event::Rest(rest) => Some(Attempt::Resting(rest)),
                event => shipped(state, event),
            },
            "nothing is owed",
        ),
        (
            "begins anew although there is a record",
            |state, event| match event {
                Event::Recovered(_) => Some(state),
                event => shipped(state, event),
            },
            "nothing is owed",
        ),
        (
            "never lets the record go",
            |state, event| match event {
                Event::RecordDropped => None,
                event => shipped(state, event),
            },
            "no way out",
        ),
    ];
    for (title, table, sign) in rows {
        let found = walk(Kind::Csi, table);
        assert!(
            found.as_ref().is_err_and(|fault| fault.contains(sign)),
            "a table that {title} is not caught: {found:?}"
        );
    }
}

#[test]
fn a_plan_is_repeated_on_its_own_node_and_abandoned_on_another() {
    let at = plan(Some("a"));
    let state = Attempt::default().after(Event::Recorded(at.clone())).unwrap();
    assert_eq!(state.next(Some(&"a".into())), Next::Repeat(at.clone()));
    assert_eq!(state.next(Some(&"b".into())), Next::Abandon(at.clone()));
    assert_eq!(state.next(None), Next::Abandon(at.clone()));
    let away = state.after(Event::Abandoned).unwrap();
    assert_eq!(away.next(Some(&"a".into())), Next::Repeat(at), "the scheduler has come back");
    assert_eq!(Attempt::default().next(Some(&"a".into())), Next::Plan);
    assert_eq!(Attempt::Settled { rest: None }.next(None), Next::DropRecord);
    assert_eq!(Attempt::Resting(rest()).next(None), Next::Wait);
}

#[test]
fn refusals_of_a_plan_count_on_after_the_scheduler_chose_another_node() {
    let refused =
        || Event::Refused(Refusal { infeasible: false, claim_waits: true, guarded: true });
    let events = [
        Event::Recorded(plan(Some("a"))),
        Event::NoVerdict,
        refused(),
        Event::LetGo,
        Event::Abandoned,
        refused(),
        Event::Kept(Asker::default()),
    ];
    let state = events.into_iter().fold(Attempt::default(), |state, e| state.after(e).unwrap());
    assert_eq!((state.refusals(), state.owes()), (2, Debt::Delete));
    assert!(!state.is_owned_by_claim_queue(), "the resolver goes on without the claim");
    assert_eq!(state.after(refused()).unwrap(), Attempt::Settled { rest: None });
}

#[test]
fn a_rest_ends_with_the_time_or_with_the_class() {
    let (rest, pause) = (rest(), Duration::from_secs(300));
    let late = |seconds| rest.since + Duration::from_secs(seconds);
    let rows = [
        ("class", 100, Some(Duration::from_secs(200))),
        ("class", 300, None),
        ("class", 900, None),
        ("made anew", 100, None),
    ];
    for (class, seconds, left) in rows {
        assert_eq!(rest.left(&class.into(), pause, late(seconds)), left, "{class} {seconds}");
    }
    let settled = Attempt::Settled { rest: None }.after(Event::Rest(rest.clone())).unwrap();
    assert_eq!(settled.resting(), Some(&rest), "the record may still be there");
    assert_eq!(settled.after(Event::RecordDropped).unwrap(), Attempt::Resting(rest));
}

/// The whole table: what each state takes, and where that leads. It refuses every other event.
const TABLE: [(&str, &str); 10] = [
    (
        "idle",
        "Recorded:asked Recovered:uncertain Kept:requested LetGo:idle Made:made-on-request \
         Rest:resting Rested:idle",
    ),
    ("resting", "Recovered:uncertain LetGo:resting Rest:resting Rested:idle"),
    (
        "requested",
        "Recorded:asked Recovered:uncertain Kept:requested LetGo:idle Made:made-on-request \
         Rested:requested",
    ),
    (
        "asked",
        "Recovered:asked Resumed:uncertain Abandoned:abandoned NoVerdict:uncertain \
         Refused:settled Absent:settled Kept:uncertain LetGo:asked Made:made Saved:settled \
         Rested:asked",
    ),
    (
        "uncertain",
        "Recovered:uncertain Resumed:uncertain Abandoned:abandoned NoVerdict:uncertain \
         Refused:uncertain Absent:settled Kept:uncertain LetGo:uncertain Made:made Saved:settled \
         Rested:uncertain",
    ),
    (
        "abandoned",
        "Recovered:abandoned Resumed:uncertain Abandoned:abandoned NoVerdict:abandoned \
         Refused:abandoned Absent:settled Kept:abandoned LetGo:abandoned Saved:settled \
         Rested:abandoned",
    ),
    ("made", "Absent:settled LetGo:made Saved:settled NotSaved:uncertain Rested:made"),
    (
        "made-on-request",
        "Absent:idle LetGo:made-on-request Saved:idle NotSaved:idle Rested:made-on-request",
    ),
    (
        "settled",
        "Kept:settled LetGo:settled RecordDropped:idle Rest:settled-resting Rested:settled",
    ),
    (
        "settled-resting",
        "Kept:settled-resting LetGo:settled-resting RecordDropped:resting Rest:settled-resting \
         Rested:settled",
    ),
];

/// One state of each kind.
fn states() -> [Attempt; 10] {
    let plan = plan(Some("a"));
    let created = || Call::CreateVolume(plan.clone());
    let uncertain = |call| Attempt::Uncertain { call, refusals: 0, asker: None };
    let made = |call| Attempt::Made { call, volume: volume(), asker: Asker::default() };
    [
        Attempt::default(),
        Attempt::Resting(rest()),
        uncertain(Call::Request),
        Attempt::Asked { plan: plan.clone() },
        uncertain(created()),
        Attempt::Abandoned { plan: plan.clone(), refusals: 0 },
        made(created()),
        made(Call::Request),
        Attempt::Settled { rest: None },
        Attempt::Settled { rest: Some(rest()) },
    ]
}

fn kind_of(state: &Attempt) -> &'static str {
    match state {
        Attempt::Idle(_) => "idle",
        Attempt::Resting(_) => "resting",
        Attempt::Asked { .. } => "asked",
        Attempt::Uncertain { call: Call::Request, .. } => "requested",
        Attempt::Uncertain { call: Call::CreateVolume(_), .. } => "uncertain",
        Attempt::Abandoned { .. } => "abandoned",
        Attempt::Made { call: Call::CreateVolume(_), .. } => "made",
        Attempt::Made { call: Call::Request, .. } => "made-on-request",
        Attempt::Settled { rest: None } => "settled",
        Attempt::Settled { rest: Some(_) } => "settled-resting",
    }
}

#[test]
fn every_state_takes_the_events_of_its_row_and_hands_every_other_one_back() {
    let name = |event: &Event| {
        let text = format!("{event:?}");
        text.split(|sign: char| !sign.is_alphanumeric()).next().unwrap().to_owned()
    };
    let mut events = BTreeMap::new();
    for one in moves() {
        if let Move::Event(event) = one {
            // Of the refusals the first: it is not conclusive.
            events.entry(name(&event)).or_insert(event);
        }
    }
    assert_eq!(events.len(), 15, "each kind of event is tried");
    for (state, (kind, row)) in states().into_iter().zip(TABLE) {
        assert_eq!(kind_of(&state), kind);
        let mut taken = String::new();
        for (name, event) in &events {
            match state.clone().after(event.clone()) {
                Ok(after) => taken += &format!("{name}:{} ", kind_of(&after)),
                Err(misplaced) => {
                    assert_eq!((&misplaced.state, &misplaced.event), (&state, event));
                }
            }
        }
        let mut row: Vec<&str> = row.split(' ').collect();
        row.sort_unstable();
        assert_eq!(taken.split_whitespace().collect::<Vec<_>>(), row, "{kind}");
    }
}

/// Records as version 0.1.0 wrote them, letter by letter.
const RECORDS: [&str; 3] = [
    r#"{"driver":"test.csi.longshore.dev","claim":{"namespace":"default","name":"plain","uid":"eb0ae8ec-f606-4cf9-b619-f7197634f106"},"volume":"pvc-eb0ae8ec-f606-4cf9-b619-f7197634f106","bytes":10485760,"parameters":{},"capabilities":[{"mode":"SINGLE_NODE_WRITER","access":{"mount":{"fsType":"","flags":[]}}}],"topology":{"requisite":[{"topology.test/zone":"a"},{"topology.test/zone":"b"}],"preferred":[{"topology.test/zone":"b"},{"topology.test/zone":"a"}]},"topologyInUse":true,"secrets":{},"accessModes":["ReadWriteOnce"],"volumeMode":"Filesystem","fsType":"","mountOptions":[],"reclaimPolicy":"Delete","readOnly":false,"contentInAnswer":false,"inTree":false}"#,
    r#"{"driver":"test.csi.longshore.dev","claim":{"namespace":"default","name":"rich","uid":"22e97709-6cf0-46a3-b0b1-54d3668e8fb2"},"volume":"pvc-22e97709-6cf0-46a3-b0b1-54d3668e8fb2","selectedNode":"n1","bytes":10485760,"parameters":{"kind":"fast"},"capabilities":[{"mode":"MULTI_NODE_MULTI_WRITER","access":{"mount":{"fsType":"ext4","flags":[]}}}],"topology":{"requisite":[{"topology.test/zone":"a"},{"topology.test/zone":"b"}],"preferred":[{"topology.test/zone":"a"},{"topology.test/zone":"b"}]},"topologyInUse":true,"secrets":{"provisioner":{"name":"key","namespace":"default"}},"accessModes":["ReadWriteMany"],"volumeMode":"Filesystem","fsType":"ext4","mountOptions":[],"reclaimPolicy":"Delete","readOnly":false,"contentInAnswer":false,"inTree":false}"#,
    r#"{"driver":"test.csi.longshore.dev","claim":{"namespace":"default","name":"clone","uid":"051e5d9b-4815-4338-8a6c-5a731d906c3b"},"volume":"pvc-051e5d9b-4815-4338-8a6c-5a731d906c3b","bytes":10485760,"parameters":{},"capabilities":[{"mode":"SINGLE_NODE_WRITER","access":{"mount":{"fsType":"","flags":[]}}}],"topology":{"requisite":[{"topology.test/zone":"a"},{"topology.test/zone":"b"}],"preferred":[{"topology.test/zone":"a"},{"topology.test/zone":"b"}]},"topologyInUse":true,"secrets":{},"accessModes":["ReadWriteOnce"],"volumeMode":"Filesystem","fsType":"","mountOptions":[],"reclaimPolicy":"Delete","readOnly":false,"content":{"kind":"claim","namespace":"default","name":"source","handle":"vol-1"},"contentInAnswer":true,"inTree":false}"#,
];

#[test]
fn records_of_the_first_version_are_read_and_written_alike() {
    for text in RECORDS {
        let plan = from_record(&BTreeMap::from([("plan".into(), text.into())])).unwrap();
        let state = Attempt::default().after(Event::Recovered(plan.clone())).unwrap();
        assert_eq!(state.owes(), Debt::Repeat, "nobody knows whether the call was sent");
        assert_eq!(to_record(&plan, None), BTreeMap::from([("plan", text.to_string())]));
    }
    assert!(matches!(from_record(&BTreeMap::new()), Err(RecordError::NoPlan)));
    let torn = BTreeMap::from([("plan".into(), RECORDS[0][..40].to_string())]);
    assert!(matches!(from_record(&torn), Err(RecordError::Unreadable(_))));
}

#[test]
fn record_of_another_cluster_is_refused() {
    let (ours, theirs) = (Uid::from("ours"), Uid::from("theirs"));
    let elsewhere = ForeignRecord::Elsewhere { theirs: theirs.clone(), ours: ours.clone() };
    let unknown = ForeignRecord::Unknown { theirs: theirs.clone() };
    for (written_by, known, expected) in [
        (None, Some(&ours), Ok(())),
        (None, None, Ok(())),
        (Some(&ours), Some(&ours), Ok(())),
        (Some(&theirs), Some(&ours), Err(elsewhere)),
        (Some(&theirs), None, Err(unknown)),
    ] {
        let data = to_record(&plan(None), written_by);
        let data = data.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
        assert_eq!(check_cluster(&data, known), expected, "{written_by:?} {known:?}");
        assert_eq!(from_record(&data).unwrap(), plan(None));
    }
}

/// An object holds 1 MiB; of names of 63 characters, the longest that labels have.
#[test]
fn record_of_6000_nodes_with_a_place_each_fits_into_an_object() {
    let term = |node: usize| {
        let name = format!("{node:05}.{}", "x".repeat(57));
        Term::from([
            ("topology.example.com/region".to_owned(), "eu-central-1".to_owned()),
            ("topology.example.com/zone".to_owned(), format!("eu-central-1{}", node / 2000)),
            ("topology.example.com/node".to_owned(), name.clone()),
            ("kubernetes.io/hostname".to_owned(), name),
        ])
    };
    let requisite: Vec<_> = (0..6000).map(term).collect();
    let mut preferred = requisite.clone();
    preferred.rotate_left(4321);
    let topology = Some(Requirement { requisite, preferred });
    let plan = Plan { topology, ..Plan::clone(&plan(None)) };
    let data = to_record(&plan, Some(&Uid::from("cluster")));
    let bytes: usize = data.iter().map(|(key, text)| key.len() + text.len()).sum();
    assert!(bytes < 900 * 1024, "{bytes} bytes");
    let data = data.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
    assert_eq!(*from_record(&data).unwrap(), plan);
}
