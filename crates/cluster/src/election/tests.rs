use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::testing::{self, AnyBody, eventually, failure, respond, stream};

/// One lease with versions, conflicts and watches, as a server keeps it.
#[derive(Clone, Default)]
struct Server {
    state: Arc<Mutex<Leases>>,
}

#[derive(Default)]
struct Leases {
    lease: Option<Value>,
    version: u64,
    watches: Vec<mpsc::UnboundedSender<Value>>,
    writes: Vec<Value>,
    down: bool,
    /// Requests get no response at all.
    silent: bool,
    /// Writes whose answers get lost.
    mute: usize,
    no_watch: bool,
}

impl Server {
    fn api(&self) -> Api {
        let server = self.clone();
        Api::new(testing::client(move |request| {
            let silent = server.state.lock().silent;
            let response = (!silent).then(|| server.respond(&request));
            async move {
                match response {
                    Some(response) => response,
                    None => std::future::pending().await,
                }
            }
        }))
    }

    fn respond(&self, request: &testing::ScriptedRequest) -> http::Response<AnyBody> {
        let mut state = self.state.lock();
        if state.down {
            return failure(500, "InternalError");
        }
        match request.method.as_str() {
            "GET" if request.query.contains("watch=true") => {
                if state.no_watch {
                    return failure(403, "Forbidden");
                }
                assert!(request.query.contains("fieldSelector=metadata.name%3Dlease"));
                let (sender, response) = stream();
                if let Some(lease) = &state.lease {
                    let _ = sender.send(json!({"type": "ADDED", "object": lease}));
                }
                state.watches.push(sender);
                response
            }
            "GET" => match &state.lease {
                Some(lease) => respond(200, lease),
                None => failure(404, "NotFound"),
            },
            "POST" if state.lease.is_some() => failure(409, "AlreadyExists"),
            "PUT" => {
                let held = state.lease.as_ref().map(|l| l["metadata"]["resourceVersion"].clone());
                if held != Some(request.body["metadata"]["resourceVersion"].clone()) {
                    return failure(409, "Conflict");
                }
                state.write(&request.body)
            }
            _ => state.write(&request.body),
        }
    }

    fn spec(&self) -> Value {
        self.state.lock().lease.as_ref().map_or(Value::Null, |lease| lease["spec"].clone())
    }

    fn holder(&self) -> String {
        self.spec()["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }
}

impl Leases {
    fn write(&mut self, body: &Value) -> http::Response<AnyBody> {
        self.version += 1;
        let mut lease = body.clone();
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        for watch in &self.watches {
            let _ = watch.send(json!({"type": "MODIFIED", "object": lease}));
        }
        self.writes.push(lease["spec"].clone());
        self.lease = Some(lease.clone());
        if self.mute > 0 {
            self.mute -= 1;
            return failure(500, "InternalError");
        }
        respond(200, &lease)
    }
}

/// A candidate that notes how often it led, and leads until it is stopped.
struct Candidate {
    task: JoinHandle<Result<(), ElectionError>>,
    stop: CancellationToken,
    status: Status,
    terms: Arc<Mutex<usize>>,
}

fn config(server: &Server, identity: &str) -> ElectionConfig {
    let mut config = ElectionConfig::new(server.api(), "kube-system", "lease");
    config.identity = identity.to_owned();
    config
}

fn start(config: ElectionConfig) -> Candidate {
    let stop = CancellationToken::new();
    let (status, terms) = (config.status.clone(), Arc::new(Mutex::new(0)));
    let (shutdown, counted) = (stop.clone(), terms.clone());
    let task = tokio::spawn(async move {
        let lead = move |leading: CancellationToken| {
            let counted = counted.clone();
            async move {
                *counted.lock() += 1;
                leading.cancelled().await;
            }
        };
        run(config, &shutdown, lead).await
    });
    Candidate { task, stop, status, terms }
}

/// The leader dies without a word: the other leads within lease duration and retry period.
#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_replaced_after_its_lease() {
    for killed_after in [3_000, 7_500, 61_234] {
        let server = Server::default();
        let one = start(config(&server, "one"));
        eventually("one leads", || one.status.is_leading()).await;
        let two = start(config(&server, "two"));
        tokio::time::sleep(Duration::from_millis(killed_after)).await;
        one.task.abort();
        let killed = Instant::now();
        eventually("two leads", || two.status.is_leading()).await;
        let took = killed.elapsed();
        assert!(took <= Duration::from_secs(20), "{took:?}");
        assert!(took >= Duration::from_secs(9), "{took:?}: the old lease was still valid");
        let spec = server.spec();
        assert_eq!(
            (&spec["holderIdentity"], &spec["leaseTransitions"]),
            (&"two".into(), &1.into())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_graceful_stop_hands_over_at_once() {
    let server = Server::default();
    let one = start(config(&server, "one"));
    eventually("one leads", || one.status.is_leading()).await;
    let two = start(config(&server, "two"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let stopped = Instant::now();
    one.stop.cancel();
    one.task.await.expect("no panic").expect("graceful");
    eventually("two leads", || two.status.is_leading()).await;
    assert!(stopped.elapsed() < Duration::from_millis(100), "{:?}", stopped.elapsed());
    let writes = server.state.lock().writes.clone();
    let released = writes.iter().find(|w| w["holderIdentity"] == "").expect("released");
    assert_eq!(released["leaseDurationSeconds"], 1);
}

#[tokio::test(start_paused = true)]
async fn stop_beside_a_silent_server_takes_no_longer_than_two_seconds() {
    // Just after a renewal, in the middle of one, and after the lease was lost.
    for silent_for in [1, 7, 9, 17] {
        let server = Server::default();
        let one = start(config(&server, "one"));
        eventually("one leads", || one.status.is_leading()).await;
        server.state.lock().silent = true;
        tokio::time::sleep(Duration::from_secs(silent_for)).await;
        let stopped = Instant::now();
        one.stop.cancel();
        one.task.await.expect("no panic").expect("graceful");
        let took = stopped.elapsed();
        assert!(took < Duration::from_secs(2), "silent for {silent_for} s: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_watch_a_release_is_seen_at_the_next_poll() {
    let server = Server::default();
    server.state.lock().no_watch = true;
    let one = start(config(&server, "one"));
    eventually("one leads", || one.status.is_leading()).await;
    let two = start(config(&server, "two"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let stopped = Instant::now();
    one.stop.cancel();
    eventually("two leads", || two.status.is_leading()).await;
    assert!(stopped.elapsed() <= Duration::from_secs(5), "{:?}", stopped.elapsed());
}

/// The server is away: the leader stops before the lease runs out, and leads again later.
#[tokio::test(start_paused = true)]
async fn loss_with_rejoin_pauses_and_campaigns_again() {
    let server = Server::default();
    let one = start(config(&server, "one"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(one.status.is_leading());
    let renewed = server.spec()["renewTime"].clone();
    server.state.lock().down = true;
    let away = Instant::now();
    while one.status.is_leading() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(away.elapsed() < Duration::from_secs(15), "{:?}", away.elapsed());
    assert!(away.elapsed() > Duration::from_secs(7), "{:?}: gave up too early", away.elapsed());
    assert_eq!(server.spec()["renewTime"], renewed);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(*one.terms.lock(), 1);
    server.state.lock().down = false;
    eventually("one leads again", || one.status.is_leading() && *one.terms.lock() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn loss_with_rejoin_waits_for_what_runs() {
    let server = Server::default();
    let (mut config, running) = (config(&server, "one"), Arc::new(Mutex::new(Vec::new())));
    config.on_loss = OnLoss::Rejoin;
    let (log, stop) = (running.clone(), CancellationToken::new());
    let shutdown = stop.clone();
    let task = tokio::spawn(async move {
        run(config, &shutdown, move |leading| {
            let log = log.clone();
            async move {
                log.lock().push("start");
                leading.cancelled().await;
                tokio::time::sleep(Duration::from_secs(100)).await;
                log.lock().push("end");
            }
        })
        .await
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Another takes the lease by force.
    {
        let mut state = server.state.lock();
        let mut lease = state.lease.clone().expect("held");
        lease["spec"]["holderIdentity"] = "thief".into();
        lease["spec"]["leaseDurationSeconds"] = 1.into();
        state.write(&lease);
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(*running.lock(), ["start"], "nothing starts while the old work runs");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(*running.lock(), ["start", "end", "start"]);
    stop.cancel();
    task.await.expect("no panic").expect("graceful");
    assert_eq!(server.holder(), "", "kept until the work ended, then released");
}

#[tokio::test(start_paused = true)]
async fn loss_with_exit_is_an_error() {
    let server = Server::default();
    let mut config = config(&server, "one");
    config.on_loss = OnLoss::Exit;
    let one = start(config);
    eventually("one leads", || one.status.is_leading()).await;
    server.state.lock().down = true;
    let error = one.task.await.expect("no panic").expect_err("lost");
    let text = error.to_string();
    assert!(text.starts_with("leader election lost for lease kube-system/lease"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_work_frees_the_lease_and_campaigns_again() {
    let server = Server::default();
    let (config, terms) = (config(&server, "one"), Arc::new(Mutex::new(0)));
    let (counted, stop) = (terms.clone(), CancellationToken::new());
    let shutdown = stop.clone();
    let task = tokio::spawn(async move {
        run(config, &shutdown, move |leading| {
            let term = {
                let mut terms = counted.lock();
                *terms += 1;
                *terms
            };
            async move {
                assert!(term > 1, "boom");
                leading.cancelled().await;
            }
        })
        .await
    });
    eventually("a second term", || *terms.lock() == 2).await;
    assert_eq!(server.holder(), "one");
    stop.cancel();
    task.await.expect("no panic outside").expect("graceful");
}

/// The record as the Go clients write it.
#[tokio::test(start_paused = true)]
async fn the_record_is_what_go_clients_expect() {
    let server = Server::default();
    let mut config = config(&server, "one");
    config.labels.insert("team".into(), "storage".into());
    let metrics = Metrics::new();
    config.metrics = Some(metrics.clone());
    let one = start(config);
    eventually("one leads", || one.status.is_leading()).await;
    let spec = server.spec();
    assert_eq!((&spec["leaseDurationSeconds"], &spec["leaseTransitions"]), (&15.into(), &0.into()));
    for field in ["acquireTime", "renewTime"] {
        let time = spec[field].as_str().expect("set");
        let (_, fraction) = time.split_once('.').expect("fraction");
        assert_eq!(fraction.len(), 7, "six digits and Z: {time}");
    }
    let labels = server.state.lock().lease.clone().expect("held")["metadata"]["labels"].clone();
    assert_eq!(labels, json!({"team": "storage"}));
    assert!(metrics.render().contains("leader_election_master_status{name=\"lease\"} 1\n"));
    tokio::time::sleep(Duration::from_secs(6)).await;
    let renewed = server.spec();
    assert_eq!(renewed["acquireTime"], spec["acquireTime"]);
    assert_ne!(renewed["renewTime"], spec["renewTime"]);
    one.stop.cancel();
    one.task.await.expect("no panic").expect("graceful");
    assert!(metrics.render().contains("leader_election_master_status{name=\"lease\"} 0\n"));
}

/// A container is killed and started again under its host's name.
#[tokio::test(start_paused = true)]
async fn a_restarted_candidate_leads_again_after_one_retry_period() {
    for killed_after in [1_000, 4_900, 61_234] {
        let server = Server::default();
        let one = start(config(&server, "host"));
        eventually("one leads", || one.status.is_leading()).await;
        tokio::time::sleep(Duration::from_millis(killed_after)).await;
        one.task.abort();
        let (killed, before) = (Instant::now(), server.spec());
        let again = start(config(&server, "host"));
        eventually("it leads again", || again.status.is_leading()).await;
        let took = killed.elapsed();
        assert!(took <= Duration::from_secs(6), "{took:?}");
        assert!(took >= Duration::from_secs(5), "{took:?}: nobody looked whether the holder lives");
        let after = server.spec();
        assert_eq!(after["leaseTransitions"], before["leaseTransitions"]);
        assert_eq!(after["acquireTime"], before["acquireTime"], "as the Go clients");
    }
}

#[tokio::test(start_paused = true)]
async fn two_of_one_name_never_lead_together_and_the_second_takes_over() {
    let server = Server::default();
    let one = start(config(&server, "host"));
    eventually("one leads", || one.status.is_leading()).await;
    let two = start(config(&server, "host"));
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!two.status.is_leading(), "the first renews");
    }
    assert!(one.status.is_leading());
    one.task.abort();
    eventually("two leads", || two.status.is_leading()).await;
}

/// A Go sidecar of the same host name takes a lease under its own name at once.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_name_another_process_uses_gives_up() {
    let server = Server::default();
    let mut config = config(&server, "host");
    config.on_loss = OnLoss::Exit;
    let one = start(config);
    eventually("one leads", || one.status.is_leading()).await;
    {
        let mut state = server.state.lock();
        let mut lease = state.lease.clone().expect("held");
        lease["spec"]["renewTime"] = "2026-01-01T00:00:00.000000Z".into();
        state.write(&lease);
    }
    let error = one.task.await.expect("no panic").expect_err("lost").to_string();
    assert!(error.ends_with("another process named host holds it"), "{error}");
}

/// The server stores a renewal and the answer is lost: the record is still ours.
#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_was_lost_is_known_as_ours() {
    let server = Server::default();
    let one = start(config(&server, "host"));
    eventually("one leads", || one.status.is_leading()).await;
    server.state.lock().mute = 1;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.state.lock().mute, 0, "one answer was lost");
    assert!(one.status.is_leading());
    assert_eq!(*one.terms.lock(), 1);
}

/// While the server answers nobody, silence does not mean that the holder is dead.
#[tokio::test(start_paused = true)]
async fn an_outage_does_not_count_as_the_silence_of_a_holder() {
    let server = Server::default();
    let one = start(config(&server, "host"));
    eventually("one leads", || one.status.is_leading()).await;
    let two = start(config(&server, "host"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.state.lock().down = true;
    tokio::time::sleep(Duration::from_secs(8)).await;
    server.state.lock().down = false;
    for _ in 0..300 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!two.status.is_leading(), "the first goes on renewing");
    }
    assert!(one.status.is_leading());
}

/// A foreign clock that is years ahead or behind changes nothing: only our own waiting counts.
#[tokio::test(start_paused = true)]
async fn expiry_is_judged_by_observation_not_by_timestamps() {
    let server = Server::default();
    server.state.lock().write(&json!({
        "metadata": {"name": "lease"},
        "spec": {"holderIdentity": "go", "leaseDurationSeconds": 15, "leaseTransitions": 4,
                 "renewTime": "2001-01-01T00:00:00.000000Z"},
    }));
    let one = start(config(&server, "one"));
    tokio::time::sleep(Duration::from_secs(14)).await;
    assert_eq!(server.holder(), "go");
    eventually("one leads", || one.status.is_leading()).await;
    assert_eq!(server.spec()["leaseTransitions"], 5);
}

/// Deleted, or its holder's name taken out, while the holder lives: no release, and no two leaders.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_deleted_or_emptied_by_hand_stays_with_its_holder() {
    for emptied in [false, true] {
        let server = Server::default();
        let one = start(config(&server, "one"));
        eventually("one leads", || one.status.is_leading()).await;
        let two = start(config(&server, "two"));
        tokio::time::sleep(Duration::from_secs(7)).await;
        {
            let mut state = server.state.lock();
            let mut lease = state.lease.take().expect("held");
            lease["spec"]["holderIdentity"] = "".into();
            if emptied {
                state.write(&lease);
            } else {
                for watch in &state.watches {
                    let _ = watch.send(json!({"type": "DELETED", "object": lease}));
                }
            }
        }
        for _ in 0..300 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert!(!two.status.is_leading(), "emptied {emptied}");
        }
        assert!(one.status.is_leading(), "emptied {emptied}");
        assert_eq!((server.holder().as_str(), *one.terms.lock()), ("one", 1));
        // Dead when somebody deletes its lease, it is waited for no longer than otherwise.
        one.task.abort();
        server.state.lock().lease = None;
        let killed = Instant::now();
        eventually("two leads", || two.status.is_leading()).await;
        assert!(killed.elapsed() <= Duration::from_secs(20), "{:?}", killed.elapsed());
    }
}

// case: csi-protocol/14.15
#[test]
fn durations_must_fit_together() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
    let _entered = runtime.enter();
    let server = Server::default();
    let check = |lease, renew, retry| {
        let mut config = config(&server, "one");
        config.lease_duration = Duration::from_secs(lease);
        config.renew_deadline = Duration::from_secs(renew);
        config.retry_period = Duration::from_secs(retry);
        config.validate().is_ok()
    };
    assert!(check(15, 10, 5));
    assert!(!check(10, 10, 5));
    assert!(!check(15, 6, 5));
    assert!(!check(15, 10, 9));
    assert!(!check(15, 10, 0));
}
