//! The default service account of each namespace.

use std::sync::Arc;

use serde_json::json;

use crate::error::ApiResult;
use crate::ops::{Core, Target, WriteOptions};

/// Makes the account unless it is there or the namespace is going.
pub(super) async fn ensure(core: &Core, namespace: &str) -> ApiResult<()> {
    let registry = core.registry();
    let accounts = registry.core("serviceaccounts");
    let there = core.store.get(&accounts.key(namespace, "default")).is_some();
    let key = registry.core("namespaces").key("", namespace);
    let living = core.store.get(&key).is_some_and(|found| !found.deleting);
    if there || !living {
        return Ok(());
    }
    let target = Target {
        resource: Arc::clone(accounts),
        namespace: namespace.to_owned(),
        name: String::new(),
    };
    let body = json!({"metadata": {"name": "default"}});
    match core.create(&target, body, &[], WriteOptions::default()).await {
        Ok(_) => Ok(()),
        // Another client has created it, or the namespace has just begun to terminate.
        Err(status) if matches!(status.code, 403 | 404 | 409) => Ok(()),
        Err(status) => Err(status),
    }
}
