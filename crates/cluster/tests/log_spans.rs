//! What a log line of a pass says of the pass. One test, because logging belongs to the process.

use std::sync::Arc;

use longshore_cluster::controller::note;
use longshore_cluster::telemetry::{LogFormat, LogOptions, log_layer};
use longshore_cluster::{Loop, Outcome, QueueOptions, Reconciler, Sources, Subject, WorkQueue};
use longshore_testing::Captured;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::SubscriberExt as _;

/// Fails on its first pass, succeeds on its second, then stops itself.
struct Twice {
    attempts: Mutex<u32>,
    stop: CancellationToken,
}

impl Reconciler for Twice {
    type Key = String;

    fn sources(&self, _: &mut Sources<Self>) {}

    fn subject(&self, key: &String) -> Subject {
        Subject::claim(key)
    }

    async fn reconcile(&self, _: &String) -> Outcome {
        *self.attempts.lock() += 1;
        if *self.attempts.lock() == 1 {
            return Outcome::retry("no luck");
        }
        note("driver", "noted.example");
        tracing::debug!(target: "longshore_test", "reconciled");
        self.stop.cancel();
        Outcome::Done
    }
}

async fn logged(format: LogFormat) -> Vec<String> {
    let sink = Captured::default();
    let writer = sink.clone();
    let options = LogOptions { verbosity: 4, format, ..LogOptions::default() };
    let layer = log_layer(&options, move || writer.clone());
    let _logging = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let stop = CancellationToken::new();
    let twice = Twice { attempts: Mutex::default(), stop: stop.clone() };
    let queue = WorkQueue::new("twice", QueueOptions::default());
    queue.add("default/data".to_owned());
    Loop::new("bind", Arc::new(twice), queue).run(&stop).await;
    sink.text().lines().map(String::from).collect()
}

#[tokio::test(start_paused = true)]
async fn lines_of_a_pass_carry_loop_key_attempt_and_what_was_noted() {
    let text = logged(LogFormat::Text).await;
    let pass = |n| format!(r#" loop="bind" key="default/data" attempt={n} claim="default/data""#);
    let [failed, done] = &text[..] else { panic!("two lines: {text:#?}") };
    assert!(
        failed.contains("] work failed queue=\"twice\"") && failed.ends_with(&pass(1)),
        "{failed}"
    );
    let noted = pass(2) + r#" driver="noted.example""#;
    assert!(done.contains("] reconciled") && done.ends_with(&noted), "{done}");

    let lines = logged(LogFormat::Json).await;
    let done: Value = serde_json::from_str(&lines[1]).expect("JSON");
    let want = [
        ("msg", json!("reconciled")),
        ("loop", json!("bind")),
        ("key", json!("default/data")),
        ("claim", json!("default/data")),
        ("attempt", json!(2)),
        ("driver", json!("noted.example")),
    ];
    for (name, value) in want {
        assert_eq!(done[name], value, "{name} in {done}");
    }
}
