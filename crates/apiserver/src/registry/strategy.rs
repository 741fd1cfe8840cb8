//! What a kind adds to the common handling of objects.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Registry;
use super::rules::same;
use crate::clock::Environment;
use crate::error::{ApiResult, Causes};
use crate::store::Store;

/// How `metadata.generation` is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// Not at all.
    Absent,
    /// From 1, plus one for each change of the spec.
    FromOne,
    /// Absent at first, plus one for each change of the spec.
    FromFirstChange,
}

/// Facts about a kind that the common code needs.
#[derive(Debug, Clone, Copy)]
pub struct Traits {
    /// Whether names must be DNS labels instead of subdomains.
    pub label_names: bool,
    /// Whether names may be anything that fits into a path.
    pub path_names: bool,
    /// Whether the kind has a `/status` subresource.
    pub status: bool,
    /// Whether a status sent at creation is kept.
    pub status_at_creation: bool,
    /// Whether labels, annotations and finalizers can be changed through `/status`.
    pub status_metadata: bool,
    /// Whether an update may come without a resourceVersion.
    pub unconditional_update: bool,
    /// Whether an update creates the object when it is not there.
    pub create_on_update: bool,
    /// Whether deletion returns the object instead of a Status.
    pub returns_deleted: bool,
    /// How generations are counted.
    pub generation: Generation,
}

impl Traits {
    /// Plain core kinds: subdomain names, no status, unconditional update, Status on deletion.
    pub const PLAIN: Self = Self {
        label_names: false,
        path_names: false,
        status: false,
        status_at_creation: false,
        status_metadata: false,
        unconditional_update: true,
        create_on_update: false,
        returns_deleted: false,
        generation: Generation::Absent,
    };
    /// Core kinds with a status.
    pub const WITH_STATUS: Self =
        Self { status: true, status_metadata: true, returns_deleted: true, ..Self::PLAIN };
}

/// What rules may look at beside the object.
#[derive(Clone)]
pub struct Context<'a> {
    pub store: &'a Store,
    pub registry: Arc<Registry>,
    /// Time and randomness.
    pub env: &'a Environment,
    /// What differs from server to server.
    pub settings: Settings,
}

/// What differs from server to server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Whether pods have service accounts and tokens as in a cluster.
    pub default_accounts: bool,
    /// How long a deleted namespace is left alone before its content goes.
    pub namespace_grace: Duration,
    /// Gate `CSIVolumeHealth`: whether the health of volumes and of storage can be set.
    pub volume_health: bool,
}

/// The rules of one kind. Objects have passed the kind's codec, so types can be relied on.
///
/// `default` runs on every object a client sends; the `prepare` steps bring client input and
/// stored state together; `admit` steps may look at other objects; `validate` steps only judge.
pub trait Strategy: Send + Sync + 'static {
    /// Fills in defaults.
    fn default(&self, _object: &mut Value) {}

    fn prepare_create(&self, _object: &mut Value, _cx: &Context<'_>) {}

    /// Looks at other objects before a creation.
    fn admit_create(&self, _object: &mut Value, _cx: &Context<'_>) -> ApiResult<()> {
        Ok(())
    }

    /// Judges a new object.
    fn validate_create(&self, _object: &Value) -> Causes {
        Causes::new()
    }

    /// Readies a changed object; the status has been restored already.
    fn prepare_update(&self, _new: &mut Value, _old: &Value, _cx: &Context<'_>) {}

    /// Looks at other objects before a change.
    fn admit_update(&self, _new: &Value, _old: &Value, _cx: &Context<'_>) -> ApiResult<()> {
        Ok(())
    }

    /// Judges a changed object.
    fn validate_update(&self, new: &Value, _old: &Value) -> Causes {
        self.validate_create(new)
    }

    /// Readies a status change; everything else has been restored already.
    fn prepare_status(&self, _new: &mut Value, _old: &Value, _cx: &Context<'_>) {}

    /// Judges a status change.
    fn validate_status(&self, _new: &Value, _old: &Value) -> Causes {
        Causes::new()
    }

    /// Texts for the `Warning` header.
    fn warnings(&self, _object: &Value) -> Vec<String> {
        Vec::new()
    }

    /// Readies an object that is marked for deletion.
    fn prepare_delete(&self, _object: &mut Value, _cx: &Context<'_>) {}

    /// Whether the change counts as a new generation.
    fn is_new_generation(&self, new: &Value, old: &Value) -> bool {
        !same(&new["spec"], &old["spec"])
    }
}

/// For kinds without rules of their own.
pub(crate) struct NoRules;

impl Strategy for NoRules {}
