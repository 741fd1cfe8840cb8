use std::slice;

use super::*;

fn entry(status: i32, reason: &str, message: &str) -> Entry {
    Entry { status, reason: reason.to_owned(), message: message.to_owned() }
}

fn condition(status: Status, reason: &str) -> VolumeHealthCondition {
    VolumeHealthCondition { status, reason: reason.to_owned(), message: String::new() }
}

fn report(entries: &[(i32, &str)]) -> HealthReport {
    sanitise(entries.iter().map(|(status, reason)| entry(*status, reason, "")))
}

#[test]
fn numbers_of_drivers_are_words_of_the_api() {
    // case: health/H15
    for (number, word) in [(1, "Degraded"), (2, "Inaccessible"), (3, "DataLoss")] {
        assert_eq!(Status::of_wire(number).map(|one| one.to_string()), Some(word.to_owned()));
    }
    for number in [0, 4, 9, -1] {
        assert_eq!(Status::of_wire(number), None, "{number}");
    }
    for (number, word) in [(1, "StorageDegraded"), (2, "StorageUnreachable")] {
        let read = StorageStatus::of_wire(number).map(|one| one.to_string());
        assert_eq!(read, Some(word.to_owned()));
    }
    assert_eq!(StorageStatus::of_wire(0), None);
    assert_eq!(StorageStatus::of_wire(3), None);
}

#[test]
fn entries_are_made_acceptable() {
    let long = "a".repeat(300);
    let ends_badly = format!("{}:::{}", "a".repeat(254), "b".repeat(40));
    let wide = "ü".repeat(2_500);
    let cases: [(&str, Entry, (&str, &str)); 10] = [
        ("as it should be", entry(1, "HighLatency", "slow"), ("HighLatency", "slow")),
        ("every character", entry(1, "a_B,9:c_", ""), ("a_B,9:c_", "")),
        // case: health/H17
        ("words", entry(1, "disk is bad", "3 of 5"), (UNSPECIFIED, "disk is bad: 3 of 5")),
        ("words alone", entry(1, "disk is bad", ""), (UNSPECIFIED, "disk is bad")),
        ("nothing", entry(1, "", "slow"), (UNSPECIFIED, "slow")),
        ("a digit first", entry(1, "3rd", ""), (UNSPECIFIED, "3rd")),
        ("a separator last", entry(1, "A,", ""), (UNSPECIFIED, "A,")),
        // case: health/H18
        ("a long reason", entry(1, &long, ""), (&long[..MAX_REASON_BYTES], "")),
        ("cut at separators", entry(1, &ends_badly, ""), (&ends_badly[..254], "")),
        ("a long message", entry(1, "A", &wide), ("A", &wide[..MAX_MESSAGE_BYTES])),
    ];
    for (name, given, (reason, message)) in cases {
        let made = sanitise([given]).conditions;
        let made: Vec<_> = made.iter().map(|one| (one.reason.as_str(), &*one.message)).collect();
        assert_eq!(made, [(reason, message)], "{name}");
    }
    let odd = format!("x{wide}");
    let cut = &sanitise([entry(1, "A", &odd)]).conditions[0].message;
    assert_eq!(cut.len(), MAX_MESSAGE_BYTES - 1, "no half character");
}

#[test]
fn of_equal_entries_the_first_counts_and_of_too_many_the_worst() {
    // case: health/H20
    let twice = sanitise([entry(1, "A", "first"), entry(1, "A", "second"), entry(2, "A", "")]);
    let texts: Vec<&str> = twice.conditions.iter().map(|one| &*one.message).collect();
    assert_eq!(texts, ["", "first"], "the worse one stands first");
    // case: health/H19
    let many = (0..20).map(|n| entry(if n == 19 { 3 } else { 1 }, &format!("R{n:02}"), "text"));
    let kept = sanitise(many.clone()).conditions;
    assert_eq!(kept.len(), MAX_CONDITIONS);
    assert_eq!((&kept[0].status, kept[0].reason.as_str()), (&Status::DataLoss, "R19"));
    assert_eq!(kept[15].message, "text (and 4 more)");
    let backwards = sanitise(many.rev()).conditions;
    assert_eq!(kept, backwards, "the order in the response does not matter");
    let long = (0..17).map(|n| entry(1, &format!("R{n:02}"), &"x".repeat(2_000)));
    assert_eq!(sanitise(long).conditions[15].message.len(), MAX_MESSAGE_BYTES);
}

#[test]
fn unknown_statuses_are_kept_apart() {
    let mixed = report(&[(9, "New"), (0, "None"), (9, "New"), (2, "Gone")]);
    assert_eq!(mixed.conditions, [condition(Status::Inaccessible, "Gone")]);
    assert_eq!(mixed.unknown, [entry(0, "None", ""), entry(9, "New", "")]);
    assert!(!report(&[(9, "New")]).is_healthy() && report(&[]).is_healthy());
}

#[test]
fn what_a_cycle_learned_decides() {
    use Decision::{Clear, Confirm, Keep, Replace};
    let (a, b) = (condition(Status::Degraded, "A"), condition(Status::Degraded, "B"));
    let loss = condition(Status::DataLoss, "A");
    let talkative = VolumeHealthCondition { message: "41 %".to_owned(), ..a.clone() };
    let (none, only_a, only_b) = (report(&[]), report(&[(1, "A")]), report(&[(1, "B")]));
    let (both, unknown, worse) =
        (report(&[(1, "B"), (1, "A")]), report(&[(9, "N")]), report(&[(3, "A")]));
    let left_out = |before, confirm| Observed::Absent { before, confirm };
    let cases: [(&str, &[VolumeHealthCondition], Observed<'_>, Decision); 22] = [
        ("healthy, and so it was", &[], Observed::Reported(&none), Keep),
        ("begins", &[], Observed::Reported(&only_a), Replace(vec![a.clone()])),
        // case: health/H9
        ("goes on", slice::from_ref(&a), Observed::Reported(&only_a), Keep),
        // case: health/H10
        ("another message", &[talkative], Observed::Reported(&only_a), Keep),
        // case: health/H11
        (
            "one more",
            slice::from_ref(&a),
            Observed::Reported(&both),
            Replace(vec![a.clone(), b.clone()]),
        ),
        // case: health/H12
        ("one less", &[a.clone(), b.clone()], Observed::Reported(&only_b), Replace(vec![b])),
        ("worse", slice::from_ref(&a), Observed::Reported(&worse), Replace(vec![loss.clone()])),
        // case: health/H13
        ("recovers", slice::from_ref(&a), Observed::Reported(&none), Clear),
        // case: health/H16
        ("only what has no word", slice::from_ref(&a), Observed::Reported(&unknown), Keep),
        ("that alone", &[], Observed::Reported(&unknown), Keep),
        // case: health/H24
        ("the call failed", slice::from_ref(&a), Observed::Failed, Keep),
        ("it always fails", &[], Observed::Failed, Keep),
        // case: health/H25
        ("a list ended early", &[], Observed::Partly(&only_a), Replace(vec![a.clone()])),
        (
            "and takes nothing back",
            slice::from_ref(&loss),
            Observed::Partly(&only_a),
            Replace(vec![loss.clone(), a.clone()]),
        ),
        ("not even if it says so", slice::from_ref(&a), Observed::Partly(&none), Keep),
        ("it says what is known", slice::from_ref(&a), Observed::Partly(&only_a), Keep),
        ("healthy ones are left out", &[], left_out(0, false), Keep),
        ("for ever", &[], left_out(9, true), Keep),
        // case: health/H30
        ("left out once", slice::from_ref(&a), left_out(0, false), Keep),
        ("and again", slice::from_ref(&a), left_out(1, false), Clear),
        // case: health/H33
        ("left out, and can be asked about", slice::from_ref(&a), left_out(0, true), Confirm),
        ("asked about again", slice::from_ref(&a), left_out(5, true), Confirm),
    ];
    for (name, standing, observed, want) in cases {
        assert_eq!(decide(standing, observed), want, "{name}");
    }
}

#[test]
fn a_list_that_ended_early_is_limited_as_others() {
    let standing: Vec<_> =
        (0..MAX_CONDITIONS).map(|n| condition(Status::DataLoss, &format!("R{n:02}"))).collect();
    let milder = report(&[(1, "A")]);
    assert_eq!(decide(&standing, Observed::Partly(&milder)), Decision::Keep);
}

#[test]
fn events_are_about_what_begins() {
    let (a, b) = (condition(Status::Degraded, "A"), condition(Status::Inaccessible, "B"));
    let news: Vec<_> = begun(slice::from_ref(&a), &[b.clone(), a.clone()]).cloned().collect();
    assert_eq!(news, [b]);
    assert_eq!(begun(&[], &[a]).count(), 1);
    assert_eq!(event_text("Degraded", "A", "slow"), "Degraded/A: slow");
    assert_eq!(event_text("Degraded", "A", ""), "Degraded/A");
}

#[test]
fn patches_carry_the_uid_and_the_whole_list() {
    let now = "2026-01-01T00:00:00Z";
    let conditions = [
        VolumeHealthCondition { message: "slow".to_owned(), ..condition(Status::Degraded, "A") },
        condition(Status::Degraded, "B"),
    ];
    assert_eq!(
        patch(&"u1".into(), &conditions, now),
        json!({"metadata": {"uid": "u1"}, "status": {"healthStatus": {
            "healthConditions": [
                {"status": "Degraded", "reason": "A", "message": "slow"},
                {"status": "Degraded", "reason": "B"},
            ],
            "lastTransitionTime": now}}})
    );
    let cleared = json!({"metadata": {"uid": "u1"}, "status": {"healthStatus": null}});
    assert_eq!(patch(&"u1".into(), &[], now), cleared);
}
