//! Eviction: a pod whose scratch volume outgrew its limit is ended, as by the kubelet.

use std::time::Duration;

use longshore_cluster::{EventType, clock};
use longshore_core::model::kinds::Pod;
use tokio::time::Instant;

use super::scratch::{self, Scratch};
use super::worker::{RETRY, Worker};

/// The shortest time between two looks.
const PERIOD: Duration = Duration::from_secs(1);
/// A look that took long is followed by a pause that is so many times longer.
const PAUSE_FACTOR: u32 = 10;

/// When a pod's scratch volumes are measured next; never when none has a limit.
#[derive(Debug)]
pub(super) struct Measuring {
    limited: Vec<(String, Scratch)>,
    next: Instant,
}

impl Measuring {
    pub(super) fn new(pod: &Pod) -> Self {
        Self { limited: scratch::limited(pod), next: Instant::now() + PERIOD }
    }

    /// Waits for the next look.
    pub(super) async fn due(&self) {
        match self.limited.is_empty() {
            true => std::future::pending().await,
            false => tokio::time::sleep_until(self.next).await,
        }
    }
}

impl Worker {
    /// Measures the scratch volumes; `true` when the pod was evicted because of one.
    pub(super) async fn evict_if_over(&mut self) -> bool {
        let began = Instant::now();
        let (paths, uid) = (&self.deps.paths, &self.pod.metadata.uid);
        let volume = |(name, scratch): &(String, Scratch)| {
            (paths.own_volume(uid, "empty-dir", name), scratch.clone(), name.clone())
        };
        let volumes: Vec<_> = self.measuring.limited.iter().map(volume).collect();
        let over = tokio::task::spawn_blocking(move || {
            volumes.into_iter().find_map(|(dir, scratch, name)| {
                let used = scratch::used_bytes(&dir).ok()?;
                (used > scratch.limit?).then_some((name, scratch.text))
            })
        });
        let over = over.await.ok().flatten();
        self.measuring.next = Instant::now() + PERIOD.max(began.elapsed() * PAUSE_FACTOR);
        let Some((name, limit)) = over else { return false };
        self.evict(&format!("Usage of EmptyDir volume \"{name}\" exceeds the limit \"{limit}\". "))
            .await;
        true
    }

    async fn evict(&mut self, text: &str) {
        self.event(EventType::Warning, "Evicted", text);
        self.rejected = true;
        self.finish().await;
        self.report_failed("Evicted", text).await;
    }

    /// Reports a pod whose containers the node has ended as failed, until the API takes it.
    pub(super) async fn report_failed(&mut self, reason: &str, text: &str) {
        let next = self.decide(true);
        let mut status = self.status(&next);
        status["phase"] = "Failed".into();
        status["reason"] = reason.into();
        status["message"] = text.into();
        status["startTime"] =
            clock::seconds(self.pod.status.start_time.unwrap_or(self.since)).into();
        loop {
            match self.patch_status(&status).await {
                Ok(()) => return,
                Err(error) if error.is_not_found() => return,
                Err(error) => tracing::warn!(%error, "cannot report yet that the pod failed"),
            }
            if self.stop_reason().is_some() {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}
