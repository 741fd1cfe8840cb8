//! `pods/binding`: the scheduler's decision.

use serde_json::{Value, json};

use super::{Core, DeleteOptions, MAX_ATTEMPTS, Part, Source, Target, WriteOptions, write_failed};
use crate::error::{ApiResult, Cause, Status};
use crate::patch::Patch;
use crate::store::{Expect, Room, Write, WriteError};

impl Core {
    /// Binds a pod to a node.
    /// Fails with 409 when it is bound already.
    pub(crate) async fn bind(
        &self,
        target: &Target,
        binding: &Value,
        dry_run: bool,
    ) -> ApiResult<()> {
        let node = binding["target"]["name"].as_str().unwrap_or_default();
        if node.is_empty() {
            let causes = vec![Cause::required("target.name", "")];
            return Err(Status::invalid_kind("", "Binding", &target.name, causes));
        }
        let kind = binding["target"]["kind"].as_str().unwrap_or_default();
        if !kind.is_empty() && kind != "Node" {
            let causes = vec![Cause::not_supported("target.kind", kind, &["Node", "<empty>"])];
            return Err(Status::invalid_kind("", "Binding", &target.name, causes));
        }
        let result = self.try_bind(target, binding, node, dry_run).await;
        self.visible(&target.key(), result).await
    }

    async fn try_bind(
        &self,
        target: &Target,
        binding: &Value,
        node: &str,
        dry_run: bool,
    ) -> ApiResult<()> {
        for _ in 0..MAX_ATTEMPTS {
            let stored = self.store.head(&target.key()).ok_or_else(|| target.not_found())?;
            let pod = bound(target, stored.value(), binding, node, &self.env.now_text())?;
            if dry_run {
                return Ok(());
            }
            let write = Write {
                key: target.key(),
                expect: Expect::Revision(stored.revision),
                object: pod,
                managers: None,
                delete: false,
                guards: Vec::new(),
                room: Room::Reserve,
            };
            match self.write(write).await {
                Ok(_) => return Ok(()),
                Err(WriteError::Conflict(_)) => {}
                Err(failed) => return Err(write_failed(&failed)),
            }
        }
        Err(write_failed(&WriteError::Conflict(target.key())))
    }
}

impl Core {
    /// Deletes a pod on behalf of a client that drains its node.
    pub(crate) async fn evict(&self, target: &Target, options: &DeleteOptions) -> ApiResult<()> {
        let patch = json!({"status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastTransitionTime": self.env.now_text(),
        }]}});
        let source = Source::Patch(Patch::Strategic(patch));
        let write = WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() };
        self.update(target, Part::Status, &source, write).await?;
        self.delete(target, options).await?;
        Ok(())
    }
}

fn bound(
    target: &Target,
    mut pod: Value,
    binding: &Value,
    node: &str,
    now: &str,
) -> ApiResult<Value> {
    let name = &target.name;
    let refuse = |why: &str| {
        let mut status = Status::conflict(&target.resource, name, why);
        status.message = format!("Operation cannot be fulfilled on pods/binding {name:?}: {why}");
        if let Some(details) = &mut status.details {
            details["kind"] = json!("pods/binding");
        }
        Err(status)
    };
    let uid = binding["metadata"]["uid"].as_str().unwrap_or_default();
    let is = pod["metadata"]["uid"].as_str().unwrap_or_default();
    if !uid.is_empty() && uid != is {
        return Err(Status::other_uid(&target.resource, &target.namespace, name, uid, is));
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return refuse(&format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let on = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if !on.is_empty() {
        return refuse(&format!("pod {name} is already assigned to node {on:?}"));
    }
    pod["spec"]["nodeName"] = json!(node);
    for field in ["annotations", "labels"] {
        for (key, value) in binding["metadata"][field].as_object().into_iter().flatten() {
            pod["metadata"][field][key] = value.clone();
        }
    }
    let condition = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": now});
    let conditions = &mut pod["status"]["conditions"];
    match conditions.as_array_mut() {
        Some(list) => {
            list.retain(|c| c["type"] != "PodScheduled");
            list.push(condition);
        }
        None => *conditions = json!([condition]),
    }
    Ok(pod)
}
