use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use super::record::{Content, VERSION};
use super::*;
use crate::fault::Faults;

const EXCLUSIVE: Role<'static> = Role {
    controller: true,
    exclusive: true,
    elsewhere: false,
    node_id: "n1",
    overcommit: 1.0,
    faults: &Faults::NONE,
};

fn record(name: &str, capacity_bytes: u64) -> Record {
    Record {
        version: VERSION,
        id: VolumeId::for_name("", name),
        name: name.to_owned(),
        capacity_bytes,
        fstype: None,
        block: true,
        ephemeral: false,
        parameters: BTreeMap::new(),
        mutable_parameters: BTreeMap::new(),
        content: Content::Blank,
        source: None,
        shares: false,
        attachments: vec![],
        created: jiff::Timestamp::UNIX_EPOCH,
    }
}

fn open(dir: &Path) -> Pool {
    Pool::open(&PoolConfig::new("p", dir), EXCLUSIVE).expect("pool opens")
}

fn delete(pool: &Pool, id: &VolumeId) {
    pool.delete(id, |_| Ok::<_, PoolError>(())).expect("deleted");
}

fn files(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
    let mut names: Vec<_> = names.map(|n| n.into_string().unwrap()).collect();
    names.retain(|name| name != names::LOCK);
    names.sort();
    names
}

#[test]
fn a_volume_comes_and_goes() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("deep/pool");
    let pool = open(&dir);
    let record = record("a", 8 << 20);
    pool.create(&record).unwrap();
    assert_eq!(pool.read(&record.id).unwrap(), Some(record.clone()));
    assert_eq!(pool.list().unwrap(), std::slice::from_ref(&record.id));

    let image = dir.join(names::image(&record.id));
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&dir), mode(&image)), (0o700, 0o600));
    assert_eq!(image.metadata().unwrap().len(), 8 << 20);
    assert_eq!(files(&dir), [names::image(&record.id), names::record(&record.id)]);

    delete(&pool, &record.id);
    delete(&pool, &record.id);
    assert!(files(&dir).is_empty());
}

#[test]
fn one_controller_at_a_time() {
    let tmp = tempfile::tempdir().unwrap();
    let first = open(tmp.path());
    let second = Pool::open(&PoolConfig::new("p", tmp.path()), EXCLUSIVE);
    assert!(matches!(second, Err(PoolError::Busy { .. })), "{second:?}");
    drop(first);
    open(tmp.path());
}

#[test]
fn space_is_promised_once() {
    let tmp = tempfile::tempdir().unwrap();
    let mut config = PoolConfig::new("p", tmp.path());
    config.limit_bytes = Some(10 << 20);
    let pool = Pool::open(&config, EXCLUSIVE).unwrap();
    pool.create(&record("a", 6 << 20)).unwrap();
    let refused = pool.create(&record("b", 6 << 20));
    assert!(matches!(refused, Err(PoolError::Full { .. })), "{refused:?}");
    assert_eq!(pool.allocatable_bytes(1.0).unwrap(), 4 << 20);
    drop(pool);

    // The sum is rebuilt from the disk, and given back by a delete.
    let pool = Pool::open(&config, EXCLUSIVE).unwrap();
    assert_eq!(pool.allocatable_bytes(1.0).unwrap(), 4 << 20);
    delete(&pool, &record("a", 0).id);
    assert_eq!(pool.allocatable_bytes(1.0).unwrap(), 10 << 20);
    assert_eq!(files(tmp.path()), Vec::<String>::new());
}

/// Each row is a directory as a crash may leave it, and what must stand after the next start.
#[test]
fn crash_points_are_settled() {
    type Names = fn(&VolumeId) -> String;
    let blank: Names = names::image;
    let cases: [(&str, &[Names], &[Names]); 8] = [
        ("create: image begun", &[names::new_image], &[]),
        ("create: both written", &[names::new_image, names::new_record], &[]),
        ("create: image named", &[blank, names::new_record], &[blank, names::record]),
        ("create: committed", &[blank, names::record], &[blank, names::record]),
        ("delete: committed", &[blank, names::deleting], &[]),
        ("delete: image gone", &[names::deleting], &[]),
        ("format begun", &[blank, names::record, names::formatting], &[blank, names::record]),
        ("update begun", &[blank, names::record, names::temporary], &[blank, names::record]),
    ];
    for (case, before, after) in cases {
        let tmp = tempfile::tempdir().unwrap();
        let record = record("a", 1 << 20);
        for name in before {
            let name = name(&record.id);
            let bytes = if name.ends_with(".json") { render(&record) } else { vec![] };
            std::fs::write(tmp.path().join(name), bytes).unwrap();
        }
        let pool = open(tmp.path());
        let mut want: Vec<_> = after.iter().map(|name| name(&record.id)).collect();
        want.sort();
        assert_eq!(files(tmp.path()), want, "{case}");
        // And the name is as free, or as taken, as it looks.
        let exists = pool.read(&record.id).unwrap().is_some();
        assert_eq!(exists, !want.is_empty(), "{case}");
        if !exists {
            pool.create(&record).expect(case);
        }
    }
}

/// A power failure may leave a record that was named and never flushed.
#[test]
fn an_empty_record_beside_a_blank_image_is_no_volume() {
    for (blank, left) in [(true, 0), (false, 2)] {
        let tmp = tempfile::tempdir().unwrap();
        let id = VolumeId::for_name("", "a");
        std::fs::write(tmp.path().join(names::record(&id)), b"").unwrap();
        let image = if blank { vec![0; 4096] } else { b"precious".to_vec() };
        std::fs::write(tmp.path().join(names::image(&id)), image).unwrap();
        let pool = open(tmp.path());
        assert_eq!(pool.list().unwrap().is_empty(), blank);
        assert_eq!(
            pool.read(&id).is_ok(),
            blank,
            "a volume with data and no record is out of service"
        );
        assert_eq!(files(tmp.path()).len(), left, "blank: {blank}");
        assert_eq!(pool.create(&record("a", 1 << 20)).is_ok(), blank);
    }
}

#[test]
fn what_is_not_ours_stays() {
    let tmp = tempfile::tempdir().unwrap();
    let id = VolumeId::for_name("", "a");
    let image = tmp.path().join(names::image(&id));
    std::fs::write(&image, b"precious").unwrap();
    std::fs::write(tmp.path().join("notes.txt"), b"x").unwrap();
    let pool = open(tmp.path());
    let refused = pool.create(&record("a", 1 << 20));
    assert!(matches!(refused, Err(PoolError::InTheWay(_))), "{refused:?}");
    delete(&pool, &id);
    assert_eq!(std::fs::read(&image).unwrap(), b"precious");
    assert_eq!(files(tmp.path()), ["notes.txt".to_owned(), names::image(&id)]);
}

#[test]
fn links_are_not_followed() {
    let tmp = tempfile::tempdir().unwrap();
    let outside = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(outside.path(), render(&record("a", 1 << 20))).unwrap();
    let id = VolumeId::for_name("", "a");
    let pool = open(tmp.path());
    for name in [names::record(&id), names::image(&id)] {
        std::os::unix::fs::symlink(outside.path(), tmp.path().join(name)).unwrap();
    }
    assert!(pool.read(&id).is_err());
    assert!(pool.image(&id, OFlags::RDWR).is_err());
    let refused = pool.delete(&id, |_| Ok::<_, PoolError>(()));
    assert!(refused.is_err());
    assert!(outside.path().exists());

    let link = tmp.path().join("link");
    std::os::unix::fs::symlink(tmp.path(), &link).unwrap();
    assert!(Pool::open(&PoolConfig::new("p", &link), EXCLUSIVE).is_err());
}

#[test]
fn a_record_from_the_future_is_left_alone() {
    let tmp = tempfile::tempdir().unwrap();
    let mut newer = record("a", 1 << 20);
    newer.version = VERSION + 1;
    std::fs::write(tmp.path().join(names::record(&newer.id)), render(&newer)).unwrap();
    let pool = open(tmp.path());
    assert!(matches!(pool.read(&newer.id), Err(PoolError::BadRecord { .. })));
    assert!(tmp.path().join(names::record(&newer.id)).exists());
}

#[test]
fn updates_take_turns() {
    let tmp = tempfile::tempdir().unwrap();
    let pool = open(tmp.path());
    let record = record("a", 1 << 20);
    pool.create(&record).unwrap();
    let node = Role { controller: false, exclusive: false, node_id: "n2", ..EXCLUSIVE };
    let other = Pool::open(&PoolConfig::new("p", tmp.path()), node).unwrap();
    std::thread::scope(|scope| {
        for pool in [&pool, &other] {
            let id = &record.id;
            scope.spawn(move || {
                for _ in 0..25 {
                    let change = |r: &mut Record| -> Result<(), PoolError> {
                        r.capacity_bytes += 1;
                        Ok(())
                    };
                    pool.update(id, change).unwrap();
                }
            });
        }
    });
    assert_eq!(pool.read(&record.id).unwrap().unwrap().capacity_bytes, (1 << 20) + 50);
}
