//! Deletion.

use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::{Value, json};

use longshore_core::model::keys::finalizers::{FOREGROUND, ORPHAN};

use super::update::is_finished;
use super::{Core, MAX_ATTEMPTS, Target, Written, write_failed};
use crate::clock::time_text;
use crate::error::{ApiResult, Status};
use crate::store::{Expect, Room, Stored, Write, WriteError};

/// Namespaces that the server itself needs.
const PROTECTED: &[&str] = &["default", "kube-system", "kube-public"];

/// What happens to the dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Propagation {
    /// They are deleted afterwards.
    #[default]
    Background,
    /// They are deleted first.
    Foreground,
    /// They stay and lose their owner.
    Orphan,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    /// Do everything but store.
    pub dry_run: bool,
    /// The object must have this uid.
    pub uid: Option<String>,
    /// The object must be at this version.
    pub resource_version: Option<String>,
    /// Seconds until a pod is gone.
    pub grace_period_seconds: Option<i64>,
    /// What happens to the dependents; `None` keeps what is set already.
    pub propagation: Option<Propagation>,
}

/// What became of the object.
pub(crate) enum Deleted {
    /// It is gone.
    Removed(Written),
    /// It is marked and waits for finalizers, its content, or the end of its grace period.
    Marked(Written),
}

impl Core {
    /// Deletes an object, or marks it for deletion.
    pub(crate) async fn delete(
        &self,
        target: &Target,
        options: &DeleteOptions,
    ) -> ApiResult<Deleted> {
        let result = self.try_delete(target, options).await;
        self.visible(&target.key(), result).await
    }

    async fn try_delete(&self, target: &Target, options: &DeleteOptions) -> ApiResult<Deleted> {
        let resource = &target.resource;
        if &*resource.storage == "namespaces" && PROTECTED.contains(&target.name.as_str()) {
            let why = "this namespace may not be deleted";
            return Err(Status::forbidden(resource, &target.name, why));
        }
        for _ in 0..MAX_ATTEMPTS {
            let stored = self.store.head(&target.key()).ok_or_else(|| target.not_found())?;
            check_preconditions(target, &stored, options)?;
            let old = stored.value();
            let new = self.mark(target, &old, options);
            if new == old {
                self.store.settled(&target.key()).await;
                return Ok(Deleted::Marked(Written::Stored(stored)));
            }
            let gone = is_finished(&new);
            // A pod that is removed still shows that and when it was to end; others as they were.
            let graceful = &*resource.storage == "pods";
            let object = if gone && !graceful { old } else { new };
            let written = if options.dry_run {
                Written::Dry(object)
            } else {
                match self.finish(target, &stored, object, gone).await {
                    Ok(stored) => Written::Stored(stored),
                    Err(WriteError::Conflict(_)) => continue,
                    Err(failed) => return Err(write_failed(&failed)),
                }
            };
            return Ok(if gone { Deleted::Removed(written) } else { Deleted::Marked(written) });
        }
        Err(write_failed(&WriteError::Conflict(target.key())))
    }

    async fn finish(
        &self,
        target: &Target,
        stored: &Stored,
        object: Value,
        delete: bool,
    ) -> Result<Arc<Stored>, WriteError> {
        let expect = Expect::Revision(stored.revision);
        let key = target.key();
        let (guards, room) = (Vec::new(), Room::Reserve);
        let write = Write { key, expect, object, managers: None, delete, guards, room };
        self.write(write).await
    }

    /// The object marked for deletion; unchanged when it is marked already.
    fn mark(&self, target: &Target, old: &Value, options: &DeleteOptions) -> Value {
        let mut new = old.clone();
        set_propagation(&mut new, options.propagation);
        let storage = &*target.resource.storage;
        let already = !old["metadata"]["deletionTimestamp"].is_null();
        if storage == "namespaces" {
            if !already {
                new["metadata"]["deletionTimestamp"] = json!(self.env.now_text());
                new["status"]["phase"] = json!("Terminating");
            }
            return new;
        }
        let grace =
            if storage == "pods" { pod_grace(old, options.grace_period_seconds) } else { 0 };
        let was = old["metadata"]["deletionGracePeriodSeconds"].as_i64();
        if already && was.is_some_and(|was| was <= grace) {
            return new;
        }
        let end = self.env.now().checked_add(SignedDuration::from_secs(grace));
        let end = end.unwrap_or(jiff::Timestamp::MAX);
        if !already {
            target.resource.strategy.prepare_delete(&mut new, &self.context());
        }
        new["metadata"]["deletionTimestamp"] = json!(time_text(end));
        new["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        if let Some(generation) = old["metadata"]["generation"].as_i64() {
            new["metadata"]["generation"] = json!(generation + 1);
        }
        new
    }
}

fn check_preconditions(target: &Target, stored: &Stored, options: &DeleteOptions) -> ApiResult<()> {
    let version = stored.revision.to_string();
    let why = match (&options.uid, &options.resource_version) {
        (Some(uid), _) if *uid != stored.uid => format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            stored.uid
        ),
        (_, Some(wanted)) if *wanted != version => format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({version}). The object might have been modified"
        ),
        _ => return Ok(()),
    };
    Err(Status::conflict_kind(&target.resource, &target.name, &why))
}

fn set_propagation(object: &mut Value, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let mut finalizers: Vec<Value> =
        object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    finalizers.retain(|f| f != FOREGROUND && f != ORPHAN);
    match propagation {
        Propagation::Background => {}
        Propagation::Foreground => finalizers.push(json!(FOREGROUND)),
        Propagation::Orphan => finalizers.push(json!(ORPHAN)),
    }
    if finalizers.is_empty() {
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.remove("finalizers");
        }
    } else {
        object["metadata"]["finalizers"] = json!(finalizers);
    }
}

/// A pod that never ran, or ran to its end, needs no time to stop.
fn pod_grace(pod: &Value, asked: Option<i64>) -> i64 {
    let unscheduled = pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    if unscheduled || matches!(phase, "Succeeded" | "Failed") {
        return 0;
    }
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64();
    match asked.or(own).unwrap_or(30) {
        negative if negative < 0 => 1,
        seconds => seconds,
    }
}
