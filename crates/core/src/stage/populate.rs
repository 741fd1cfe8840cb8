//! Decides whether the volumes of a pod belong to the desired state.

/// What the decision may depend on.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// The first look at all pods is still going on.
    pub first_pass: bool,
    /// The pod is being deleted.
    pub terminating: bool,
    /// No container of the pod runs, or will run again.
    pub over: bool,
}

/// Whether the pod's volumes are wanted now.
///
/// At the first look a pod that is on its way out may still have containers from before, so its
/// volumes must be known. Later it does not get volumes any more.
#[must_use]
pub fn wants(view: &View) -> bool {
    !view.over && (view.first_pass || !view.terminating)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_pods_that_have_ended_are_not_desired() {
        for (case, first_pass, terminating, over, expected) in [
            ("case: node/N50", true, true, false, true),
            ("case: node/N51", false, true, false, false),
            ("running", false, false, false, true),
            ("over", false, false, true, false),
            ("over at the first look", true, true, true, false),
        ] {
            assert_eq!(wants(&View { first_pass, terminating, over }), expected, "{case}");
        }
    }
}
