use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;

use super::*;
use crate::config::FsType;
use crate::fault::Faults;
use crate::id::{GroupId, VolumeId};
use crate::pool::Role;
use crate::pool::record::VERSION;

const SIZE: u64 = 24 << 20;

/// A pool with a driver, which has one snapshot.
struct Home {
    dir: tempfile::TempDir,
    pool: Pool,
    id: SnapshotId,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let role = Role {
            controller: true,
            exclusive: true,
            elsewhere: false,
            node_id: "n1",
            overcommit: 1.0,
            faults: &Faults::NONE,
        };
        let pool = Pool::open(&PoolConfig::new("p", dir.path().join("from")), role).unwrap();
        let id = SnapshotId::for_name("", "s");
        let draft = pool.draft_snapshot(&id, 1 << 20).unwrap();
        draft.set_len(SIZE).unwrap();
        draft.write_all_at(b"first", 0).unwrap();
        draft.write_all_at(&vec![7; (2 << 20) + 5], 9 << 20).unwrap();
        draft.write_all_at(b"last", SIZE - 4).unwrap();
        let mut record = SnapshotRecord {
            version: VERSION,
            id: id.clone(),
            name: "s".into(),
            source: VolumeId::for_name("", "v"),
            size_bytes: SIZE,
            data_bytes: 0,
            fstype: Some(FsType::Ext4),
            block: false,
            content: Content::Filesystem,
            shares: false,
            group: None,
            created: "2026-01-02T03:04:05.678Z".parse().unwrap(),
        };
        pool.commit_snapshot(&mut record, &draft, Method::Separate).unwrap();
        fs::create_dir(dir.path().join("to")).unwrap();
        Self { dir, pool, id }
    }

    fn to(&self) -> PathBuf {
        self.dir.path().join("to")
    }

    fn exported(&self) -> Vec<u8> {
        let mut file = Vec::new();
        let empty = self.dir.path().join("not-there");
        let pools = [empty.as_path(), self.pool.path()];
        let done = export(&pools, self.id.as_str(), &mut file).unwrap();
        assert_eq!((done.size_bytes, done.file_bytes), (SIZE, file.len() as u64));
        file
    }

    fn import(&self, name: &str, file: &[u8]) -> Result<Transferred, TransferError> {
        import(&self.to(), name, &mut &file[..])
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.to()).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[test]
fn a_snapshot_is_the_same_in_another_pool() {
    let home = Home::new();
    let file = home.exported();
    assert!(file.len() < 5 << 20, "holes are left out: {}", file.len());
    assert!(file.starts_with(b"longshore snapshot 1\n{\"version\":1,"));
    let done = home.import("default/s", &file).unwrap();
    assert_ne!(done.id, home.id);
    assert!(!done.raw);
    let there = visit(&home.to()).unwrap();
    let (old, new) = (
        home.pool.snapshot(&home.id).unwrap().unwrap(),
        there.snapshot(&done.id).unwrap().unwrap(),
    );
    assert_eq!((new.size_bytes, new.fstype, new.content), (SIZE, old.fstype, old.content));
    assert_eq!((&new.source, new.created, new.group), (&old.source, old.created, None::<GroupId>));
    let bytes = |pool: &Pool, id| {
        let file = pool.snapshot_image(id).unwrap();
        assert!(file.metadata().unwrap().blocks() * 512 < 6 << 20, "holes were filled");
        let mut bytes = vec![1; SIZE as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(file.metadata().unwrap().len(), SIZE);
        bytes
    };
    assert!(bytes(&home.pool, &home.id) == bytes(&there, &done.id), "the copy differs");
    // Again it is the same one; under another name, or taken back, it is another one.
    assert_eq!(home.import("default/s", &file).unwrap(), done);
    assert_ne!(home.import("default/t", &file).unwrap().id, done.id);
    remove(&home.to(), &done.id).unwrap();
    assert!(there.snapshot(&done.id).unwrap().is_none());
    assert_eq!(home.import("default/s", &file).unwrap(), done);
}

#[test]
fn nothing_of_a_short_or_damaged_file_becomes_a_snapshot() {
    let home = Home::new();
    let file = home.exported();
    for cut in (0..400).chain((400..file.len()).step_by(50_021)).chain([file.len() - 1]) {
        let error = home.import("s", &file[..cut]).unwrap_err();
        let short = matches!(error, TransferError::Short(at) if at == cut as u64);
        assert!(short || cut < 21 && matches!(error, TransferError::NotOurs), "{cut}: {error}");
    }
    let bits = (0..3200).chain((3200..file.len() * 8).step_by(500_029));
    for bit in bits.chain((file.len() * 8 - 600..file.len() * 8).step_by(37)) {
        let mut changed = file.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        home.import("s", &changed).expect_err("a changed bit");
    }
    let mut longer = file.clone();
    longer.push(b'\n');
    let error = home.import("s", &longer).unwrap_err();
    assert_eq!(
        error.to_string(),
        "it is damaged: something follows its end; export or copy it again"
    );
    for (text, want) in [
        ("", "it does not begin as an exported snapshot does"),
        ("#!/bin/sh\n", "it does not begin as an exported snapshot does"),
        ("longshore snapshot 2\n", "it has form 2, which a newer program wrote"),
    ] {
        let error = home.import("s", text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(want), "{text:?}: {error}");
    }
    assert_eq!(home.files(), Vec::<String>::new(), "a draft was left");
}

#[test]
fn what_is_not_there_is_said() {
    let home = Home::new();
    let mut out = Vec::new();
    for handle in ["snap-00000000000000000000000000000000", "snap", "vol-1"] {
        let error = export(&[home.pool.path()], handle, &mut out).unwrap_err();
        assert_eq!(error.to_string(), format!("snapshot {handle} is in none of the pools"));
    }
    let error = import(&home.dir.path().join("typo"), "s", &mut &[][..]).unwrap_err();
    assert!(error.to_string().contains("the directory does not exist"), "{error}");
    assert!(!home.dir.path().join("typo").exists());
}

/// Two imports of one file under one name: one of them, and nothing of the other.
#[test]
fn imports_do_not_meet() {
    let home = Home::new();
    let file = home.exported();
    let pool = visit(&home.to()).unwrap();
    let (_, record) = read::Reader::begin(&mut &file[..]).unwrap();
    let id = SnapshotId::imported("s", &record.id, record.created);
    let _other = pool.draft_snapshot(&id, 1).unwrap();
    let error = home.import("s", &file).unwrap_err().to_string();
    assert!(error.contains("is being imported by another process"), "{error}");
    pool.drop_draft(&id).unwrap();
    home.import("s", &file).unwrap();
    let all = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..8).map(|_| scope.spawn(|| home.import("many", &file))).collect();
        tries.into_iter().map(|one| one.join().unwrap()).filter_map(Result::ok).collect::<Vec<_>>()
    });
    assert!(!all.is_empty());
    assert!(all.iter().all(|one| *one == all[0]));
    assert_eq!(home.files().len(), 4, "{:?}", home.files());
}
