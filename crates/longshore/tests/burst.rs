//! Many claims at once: in a burst some things wait until there is time for them, and none is forgotten, also
//! when the process is killed meanwhile.

mod common;

use common::{Home, Instance, can_kubectl, can_run, claim, eventually, images_below, text};

const WRITERS: usize = 8;
const CLAIMS: usize = 12;

/// How many objects there are, as kubectl lists them.
fn count(up: &Instance, args: &[&str]) -> usize {
    let done = up.kubectl(&[&["get", "-o", "name"], args].concat());
    assert!(done.status.success(), "{}", text(&done));
    String::from_utf8_lossy(&done.stdout).lines().count()
}

fn bound(up: &Instance) -> usize {
    let done = up.kubectl(&["get", "pvc", "-o", "jsonpath={.items[*].status.phase}"]);
    String::from_utf8_lossy(&done.stdout).split(' ').filter(|phase| *phase == "Bound").count()
}

fn intents(up: &Instance) -> usize {
    count(up, &["configmaps", "-A", "-l", "longshore.dev/intent"])
}

#[test]
fn what_waits_in_a_burst_is_done_afterwards() {
    if !can_run("burst") || !can_kubectl("burst") {
        return;
    }
    let home = Home::new("burst");
    let up = Instance::up(&home, "data");
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let claims: Vec<String> = (0..CLAIMS)
                .map(|n| claim(&format!("many-{writer}-{n}"), "longshore-local-immediate"))
                .collect();
            let up = &up;
            scope.spawn(move || up.apply(&claims.join("---\n")));
        }
    });
    eventually("all claims are bound", || bound(&up) == WRITERS * CLAIMS);
    up.kill();
    let up = Instance::up(&home, "data");
    eventually("no intent is left", || intents(&up) == 0);
    assert_eq!(bound(&up), WRITERS * CLAIMS);
    assert_eq!(count(&up, &["pv"]), WRITERS * CLAIMS);
    assert_eq!(images_below(home.path()).len(), WRITERS * CLAIMS);
    let done = up.kubectl(&["delete", "pvc", "--all", "--wait=false"]);
    assert!(done.status.success(), "{}", text(&done));
    eventually("all volumes are gone", || count(&up, &["pv"]) == 0);
    assert_eq!(intents(&up), 0);
    assert_eq!(images_below(home.path()).len(), 0);
    up.stop_without_a_trace(&home);
}
