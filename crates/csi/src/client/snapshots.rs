//! Snapshots of drivers with and without GetSnapshot, and with and without a snapshot topology.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use tonic::Code;

use super::Client;
use crate::capabilities::PluginService;
use crate::{Call, CsiError, v1};

/// What a driver says about one snapshot id.
#[derive(Clone, Debug, PartialEq)]
pub enum SnapshotLookup {
    /// It exists, ready or not.
    Found(v1::Snapshot),
    /// The driver has no such snapshot.
    Missing,
    /// The driver can neither get nor list snapshots, so nothing is known.
    Unsupported,
}

impl Client {
    /// Calls `CreateSnapshot`. A topology is sent, and accepted, only with SNAPSHOT_ACCESSIBILITY_CONSTRAINTS.
    pub async fn take_snapshot(
        &self,
        mut request: v1::CreateSnapshotRequest,
    ) -> Result<v1::CreateSnapshotResponse, CsiError> {
        if !self.has_snapshot_topology().await? {
            request.accessibility_requirements = None;
        }
        let mut response = self.create_snapshot(request).await?;
        if let Some(snapshot) = &mut response.snapshot {
            self.check_topology(snapshot).await?;
        }
        Ok(response)
    }

    /// Looks one snapshot up: with GetSnapshot where the driver has it, else in the list of snapshots.
    pub async fn find_snapshot(
        &self,
        id: &str,
        secrets: BTreeMap<String, String>,
    ) -> Result<SnapshotLookup, CsiError> {
        let mut found = match self.get_one_snapshot(id, &secrets).await? {
            SnapshotLookup::Unsupported => self.list_one_snapshot(id, secrets).await?,
            known => known,
        };
        if let SnapshotLookup::Found(snapshot) = &mut found {
            self.check_topology(snapshot).await?;
        }
        Ok(found)
    }

    async fn get_one_snapshot(
        &self,
        id: &str,
        secrets: &BTreeMap<String, String>,
    ) -> Result<SnapshotLookup, CsiError> {
        if !self.supports(Call::GetSnapshot).await? {
            return Ok(SnapshotLookup::Unsupported);
        }
        let request =
            v1::GetSnapshotRequest { snapshot_id: id.to_owned(), secrets: secrets.clone() };
        match self.get_snapshot(request).await {
            Ok(response) => Ok(found(response.snapshot)),
            Err(error) if error.code() == Code::NotFound => Ok(SnapshotLookup::Missing),
            // No verdict about the snapshot: the driver advertises a call that it does not implement.
            Err(error) if error.code() == Code::Unimplemented => Ok(SnapshotLookup::Unsupported),
            Err(error) => Err(error),
        }
    }

    async fn list_one_snapshot(
        &self,
        id: &str,
        secrets: BTreeMap<String, String>,
    ) -> Result<SnapshotLookup, CsiError> {
        if !self.supports(Call::ListSnapshots).await? {
            return Ok(SnapshotLookup::Unsupported);
        }
        let snapshot_id = id.to_owned();
        let request = v1::ListSnapshotsRequest { snapshot_id, secrets, ..Default::default() };
        match self.list_snapshots(request).await {
            Ok(page) => Ok(found(page.entries.into_iter().find_map(|entry| entry.snapshot))),
            Err(error) if error.code() == Code::Unimplemented => Ok(SnapshotLookup::Unsupported),
            Err(error) => Err(error),
        }
    }

    async fn has_snapshot_topology(&self) -> Result<bool, CsiError> {
        self.has_service(PluginService::SnapshotAccessibilityConstraints).await
    }

    /// Drops a snapshot topology that the driver does not advertise, and logs the first one.
    async fn check_topology(&self, snapshot: &mut v1::Snapshot) -> Result<(), CsiError> {
        if snapshot.accessible_topology.is_empty() || self.has_snapshot_topology().await? {
            return Ok(());
        }
        snapshot.accessible_topology.clear();
        if !self.shared.stray_topology.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                driver = self.driver(),
                snapshot = snapshot.snapshot_id,
                "the driver gives a snapshot a topology without SNAPSHOT_ACCESSIBILITY_CONSTRAINTS; it is ignored"
            );
        }
        Ok(())
    }
}

fn found(snapshot: Option<v1::Snapshot>) -> SnapshotLookup {
    snapshot.map_or(SnapshotLookup::Missing, SnapshotLookup::Found)
}
