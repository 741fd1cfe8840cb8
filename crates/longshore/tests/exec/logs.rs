//! `kubectl logs` with its options, across a restart.

use std::io::{BufRead as _, BufReader};

use super::common::*;
use super::{plain, spawn, start, stdout};

#[test]
fn a_follower_ends_with_its_run_and_the_next_one_begins_anew() {
    if !can_kubectl("a_follower_ends_with_its_run_and_the_next_one_begins_anew") {
        return;
    }
    let home = Home::new("logs");
    let up = Instance::up(&home, "data");
    // Ends when somebody says so, and begins anew.
    let script = "echo begin; for n in 1 2 3; do echo line $n; done; echo seconds >&2; \
                  while ! [ -e /tmp/end ]; do sleep 0.1; done; echo end; exit 1";
    start(&up, &plain("web", script, "", ""), &["web"]);
    let none = up.kubectl(&["logs", "web", "-p"]);
    let words = "previous terminated container \"main\" in pod \"web\" not found";
    assert!(text(&none).contains(words), "{}", text(&none));

    let mut follower = spawn(&up, &["logs", "-f", "web"]);
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("begin"));
    let done = up.kubectl(&["exec", "web", "--", "touch", "/tmp/end"]);
    assert!(done.status.success(), "{}", text(&done));
    assert_eq!(lines.last().as_deref(), Some("end"), "the follower ends with the container");
    assert!(follower.wait().unwrap().success());

    up.wait("pod", "web", "started anew", |pod| {
        let main = &pod["status"]["containerStatuses"][0];
        main["restartCount"] == 1 && !main["state"]["running"].is_null()
    });
    let before = stdout(&up.kubectl(&["logs", "web", "--previous"]));
    assert!(before.ends_with("end\n") && before.starts_with("begin\n"), "{before}");
    eventually("the next run writes", || {
        stdout(&up.kubectl(&["logs", "web"])).lines().count() == 5
    });
    let now = stdout(&up.kubectl(&["logs", "web"]));
    assert!(!now.contains("end"), "{now}");
    let last = stdout(&up.kubectl(&["logs", "web", "--tail=2"]));
    assert_eq!(last.lines().count(), 2, "{last}");
    let cut = stdout(&up.kubectl(&["logs", "web", "--limit-bytes=8"]));
    assert_eq!(cut, "begin\nli");
    let timed = stdout(&up.kubectl(&["logs", "web", "--timestamps", "--tail=1"]));
    let time = timed.split(' ').next().unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok(), "{timed}");
    let since = format!("--since-time={time}");
    assert!(stdout(&up.kubectl(&["logs", "web", &since])).contains(timed[time.len()..].trim()));
    assert_eq!(stdout(&up.kubectl(&["logs", "web", "--since-time=2100-01-01T00:00:00Z"])), "");
    assert_eq!(stdout(&up.kubectl(&["logs", "web", "--since=1h"])), now);

    // Our own command has the same options.
    for args in [&["--previous"][..], &["--tail=2"], &["--limit-bytes=8"], &["--since=1h"]] {
        let ours = up.cli(&[&["logs", "web"][..], args].concat());
        let theirs = up.kubectl(&[&["logs", "web"][..], args].concat());
        assert_eq!(stdout(&ours), stdout(&theirs), "{args:?}: {}", text(&ours));
    }
    up.stop_without_a_trace(&home);
}
