//! `longshore demo --csi-endpoint`: a foreign driver is walked through a volume's life.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use longshore_cluster::Api;
use longshore_controllers::resize::{Abilities, Expander};
use longshore_core::model::{
    Quantity,
    keys::{annotations, embedded},
    kinds::{CsiNode, StorageClass, VolumeSnapshotClass},
};
use longshore_csi::{Client, ConnectOptions, Options, capabilities::NodeCapability};
use serde_json::json;

use super::{
    calls::{Calls, SeenCall},
    display::Display,
    instance::Instance,
    life::{self, Life, When},
};

/// How long the driver may take to answer for the first time, and for each call about itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Names of what the walk makes. The driver's own name is no part of them, so nothing of an instance can collide.
const CLASS: &str = "longshore-demo-foreign";

/// What is walked, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Foreign {
    /// Socket of the driver.
    pub socket: PathBuf,
    /// Parameters of the class.
    pub parameters: Vec<(String, String)>,
    /// Size of the claim.
    pub size: String,
}

/// What the driver says about itself.
struct Described {
    name: String,
    creates: bool,
    attaches: bool,
    stages: bool,
    /// On the controller or on nodes.
    expands: bool,
    snapshots: bool,
}

impl Foreign {
    /// Walks the driver. It succeeds when every step that the driver's capabilities allow has worked.
    pub(super) async fn run(self, home: &Path, display: &mut Display) -> Result<()> {
        let driver = display.step("driver", self.describe()).await?;
        if !driver.creates {
            display.skipped(
                "claim",
                "the driver has no CREATE_DELETE_VOLUME, so no claim gets a volume of it",
            );
            display.note("verdict: nothing to walk");
            return Ok(());
        }
        let (calls, socket) = (Calls::default(), home.join("driver.sock"));
        let relay = calls.relay(&socket, self.socket.clone())?;
        display.record(calls.clone());
        let endpoint = format!("unix://{}", socket.display());
        let instance = Instance::start(home, &["--csi-endpoint", &endpoint], display).await?;
        let walked = self.walk(&instance, &driver, display).await;
        let stopped = instance.stop(display).await;
        relay.abort();
        if let Err(error) = walked {
            return Err(explained(error, &calls.since(0), &self.socket));
        }
        stopped?;
        verdict(&calls.since(0), display);
        Ok(())
    }

    /// Asks the driver who it is and what it can do.
    async fn describe(&self) -> Result<(Described, String)> {
        let options = ConnectOptions {
            timeout: Some(PATIENCE),
            calls: Options { timeout: Some(PATIENCE), ..Options::default() },
            ..ConnectOptions::from(self.socket.display().to_string())
        };
        let socket = self.socket.display();
        let csi = Client::connect(options)
            .await
            .with_context(|| format!("no driver answers on {socket}"))?;
        let driver = longshore_controllers::Driver::describe(&csi, PATIENCE)
            .await
            .with_context(|| format!("the driver on {socket} does not say what it is"))?;
        let name = driver.name;
        if [embedded::LOCAL_DRIVER, embedded::SHARED_DRIVER].contains(&name.as_str()) {
            bail!(
                "the driver calls itself {name}, which is a driver of `longshore up` itself; \
                 give it another name (`longshore driver --driver-name NAME`)"
            );
        }
        let node = csi.node_capabilities().await.context("cannot ask what it does on a node")?;
        let described = Described {
            creates: driver.capabilities.create_delete_volume,
            attaches: driver.capabilities.publish,
            stages: node.has(NodeCapability::StageUnstageVolume),
            expands: Abilities::ask(&csi, PATIENCE)
                .await
                .is_ok_and(|able| able.expander != Expander::Nobody),
            snapshots: driver.capabilities.create_delete_snapshot,
            name,
        };
        let text = format!("{} answers on {socket}", described.name);
        Ok((described, text))
    }

    async fn walk(
        &self,
        instance: &Instance,
        driver: &Described,
        display: &mut Display,
    ) -> Result<()> {
        let api = &instance.api;
        display.step("node", life::node_ready(api)).await?;
        display.step("register", registered(api, &driver.name)).await?;
        display.step("class", self.make_classes(api, driver)).await?;
        if !driver.attaches {
            display.skipped("attach", "the driver has no PUBLISH_UNPUBLISH_VOLUME");
        }
        if !driver.stages {
            display.skipped("stage", "the driver has no STAGE_UNSTAGE_VOLUME");
        }
        let larger = self.larger()?;
        if !driver.expands {
            display.skipped("expand", "the driver has no EXPAND_VOLUME");
        }
        if !driver.snapshots {
            display.skipped("snapshot", "the driver has no CREATE_DELETE_SNAPSHOT");
        }
        let snapshots = driver.snapshots.then_some(When::Idle);
        let grows_to = driver.expands.then_some(larger.as_str());
        let gone = "claim and volume are gone";
        let size = &self.size;
        let life = Life { class: CLASS, size, grows_to, snapshots, gone };
        life.walk(api, display).await
    }

    /// Twice the size of the claim.
    fn larger(&self) -> Result<String> {
        let size: Quantity = self.size.parse()?;
        Ok(Quantity::from_bytes(size.bytes().saturating_mul(2)).to_string())
    }

    async fn make_classes(&self, api: &Api, driver: &Described) -> Result<((), String)> {
        let name = driver.name.as_str();
        let parameters: serde_json::Map<_, _> =
            self.parameters.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        let object = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
            "metadata": {"name": CLASS}, "provisioner": name, "parameters": parameters,
            "reclaimPolicy": "Delete", "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": true,
        });
        api.create::<StorageClass>(&object).await?;
        if driver.snapshots {
            let object = json!({
                "metadata": {
                    "name": CLASS,
                    "annotations": {(annotations::SNAPSHOT_IS_DEFAULT_CLASS): "true"},
                },
                "driver": name, "deletionPolicy": "Delete",
            });
            api.create::<VolumeSnapshotClass>(&object).await?;
        }
        Ok(((), format!("class {CLASS} of {name}")))
    }
}

/// Waits until the node knows the driver.
async fn registered(api: &Api, driver: &str) -> Result<((), String)> {
    let nodes = api.list::<CsiNode>(None, &Default::default()).await?;
    let name = nodes.first().context("there is no CSINode")?.metadata.key();
    let known = |node: Option<&CsiNode>| node.is_some_and(|node| node.driver(driver).is_some());
    let what = format!("lists the driver {driver}");
    life::wait_for::<CsiNode>(api, &name, known, &what).await?;
    Ok(((), format!("node {name} has registered {driver}")))
}

/// The error with the driver's part in it, and what to do next.
fn explained(error: anyhow::Error, calls: &[SeenCall], socket: &Path) -> anyhow::Error {
    let socket = socket.display();
    let failed = calls.iter().rev().find(|call| call.failed() && call.is_about_volumes());
    let advice = match failed {
        Some(call) => {
            let times =
                calls.iter().filter(|one| one.method == call.method && one.failed()).count();
            let times = if times == 1 { "once".to_owned() } else { format!("{times} times") };
            format!(
                "{} answered {} ({times}): {}; look into the driver's log for this call, \
                 then try again",
                call.method,
                longshore_csi::code_name(call.code),
                call.message
            )
        }
        None => format!(
            "no call for a volume failed; see requests and responses with \
             `longshore up --csi-endpoint unix://{socket} -v=5`"
        ),
    };
    error.context(format!("the driver did not get through; {advice}"))
}

/// Sums the calls up.
fn verdict(calls: &[SeenCall], display: &Display) {
    let about: Vec<&SeenCall> = calls.iter().filter(|call| call.is_about_volumes()).collect();
    let failed = about.iter().filter(|call| call.failed()).count();
    let slowest = about.iter().max_by_key(|call| call.took);
    let slowest = slowest.map(|call| {
        format!(", the slowest {} with {}", call.method, super::display::millis(call.took))
    });
    display.note(&format!(
        "verdict: ok; {} calls for volumes ({failed} of them refused and repeated){}, {} about the driver itself",
        about.len(),
        slowest.unwrap_or_default(),
        calls.len() - about.len()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn a_failure_names_the_call_the_code_and_what_to_do() {
        let call = |method: &str, code: Code| SeenCall {
            method: method.into(),
            took: Duration::ZERO,
            code,
            message: "no device".into(),
        };
        let calls = [
            call("CreateVolume", Code::Ok),
            call("NodeStageVolume", Code::Internal),
            call("NodeStageVolume", Code::Internal),
            call("Probe", Code::Unavailable),
        ];
        let text = |calls: &[SeenCall]| {
            format!("{:#}", explained(anyhow::anyhow!("pod ended"), calls, Path::new("/d.sock")))
        };
        assert_eq!(
            text(&calls),
            "the driver did not get through; NodeStageVolume answered Internal (2 times): no device; \
             look into the driver's log for this call, then try again: pod ended"
        );
        assert!(text(&calls[..1]).contains("longshore up --csi-endpoint unix:///d.sock -v=5"));
    }
}
