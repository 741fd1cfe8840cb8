//! Two API servers on one store, behind a proxy that goes to the other when one is away.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use longshore_real_kube::Cluster;
use longshore_testing::report;
use tokio::task::{JoinHandle, spawn_blocking};

use super::official::{self, Official};
use super::proxy::wire::Wire;
use super::stack::{Access, Stack};
use super::{can_run, cluster};

struct Rolled {
    wire: Wire,
    stack: Stack,
    ports: Vec<u16>,
}

impl Rolled {
    async fn start() -> (Self, Cluster) {
        let mut cluster = cluster();
        tokio::task::block_in_place(|| cluster.add_apiserver().unwrap());
        let ports = cluster.apiserver_ports();
        let servers = ports.iter().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, *port)));
        let wire = Wire::start(servers.collect()).await;
        let kubeconfig = cluster.kubeconfig_at(wire.address).unwrap();
        let provisioner = cluster.kubeconfig_of_at(official::OURS, wire.address).unwrap();
        let access = Access::Apart { provisioner, others: kubeconfig.clone() };
        let stack = Stack::start_with(access, &kubeconfig, true).await;
        (Self { wire, stack, ports }, cluster)
    }
}

/// Ends an API server, and starts it again a moment later.
fn roll(mut cluster: Cluster, port: u16, crash: bool) -> JoinHandle<Cluster> {
    spawn_blocking(move || {
        cluster.end_at(port, crash).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        cluster.begin_again_at(port).unwrap();
        cluster
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn api_servers_are_rolled_one_after_the_other_under_load() {
    if !can_run() {
        return;
    }
    let (mut rolled, mut cluster) = Rolled::start().await;
    let stack = &mut rolled.stack;
    for (number, port) in rolled.ports.into_iter().enumerate() {
        let rolling = roll(cluster, port, number == 1);
        let rounds: Vec<String> = (0..4).map(|user| format!("roll-{number}-{user}")).collect();
        let churns = rounds.iter().map(|one| stack.users.churn(one, || rolling.is_finished()));
        let claims: usize = futures::future::join_all(churns).await.into_iter().sum();
        cluster = rolling.await.unwrap();
        let done = Instant::now();
        stack.settle("rolled", done).await;
        let took = done.elapsed().as_secs_f32();
        report(&format!(
            "control plane: roll {number}: {claims} claims, settled after {took:.1} s"
        ));
        stack.nobody_lost_a_lease("rolled").await;
    }
    stack.clear("rolled").await;
    rolled.stack.stop().await;
    tokio::task::block_in_place(|| cluster.stop().unwrap());
}

/// One thing after another that happens to a cluster in a month.
async fn happen(number: usize, rolled: &mut Rolled, mut cluster: Cluster) -> Cluster {
    let stack = &mut rolled.stack;
    let programs = stack.programs.len();
    match number % 6 {
        0 => cluster = roll(cluster, rolled.ports[0], true).await.unwrap(),
        // A program is killed and started again.
        1 | 4 => {
            let killed = number / 3 % programs;
            let name = stack.programs[killed].0;
            stack.programs.remove(killed);
            let again = stack.program(name);
            stack.programs.insert(killed, (name, again));
        }
        2 => rolled.wire.reset(),
        3 => cluster = roll(cluster, rolled.ports[1], false).await.unwrap(),
        // A second one stands by and takes over from the first, which stops.
        _ => {
            let replaced = 1 + number / 6 % (programs - 1);
            let name = stack.programs[replaced].0;
            let standby = stack.program(name);
            standby.says("campaigning").await;
            let (_, first) = stack.programs.remove(replaced);
            first.terminate().await;
            standby.says("became leader").await;
            stack.programs.insert(replaced, (name, standby));
            if number > 60 {
                rolled.wire.swallow();
            }
        }
    }
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn a_soak_of_rolls_kills_resets_and_new_leaders_loses_and_leaks_nothing() {
    if !can_run() {
        return;
    }
    let long = std::env::var("LONGSHORE_LONG").is_ok_and(|value| value == "1");
    let (time, pause) = match long {
        true => (Duration::from_secs(30 * 60), Duration::from_secs(15)),
        false => (Duration::from_secs(90), Duration::from_secs(2)),
    };
    let (mut rolled, mut cluster) = Rolled::start().await;
    let mut other = Official::start(&cluster, rolled.wire.address).await;
    let began = Instant::now();
    let users = [Some(rolled.stack.users.clone()), other.as_ref().map(|other| other.users.clone())];
    let using = users.map(|users| {
        tokio::spawn(async move {
            match users {
                Some(users) => users.churn("soak", || began.elapsed() >= time).await,
                None => 0,
            }
        })
    });
    let (mut number, mut ended, mut others_ended) = (0, 0, 0);
    while began.elapsed() < time || number < 6 {
        cluster = happen(number, &mut rolled, cluster).await;
        if let Some(other) = &mut other {
            // Killed as often as each of ours.
            if number % 9 == 4 {
                other.kill();
            }
            others_ended += other.restart_ended();
        }
        number += 1;
        tokio::time::sleep(pause).await;
        // Who lost its lease in all this has ended, as it should.
        ended += rolled.stack.restart_ended();
    }
    let [using, others_using] = using;
    let (claims, others_claims) = (using.await.unwrap(), others_using.await.unwrap());
    let calm = Instant::now();
    rolled.stack.settle("soaked", calm).await;
    let took = calm.elapsed().as_secs_f32();
    report(&format!(
        "control plane: soak: {number} events, {ended} leases lost, {claims} claims, settled after {took:.1} s"
    ));
    let audit = cluster.audit_log().unwrap();
    let line = |who: &str, user: &str, claims: usize| {
        let (all, refused) = official::asked(&audit, user);
        let each = all as f64 / claims.max(1) as f64;
        report(&format!(
            "control plane: soak: {who}: {claims} claims, {all} requests ({each:.1} each), refused: {refused:?}"
        ));
        all
    };
    assert!(line("our provisioner", official::OURS, claims) > claims, "the log tells who asked");
    if let Some(other) = other {
        let settled = other.settle().await;
        line("csi-provisioner", official::OFFICIAL, others_claims);
        report(&format!(
            "control plane: soak: csi-provisioner: {others_ended} leases lost, {settled}"
        ));
        other.stop().await;
    }
    rolled.stack.clear("soaked").await;
    rolled.stack.stop().await;
    tokio::task::block_in_place(|| cluster.stop().unwrap());
}
