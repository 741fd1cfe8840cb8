//! A directory of this node for each claim: the classic tutorial, done safely.
//!
//! A volume is pinned to the node that its directory is on, so that no pod ever finds another node's
//! empty directory. It carries the node's name, and only the provisioner of that node removes it, from
//! `<root>/<volume>` and nowhere else. Class parameters mean nothing here and are passed over.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use longshore_core::{
    claim::selected_node,
    model::keys::{annotations::PROVISIONER_IDENTITY, labels},
};
use longshore_provisioner::{
    Claim, DeleteError, ProvisionError, ProvisionedVolume, Provisioner, Request, StorageClass,
    Volume,
};
use serde_json::json;

use super::{
    base::{Base, Directory},
    check,
};

/// The node that a provisioner makes directories on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodePin {
    pub node: String,
    /// Its labels, as far as they are known.
    pub labels: BTreeMap<String, String>,
}

impl NodePin {
    /// What the label for host names says, which need not be the node's name.
    fn hostname(&self) -> &str {
        self.labels.get(labels::HOSTNAME).unwrap_or(&self.node)
    }

    /// Whether a class lets its volumes be here.
    fn is_allowed_by(&self, class: &StorageClass) -> bool {
        let label = |key: &str| match self.labels.get(key) {
            None if key == labels::HOSTNAME => Some(&self.node),
            found => found,
        };
        class.allowed_topologies.is_empty()
            || class.allowed_topologies.iter().any(|term| {
                let mut all = term.match_label_expressions.iter();
                all.all(|one| label(&one.key).is_some_and(|value| one.values.contains(value)))
            })
    }
}

/// See the module.
pub(crate) struct Hostpath {
    base: Arc<Base>,
    pin: NodePin,
    /// Every node has its own provisioner: what was placed elsewhere, or nowhere yet, is not ours.
    per_node: bool,
}

impl Hostpath {
    /// Makes directories in `base`, which is on the node of `pin`.
    #[must_use]
    pub(crate) fn new(base: Arc<Base>, pin: NodePin, per_node: bool) -> Self {
        Self { base, pin, per_node }
    }

    fn check_node(&self, request: &Request) -> Result<(), ProvisionError> {
        let node = &self.pin.node;
        if let Some(chosen) = request.node.as_ref().filter(|chosen| *chosen != node) {
            let text = format!(
                "the pod was placed on node {chosen}, and this provisioner makes directories on node {node} \
                 only; it asks for another node (allowedTopologies of the class can say so from the start, \
                 or run one provisioner on each node with --node-deployment)"
            );
            return Err(ProvisionError::Elsewhere(text.into()));
        }
        if !self.pin.is_allowed_by(&request.class) {
            let text = format!(
                "allowedTopologies of class {} leave out node {node}, on which this provisioner makes \
                 directories; add it, or run a provisioner on an allowed node",
                request.class.metadata.name
            );
            return Err(ProvisionError::Infeasible(text.into()));
        }
        Ok(())
    }

    /// The directory of a volume, if it is here and ours.
    fn ours(&self, volume: &Volume) -> Result<Directory, DeleteError> {
        let name = &volume.metadata.name;
        let no = |text: String| DeleteError::Failed(text.into());
        match volume.metadata.annotation(PROVISIONER_IDENTITY) {
            None => {
                return Err(no(format!(
                    "volume {name} has no annotation {PROVISIONER_IDENTITY}, so nobody knows on which \
                     node its directory is; remove the directory and the volume by hand"
                )));
            }
            Some(node) if node != self.pin.node => {
                return Err(DeleteError::Ignored(format!("its directory is on node {node}")));
            }
            Some(_) => {}
        }
        let directory = Directory::new(name).map_err(|e| DeleteError::Failed(e.into()))?;
        let own = self.base.path_of(&directory);
        match &volume.spec.host_path {
            Some(source) if Path::new(&source.path) == own => Ok(directory),
            source => {
                let path = source.as_ref().map_or("no directory", |source| source.path.as_str());
                let own = own.display();
                Err(no(format!("volume {name} is {path}, not {own}; nothing was removed")))
            }
        }
    }
}

impl Provisioner for Hostpath {
    async fn provision(&self, request: &Request) -> Result<ProvisionedVolume, ProvisionError> {
        check(request)?;
        self.check_node(request)?;
        let directory =
            Directory::new(&request.volume).map_err(|e| ProvisionError::Final(e.into()))?;
        let path = self.base.path_of(&directory);
        let base = self.base.clone();
        let made = tokio::task::spawn_blocking(move || base.create(&directory)).await;
        made.map_err(|e| ProvisionError::Final(e.into()))?
            .map_err(|e| ProvisionError::Final(e.into()))?;
        let identity = BTreeMap::from([(PROVISIONER_IDENTITY.to_owned(), self.pin.node.clone())]);
        // Without this type a kubelet would make a directory that is missing, and hide the loss.
        let source = json!({"hostPath": {"path": path, "type": "Directory"}});
        let made = ProvisionedVolume::new(request, source).annotated(&identity);
        Ok(made.pinned(labels::HOSTNAME, self.pin.hostname()))
    }

    async fn delete(&self, volume: &Volume) -> Result<(), DeleteError> {
        let (base, directory) = (self.base.clone(), self.ours(volume)?);
        let removed = tokio::task::spawn_blocking(move || base.remove(&directory)).await;
        let failed = |error: longshore_provisioner::Cause| DeleteError::Failed(error);
        removed.map_err(|e| failed(e.into()))?.map_err(|e| failed(e.into()))
    }

    async fn should_provision(&self, claim: &Claim) -> bool {
        !self.per_node || selected_node(claim) == Some(self.pin.node.as_str())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{super::testing::request, *};

    fn hostpath(per_node: bool) -> (tempfile::TempDir, Hostpath) {
        let dir = tempfile::Builder::new().prefix("longshore-hostpath-").tempdir().unwrap();
        let base = Arc::new(Base::make(&dir.path().join("root")).unwrap());
        let labels = [(labels::HOSTNAME, "host-a"), ("zone", "east")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let pin = NodePin { node: "node-a".into(), labels };
        (dir, Hostpath::new(base, pin, per_node))
    }

    fn volume(made: &ProvisionedVolume) -> Volume {
        serde_json::from_value(made.volume.clone()).unwrap()
    }

    #[tokio::test]
    async fn a_volume_says_where_it_is() {
        let (dir, hostpath) = hostpath(false);
        let class = json!({"reclaimPolicy": "Retain", "mountOptions": ["ro"],
            "parameters": {"type": "custom"}});
        let request = request(json!({}), class);
        let made = hostpath.provision(&request).await.unwrap();
        assert_eq!(hostpath.provision(&request).await.unwrap(), made, "a repeated request");
        let path = dir.path().join("root/pvc-u1");
        assert!(path.is_dir());
        let spec = &made.volume["spec"];
        assert_eq!(spec["hostPath"], json!({"path": path, "type": "Directory"}));
        assert_eq!(spec["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(spec["capacity"]["storage"], "1Mi");
        let term = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
        assert_eq!(*term, json!({"key": labels::HOSTNAME, "operator": "In", "values": ["host-a"]}));
        std::fs::write(path.join("file"), "x").unwrap();
        hostpath.delete(&volume(&made)).await.unwrap();
        assert!(!path.exists());
        hostpath.delete(&volume(&made)).await.unwrap();
    }

    #[tokio::test]
    async fn only_what_is_certainly_ours_is_removed() {
        let (dir, hostpath) = hostpath(false);
        let made = hostpath.provision(&request(json!({}), json!({}))).await.unwrap();
        let path = dir.path().join("root/pvc-u1");
        let other = dir.path().join("root/other");
        std::fs::create_dir(&other).unwrap();
        type Change = fn(&mut Value, &Path);
        let rows: [(&str, Change); 5] = [
            ("no annotation", |pv, _| pv["metadata"]["annotations"] = json!({})),
            ("not", |pv, root| pv["spec"]["hostPath"]["path"] = json!(root.join("other"))),
            ("not", |pv, root| pv["spec"]["hostPath"]["path"] = json!(root.join("pvc-u1/.."))),
            ("no directory", |pv, _| pv["spec"]["hostPath"] = Value::Null),
            (". or ..", |pv, root| {
                pv["metadata"]["name"] = json!("..");
                pv["spec"]["hostPath"]["path"] = json!(root.join(".."));
            }),
        ];
        for (part, change) in rows {
            let mut changed = made.clone();
            change(&mut changed.volume, &dir.path().join("root"));
            let refused = hostpath.delete(&volume(&changed)).await.unwrap_err();
            assert!(matches!(refused, DeleteError::Failed(_)));
            assert!(refused.to_string().contains(part), "{part}: {refused}");
        }
        let mut foreign = made.clone();
        foreign.volume["metadata"]["annotations"][PROVISIONER_IDENTITY] = json!("node-b");
        let ignored = hostpath.delete(&volume(&foreign)).await;
        assert!(matches!(ignored, Err(DeleteError::Ignored(_))));
        assert!(path.exists() && other.exists());
    }

    #[tokio::test]
    async fn other_nodes_are_left_to_others() {
        let (dir, hostpath) = hostpath(false);
        let elsewhere = Request { node: Some("node-b".into()), ..request(json!({}), json!({})) };
        let refused = hostpath.provision(&elsewhere).await.unwrap_err();
        assert!(matches!(refused, ProvisionError::Elsewhere(_)), "{refused}");
        let allowed = |key: &str, value: &str| json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": key, "values": [value]}]}]});
        for (key, value, fine) in [
            ("zone", "west", false),
            ("rack", "1", false),
            (labels::HOSTNAME, "node-a", false),
            (labels::HOSTNAME, "host-a", true),
            ("zone", "east", true),
        ] {
            let answer = hostpath.provision(&request(json!({}), allowed(key, value))).await;
            assert_eq!(answer.is_ok(), fine, "{key}={value}");
            if let Err(refused) = answer {
                assert!(refused.to_string().contains("allowedTopologies"), "{refused}");
                assert!(!dir.path().join("root/pvc-u1").exists(), "nothing was made");
            }
        }
    }

    #[tokio::test]
    async fn one_of_many_answers_for_its_own_node() {
        let note = |node: &str| {
            let key = "volume.kubernetes.io/selected-node";
            request(json!({"metadata": {"annotations": {key: node}}}), json!({})).claim
        };
        let (_dir, one) = hostpath(true);
        assert!(one.should_provision(&note("node-a")).await);
        assert!(!one.should_provision(&note("node-b")).await);
        assert!(!one.should_provision(&note("")).await);
        let (_dir, alone) = hostpath(false);
        assert!(alone.should_provision(&note("")).await);
    }
}
