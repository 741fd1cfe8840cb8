//! Write a dynamic provisioner for Kubernetes by implementing two methods.
//!
//! [`Provisioner`] is the contract: make storage for a claim, remove it again. A [`Host`] does the
//! rest: it watches claims and volumes, asks at the right time, repeats until there is a final answer,
//! saves PersistentVolumes, guards them with a finalizer, tells about it in events, counts, and works
//! only while it holds the lease.
//!
//! A whole provisioner:
//!
//! ```no_run
//! use longshore_provisioner::{
//!     ClientConfig, Config, Host, ProvisionedVolume, DeleteError, ProvisionError, Provisioner, Request, Volume, on_signals,
//! };
//!
//! struct Directories;
//!
//! impl Provisioner for Directories {
//!     async fn provision(&self, request: &Request) -> Result<ProvisionedVolume, ProvisionError> {
//!         let path = format!("/srv/volumes/{}", request.volume);
//!         std::fs::create_dir_all(&path).map_err(|error| ProvisionError::Final(error.into()))?;
//!         let made = ProvisionedVolume::new(request, serde_json::json!({"hostPath": {"path": path}}));
//!         Ok(made.pinned("kubernetes.io/hostname", "this-machine"))
//!     }
//!
//!     async fn delete(&self, volume: &Volume) -> Result<(), DeleteError> {
//!         let path = format!("/srv/volumes/{}", volume.metadata.name);
//!         match std::fs::remove_dir_all(path) {
//!             Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
//!                 Err(DeleteError::Failed(error.into()))
//!             }
//!             _ => Ok(()),
//!         }
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let host = Host::connect(&ClientConfig::default()).await?;
//!     let host = host.with(Config::new("example.com/directories"), Directories);
//!     Ok(host.run(on_signals()?).await?)
//! }
//! ```
//!
//! `examples/directories.rs` is this program with flags; `docs/write-your-own-provisioner.md` is the
//! guide.
//!
//! # Guarantees
//! * One claim is worked on by one task at a time, and so is one volume.
//! * A request whose answer was lost ([`ProvisionError::InBackground`]) is repeated until there is a
//!   verdict, also when the claim is deleted meanwhile; the volume is then saved all the same and is
//!   reclaimed like any released volume.
//! * A volume is deleted only when a fresh read says that it is released and its policy says so.
//!
//! # What is absent on purpose
//! A record on disk of what was begun: memory dies with the process, so a provisioner that must not
//! lose storage in a crash writes its own record and drops it in [`Provisioner::saved`]. And whole
//! objects: [`Claim`], [`StorageClass`] and [`Volume`] hold the fields that provisioning needs. What
//! else [`Provisioner::delete`] has to know belongs into an annotation of the volume
//! ([`ProvisionedVolume::annotated`]).

#![warn(missing_docs, unreachable_pub)]

mod attempts;
mod claims;
mod config;
mod contract;
mod controller;
mod host;
mod memory;
mod metrics;
mod save;
#[cfg(test)]
mod tests;
mod volumes;

pub use attempts::{Attempts, ClaimLock};
pub use config::{Config, InvalidConfig, Retry, Save};
pub use contract::{Cause, DeleteError, ProvisionError, ProvisionedVolume, Provisioner, Request};
pub use controller::{ProvisionController, Waker};
pub use host::{Election, Host, HostError};
pub use longshore_cluster::{
    Api, Cache, ClientConfig, ConfigError, Context, Metrics, Recorder, election::ElectionError,
    shutdown::on_signals,
};
pub use longshore_core::{
    model::{
        NodeName, Uid, VolumeName,
        kinds::{Claim, StorageClass, Volume},
    },
    provision::attempt,
};
pub use metrics::ProvisionMetrics;
pub use serde_json::Value;
pub use tokio_util::sync::CancellationToken;
