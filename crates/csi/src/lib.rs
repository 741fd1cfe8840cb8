//! The driver's wire: everything that crosses the socket between Kubernetes and a storage driver.
//!
//! * [`v1`] and [`registration`] are the generated protocols.
//! * [`Client`] calls a driver: one method per [`Call`], each with a deadline, metrics and redacted logs.
//! * [`CsiError`] classifies a failure: final, no verdict yet, or infeasible. The table is in one place.
//! * [`server`] serves any of the generated services on a unix socket.
//! * `fake`, with the feature of that name, is a driver in memory with scripted faults, for tests and for the simulator.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use longshore_csi::{Call, fake, v1};
//!
//! let driver = fake::Driver::new("example.csi.test");
//! let client = driver.client();
//! client.wait_ready(std::time::Duration::from_secs(1)).await?;
//!
//! // The response is lost, but the volume exists: the caller must repeat the request.
//! driver.script(Call::CreateVolume, [fake::Fault::after(tonic::Code::Unavailable)]);
//! let request = fake::create_request("pvc-1", 1 << 30);
//! let error = client.create_volume(request.clone()).await.expect_err("scripted");
//! assert!(!error.is_final());
//! let volume = client.create_volume(request).await?.volume.ok_or("no volume")?;
//! assert_eq!(driver.volumes().len(), 1);
//! assert_eq!(volume.capacity_bytes, 1 << 30);
//! # Ok(())
//! # }
//! ```

#![warn(unreachable_pub)]

mod call;
pub mod capabilities;
pub mod client;
mod error;
#[cfg(feature = "fake")]
pub mod fake;
mod health;
pub mod metrics;
pub mod names;
pub mod redact;
mod requirement;
pub mod server;
mod stream;
#[cfg(test)]
mod wire_tests;

pub use call::Call;
pub use client::{Client, ConnectError, ConnectOptions, NotAgreed, Options, SnapshotLookup};
pub use error::{CsiError, Verdict, classify, code_name, status_text};
pub use health::HealthSource;
pub use requirement::Requirement;

/// Generated messages, client and server stubs of `csi.v1`: CSI 1.13, with the volume condition of 1.12.
#[allow(clippy::all, rustdoc::all, missing_docs)]
pub mod v1 {
    tonic::include_proto!("csi.v1");
}

/// Generated messages, client and server stubs of the kubelet's plugin registration.
#[allow(clippy::all, rustdoc::all, missing_docs)]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
