//! The lease ring: provisioners on one and on several hosts, killed, restarted, and with a lease that
//! others meddle with. Whatever happens, no two of them lead at once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;
mod sidecar;

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{Home, Instance, PATIENCE, binary};
use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use longshore_cluster::{ClientConfig, clock};
use longshore_testing::{Need, need};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sidecar::{Served, soon};

const DRIVER: &str = "leases.example.com";
const LEASE: &str = "leases-example-com";
const DAY: f64 = 86400.0;

/// Short times, for tests that need none of the defaults: 6, 4 and 2 s.
const SHORT: [&str; 3] = [
    "--leader-election-lease-duration=6s",
    "--leader-election-renew-deadline=4s",
    "--leader-election-retry-period=2s",
];

/// A program's time as the leader, in seconds since the beginning of the test.
#[derive(Clone, Copy, Debug)]
struct Term {
    from: f64,
    to: f64,
}

/// A provisioner on a host of its own name.
struct Candidate {
    name: String,
    child: Child,
    log: PathBuf,
    killed: Option<f64>,
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Ring {
    home: Home,
    api: Instance,
    served: Served,
    leases: Api<Lease>,
    /// What the lease said of its holder, without repetitions, by a watch.
    holders: Arc<Mutex<Vec<String>>>,
    flags: Vec<&'static str>,
    began: f64,
    all: Vec<Candidate>,
}

impl Ring {
    async fn new(test: &str, flags: &[&'static str]) -> Self {
        let home = Home::new(test);
        let api = Instance::start(&home, "api", &["apiserver"]);
        let client = ClientConfig::from_kubeconfig(&api.kubeconfig).client().await.unwrap();
        let leases: Api<Lease> = Api::namespaced(client, "default");
        let holders = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn(watch(leases.clone(), holders.clone()));
        let (flags, served) = (flags.to_vec(), Served::new(DRIVER));
        let began = time_of_day();
        Self { home, api, served, leases, holders, flags, began, all: Vec::new() }
    }

    /// Starts a provisioner; its number tells it from others.
    fn start(&mut self, host: &str) -> usize {
        let name = format!("{}-on-{host}", self.all.len());
        let log = self.home.path().join(format!("{name}.log"));
        // The host's name is all that makes hosts differ for an election.
        let mut command = Command::new("unshare");
        command.args(["--uts", "--", "sh", "-c", "hostname \"$0\" && exec \"$@\"", host]);
        command.arg(binary()).args(["provisioner", "-v=3", "--leader-election"]);
        command.arg("--leader-election-namespace=default").args(&self.flags);
        command.arg(format!("--kubeconfig={}", self.api.kubeconfig.display()));
        command.arg(format!("--csi-address={}", self.served.socket().display()));
        // The log is in local time.
        command.env("TZ", "UTC").stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(File::create(&log).unwrap()).spawn().unwrap();
        self.all.push(Candidate { name, child, log, killed: None });
        self.all.len() - 1
    }

    fn now(&self) -> f64 {
        (time_of_day() - self.began).rem_euclid(DAY)
    }

    /// `kill -9`; gives the time.
    fn kill(&mut self, number: usize) -> f64 {
        let now = self.now();
        let candidate = &mut self.all[number];
        candidate.child.kill().unwrap();
        candidate.child.wait().unwrap();
        candidate.killed = Some(now);
        now
    }

    /// SIGTERM; gives the time.
    fn stop(&mut self, number: usize) -> f64 {
        let now = self.now();
        let child = &mut self.all[number].child;
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(child.wait().unwrap().success());
        now
    }

    /// When a line with these words was logged.
    fn said(&self, number: usize, words: &str) -> Vec<f64> {
        let text = fs::read_to_string(&self.all[number].log).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains(words));
        lines.filter_map(|line| Some((seconds(line)? - self.began).rem_euclid(DAY))).collect()
    }

    fn terms(&self, number: usize) -> Vec<Term> {
        let ends = self.said(number, "stopped leading");
        let open = self.all[number].killed.unwrap_or(DAY);
        let begins = self.said(number, "became leader").into_iter().enumerate();
        begins.map(|(n, from)| Term { from, to: ends.get(n).copied().unwrap_or(open) }).collect()
    }

    /// Waits until a candidate leads for the nth time, and gives since when.
    async fn leads(&self, number: usize, times: usize) -> f64 {
        let what = format!("{} leads", self.all[number].name);
        self.until(&what, || self.terms(number).get(times - 1).map(|term| term.from)).await
    }

    async fn until<T>(&self, what: &str, look: impl Fn() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "never: {what}\n{}", self.story());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Changes the lease by hand.
    async fn edit(&self, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.leases.patch(LEASE, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Nobody led while another one led, and the lease had these holders.
    fn never_two(&self, holders: &[&str]) {
        let terms: Vec<(usize, Term)> = (0..self.all.len())
            .flat_map(|one| self.terms(one).into_iter().map(move |term| (one, term)))
            .collect();
        for (one, a) in &terms {
            for (other, b) in terms.iter().filter(|(other, _)| other > one) {
                let apart = a.to <= b.from || b.to <= a.from;
                assert!(apart, "{one} and {other} led at once\n{}", self.story());
            }
        }
        assert_eq!(*self.holders.lock(), holders, "{}", self.story());
    }

    fn story(&self) -> String {
        let mut story = format!("the lease's holders: {:?}\n", self.holders.lock());
        for (number, one) in self.all.iter().enumerate() {
            let log = fs::read_to_string(&one.log).unwrap_or_default();
            story += &format!("== {}: {:?}\n{log}", one.name, self.terms(number));
        }
        story
    }
}

async fn watch(leases: Api<Lease>, holders: Arc<Mutex<Vec<String>>>) {
    let params = WatchParams::default().fields(&format!("metadata.name={LEASE}"));
    let mut events = leases.watch(&params, "0").await.unwrap().boxed();
    while let Some(Ok(event)) = events.next().await {
        let holder = match event {
            WatchEvent::Added(lease) | WatchEvent::Modified(lease) => {
                lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
            }
            WatchEvent::Deleted(_) => "deleted".to_owned(),
            _ => continue,
        };
        let mut holders = holders.lock();
        if holders.last() != Some(&holder) {
            holders.push(holder);
        }
    }
}

fn time_of_day() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() % DAY
}

/// The time of day at which a line was logged: `I1118 20:42:08.232093 …`.
fn seconds(line: &str) -> Option<f64> {
    let mut parts = line.split_whitespace().nth(1)?.split(':');
    let mut next = || parts.next()?.parse::<f64>().ok();
    Some(next()? * 3600.0 + next()? * 60.0 + next()?)
}

fn can_run() -> bool {
    need("leases", &[Need::Root, Need::Tool("unshare")])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_leads_again_at_once_and_its_standby_if_it_does_not_come_back() {
    if !can_run() {
        return;
    }
    let mut ring =
        Ring::new("leases-kill", &["--feature-gates=ReleaseLeaderElectionOnExit=true"]).await;
    let first = ring.start("host-a");
    ring.leads(first, 1).await;
    let standby = ring.start("host-b");
    ring.until("b campaigns", || ring.said(standby, "campaigning").first().copied()).await;
    ring.kill(first);
    let again = ring.start("host-a");
    let leads = ring.leads(again, 1).await;
    let began = ring.said(again, "campaigning")[0];
    // 5.5 s by the rule; a busy machine may need a moment more.
    assert!(leads - began < 8.0, "{} s\n{}", leads - began, ring.story());

    let killed = ring.kill(again);
    let took = ring.leads(standby, 1).await - killed;
    assert!(took > 9.0, "{took} s: the lease was still valid");
    assert!(took < 25.0, "{took} s");
    // Whoever stops in an orderly way hands over at once.
    let third = ring.start("host-a");
    ring.until("a campaigns", || ring.said(third, "campaigning").first().copied()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stopped = ring.stop(standby);
    let took = ring.leads(third, 1).await - stopped;
    assert!(took < 3.0, "{took} s");
    ring.never_two(&["host-a", "host-b", "", "host-a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_on_one_host_never_lead_together() {
    if !can_run() {
        return;
    }
    let mut ring = Ring::new("leases-host", &[]).await;
    let both = [ring.start("host-a"), ring.start("host-a")];
    let leader = ring.until("one leads", || both.into_iter().find(|&n| !ring.terms(n).is_empty()));
    let leader = leader.await;
    let other = both[1 - both.iter().position(|&n| n == leader).unwrap()];
    // Two renewals, so that the other could have mistaken the lease for its own twice.
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(ring.terms(other).is_empty(), "{}", ring.story());
    ring.kill(leader);
    ring.leads(other, 1).await;
    ring.never_two(&["host-a"]);
}

/// The other holder's clock is an hour ahead or behind: only our own waiting counts.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_clock_is_wrong_keeps_its_lease_while_it_renews_and_no_longer() {
    if !can_run() {
        return;
    }
    for skew in [3600, -3600] {
        let mut ring = Ring::new("leases-skew", &SHORT).await;
        let renew = || {
            let now = clock::now() + jiff::SignedDuration::from_secs(skew);
            json!({"holderIdentity": "go", "leaseDurationSeconds": 6, "leaseTransitions": 3,
                   "renewTime": clock::micros(now)})
        };
        let lease = json!({"metadata": {"name": LEASE}, "spec": renew()});
        let lease = serde_json::from_value(lease).unwrap();
        ring.leases.create(&PostParams::default(), &lease).await.unwrap();
        let ours = ring.start("host-a");
        ring.until("it campaigns", || ring.said(ours, "campaigning").first().copied()).await;
        for _ in 0..9 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(ring.terms(ours).is_empty(), "{skew}: the holder lives\n{}", ring.story());
            ring.edit(renew()).await;
        }
        let silent = ring.now();
        let took = ring.leads(ours, 1).await - silent;
        assert!((3.5..15.0).contains(&took), "{skew}: after {took} s\n{}", ring.story());
        ring.never_two(&["go", "host-a"]);
        let lease = ring.leases.get(LEASE).await.unwrap().spec.unwrap();
        assert_eq!(lease.lease_transitions, Some(4));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_somebody_deletes_or_edits_never_has_two_leaders() {
    if !can_run() {
        return;
    }
    let mut ring = Ring::new("leases-edit", &[]).await;
    let leader = ring.start("host-a");
    ring.leads(leader, 1).await;
    let standby = ring.start("host-b");
    // It must have seen who leads.
    ring.until("b campaigns", || ring.said(standby, "campaigning").first().copied()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let has = |count: usize| {
        let holders = ring.holders.clone();
        move || (holders.lock().len() >= count).then_some(())
    };

    ring.leases.delete(LEASE, &DeleteParams::default()).await.unwrap();
    ring.until("the lease is there again", has(3)).await;
    ring.never_two(&["host-a", "deleted", "host-a"]);

    // Without what a holder writes when it frees its lease, this is no release.
    tokio::time::sleep(Duration::from_secs(1)).await;
    ring.edit(json!({"holderIdentity": ""})).await;
    ring.until("the lease has a holder again", has(5)).await;
    ring.never_two(&["host-a", "deleted", "host-a", "", "host-a"]);
    assert_eq!(ring.terms(leader).len(), 1);

    // Given to somebody by hand: the leader believes it, and so does the standby, for a lease's time.
    ring.edit(json!({"holderIdentity": "somebody"})).await;
    let edited = ring.now();
    soon("the leader ends", async {
        while ring.all[leader].child.try_wait().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    let took = ring.leads(standby, 1).await - edited;
    assert!(took > 9.0, "{took} s: somebody's lease was still valid");
    let all = ["host-a", "deleted", "host-a", "", "host-a", "somebody", "host-b"];
    ring.never_two(&all);
}
