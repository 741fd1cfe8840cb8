//! The store: current state and recent history in memory, every write in a journal first.
//!
//! Readers and watchers see only what the journal has accepted. Writers see the *head*: the
//! accepted state plus writes that are on their way to disk, so that two writers of one object
//! conflict at once instead of one overwriting the other. A write is acknowledged after its batch is
//! durable; batches form by themselves while the previous one is being written.

mod journal;
mod log;
mod managed_fields;
mod notifier;
mod outline;
mod room;
mod state;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use tokio::sync::oneshot;

pub use journal::{Entry, Journal, JournalError, MemoryJournal, Replay, SnapshotObject};
pub use log::DiskJournal;
pub use managed_fields::{MANAGED_FIELDS, SplitObject};
pub use notifier::Subscription;
pub use room::Room;
use room::Used;
pub use state::{Change, Event, Key, Page, Stored, Trimmed};
use state::{Draft, State};

/// How many entries one batch may carry.
const MAX_BATCH: usize = 512;
/// A batch takes no more entries when it holds so much.
const MAX_BATCH_BYTES: usize = 4 << 20;

/// A batch of more entries than this comes from many writers at once.
const CROWD: usize = 3;
/// What the next batch waits for more of them. Each flush costs the processor about as much as a write, and
/// writers that are acknowledged together come back together.
const LINGER: Duration = Duration::from_millis(1);

/// How often a write that others wait for is looked at, besides when something was written.
const SETTLE_RECHECK: Duration = Duration::from_millis(20);

/// Bounds on what is kept of the past, for watches and consistent pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// Events per resource.
    pub events: usize,
    /// Memory for all of them.
    pub bytes: usize,
}

/// What a writer expects to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// No object under this key.
    Absent,
    /// The object at exactly this revision.
    Revision(u64),
}

#[derive(Debug)]
pub struct Write {
    pub key: Key,
    /// What must be true for the write to happen.
    pub expect: Expect,
    /// The object to store, without kind and apiVersion; on deletion its last state.
    pub object: Value,
    /// The text of its managers, if it is not in the object.
    pub managers: Option<String>,
    /// Whether the object goes away.
    pub delete: bool,
    /// Other objects that must still be at these revisions, e.g. the namespace.
    pub guards: Vec<(Key, u64)>,
    /// What of the room it may use.
    pub room: Room,
}

/// Why a write did not happen.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Something else was found than expected.
    #[error("{0} has changed")]
    Conflict(Key),
    /// The objects take as much as they may. The write did not happen; one after it may.
    #[error("the store holds {used} bytes, and {limit} are allowed")]
    NoRoom {
        /// What they take.
        used: usize,
        /// What they may take.
        limit: usize,
    },
    /// There was no room on disk. The write did not happen; one after it may.
    #[error("{0}")]
    Full(String),
    /// The journal refused a batch; nothing is written any more.
    #[error("the store has failed and takes no more writes: {0}")]
    Failed(String),
}

type Answer = oneshot::Sender<Result<Arc<Stored>, WriteError>>;

struct Pending {
    event: Event,
    answer: Answer,
}

/// State as writers see it.
struct Head {
    revision: u64,
    /// Writes on their way to disk: the newest per key, `None` for a deletion.
    overlay: HashMap<Key, (u64, Option<Arc<Stored>>)>,
    /// Set once the journal has failed; memory and disk may differ from then on.
    failed: Option<String>,
    lane: Lane,
    used: Used,
}

/// Where writes go.
enum Lane {
    /// Straight into the journal, on the caller's thread (nothing blocks in memory).
    Inline(Box<dyn Journal>),
    /// To the writer thread; `None` after shutdown.
    Thread(Option<mpsc::Sender<Pending>>),
}

struct Shared {
    head: Mutex<Head>,
    state: RwLock<State>,
}

/// A cheap handle to the store.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    writer: Arc<Writer>,
}

/// Ends the writer thread with the last handle, so that a store that is dropped lets go of its file.
struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Writer {
    /// No more writes; the thread ends after those under way.
    fn stop(&self) {
        match &mut self.shared.head.lock().lane {
            Lane::Inline(_) => {}
            Lane::Thread(sender) => drop(sender.take()),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Store {
    /// Replays the journal and starts the writer.
    ///
    /// # Errors
    /// When the journal cannot be read or holds damaged data.
    pub fn open(mut journal: Box<dyn Journal>, history: History) -> Result<Self, JournalError> {
        let mut state = State::new(history);
        let revision = journal.load(&mut state)?;
        let inline = !journal.blocks();
        let (sender, receiver) = mpsc::channel();
        let (lane, thread_journal) = if inline {
            (Lane::Inline(journal), None)
        } else {
            (Lane::Thread(Some(sender)), Some(journal))
        };
        let used = Used::new(total(&state));
        let head = Head { revision, overlay: HashMap::new(), failed: None, lane, used };
        let shared = Arc::new(Shared { head: Mutex::new(head), state: RwLock::new(state) });
        let writer = match thread_journal {
            None => None,
            Some(journal) => {
                let shared = Arc::clone(&shared);
                let thread = std::thread::Builder::new()
                    .name("store-writer".into())
                    .spawn(move || write_batches(&shared, journal, &receiver))
                    .map_err(|source| JournalError::Thread { source })?;
                Some(thread)
            }
        };
        let writer = Writer { shared: Arc::clone(&shared), thread: Mutex::new(writer) };
        Ok(Self { shared, writer: Arc::new(writer) })
    }

    /// The newest revision that readers see.
    pub fn revision(&self) -> u64 {
        self.shared.state.read().revision()
    }

    /// The object as readers see it.
    pub fn get(&self, key: &Key) -> Option<Arc<Stored>> {
        self.shared.state.read().get(key)
    }

    /// The object as writers see it: the basis for a change.
    pub fn head(&self, key: &Key) -> Option<Arc<Stored>> {
        let head = self.shared.head.lock();
        self.peek(&head, key)
    }

    fn peek(&self, head: &Head, key: &Key) -> Option<Arc<Stored>> {
        match head.overlay.get(key) {
            Some((_, object)) => object.clone(),
            None => self.shared.state.read().get(key),
        }
    }

    /// Waits until readers see of the object what writers see, or until that write has failed.
    pub async fn settled(&self, key: &Key) {
        loop {
            // Before the look at the head: a change in between must not be missed.
            let mut changes = self.subscribe_all();
            let pending = self.shared.head.lock().overlay.get(key).map(|(revision, _)| *revision);
            if pending.is_none_or(|revision| self.revision() >= revision) {
                return;
            }
            // A write that fails changes nothing, so nothing would wake us.
            let _ = tokio::time::timeout(SETTLE_RECHECK, changes.changed()).await;
        }
    }

    /// All objects of a resource, or of one namespace in it, in order, with the revision they are from.
    pub fn list(&self, resource: &str, namespace: Option<&str>) -> Page {
        self.shared.state.read().list(resource, namespace)
    }

    /// The objects as they were at an earlier revision.
    ///
    /// # Errors
    /// When history no longer reaches back that far.
    pub fn list_at(
        &self,
        resource: &str,
        namespace: Option<&str>,
        revision: u64,
    ) -> Result<Page, Trimmed> {
        self.shared.state.read().list_at(resource, namespace, revision)
    }

    /// Events of a resource after a revision, at most `max`, and the revision they reach to.
    ///
    /// # Errors
    /// When history no longer reaches back that far.
    pub fn events_after(
        &self,
        resource: &str,
        revision: u64,
        max: usize,
    ) -> Result<(Vec<Arc<Event>>, u64), Trimmed> {
        self.shared.state.read().events_after(resource, revision, max)
    }

    /// The revision that readers see, and the resources that changed after an earlier one.
    pub fn changed_after(&self, revision: u64) -> (u64, Vec<Arc<str>>) {
        let state = self.shared.state.read();
        (state.revision(), state.changed_after(revision))
    }

    /// Wakes at each change of the resource; the value is the revision of the change.
    pub fn subscribe(&self, resource: &str) -> Subscription {
        if let Some(receiver) = self.shared.state.read().subscribe(resource) {
            return receiver;
        }
        self.shared.state.write().subscribe_new(resource)
    }

    /// Forgets how the current state came to be, as if it had just been replayed.
    pub fn forget_history(&self) {
        self.shared.state.write().forget_history();
    }

    /// Wakes at each change of anything.
    pub fn subscribe_all(&self) -> Subscription {
        self.shared.state.read().subscribe_all()
    }

    /// Number of objects per resource, for metrics.
    pub fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.shared.state.read().counts()
    }

    /// Bounds what all objects may take; zero means no bound.
    pub fn set_limit(&self, bytes: usize) {
        self.shared.head.lock().used.set_limit(bytes);
    }

    /// What all objects take, and what they may take.
    pub fn used(&self) -> (usize, usize) {
        let head = self.shared.head.lock();
        (head.used.bytes(), head.used.limit())
    }

    /// What the objects of each resource take.
    pub fn bytes(&self) -> Vec<(Arc<str>, usize)> {
        self.shared.state.read().bytes()
    }

    /// Writes one object and waits until it is durable.
    ///
    /// # Errors
    /// [`WriteError::Conflict`] when the expectation or a guard does not hold.
    pub async fn write(&self, mut write: Write) -> Result<Arc<Stored>, WriteError> {
        self.write_kept(&mut write).await
    }

    /// The same; the object stays in `write` and has the version that it was stored with.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn write_kept(&self, write: &mut Write) -> Result<Arc<Stored>, WriteError> {
        let answer = self.submit(write)?;
        let stored = answer
            .await
            .unwrap_or_else(|_| Err(WriteError::Failed("the store is closed".into())))?;
        write.object["metadata"]["resourceVersion"] = stored.revision.to_string().into();
        Ok(stored)
    }

    /// Checks the write against the head and hands it to the journal, all in one step.
    fn submit(
        &self,
        write: &mut Write,
    ) -> Result<oneshot::Receiver<Result<Arc<Stored>, WriteError>>, WriteError> {
        // Everything that takes long comes before the lock.
        let managers = write.managers.as_deref();
        let draft = Draft::new(&mut write.object, managers, self.revision() + 1);
        let mut guard = self.shared.head.lock();
        let head = &mut *guard;
        if let Some(why) = &head.failed {
            return Err(WriteError::Failed(why.clone()));
        }
        let previous = self.check(head, write)?;
        let revision = head.revision + 1;
        let object = Arc::new(draft.store(&write.key, revision));
        let before = previous.as_ref().map_or(0, |previous| previous.weight());
        let after = if write.delete { 0 } else { object.weight() };
        // What is going to be deleted has to be marked so first.
        let marks = object.deleting && previous.as_ref().is_some_and(|previous| !previous.deleting);
        if !marks && !head.used.fits(before, after, write.room) {
            let (used, limit) = (head.used.bytes(), head.used.limit());
            return Err(WriteError::NoRoom { used, limit });
        }
        let change = if write.delete { Change::Delete } else { Change::Put };
        let event = Event { revision, key: write.key.clone(), change, object, previous };
        let (answer, receiver) = oneshot::channel();
        match &mut head.lane {
            Lane::Inline(journal) => {
                if let Err(error) = journal.commit(&[Entry::of(&event)]) {
                    head.failed = Some(error.to_string());
                    return Err(WriteError::Failed(error.to_string()));
                }
                let object = Arc::clone(&event.object);
                let resource = Arc::clone(&event.key.resource);
                let notifiers = {
                    let mut state = self.shared.state.write();
                    state.apply(event);
                    state.notifiers(std::iter::once(&resource))
                };
                notifiers.notify();
                // The receiver is still in our hands, so this cannot fail.
                let _ = answer.send(Ok(object));
            }
            Lane::Thread(sender) => {
                let after = (change == Change::Put).then(|| Arc::clone(&event.object));
                let key = event.key.clone();
                let sent =
                    sender.as_ref().is_some_and(|s| s.send(Pending { event, answer }).is_ok());
                if !sent {
                    return Err(WriteError::Failed("the store is closed".into()));
                }
                head.overlay.insert(key, (revision, after));
            }
        }
        head.revision = revision;
        head.used.replace(before, after);
        Ok(receiver)
    }

    fn check(&self, head: &Head, write: &Write) -> Result<Option<Arc<Stored>>, WriteError> {
        let current = self.peek(head, &write.key);
        let as_expected = match write.expect {
            Expect::Absent => current.is_none(),
            Expect::Revision(revision) => {
                current.as_ref().is_some_and(|object| object.revision == revision)
            }
        };
        if !as_expected {
            return Err(WriteError::Conflict(write.key.clone()));
        }
        for (key, revision) in &write.guards {
            if self.peek(head, key).is_none_or(|object| object.revision != *revision) {
                return Err(WriteError::Conflict(key.clone()));
            }
        }
        Ok(current)
    }

    pub fn is_writable(&self) -> bool {
        self.shared.head.lock().failed.is_none()
    }

    /// Whether a thread does the writing.
    pub fn has_writer(&self) -> bool {
        self.writer.thread.lock().is_some()
    }

    /// Stops taking writes and waits until those under way are durable.
    pub fn close(&self) {
        self.writer.stop();
        let thread = self.writer.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the store's writer thread panicked");
        }
    }
}

fn total(state: &State) -> usize {
    state.bytes().into_iter().map(|(_, bytes)| bytes).sum()
}

/// The writer thread: takes what has gathered, makes it durable, makes it visible, and acknowledges it.
fn write_batches(shared: &Shared, mut journal: Box<dyn Journal>, queue: &mpsc::Receiver<Pending>) {
    let mut full = false;
    let mut crowded = false;
    while let Ok(first) = queue.recv() {
        if crowded {
            std::thread::sleep(LINGER);
        }
        let batch = gather(first, queue);
        crowded = batch.len() > CROWD;
        let entries: Vec<Entry<'_>> = batch.iter().map(|p| Entry::of(&p.event)).collect();
        let result = journal.commit(&entries);
        drop(entries);
        match result {
            Ok(()) => {
                publish(shared, batch);
                if std::mem::take(&mut full) {
                    tracing::info!("there is room for the store again; writes are taken");
                }
            }
            Err(error @ JournalError::Full { .. }) => {
                if !std::mem::replace(&mut full, true) {
                    tracing::error!(%error, "writes are refused until there is room for them");
                }
                turn_away(shared, batch, queue, &error);
            }
            Err(error) => {
                refuse(shared, batch, queue, &error);
                return;
            }
        }
        if journal.wants_checkpoint() {
            let state = shared.state.read();
            let (revision, objects) = (state.revision(), state.all());
            drop(state);
            journal.checkpoint(revision, objects);
        }
    }
}

fn gather(first: Pending, queue: &mpsc::Receiver<Pending>) -> Vec<Pending> {
    let mut bytes = first.event.object.body.len();
    let mut batch = vec![first];
    while batch.len() < MAX_BATCH
        && bytes < MAX_BATCH_BYTES
        && let Ok(next) = queue.try_recv()
    {
        bytes += next.event.object.body.len();
        batch.push(next);
    }
    batch
}

/// Without room nothing happened: writers see again what is on disk. What else is under way may build on
/// the refused writes, so all of it is refused.
fn turn_away(
    shared: &Shared,
    mut batch: Vec<Pending>,
    queue: &mpsc::Receiver<Pending>,
    why: &JournalError,
) {
    {
        let mut head = shared.head.lock();
        // Writers queue under this lock, so nothing comes in between.
        batch.extend(queue.try_iter());
        head.overlay.clear();
        let state = shared.state.read();
        head.revision = state.revision();
        head.used.reset(total(&state));
    }
    for pending in batch {
        let _ = pending.answer.send(Err(WriteError::Full(why.to_string())));
    }
}

fn publish(shared: &Shared, batch: Vec<Pending>) {
    let mut done = Vec::with_capacity(batch.len());
    let mut written = Vec::with_capacity(batch.len());
    let mut resources = BTreeSet::new();
    let notifiers = {
        let mut state = shared.state.write();
        for pending in batch {
            if !resources.contains(&pending.event.key.resource) {
                resources.insert(Arc::clone(&pending.event.key.resource));
            }
            written.push((pending.event.key.clone(), pending.event.revision));
            done.push((pending.answer, Arc::clone(&pending.event.object)));
            state.apply(pending.event);
        }
        state.notifiers(resources.iter())
    };
    {
        let mut head = shared.head.lock();
        for (key, revision) in written {
            if head.overlay.get(&key).is_some_and(|(newest, _)| *newest == revision) {
                head.overlay.remove(&key);
            }
        }
    }
    // Writers come before watchers: a loop that has its response knows what the watch is going to send.
    for (answer, object) in done {
        // A client that went away does not need its response; the write stands.
        let _ = answer.send(Ok(object));
    }
    notifiers.notify();
}

/// After a failed commit it is unknown what is on disk, so nothing more may be written.
fn refuse(
    shared: &Shared,
    batch: Vec<Pending>,
    queue: &mpsc::Receiver<Pending>,
    why: &JournalError,
) {
    tracing::error!(error = %why, "the journal refused a batch; the store takes no more writes");
    let why = why.to_string();
    {
        let mut head = shared.head.lock();
        head.failed = Some(why.clone());
        head.lane = Lane::Thread(None);
        head.overlay.clear();
    }
    for pending in batch.into_iter().chain(queue.try_iter()) {
        let _ = pending.answer.send(Err(WriteError::Failed(why.clone())));
    }
}

#[cfg(test)]
mod tests;
