//! The load: claims are made all at once, and what becomes of them is read from a watch.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{
    follow::{Seen, lock},
    http::{Connection, Server},
};

/// Where the claims are.
pub const NAMESPACE: &str = "bench";
/// The class that [`prepare`] makes.
pub const CLASS: &str = "bench";
/// Connections that send at the same time.
const SENDERS: usize = 16;

/// Makes the namespace.
pub fn make_namespace(server: &Server) -> Result<()> {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE},
    });
    server.connect()?.call("POST", "/api/v1/namespaces", Some(&namespace)).map(drop)
}

/// Makes the namespace and the class.
pub fn prepare(server: &Server, driver: &str) -> Result<()> {
    make_namespace(server)?;
    let mut connection = server.connect()?;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": CLASS},
        "provisioner": driver, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
    });
    connection.call("POST", "/apis/storage.k8s.io/v1/storageclasses", Some(&class))?;
    Ok(())
}

/// How a burst went.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Burst {
    /// From the first request until the last claim was seen Bound.
    pub bind_seconds: f64,
    /// Per claim: from its own request until it was seen Bound, ascending.
    pub latencies: Vec<f64>,
    /// From the first deletion until the last volume was seen gone.
    pub delete_seconds: f64,
}

/// Claims of one burst, bound.
pub struct Bound<'a> {
    server: &'a Server,
    seen: Seen,
    names: Vec<String>,
    volumes: Vec<String>,
    bind_seconds: f64,
    latencies: Vec<f64>,
}

/// Makes `count` claims of that class and size and waits until all are Bound.
pub fn burst<'a>(
    server: &'a Server,
    prefix: &str,
    count: usize,
    class: &str,
    size: &str,
) -> Result<Bound<'a>> {
    let names: Vec<String> = (0..count).map(|at| format!("{prefix}-{at}")).collect();
    let seen = Seen::start(server)?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims");
    let sent = send_all(server, &names, |connection, name| {
        connection.post(&path, &claim(name, class, size).to_string())
    })?;
    let first = *sent.iter().min().context("at least one claim")?;
    let bound = seen.wait(&format!("{count} claims to be Bound"), |state| {
        state.bound.len() >= count && names.iter().all(|name| state.bound.contains_key(name))
    })?;
    let mut latencies = Vec::with_capacity(count);
    let mut volumes = Vec::with_capacity(count);
    let mut last = first;
    for (name, sent) in names.iter().zip(sent) {
        let (at, volume) = bound.bound.get(name).context("a claim that was Bound")?;
        latencies.push(at.saturating_duration_since(sent).as_secs_f64());
        volumes.push(volume.clone());
        last = last.max(*at);
    }
    drop(bound);
    latencies.sort_by(f64::total_cmp);
    let bind_seconds = (last - first).as_secs_f64();
    Ok(Bound { server, seen, names, volumes, bind_seconds, latencies })
}

impl Bound<'_> {
    /// Deletes the claims and waits until their volumes are gone.
    pub fn delete(self) -> Result<Burst> {
        let Self { server, mut seen, names, volumes, bind_seconds, latencies } = self;
        seen.follow_volumes(server)?;
        let sent = send_all(server, &names, |connection, name| {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/{name}");
            connection.call("DELETE", &path, None).map(drop)
        })?;
        let first = *sent.iter().min().context("at least one claim")?;
        let gone = seen.wait(&format!("{} volumes to be gone", volumes.len()), |state| {
            state.gone.len() >= volumes.len()
                && volumes.iter().all(|name| state.gone.contains_key(name))
        })?;
        let last = volumes.iter().filter_map(|name| gone.gone.get(name)).max();
        let last = *last.context("a volume that is gone")?;
        drop(gone);
        Ok(Burst { bind_seconds, latencies, delete_seconds: (last - first).as_secs_f64() })
    }
}

fn claim(name: &str, class: &str, size: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": {"requests": {"storage": size}},
        },
    })
}

/// Sends one request per name over a few connections; the moments at which each was sent.
pub fn send_all<F>(server: &Server, names: &[String], send: F) -> Result<Vec<Instant>>
where
    F: Fn(&mut Connection, &str) -> Result<()> + Sync,
{
    let next = AtomicUsize::new(0);
    let sent = Mutex::new(vec![None; names.len()]);
    let connections: Result<Vec<Connection>> =
        (0..SENDERS.min(names.len())).map(|_| server.connect_now()).collect();
    std::thread::scope(|scope| -> Result<()> {
        let (next, sent, send) = (&next, &sent, &send);
        let senders: Vec<_> = connections?
            .into_iter()
            .map(|mut connection| {
                scope.spawn(move || -> Result<()> {
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(name) = names.get(at) else { return Ok(()) };
                        lock(sent)[at] = Some(Instant::now());
                        send(&mut connection, name)?;
                    }
                })
            })
            .collect();
        for sender in senders {
            match sender.join() {
                Ok(done) => done?,
                Err(_) => bail!("a sender ended abnormally"),
            }
        }
        Ok(())
    })?;
    let sent = std::mem::take(&mut *lock(&sent));
    sent.into_iter().collect::<Option<Vec<_>>>().context("a request was not sent")
}
