//! Who is asking, and may they.

pub(crate) mod covers;
mod kubeconfig;
mod pki;
pub(crate) mod rbac;
pub(crate) mod serving;
mod sums;
pub(crate) mod tokens;

use std::collections::BTreeMap;

pub use kubeconfig::kubeconfig;
pub use pki::{Pair, Pki, PkiError, identify_certificate};
pub use serving::ServerNames;

pub use longshore_files::write_private;

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";

/// The group of all known users.
pub const AUTHENTICATED: &str = "system:authenticated";

/// An authenticated user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub user: String,
    pub groups: Vec<String>,
    /// Uid, if the user has one.
    pub uid: String,
    /// More that is known, e.g. the pod a token is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// A user with groups.
    pub fn new(
        user: impl Into<String>,
        groups: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        Self {
            user: user.into(),
            groups: groups.into_iter().map(Into::into).collect(),
            uid: String::new(),
            extra: BTreeMap::new(),
        }
    }

    /// A service account.
    pub fn account(namespace: &str, name: &str) -> Self {
        let user = format!("system:serviceaccount:{namespace}:{name}");
        let own = format!("system:serviceaccounts:{namespace}");
        Self::new(user, ["system:serviceaccounts", own.as_str(), "system:authenticated"])
    }

    /// Whether the user may do everything.
    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }
}
