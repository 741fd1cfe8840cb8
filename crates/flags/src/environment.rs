//! Variables of the environment that stand in for flags.

use crate::UsageError;

/// What the process finds in its environment. Kept beside the flags so that tests can set it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// `KUBECONFIG`.
    pub kubeconfig: Option<String>,
    /// `NODE_NAME`.
    pub node_name: Option<String>,
    /// `POD_NAMESPACE`.
    pub pod_namespace: Option<String>,
    /// `POD_NAME`.
    pub pod_name: Option<String>,
    /// `POD_UID`.
    pub pod_uid: Option<String>,
    /// `NAMESPACE`.
    pub namespace: Option<String>,
}

impl Environment {
    /// The environment of this process; an empty variable counts as absent.
    #[must_use]
    pub fn of_process() -> Self {
        let read = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        Self {
            kubeconfig: read("KUBECONFIG"),
            node_name: read("NODE_NAME"),
            pod_namespace: read("POD_NAMESPACE"),
            pod_name: read("POD_NAME"),
            pod_uid: read("POD_UID"),
            namespace: read("NAMESPACE"),
        }
    }

    /// The node that `--node-deployment` is about.
    ///
    /// # Errors
    /// When nobody says which node this is.
    pub fn deployed_on(&self) -> Result<String, UsageError> {
        self.node_name.clone().ok_or_else(|| {
            let problem =
                "The NODE_NAME environment variable must be set when using --node-deployment";
            UsageError::AsOfficial(problem.into())
        })
    }
}
