use std::sync::Arc;

use serde_json::json;

use super::*;

const SMALL: History = History { events: 4, bytes: 1 << 20 };

fn store() -> Store {
    Store::open(Box::new(MemoryJournal), SMALL).unwrap()
}

fn key(name: &str) -> Key {
    Key { resource: Arc::from("configmaps"), namespace: "ns".into(), name: name.into() }
}

fn put(name: &str, expect: Expect, data: &str) -> Write {
    let object = json!({"metadata": {"name": name, "namespace": "ns"}, "data": {"k": data}});
    Write {
        key: key(name),
        expect,
        object,
        managers: None,
        delete: false,
        guards: vec![],
        room: Room::Plain,
    }
}

fn delete(name: &str, revision: u64) -> Write {
    Write { delete: true, ..put(name, Expect::Revision(revision), "") }
}

fn names(page: &Page) -> Vec<(String, u64)> {
    page.objects.iter().map(|o| (o.name.clone(), o.revision)).collect()
}

#[tokio::test]
async fn expectations_guard_every_write() {
    let store = store();
    let first = store.write(put("a", Expect::Absent, "1")).await.unwrap();
    assert_eq!(first.revision, 1);
    assert_eq!(first.value()["metadata"]["resourceVersion"], "1");
    for stale in [Expect::Absent, Expect::Revision(9)] {
        let error = store.write(put("a", stale, "2")).await.unwrap_err();
        assert!(matches!(error, WriteError::Conflict(_)));
    }
    let mut guarded = put("b", Expect::Absent, "1");
    guarded.guards = vec![(key("a"), 7)];
    assert!(store.write(guarded).await.is_err());
    assert_eq!(store.revision(), 1, "a refused write takes no revision");
}

#[tokio::test]
async fn earlier_states_can_be_listed_until_trimmed() {
    let store = store();
    store.write(put("a", Expect::Absent, "1")).await.unwrap();
    store.write(put("b", Expect::Absent, "1")).await.unwrap();
    store.write(delete("a", 1)).await.unwrap();
    store.write(put("c", Expect::Absent, "1")).await.unwrap();
    let at = |revision| store.list_at("configmaps", Some("ns"), revision).map(|p| names(&p));
    assert_eq!(at(2).unwrap(), [("a".into(), 1), ("b".into(), 2)]);
    assert_eq!(at(3).unwrap(), [("b".into(), 2)]);
    assert_eq!(at(4).unwrap(), [("b".into(), 2), ("c".into(), 4)]);
    store.write(put("d", Expect::Absent, "1")).await.unwrap();
    assert_eq!(at(0).unwrap_err(), Trimmed { oldest: 1 }, "four events are kept");
    assert_eq!(at(1).unwrap(), [("a".into(), 1)]);
}

#[tokio::test]
async fn events_are_read_in_order_and_in_pieces() {
    let store = store();
    for name in ["a", "b", "c"] {
        store.write(put(name, Expect::Absent, "1")).await.unwrap();
    }
    let (events, reached) = store.events_after("configmaps", 1, 1).unwrap();
    assert_eq!((events[0].revision, reached), (2, 2));
    let (events, reached) = store.events_after("configmaps", 2, 10).unwrap();
    assert_eq!((events.len(), reached), (1, 3));
    let (none, reached) = store.events_after("pods", 0, 10).unwrap();
    assert!(none.is_empty());
    assert_eq!(reached, 3, "other resources' changes move the position on");
}

#[tokio::test]
async fn a_dropped_store_lets_go_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::open(Box::new(DiskJournal::open(&path).unwrap()), SMALL).unwrap();
    store.write(put("a", Expect::Absent, "1")).await.unwrap();
    let thread = store.writer.thread.lock().take().unwrap();
    drop(store);
    thread.join().unwrap();
    let again = Store::open(Box::new(DiskJournal::open(&path).unwrap()), SMALL).unwrap();
    assert_eq!(again.revision(), 1);
}

/// A journal that answers from a list, then always well.
struct ScriptedJournal(Vec<Option<JournalError>>);

impl Journal for ScriptedJournal {
    fn load(&mut self, _: &mut dyn Replay) -> Result<u64, JournalError> {
        Ok(0)
    }

    fn commit(&mut self, _batch: &[Entry<'_>]) -> Result<(), JournalError> {
        if self.0.is_empty() {
            return Ok(());
        }
        self.0.remove(0).map_or(Ok(()), Err)
    }

    fn blocks(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_failed_commit_is_never_visible_and_ends_writing() {
    let broken = JournalError::io("writing", "x".as_ref(), std::io::Error::other("broken"));
    let journal = ScriptedJournal(vec![None, Some(broken)]);
    let store = Store::open(Box::new(journal), SMALL).unwrap();
    store.write(put("a", Expect::Absent, "1")).await.unwrap();
    assert!(matches!(store.write(put("b", Expect::Absent, "1")).await, Err(WriteError::Failed(_))));
    assert!(store.get(&key("b")).is_none());
    assert!(matches!(store.write(put("c", Expect::Absent, "1")).await, Err(WriteError::Failed(_))));
    assert!(!store.is_writable());
    store.close();
}

#[tokio::test]
async fn a_write_without_room_did_not_happen_and_the_next_one_may() {
    let full =
        || JournalError::Full { path: "x".into(), source: std::io::ErrorKind::StorageFull.into() };
    let journal = ScriptedJournal(vec![None, Some(full()), Some(full())]);
    let store = Store::open(Box::new(journal), SMALL).unwrap();
    store.write(put("a", Expect::Absent, "1")).await.unwrap();
    for _ in 0..2 {
        let refused = store.write(put("a", Expect::Revision(1), "2")).await.unwrap_err();
        assert!(matches!(&refused, WriteError::Full(why) if why.contains("no room")), "{refused}");
        assert_eq!(store.head(&key("a")).unwrap().revision, 1);
    }
    assert!(store.is_writable());
    let written = store.write(put("a", Expect::Revision(1), "3")).await.unwrap();
    assert_eq!((written.revision, store.revision()), (2, 2), "no revision is skipped");
    store.close();
}

#[tokio::test]
async fn history_is_bounded_by_its_size_too() {
    let limits = History { events: 1000, bytes: 20_000 };
    let store = Store::open(Box::new(MemoryJournal), limits).unwrap();
    let mut revision = store.write(put("a", Expect::Absent, "x")).await.unwrap().revision;
    let other = Key { resource: Arc::from("secrets"), namespace: "ns".into(), name: "s".into() };
    let object = json!({"metadata": {"name": "s"}});
    let write = Write {
        key: other,
        expect: Expect::Absent,
        object,
        managers: None,
        delete: false,
        guards: vec![],
        room: Room::Plain,
    };
    store.write(write).await.unwrap();
    for _ in 0..20 {
        let large = put("a", Expect::Revision(revision), &"x".repeat(3000));
        revision = store.write(large).await.unwrap().revision;
    }
    assert!(store.events_after("secrets", 1, 1).is_err(), "the oldest goes first, whosever it is");
    assert!(store.events_after("configmaps", revision - 10, 1).is_err());
    assert_eq!(store.events_after("configmaps", revision - 5, 99).unwrap().0.len(), 5);
    assert!(store.list_at("configmaps", None, revision - 10).is_err());
    assert_eq!(store.list_at("configmaps", None, revision - 5).unwrap().objects.len(), 1);
}

/// Definitions of kinds come and go; nothing may stay of each of them for ever.
#[tokio::test]
async fn kinds_that_are_gone_are_forgotten() {
    let limits = History { events: 1000, bytes: 20_000 };
    let store = Store::open(Box::new(MemoryJournal), limits).unwrap();
    let of = |kind: usize, mut write: Write| {
        write.key.resource = Arc::from(format!("example.com/kind{kind}"));
        write
    };
    let watched = store.subscribe("example.com/kind3");
    for kind in 0..500 {
        let made = store.write(of(kind, put("a", Expect::Absent, "1"))).await.unwrap();
        store.write(of(kind, delete("a", made.revision))).await.unwrap();
    }
    let counts = store.counts();
    assert!(counts.len() < 200, "{}", counts.len());
    assert!(counts.iter().any(|(name, _)| &**name == "example.com/kind3"), "it is watched");
    drop(watched);
    // What is forgotten is not taken for "nothing happened".
    let oldest = store.events_after("example.com/kind0", 0, 10).unwrap_err().oldest;
    assert!(oldest > 1, "{oldest}");
    let now = store.revision();
    assert_eq!(store.events_after("example.com/kind0", now, 10).unwrap().0.len(), 0);
    // And a kind may come back.
    store.write(of(0, put("a", Expect::Absent, "2"))).await.unwrap();
    assert_eq!(store.events_after("example.com/kind0", now, 10).unwrap().0.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_lose_nothing_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let journal = DiskJournal::open(dir.path()).unwrap().with_smallest_log(8 << 10);
        Store::open(Box::new(journal), History { events: 1000, bytes: 1 << 20 }).unwrap()
    };
    let store = open();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let store = store.clone();
        tasks.spawn(async move {
            for i in 0..20 {
                let name = format!("w{writer}-{i}");
                let written = store.write(put(&name, Expect::Absent, "1")).await.unwrap();
                assert_eq!(store.get(&key(&name)).unwrap().revision, written.revision);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    store.close();
    assert!(store.write(put("late", Expect::Absent, "1")).await.is_err());
    drop(store);
    let store = open();
    assert_eq!(store.revision(), 160);
    assert_eq!(store.list("configmaps", None).objects.len(), 160);
    assert_eq!(store.events_after("configmaps", 159, 9).unwrap().0.len(), 1, "the log is history");
    assert!(store.events_after("configmaps", 1, 1).is_err(), "a snapshot has replaced the rest");
    store.close();
}

#[tokio::test]
async fn a_full_store_refuses_what_grows_and_nothing_else() {
    let store = store();
    let body = "x".repeat(1000);
    let first = store.write(put("a", Expect::Absent, &body)).await.unwrap();
    let (used, _) = store.used();
    assert_eq!(used, first.weight());
    store.set_limit(used + used / 2);
    let refused = store.write(put("b", Expect::Absent, &body)).await.unwrap_err();
    assert!(matches!(refused, WriteError::NoRoom { .. }), "{refused}");
    let grown = Write { room: Room::Reserve, ..put("b", Expect::Absent, &body) };
    assert!(store.write(grown).await.is_err(), "the reserve is bounded too");
    let smaller = store.write(put("a", Expect::Revision(first.revision), "x")).await.unwrap();
    assert_eq!(store.used().0, smaller.weight());
    store.write(put("b", Expect::Absent, &body)).await.unwrap();
    store.write(delete("a", smaller.revision)).await.unwrap();
    let by_resource: usize = store.bytes().into_iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(store.used().0, by_resource);
}
