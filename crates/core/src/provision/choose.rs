//! Whether a claim is this provisioner's to answer, now.

use crate::{
    claim::{selected_node, storage_provisioner},
    model::{
        NodeName, VolumeMode,
        keys::annotations,
        kinds::{Claim, StorageClass},
    },
};

/// All that the choice depends on.
#[derive(Debug, Clone, Copy)]
pub struct ChoiceView<'a> {
    pub claim: &'a Claim,
    /// Its class, if it exists.
    pub class: Option<&'a StorageClass>,
    /// The names this provisioner answers to, its own first.
    pub names: &'a [String],
    /// A volume of the name it would get exists.
    pub made: bool,
    /// Raw block volumes can be made.
    pub block: bool,
}

/// What to do about a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Nothing: bound, somebody else's, or not asked for.
    NotOurs,
    /// Nothing yet: the scheduler has not chosen a node.
    Wait,
    /// Its class is not there (yet).
    ClassMissing(String),
    /// The volume is there already.
    Made,
    /// It asks for a block volume, and there are none.
    NoBlock(String),
    /// Its class names another provisioner than the claim does.
    ForeignClass,
    /// Make a volume.
    Provision {
        /// The node the scheduler chose, if any.
        node: Option<NodeName>,
    },
}

/// Decides whether to provision for a claim.
#[must_use]
pub fn choose(view: &ChoiceView<'_>) -> Choice {
    let claim = view.claim;
    let known = |name: &str| view.names.iter().any(|own| own == name);
    if !claim.spec.volume_name.is_empty() || !storage_provisioner(claim).is_some_and(known) {
        return Choice::NotOurs;
    }
    let Some(class) = view.class else {
        return Choice::ClassMissing(format!("storageClass {:?} not found", claim.class_name()));
    };
    if class.waits_for_consumer() && selected_node(claim).is_none() {
        return Choice::Wait;
    }
    if view.made {
        return Choice::Made;
    }
    if claim.volume_mode() == &VolumeMode::Block && !view.block {
        let name = storage_provisioner(claim).unwrap_or_default();
        return Choice::NoBlock(format!("{name} does not support block volume provisioning"));
    }
    if !known(&class.provisioner) {
        return Choice::ForeignClass;
    }
    let alpha = || claim.metadata.annotation(annotations::ALPHA_SELECTED_NODE);
    let node = selected_node(claim).or_else(alpha).map(NodeName::from);
    Choice::Provision { node }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::bind::fixtures::{claim, merge};

    const GA: &str = "volume.kubernetes.io/storage-provisioner";
    const BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
    const NODE: &str = "volume.kubernetes.io/selected-node";

    fn asks(annotations: Value, over: Value) -> Value {
        let mut base = json!({"spec": {"storageClassName": "class-1"}});
        merge(&mut base, json!({"metadata": {"annotations": annotations}}));
        merge(&mut base, over);
        base
    }

    fn check(
        id: &str,
        over: Value,
        mode: &str,
        change: impl Fn(&mut ChoiceView<'_>),
        want: Choice,
    ) {
        let claim = claim(over);
        let class: StorageClass = serde_json::from_value(json!({"metadata": {"name": "class-1"},
            "provisioner": "foo.bar/baz", "volumeBindingMode": mode}))
        .unwrap();
        let names = ["csi.com/mock-csi".to_string(), "foo.bar/baz".to_string()];
        let mut view = ChoiceView {
            claim: &claim,
            class: Some(&class),
            names: &names,
            made: false,
            block: false,
        };
        change(&mut view);
        assert_eq!(choose(&view), want, "{id}");
    }

    #[test]
    fn a_claim_is_provisioned_when_it_is_due_and_ours() {
        let go = || Choice::Provision { node: None };
        let ours = || json!({GA: "foo.bar/baz"});
        let same = |_: &mut ChoiceView<'_>| {};
        let now = "Immediate";
        check("plain", asks(ours(), json!({})), now, same, go());
        // An additional name is as good as the own one: half of case 5.
        check("beta key", asks(json!({BETA: "foo.bar/baz"}), json!({})), now, same, go());
        check(
            "case: provisioner/6",
            asks(ours(), json!({"spec": {"volumeName": "v"}})),
            now,
            same,
            Choice::NotOurs,
        );
        let missing = Choice::ClassMissing("storageClass \"class-1\" not found".into());
        check("class missing", asks(ours(), json!({})), now, |view| view.class = None, missing);
        check("case: provisioner/8", asks(json!({}), json!({})), now, same, Choice::NotOurs);
        check(
            "case: provisioner/9",
            asks(json!({GA: "other"}), json!({})),
            now,
            same,
            Choice::NotOurs,
        );
        let both = json!({GA: "other", BETA: "foo.bar/baz"});
        check("case: provisioner/10", asks(both, json!({})), now, same, Choice::NotOurs);
        check("made", asks(ours(), json!({})), now, |view| view.made = true, Choice::Made);
    }

    #[test]
    fn waiting_for_a_node() {
        let late = "WaitForFirstConsumer";
        let same = |_: &mut ChoiceView<'_>| {};
        let on_node = || Choice::Provision { node: Some("node-1".into()) };
        for key in [GA, BETA] {
            let id = "case: provisioner/12";
            check(id, asks(json!({key: "foo.bar/baz"}), json!({})), late, same, Choice::Wait);
            let empty = json!({key: "foo.bar/baz", NODE: ""});
            check(id, asks(empty, json!({})), late, same, Choice::Wait);
            let chosen = json!({key: "foo.bar/baz", NODE: "node-1"});
            check(id, asks(chosen, json!({})), late, same, on_node());
        }
        let alpha =
            json!({GA: "foo.bar/baz", "volume.alpha.kubernetes.io/selected-node": "node-1"});
        check("the old key is passed on", asks(alpha, json!({})), "Immediate", same, on_node());
    }

    #[test]
    fn block_claims_need_a_driver_that_supports_them() {
        let block = || asks(json!({GA: "foo.bar/baz"}), json!({"spec": {"volumeMode": "Block"}}));
        let no = Choice::NoBlock("foo.bar/baz does not support block volume provisioning".into());
        let go = Choice::Provision { node: None };
        check("case: provisioner/4 no", block(), "Immediate", |_| {}, no);
        check(
            "case: provisioner/4 yes",
            block(),
            "Immediate",
            |view| view.block = true,
            go.clone(),
        );
        let plain = asks(json!({GA: "foo.bar/baz"}), json!({"spec": {"volumeMode": "Filesystem"}}));
        check("case: provisioner/4 filesystem", plain, "Immediate", |_| {}, go);
        let foreign = |view: &mut ChoiceView<'_>| view.names = &view.names[..1];
        let mock = asks(json!({GA: "csi.com/mock-csi"}), json!({}));
        check("class of another provisioner", mock, "Immediate", foreign, Choice::ForeignClass);
    }
}
