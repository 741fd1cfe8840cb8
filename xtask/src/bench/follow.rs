//! What becomes of claims and volumes, read from watches.

use std::{
    collections::HashMap,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};

use super::{
    http::{Closer, Server, Watch},
    load::NAMESPACE,
};

/// How often a wait looks. When something was seen is written down by who saw it, so this costs no
/// accuracy, and a look at every event would take from what is measured.
const LOOK: Duration = Duration::from_millis(10);

/// How long a burst may take; the slowest contender needs less than a second a claim.
const PATIENCE: Duration = Duration::from_secs(900);

/// Locks, also after a panic of another holder.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the watches have shown so far.
#[derive(Default)]
pub struct State {
    /// When a claim was seen Bound, and its volume.
    pub bound: HashMap<String, (Instant, String)>,
    /// When a volume was seen gone.
    pub gone: HashMap<String, Instant>,
    /// When a pod was seen running.
    pub running: HashMap<String, Instant>,
    /// Why nothing more will be seen.
    failed: Option<String>,
}

type Shared = Arc<(Mutex<State>, Condvar)>;

/// Watches, each read by a thread of its own, until this is dropped.
pub struct Seen {
    shared: Shared,
    followers: Vec<Follower>,
}

/// What an event says; the rest is not even read.
#[derive(serde::Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct Object {
    metadata: Meta,
    spec: Spec,
    status: Status,
}

#[derive(serde::Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: String,
    resource_version: String,
}

#[derive(serde::Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    volume_name: String,
}

#[derive(serde::Deserialize, Default)]
#[serde(default)]
struct Status {
    phase: String,
}

impl Seen {
    /// Starts to watch claims.
    pub fn start(server: &Server) -> Result<Self> {
        let shared = Shared::default();
        let claims = format!("/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims");
        let claims = Follower::start(server, &claims, &shared, |state, event| {
            let Object { metadata, spec, status } = event.object;
            if event.kind != "DELETED" && status.phase == "Bound" {
                let seen = || (Instant::now(), spec.volume_name);
                state.bound.entry(metadata.name).or_insert_with(seen);
            }
        })?;
        Ok(Self { shared, followers: vec![claims] })
    }

    /// Watches volumes, too: when they go.
    pub fn follow_volumes(&mut self, server: &Server) -> Result<()> {
        let volumes = "/api/v1/persistentvolumes";
        let volumes = Follower::start(server, volumes, &self.shared, |state, event| {
            if event.kind == "DELETED" {
                state.gone.insert(event.object.metadata.name, Instant::now());
            }
        })?;
        self.followers.push(volumes);
        Ok(())
    }

    /// Watches claims, volumes and pods.
    pub fn start_with_pods(server: &Server) -> Result<Self> {
        let mut seen = Self::start(server)?;
        seen.follow_volumes(server)?;
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let pods = Follower::start(server, &pods, &seen.shared, |state, event| {
            let Object { metadata, status, .. } = event.object;
            if event.kind != "DELETED" && status.phase == "Running" {
                state.running.entry(metadata.name).or_insert_with(Instant::now);
            }
        })?;
        seen.followers.push(pods);
        Ok(seen)
    }

    /// Waits until what was seen is enough.
    pub fn wait(
        &self,
        what: &str,
        enough: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>> {
        let until = Instant::now() + PATIENCE;
        let stop = crate::interrupt::flag()?;
        let mut state = lock(&self.shared.0);
        while !enough(&state) {
            ensure!(!stop.load(Ordering::Relaxed), "interrupted while waiting for {what}");
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || state.failed.is_some() {
                let why = state.failed.as_deref().unwrap_or("that takes too long");
                let (bound, gone) = (state.bound.len(), state.gone.len());
                bail!("waiting for {what}: {why}; {bound} were Bound and {gone} volumes gone");
            }
            let waited = self.shared.1.wait_timeout(state, left.min(LOOK));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
    }
}

/// A thread that reads one watch.
struct Follower {
    stopped: Arc<AtomicBool>,
    closer: Arc<Mutex<Option<Closer>>>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    fn start(
        server: &Server,
        path: &str,
        shared: &Shared,
        take: impl Fn(&mut State, Event) + Send + 'static,
    ) -> Result<Self> {
        let list = server.connect()?.call("GET", path, None)?;
        let version = list["metadata"]["resourceVersion"].as_str().context("no version")?;
        let mut reader = Reader {
            server: server.clone(),
            path: path.to_owned(),
            version: version.to_owned(),
            closer: Arc::default(),
            stopped: Arc::default(),
            shared: shared.clone(),
        };
        let (closer, stopped) = (reader.closer.clone(), reader.stopped.clone());
        let watch = reader.open()?;
        let thread = Some(std::thread::spawn(move || reader.run(watch, take)));
        Ok(Self { stopped, closer, thread })
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        drop(lock(&self.closer).take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Reader {
    server: Server,
    path: String,
    /// Of the last event.
    version: String,
    closer: Arc<Mutex<Option<Closer>>>,
    stopped: Arc<AtomicBool>,
    shared: Shared,
}

impl Reader {
    fn open(&self) -> Result<Watch> {
        let (path, version) = (&self.path, &self.version);
        let query = format!("{path}?watch=1&timeoutSeconds=3600&resourceVersion={version}");
        let mut watch = self.server.connect()?.watch(&query)?;
        *lock(&self.closer) = watch.closer();
        Ok(watch)
    }

    /// Reads until told to stop. The API server ends the watches of those who are slow to read, and a
    /// busy machine makes us slow: then the watch goes on from the last event.
    fn run(&mut self, mut watch: Watch, take: impl Fn(&mut State, Event)) {
        loop {
            let ended = loop {
                match self.next(&mut watch) {
                    Ok(event) => {
                        take(&mut lock(&self.shared.0), event);
                    }
                    Err(error) => break error,
                }
            };
            if self.stopped.load(Ordering::Relaxed) {
                return;
            }
            eprintln!("a watch of {} goes on after: {ended:#}", self.path);
            match self.open() {
                // Stopped meanwhile: this one would never be closed.
                Ok(_) if self.stopped.load(Ordering::Relaxed) => return,
                Ok(again) => watch = again,
                Err(error) => {
                    lock(&self.shared.0).failed = Some(format!("{error:#}"));
                    self.shared.1.notify_all();
                    return;
                }
            }
        }
    }

    fn next(&mut self, watch: &mut Watch) -> Result<Event> {
        let line = watch.next()?;
        let event: Event = serde_json::from_slice(&line)
            .with_context(|| String::from_utf8_lossy(&line).into_owned())?;
        if event.kind == "ERROR" {
            bail!("{}", String::from_utf8_lossy(&line).trim());
        }
        self.version.clone_from(&event.object.metadata.resource_version);
        Ok(event)
    }
}
