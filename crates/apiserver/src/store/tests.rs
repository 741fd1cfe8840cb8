use std::sync::Arc;

use serde_json::json;

use super::*;

fn store() -> Store {
    Store::open(Box::new(MemoryJournal), 4).unwrap()
}

fn key(name: &str) -> Key {
    Key { resource: Arc::from("configmaps"), namespace: "ns".into(), name: name.into() }
}

fn put(name: &str, expect: Expect, data: &str) -> Write {
    let object = json!({"metadata": {"name": name, "namespace": "ns"}, "data": {"k": data}});
    Write { key: key(name), expect, object, delete: false, guards: vec![] }
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
    let path = dir.path().join("store.redb");
    let store = Store::open(Box::new(DiskJournal::open(&path).unwrap()), 4).unwrap();
    store.write(put("a", Expect::Absent, "1")).await.unwrap();
    let thread = store.writer.thread.lock().take().unwrap();
    drop(store);
    thread.join().unwrap();
    assert_eq!(DiskJournal::open(&path).unwrap().load().unwrap().revision, 1);
}

/// A journal whose commits fail from the given one on.
struct FailingJournal {
    good_commits: usize,
}

impl Journal for FailingJournal {
    fn load(&mut self) -> Result<Loaded, JournalError> {
        Ok(Loaded::default())
    }

    fn commit(&mut self, _batch: &[Entry<'_>]) -> Result<(), JournalError> {
        if self.good_commits == 0 {
            return Err(JournalError::Corrupt { key: "x".into(), why: "disk full".into() });
        }
        self.good_commits -= 1;
        Ok(())
    }

    fn blocks(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_failed_commit_is_never_shown_and_ends_writing() {
    let store = Store::open(Box::new(FailingJournal { good_commits: 1 }), 4).unwrap();
    store.write(put("a", Expect::Absent, "1")).await.unwrap();
    assert!(matches!(store.write(put("b", Expect::Absent, "1")).await, Err(WriteError::Failed(_))));
    assert!(store.get(&key("b")).is_none());
    assert!(matches!(store.write(put("c", Expect::Absent, "1")).await, Err(WriteError::Failed(_))));
    store.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_lose_nothing_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let open = || Store::open(Box::new(DiskJournal::open(&path).unwrap()), 1000).unwrap();
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
    assert!(store.events_after("configmaps", 159, 1).is_err(), "history starts at opening");
    store.close();
}
