//! `kill -9` loses nothing that was answered, and no watch goes backwards or misses anything.
//!
//! Writers record every answer while the server is killed again and again. Watches go on after each
//! kill from the version they had reached. A journal that answers too early must turn this red.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod child;
#[path = "../common/mod.rs"]
mod common;
mod ledger;
mod watcher;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::client_config;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, ListParams};
use ledger::Ledger;
use watcher::Watchers;

const WRITERS: usize = 4;
const WATCHERS: usize = 2;
const KILLS: usize = 50;
/// CI stops killing after this long; `LONGSHORE_LONG=1` goes on to the last one.
const BUDGET: Duration = Duration::from_secs(20);
/// No run may be content with fewer.
const FEWEST_KILLS: usize = 8;
/// Nothing takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

async fn maps(dir: &Path) -> Api<ConfigMap> {
    let config = client_config(&dir.join("kubeconfig")).await;
    Api::namespaced(Client::try_from(config).unwrap(), "default")
}

/// One life of the server: it must hold what was promised, takes more writes, and is killed.
async fn live_and_die(
    dir: &Path,
    round: usize,
    fault: bool,
    ledger: &Arc<Ledger>,
    watchers: &Watchers,
) -> Result<(), String> {
    let mut server = child::start(dir, fault).await?;
    let maps = maps(dir).await;
    let listed = maps.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
    ledger.check(&listed)?;
    watchers.go_on_at(maps.clone());
    let target = ledger.answers() + fastrand::usize(1..40);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let prefix = format!("r{round}-w{writer}");
        writers.spawn(ledger::write_until_killed(
            self::maps(dir).await,
            prefix,
            Arc::clone(ledger),
        ));
    }
    let enough = tokio::time::timeout(PATIENCE, ledger.wait_for(target)).await;
    enough.map_err(|_| "the server takes no writes".to_owned())?;
    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..3000))).await;
    server.kill().await.map_err(|e| e.to_string())?;
    while let Some(writer) = writers.join_next().await {
        writer.map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Runs until `kills` or the budget is reached; returns the kills, or what was broken.
async fn run(kills: usize, budget: Duration, fault: bool) -> Result<usize, String> {
    let dir = tempfile::Builder::new().prefix("longshore-crash-").tempdir().unwrap();
    let dir = dir.path();
    let ledger = Arc::new(Ledger::default());
    let watchers = Watchers::start(WATCHERS);
    let start = Instant::now();
    let mut killed = 0;
    while killed < kills && (killed < FEWEST_KILLS || start.elapsed() < budget) {
        if killed % 6 == 5 {
            child::kill_while_starting(dir, fault).await;
        } else {
            live_and_die(dir, killed, fault, &ledger, &watchers).await?;
        }
        killed += 1;
    }
    let _server = child::start(dir, fault).await?;
    let maps = maps(dir).await;
    let listed = maps.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
    ledger.check(&listed)?;
    watchers.go_on_at(maps);
    watchers.finish(&ledger).await?;
    eprintln!("{killed} kills, {} answered writes, {:.1?}", ledger.answers(), start.elapsed());
    Ok(killed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_answered_is_lost_and_no_watch_goes_backwards() {
    let long = std::env::var_os("LONGSHORE_LONG").is_some();
    let killed = run(KILLS, if long { Duration::MAX } else { BUDGET }, false).await.unwrap();
    assert!(killed == KILLS || !long);
}

/// The test of the test: answers that are ahead of the disk are found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_ahead_of_the_disk_is_found() {
    let broken = run(KILLS, Duration::MAX, true).await.unwrap_err();
    assert!(broken.contains("was answered"), "{broken}");
}
