//! The pods of a namespace, read from the API itself.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use longshore_cluster::{Api, ApiError, ListParams};
use longshore_core::model::kinds::Pod;
use parking_lot::Mutex;

/// A list and the moment its request was sent.
type Listed = Option<(u64, Arc<Vec<Pod>>)>;

/// Lists pods, once for all who asked before the request was sent. Deleting a thousand claims
/// of one namespace then takes a few lists, not a thousand.
#[derive(Default)]
pub(super) struct LivePods {
    /// Counts moments: asking and sending each take one.
    moment: AtomicU64,
    by_namespace: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Listed>>>>,
}

impl LivePods {
    /// The pods as they were at some time after this call.
    pub(super) async fn of(&self, api: &Api, namespace: &str) -> Result<Arc<Vec<Pod>>, ApiError> {
        let asked = self.moment.fetch_add(1, Ordering::Relaxed);
        let slot = self.by_namespace.lock().entry(namespace.to_owned()).or_default().clone();
        let mut listed = slot.lock().await;
        if let Some((sent, pods)) = &*listed
            && *sent > asked
        {
            return Ok(pods.clone());
        }
        let sent = self.moment.fetch_add(1, Ordering::Relaxed);
        let pods = Arc::new(api.list::<Pod>(Some(namespace), &ListParams::default()).await?);
        *listed = Some((sent, pods.clone()));
        Ok(pods)
    }
}
