//! Who is asking, and may they.

mod kubeconfig;
mod pki;

pub use kubeconfig::kubeconfig;
pub use pki::{Pair, Pki, PkiError, identify_certificate, write_private};

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";

/// An authenticated user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// User name.
    pub user: String,
    /// Groups.
    pub groups: Vec<String>,
}

impl Identity {
    /// A user with groups.
    pub fn new(
        user: impl Into<String>,
        groups: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self { user: user.into(), groups: groups.into_iter().map(Into::into).collect() }
    }

    /// Whether the user may do everything.
    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }
}
