use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::journal::Unreadable;
use super::super::state::{Change, Stored};
use super::*;

/// What a journal hands over: the state, and the changes one by one.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Seen {
    objects: BTreeMap<String, (u64, Vec<u8>)>,
    changes: Vec<u64>,
    begins: u64,
}

impl Replay for Seen {
    fn object(&mut self, key: Key, revision: u64, body: &[u8]) -> Result<(), Unreadable> {
        self.objects.insert(key.to_string(), (revision, body.to_vec()));
        Ok(())
    }

    fn history_begins(&mut self, revision: u64) {
        self.begins = revision;
    }

    fn change(
        &mut self,
        key: Key,
        change: Change,
        revision: u64,
        body: &[u8],
    ) -> Result<(), Unreadable> {
        self.changes.push(revision);
        match change {
            Change::Put => self.objects.insert(key.to_string(), (revision, body.to_vec())),
            Change::Delete => self.objects.remove(&key.to_string()),
        };
        Ok(())
    }
}

fn key(name: &str) -> Key {
    Key { resource: Arc::from("configmaps"), namespace: "ns".into(), name: name.into() }
}

fn body(revision: u64) -> Vec<u8> {
    format!(r#"{{"metadata":{{"name":"x","resourceVersion":"{revision}"}}}}"#).into_bytes()
}

fn commit(journal: &mut DiskJournal, changes: &[(u64, &str, Change)]) {
    let rows: Vec<_> =
        changes.iter().map(|(revision, name, change)| (*revision, key(name), *change)).collect();
    let bodies: Vec<Vec<u8>> = changes.iter().map(|(revision, ..)| body(*revision)).collect();
    let entries: Vec<Entry<'_>> = rows
        .iter()
        .zip(&bodies)
        .map(|((revision, key, change), body)| Entry {
            revision: *revision,
            key,
            change: *change,
            body,
        })
        .collect();
    journal.commit(&entries).unwrap();
}

fn load(dir: &Path) -> Result<(Seen, u64), JournalError> {
    let mut seen = Seen::default();
    let revision = DiskJournal::open(dir)?.load(&mut seen)?;
    Ok((seen, revision))
}

/// A store with four batches and seven changes; returns the bytes of its log.
fn filled(dir: &Path) -> Vec<u8> {
    let mut journal = DiskJournal::open(dir).unwrap();
    journal.load(&mut Seen::default()).unwrap();
    commit(&mut journal, &[(1, "a", Change::Put), (2, "b", Change::Put)]);
    commit(&mut journal, &[(3, "b", Change::Delete)]);
    commit(&mut journal, &[(4, "c", Change::Put), (5, "a", Change::Put), (6, "d", Change::Put)]);
    commit(&mut journal, &[(7, "e", Change::Put)]);
    let mut data = std::fs::read(dir.join(segment_name(0))).unwrap();
    assert!(used(&data) < 2000, "the rest is zeros");
    data.truncate(4096);
    data
}

/// Reads a log as it would be read from a file.
fn read(data: &[u8]) -> Result<(End, u64, Seen), replay::Damage> {
    let header = FileHeader::decode(data, Kind::Segment).map_err(|error| match error {
        HeaderError::Damaged(why) => replay::Damage { offset: 0, why: why.into() },
        HeaderError::Format(found) => replay::Damage { offset: 8, why: found.to_string() },
    })?;
    let (mut seen, mut names) = (Seen::default(), Names::default());
    let (end, last) = replay::segment(&header, data, |entry| {
        seen.change(super::key(&mut names, &entry), entry.change, entry.revision, entry.body)
    })?;
    Ok((end, last, seen))
}

fn used(data: &[u8]) -> usize {
    data.iter().rposition(|byte| *byte != 0).unwrap() + 1
}

#[test]
fn state_survives_reopening() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let (seen, revision) = load(dir.path()).unwrap();
    assert_eq!(revision, 7);
    assert_eq!(seen.changes, [1, 2, 3, 4, 5, 6, 7]);
    let names: Vec<(&str, u64)> = seen.objects.iter().map(|(k, v)| (k.as_str(), v.0)).collect();
    let wanted = ["a", "c", "d", "e"].map(|name| format!("configmaps ns/{name}"));
    assert_eq!(names, wanted.iter().map(String::as_str).zip([5, 4, 6, 7]).collect::<Vec<_>>());
}

#[test]
fn a_second_process_is_kept_out() {
    let dir = tempfile::tempdir().unwrap();
    let _first = DiskJournal::open(dir.path()).unwrap();
    assert!(matches!(DiskJournal::open(dir.path()), Err(JournalError::Locked { .. })));
}

#[test]
fn files_are_for_the_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    filled(&store);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&store), 0o700);
    assert_eq!(mode(&store.join(segment_name(0))), 0o600);
}

#[test]
fn a_log_that_was_cut_anywhere_is_never_served_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let data = filled(dir.path());
    let used = used(&data);
    let (_, _, whole) = read(&data).unwrap();
    for length in 0..used + segment::RESERVE {
        assert!(read(&data[..length]).is_err(), "cut to {length} of {used}");
    }
    assert_eq!(read(&data[..used + segment::RESERVE]).unwrap().2, whole);
}

#[test]
fn a_changed_byte_anywhere_is_found_or_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = filled(dir.path());
    let (used, size) = (used(&data), data.len());
    let whole = read(&data).unwrap();
    let mut harmless = 0;
    for at in 0..size {
        for bits in [0x01, 0x80, 0xff] {
            data[at] ^= bits;
            match read(&data) {
                Ok((_, last, seen)) => {
                    assert_eq!((last, &seen), (whole.1, &whole.2), "byte {at} of {used}");
                    harmless += usize::from(at < used);
                }
                Err(damage) => assert!(at < used && damage.offset <= at, "{damage:?} byte {at}"),
            }
            data[at] ^= bits;
        }
    }
    // Receipts alone may change without harm: their frames still check out.
    assert_eq!(harmless, 3 * 4 * format::RECEIPT);
}

#[test]
fn a_lost_block_of_acknowledged_data_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let data = filled(dir.path());
    let used = used(&data);
    for start in 0..used - 1 {
        let mut lost = data.clone();
        let end = (start + 100).min(used - format::RECEIPT);
        if start >= end {
            break;
        }
        lost[start..end].fill(0);
        assert!(read(&lost).is_err(), "bytes {start} to {end} of {used}");
    }
}

/// The log while its last frame is being written: no receipt for it yet.
fn unacknowledged(dir: &Path) -> (Vec<u8>, usize, usize) {
    let data = filled(dir);
    let end = used(&data) - format::RECEIPT;
    let mut data = data;
    data[end..].fill(0);
    let header = FileHeader::decode(&data, Kind::Segment).unwrap();
    let start = (0..end).rev().find(|at| header.frame(&data[*at..]).is_some()).unwrap();
    (data, start, end)
}

#[test]
fn a_torn_write_is_cut_wherever_it_tore() {
    let dir = tempfile::tempdir().unwrap();
    let (data, start, end) = unacknowledged(dir.path());
    for kept in start..end {
        let mut torn = data.clone();
        torn[kept..].fill(0);
        let (ended, last, seen) = read(&torn).unwrap();
        assert_eq!((last, seen.changes.len()), (6, 6), "{kept} of {start}..{end}");
        let clean = kept == start;
        assert_eq!(ended, if clean { End::Clean(start) } else { End::Torn(start) });
    }
    assert_eq!(read(&data).unwrap().1, 7, "a frame that is whole counts, answered or not");
}

#[test]
fn a_write_that_tore_in_blocks_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let (data, start, end) = unacknowledged(dir.path());
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..500 {
        let mut torn = data.clone();
        let blocks: Vec<_> = (start..end).step_by(16).filter(|_| random.bool()).collect();
        for block in &blocks {
            torn[*block..(*block + 16).min(end)].fill(0);
        }
        if !blocks.is_empty() {
            assert_eq!(read(&torn).unwrap().1, 6);
        }
    }
}

#[test]
fn after_a_cut_the_log_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (mut data, _, end) = unacknowledged(dir.path());
    let path = dir.path().join(segment_name(0));
    data[end - 5] ^= 1;
    std::fs::write(&path, &data).unwrap();
    {
        let mut journal = DiskJournal::open(dir.path()).unwrap();
        assert_eq!(journal.load(&mut Seen::default()).unwrap(), 6);
        commit(&mut journal, &[(7, "f", Change::Put)]);
    }
    let (seen, revision) = load(dir.path()).unwrap();
    assert_eq!(revision, 7);
    assert!(seen.objects.contains_key("configmaps ns/f"));
    assert!(!seen.objects.contains_key("configmaps ns/e"));
}

#[test]
fn damage_names_the_file_the_offset_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = filled(dir.path());
    let path = dir.path().join(segment_name(0));
    data[120] ^= 4;
    std::fs::write(&path, &data).unwrap();
    let error = load(dir.path()).unwrap_err();
    assert!(matches!(&error, JournalError::Damaged { offset: 64, .. }), "{error}");
    let text = error.to_string();
    for part in [path.to_str().unwrap(), "byte 64", "checksum", "backup"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), data, "the file is left as it was");
    data[9] ^= 1;
    std::fs::write(&path, &data).unwrap();
    assert!(load(dir.path()).is_err());
}

/// Writes `count` changes with a snapshot after every few; returns the state.
fn with_checkpoints(dir: &Path, count: u64) -> Seen {
    let mut journal = DiskJournal::open(dir).unwrap().with_smallest_log(400);
    let mut state = Seen::default();
    let mut revision = journal.load(&mut state).unwrap();
    for _ in 0..count {
        revision += 1;
        let name = format!("n{}", revision % 5);
        let change = if revision % 7 == 0 { Change::Delete } else { Change::Put };
        commit(&mut journal, &[(revision, &name, change)]);
        state.change(key(&name), change, revision, &body(revision)).unwrap();
        if journal.wants_checkpoint() {
            let objects = state.objects.iter().map(|(name, (revision, body))| {
                let key = key(name.rsplit('/').next().unwrap());
                (
                    Arc::clone(&key.resource),
                    Arc::new(Stored::from_text(&key, *revision, body).unwrap()),
                )
            });
            journal.checkpoint(revision, objects.collect());
        }
    }
    state
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "lock")
        .collect();
    names.sort();
    names
}

#[test]
fn snapshots_replace_the_log_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut written = 0;
    for count in [1, 3, 40, 2, 60] {
        let state = with_checkpoints(dir.path(), count);
        written += count;
        let (seen, revision) = load(dir.path()).unwrap();
        assert_eq!(revision, written);
        assert_eq!(seen.objects, state.objects);
        let after: Vec<u64> = (seen.begins + 1..=revision).collect();
        assert_eq!(seen.changes, after, "changes follow the snapshot without a gap");
    }
    let names = names(dir.path());
    assert!(names.len() <= 3, "one snapshot and what follows it: {names:?}");
    assert!(names.iter().any(|name| name.starts_with("snapshot-")), "{names:?}");
}

#[test]
fn a_crash_between_the_steps_of_a_snapshot_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path());
    let (first, _) = load(dir.path()).unwrap();
    // A new segment without its snapshot yet.
    drop(Segment::create(dir.path(), 7).unwrap());
    std::fs::write(dir.path().join("snapshot-00000000000000000007.tmp"), b"half of i").unwrap();
    let (seen, revision) = load(dir.path()).unwrap();
    assert_eq!((seen.objects, revision), (first.objects.clone(), 7));
    assert_eq!(names(dir.path()).len(), 2, "the half is gone: {:?}", names(dir.path()));
    // The snapshot, and the old segment not removed yet.
    let objects: Vec<SnapshotObject> = first
        .objects
        .iter()
        .map(|(name, (revision, body))| {
            let key = key(name.rsplit('/').next().unwrap());
            let stored = Stored::from_text(&key, *revision, body).unwrap();
            (key.resource, Arc::new(stored))
        })
        .collect();
    snapshot::write(dir.path(), 7, &objects).unwrap();
    assert_eq!(names(dir.path()).len(), 3);
    let (seen, revision) = load(dir.path()).unwrap();
    assert_eq!((seen.objects, revision, seen.begins), (first.objects, 7, 7));
    assert_eq!(names(dir.path()), [segment_name(7), snapshot_name(7)]);
}

#[test]
fn missing_files_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    with_checkpoints(dir.path(), 30);
    let names = names(dir.path());
    for name in &names {
        let path = dir.path().join(name);
        let content = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = load(dir.path()).unwrap_err();
        assert!(matches!(error, JournalError::Missing { .. }), "without {name}: {error}");
        std::fs::write(&path, content).unwrap();
        load(dir.path()).unwrap();
    }
    std::fs::rename(dir.path().join(&names[0]), dir.path().join(segment_name(9999))).unwrap();
    assert!(load(dir.path()).is_err());
}

#[test]
fn a_damaged_snapshot_is_never_served() {
    let dir = tempfile::tempdir().unwrap();
    with_checkpoints(dir.path(), 30);
    let name = names(dir.path()).into_iter().find(|name| name.starts_with("snapshot-")).unwrap();
    let path = dir.path().join(name);
    let data = std::fs::read(&path).unwrap();
    let read = |data: &[u8]| {
        std::fs::write(&path, data).unwrap();
        snapshot::read(&path, |_| Ok(()))
    };
    for at in 0..data.len() {
        assert!(read(&data[..at]).is_err(), "cut to {at}");
        let mut changed = data.clone();
        changed[at] ^= 0x10;
        assert!(read(&changed).is_err(), "byte {at}");
    }
    assert!(read(&data).is_ok());
}

#[test]
fn a_store_whose_only_log_is_gone_is_refused_and_not_served_empty() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let journal = DiskJournal::open(&dir.path().join("store")).unwrap();
        let mut journal = journal.with_marker(dir.path().join("newest")).unwrap();
        let mut seen = Seen::default();
        journal.load(&mut seen).map(|revision| (revision, journal))
    };
    let (revision, mut journal) = open().unwrap();
    assert_eq!(revision, 0);
    commit(&mut journal, &[(1, "a", Change::Put)]);
    drop(journal);
    let log = dir.path().join("store").join(segment_name(0));
    let kept = dir.path().join("kept");
    std::fs::rename(&log, &kept).unwrap();
    for _ in 0..2 {
        let error = open().err().unwrap().to_string();
        assert!(error.contains("log-0") && error.contains("backup"), "{error}");
    }
    std::fs::remove_dir_all(dir.path().join("store")).unwrap();
    open().err().unwrap();
    std::fs::rename(&kept, &log).unwrap();
    assert_eq!(open().unwrap().0, 1);
}

#[test]
fn a_newest_log_that_is_gone_is_missed_while_older_ones_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let journal = DiskJournal::open(&dir.path().join("store")).unwrap();
        let mut journal = journal.with_marker(dir.path().join("newest")).unwrap();
        journal.load(&mut Seen::default()).map(|_| journal)
    };
    let mut journal = open().unwrap();
    commit(&mut journal, &[(1, "a", Change::Put)]);
    journal.segment = Some(Segment::create(&journal.dir, 1).unwrap());
    journal.record_newest();
    commit(&mut journal, &[(2, "b", Change::Put)]);
    drop(journal);
    drop(open().unwrap());
    std::fs::remove_file(dir.path().join("store").join(segment_name(1))).unwrap();
    let error = open().err().unwrap().to_string();
    assert!(error.contains("revision 1"), "{error}");
}
