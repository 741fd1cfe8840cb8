//! Finalizers that are put on and taken off by an update of the live object, which is what the official
//! rules allow.

use longshore_cluster::{Api, ApiError, Cache, Cacheable};
use longshore_core::model::{Kind, ObjectKey};
use serde_json::{Value, json};

/// How often a finalizer is tried when others write to the object at the same time.
const TRIES: u32 = 6;

/// What became of an object's finalizers.
pub(crate) enum Change {
    /// They are changed; the object as it is now.
    Written(Value),
    /// They were as they shall be.
    None,
    Gone,
}

impl Change {
    /// Shows what was written to the loops of this process.
    pub(crate) fn assume_in<T: Cacheable>(&self, cache: &Cache<T>) {
        if let Self::Written(object) = self {
            cache.assume(object);
        }
    }
}

pub(crate) async fn add_finalizer<T: Kind>(
    api: &Api,
    key: &ObjectKey,
    finalizer: &str,
) -> Result<Change, ApiError> {
    change_finalizers::<T>(api, key, |all| {
        let missing = !all.iter().any(|one| one == finalizer);
        if missing {
            all.push(json!(finalizer));
        }
        missing
    })
    .await
}

pub(crate) async fn remove_finalizer<T: Kind>(
    api: &Api,
    key: &ObjectKey,
    finalizer: &str,
) -> Result<Change, ApiError> {
    change_finalizers::<T>(api, key, |all| {
        let before = all.len();
        all.retain(|one| one != finalizer);
        all.len() != before
    })
    .await
}

async fn change_finalizers<T: Kind>(
    api: &Api,
    key: &ObjectKey,
    change: impl Fn(&mut Vec<Value>) -> bool,
) -> Result<Change, ApiError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let Some(mut object) = api.get_raw::<T>(key).await? else { return Ok(Change::Gone) };
        let mut all = match object["metadata"]["finalizers"].take() {
            Value::Array(all) => all,
            _ => Vec::new(),
        };
        if !change(&mut all) {
            return Ok(Change::None);
        }
        object["metadata"]["finalizers"] = Value::Array(all);
        match api.update::<T>(&object).await {
            Ok(written) => return Ok(Change::Written(written)),
            Err(error) if error.is_not_found() => return Ok(Change::Gone),
            Err(error) if error.is_conflict() && tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
}
