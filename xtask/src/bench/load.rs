//! The load: claims are made all at once, and what becomes of them is read from a watch.

use std::{
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::http::{Closer, Connection, Server};

/// Where the claims are.
const NAMESPACE: &str = "bench";
/// The class of the claims.
const CLASS: &str = "bench";
/// Connections that send at the same time.
const SENDERS: usize = 16;
/// How long a burst may take; the slowest contender needs less than a second a claim.
const PATIENCE: Duration = Duration::from_secs(900);

/// Makes the namespace and the class.
pub fn prepare(server: &Server, driver: &str) -> Result<()> {
    let mut connection = server.connect()?;
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE},
    });
    connection.call("POST", "/api/v1/namespaces", Some(&namespace))?;
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

/// Makes `count` claims and waits until all are Bound.
pub fn burst<'a>(server: &'a Server, prefix: &str, count: usize) -> Result<Bound<'a>> {
    let names: Vec<String> = (0..count).map(|at| format!("{prefix}-{at}")).collect();
    let seen = Seen::start(server)?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims");
    let first = Instant::now();
    let sent = send_all(server, &names, |connection, name| {
        connection.call("POST", &path, Some(&claim(name))).map(drop)
    })?;
    let bound = seen.wait(&format!("{count} claims to be Bound"), |state| {
        names.iter().all(|name| state.bound.contains_key(name))
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
        let Self { server, seen, names, volumes, bind_seconds, latencies } = self;
        let first = Instant::now();
        send_all(server, &names, |connection, name| {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims/{name}");
            connection.call("DELETE", &path, None).map(drop)
        })?;
        let gone = seen.wait(&format!("{} volumes to be gone", volumes.len()), |state| {
            volumes.iter().all(|name| state.gone.contains_key(name))
        })?;
        let last = volumes.iter().filter_map(|name| gone.gone.get(name)).max();
        let last = *last.context("a volume that is gone")?;
        drop(gone);
        Ok(Burst { bind_seconds, latencies, delete_seconds: (last - first).as_secs_f64() })
    }
}

fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": CLASS,
            "resources": {"requests": {"storage": "1Mi"}},
        },
    })
}

/// Sends one request per name over a few connections; the moments at which each was sent.
fn send_all<F>(server: &Server, names: &[String], send: F) -> Result<Vec<Instant>>
where
    F: Fn(&mut Connection, &str) -> Result<()> + Sync,
{
    let next = AtomicUsize::new(0);
    let sent = Mutex::new(vec![None; names.len()]);
    std::thread::scope(|scope| -> Result<()> {
        let senders: Vec<_> = (0..SENDERS.min(names.len()))
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    let mut connection = server.connect()?;
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(name) = names.get(at) else { return Ok(()) };
                        lock(&sent)[at] = Some(Instant::now());
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the watches have shown so far.
#[derive(Default)]
struct State {
    /// When a claim was seen Bound, and its volume.
    bound: HashMap<String, (Instant, String)>,
    /// When a volume was seen gone.
    gone: HashMap<String, Instant>,
    /// A watch ended, so nothing more will be seen.
    ended: bool,
}

/// Two watches, each read by a thread of its own, until this is dropped.
struct Seen {
    shared: Arc<(Mutex<State>, Condvar)>,
    closers: Vec<Closer>,
    threads: Vec<JoinHandle<()>>,
}

impl Seen {
    fn start(server: &Server) -> Result<Self> {
        let mut seen = Self { shared: Arc::default(), closers: Vec::new(), threads: Vec::new() };
        let claims = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims");
        seen.follow(server, &claims, |state, kind, object| {
            if kind != "DELETED" && object["status"]["phase"] == "Bound" {
                let volume = text(&object["spec"]["volumeName"]);
                let name = text(&object["metadata"]["name"]);
                state.bound.entry(name).or_insert_with(|| (Instant::now(), volume));
            }
        })?;
        seen.follow(server, "/api/v1/persistentvolumes", |state, kind, object| {
            if kind == "DELETED" {
                state.gone.insert(text(&object["metadata"]["name"]), Instant::now());
            }
        })?;
        Ok(seen)
    }

    fn follow(
        &mut self,
        server: &Server,
        path: &str,
        take: impl Fn(&mut State, &str, &Value) + Send + 'static,
    ) -> Result<()> {
        let list = server.connect()?.call("GET", path, None)?;
        let version = text(&list["metadata"]["resourceVersion"]);
        let query = format!("{path}?watch=1&timeoutSeconds=3600&resourceVersion={version}");
        let mut watch = server.connect()?.watch(&query)?;
        self.closers.extend(watch.closer());
        let shared = self.shared.clone();
        self.threads.push(std::thread::spawn(move || {
            while let Some(event) = watch.next() {
                take(&mut lock(&shared.0), &text(&event["type"]), &event["object"]);
                shared.1.notify_all();
            }
            lock(&shared.0).ended = true;
            shared.1.notify_all();
        }));
        Ok(())
    }

    /// Waits until what was seen is enough.
    fn wait(&self, what: &str, enough: impl Fn(&State) -> bool) -> Result<MutexGuard<'_, State>> {
        let until = Instant::now() + PATIENCE;
        let mut state = lock(&self.shared.0);
        while !enough(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.ended {
                let why = if state.ended { "a watch ended" } else { "too long" };
                let (bound, gone) = (state.bound.len(), state.gone.len());
                bail!("waiting for {what}: {why}; {bound} were Bound and {gone} volumes gone");
            }
            let waited = self.shared.1.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.closers.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
