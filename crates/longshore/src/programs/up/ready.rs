//! When everything that a new user expects is there.

use std::time::Duration;

use anyhow::{Result, bail};
use longshore_cluster::{Api, Cache, Scope};
use longshore_core::model::{
    HasMeta as _,
    keys::embedded,
    kinds::{CsiNode, Node},
};
use longshore_core::words;
use tokio_util::sync::CancellationToken;

use super::Config;

/// Nodes take milliseconds; this is for machines in trouble.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until every node is ready and knows our drivers.
pub(super) async fn wait(api: &Api, config: &Config) -> Result<()> {
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let (nodes, _task) = Cache::<Node>::start(api, Scope::all(), &stop);
    let (drivers, _task) = Cache::<CsiNode>::start(api, Scope::all(), &stop);
    let changed = std::sync::Arc::new(tokio::sync::Notify::new());
    let wake = changed.clone();
    let _nodes = nodes.subscribe(move |_| wake.notify_one());
    let wake = changed.clone();
    let _drivers = drivers.subscribe(move |_| wake.notify_one());
    let names = config.node_names();
    let missing = || -> Vec<String> {
        let ready = nodes.list();
        let known = drivers.list();
        let is_ready =
            |name: &str| ready.iter().any(|node| node.key().name == name && node.ready());
        let has = |name: &str, driver: &str| {
            known.iter().any(|node| node.key().name == name && node.driver(driver).is_some())
        };
        names
            .iter()
            .filter(|name| {
                !(is_ready(name)
                    && has(name, embedded::LOCAL_DRIVER)
                    && has(name, embedded::SHARED_DRIVER))
            })
            .cloned()
            .collect()
    };
    let all = async {
        while !missing().is_empty() {
            changed.notified().await;
        }
    };
    if tokio::time::timeout(PATIENCE, all).await.is_err() {
        bail!(
            "after {} these nodes are not ready: {}",
            words::time(PATIENCE),
            missing().join(", ")
        );
    }
    Ok(())
}
