//! The journal on disk: a redb database holding the current state.
//!
//! Table `objects`: key `resource NUL namespace NUL name`, value `crc32 | revision | JSON`. Table
//! `meta`: the format version and the newest revision. redb checks its own pages after a crash;
//! the checksum per record also finds damage that happens later, on the medium.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, TableDefinition};

use super::journal::{Entry, Journal, JournalError, Loaded};
use super::state::Key;

const OBJECTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("objects");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const FORMAT: u64 = 1;
/// All reads after start come from our own memory, so the page cache stays small.
const CACHE_BYTES: usize = 8 << 20;
const HEADER_BYTES: usize = 12;

/// The journal in a file.
pub struct DiskJournal {
    path: PathBuf,
    database: Database,
}

impl DiskJournal {
    /// Opens or creates the database file.
    ///
    /// # Errors
    /// When another process has it open, or it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let database =
            Database::builder().set_cache_size(CACHE_BYTES).create(path).map_err(|error| {
                match error {
                    DatabaseError::DatabaseAlreadyOpen => {
                        JournalError::Locked { path: path.into() }
                    }
                    other => failed("opening", path, other),
                }
            })?;
        Ok(Self { path: path.into(), database })
    }

    fn read(&self) -> Result<Loaded, redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut meta = transaction.open_table(META)?;
            if meta.get("format")?.is_none() {
                meta.insert("format", FORMAT)?;
                meta.insert("revision", 0)?;
            }
            transaction.open_table(OBJECTS)?;
        }
        transaction.commit()?;
        let transaction = self.database.begin_read()?;
        let meta = transaction.open_table(META)?;
        let revision = meta.get("revision")?.map_or(0, |v| v.value());
        let mut loaded = Loaded { revision, objects: Vec::new() };
        for row in transaction.open_table(OBJECTS)?.iter()? {
            let (key, value) = row?;
            match decode(key.value(), value.value()) {
                Ok(object) => loaded.objects.push(object),
                Err(why) => {
                    let key = String::from_utf8_lossy(key.value()).replace('\0', "/");
                    return Err(redb::Error::Corrupted(format!("{key}\0{why}")));
                }
            }
        }
        Ok(loaded)
    }

    fn format(&self) -> Result<u64, redb::Error> {
        let transaction = self.database.begin_read()?;
        match transaction.open_table(META) {
            Ok(meta) => Ok(meta.get("format")?.map_or(FORMAT, |v| v.value())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(FORMAT),
            Err(other) => Err(other.into()),
        }
    }

    fn write(&self, batch: &[Entry<'_>]) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::Immediate)?;
        // Reopening after a crash then takes no scan of the file.
        transaction.set_quick_repair(true);
        {
            let mut objects = transaction.open_table(OBJECTS)?;
            for entry in batch {
                let key = encode_key(entry.key);
                match entry.body {
                    Some(body) => {
                        objects.insert(key.as_slice(), encode(entry.revision, body).as_slice())?
                    }
                    None => objects.remove(key.as_slice())?,
                };
            }
            if let Some(last) = batch.last() {
                transaction.open_table(META)?.insert("revision", last.revision)?;
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

impl Journal for DiskJournal {
    fn load(&mut self) -> Result<Loaded, JournalError> {
        let found = self.format().map_err(|e| failed("reading", &self.path, e))?;
        if found != FORMAT {
            return Err(JournalError::Format { path: self.path.clone(), found, expected: FORMAT });
        }
        self.read().map_err(|error| match error {
            redb::Error::Corrupted(text) => match text.split_once('\0') {
                Some((key, why)) => JournalError::Corrupt { key: key.into(), why: why.into() },
                None => failed("reading", &self.path, redb::Error::Corrupted(text)),
            },
            other => failed("reading", &self.path, other),
        })
    }

    fn commit(&mut self, batch: &[Entry<'_>]) -> Result<(), JournalError> {
        self.write(batch).map_err(|e| failed("writing", &self.path, e))
    }

    fn blocks(&self) -> bool {
        true
    }
}

fn failed(
    operation: &'static str,
    path: &Path,
    source: impl std::error::Error + Send + Sync + 'static,
) -> JournalError {
    JournalError::Database { operation, path: path.into(), source: Box::new(source) }
}

fn encode_key(key: &Key) -> Vec<u8> {
    [key.resource.as_bytes(), key.namespace.as_bytes(), key.name.as_bytes()].join(&0)
}

fn encode(revision: u64, body: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEADER_BYTES + body.len());
    value.extend_from_slice(&[0; 4]);
    value.extend_from_slice(&revision.to_be_bytes());
    value.extend_from_slice(body);
    let sum = crc32fast::hash(&value[4..]);
    value[..4].copy_from_slice(&sum.to_be_bytes());
    value
}

fn decode(key: &[u8], value: &[u8]) -> Result<(Key, u64, Vec<u8>), String> {
    let text = std::str::from_utf8(key).map_err(|e| e.to_string())?;
    let mut parts = text.split('\0');
    let (Some(resource), Some(namespace), Some(name), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("the key is not resource, namespace and name".into());
    };
    let (Some((sum, rest)), true) = (value.split_first_chunk::<4>(), value.len() >= HEADER_BYTES)
    else {
        return Err("the record is cut short".into());
    };
    if crc32fast::hash(rest) != u32::from_be_bytes(*sum) {
        return Err("the checksum does not match".into());
    }
    let (revision, body) = rest.split_first_chunk::<8>().ok_or("the record is cut short")?;
    let key = Key { resource: Arc::from(resource), namespace: namespace.into(), name: name.into() };
    Ok((key, u64::from_be_bytes(*revision), body.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key { resource: Arc::from("configmaps"), namespace: "ns".into(), name: name.into() }
    }

    #[test]
    fn state_survives_reopening() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        let (a, b) = (key("a"), key("b"));
        {
            let mut journal = DiskJournal::open(&path).unwrap();
            assert_eq!(journal.load().unwrap().revision, 0);
            let put = |revision, key, body| Entry { revision, key, body };
            journal.commit(&[put(1, &a, Some(b"{}")), put(2, &b, Some(b"{}"))]).unwrap();
            journal.commit(&[put(3, &b, None)]).unwrap();
        }
        let loaded = DiskJournal::open(&path).unwrap().load().unwrap();
        assert_eq!(loaded.revision, 3, "deletions count too");
        assert_eq!(loaded.objects, [(a, 1, b"{}".to_vec())]);
    }

    #[test]
    fn damage_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        let mut journal = DiskJournal::open(&path).unwrap();
        journal.load().unwrap();
        let transaction = journal.database.begin_write().unwrap();
        {
            let mut value = encode(1, br#"{"a":1}"#);
            value[HEADER_BYTES + 2] ^= 1;
            let mut objects = transaction.open_table(OBJECTS).unwrap();
            objects.insert(encode_key(&key("a")).as_slice(), value.as_slice()).unwrap();
        }
        transaction.commit().unwrap();
        let error = journal.load().unwrap_err();
        assert!(
            matches!(&error, JournalError::Corrupt { key, .. } if key == "configmaps/ns/a"),
            "{error}"
        );
    }

    #[test]
    fn a_second_process_is_kept_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.redb");
        let _first = DiskJournal::open(&path).unwrap();
        assert!(matches!(DiskJournal::open(&path), Err(JournalError::Locked { .. })));
    }
}
