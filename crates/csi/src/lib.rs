//! The driver's wire: CSI and plugin registration, client, error classes, fake driver.

mod call;
mod error;
pub mod redact;

pub use call::Call;
pub use error::{CsiError, Verdict, classify, code_name, status_text};

/// Generated messages, client and server stubs of `csi.v1` (CSI 1.12).
#[allow(clippy::all, rustdoc::all, missing_docs)]
pub mod v1 {
    tonic::include_proto!("csi.v1");
}

/// Generated messages, client and server stubs of the kubelet's plugin registration.
#[allow(clippy::all, rustdoc::all, missing_docs)]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
