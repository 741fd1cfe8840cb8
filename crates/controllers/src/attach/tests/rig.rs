//! A controller whose memory can be looked into, on a wire that can fail and remembers.

use std::{sync::Arc, time::Duration};

use longshore_cluster::{Api, Metrics};
use longshore_core::{attach::AttachState, model::kinds::VolumeAttachment, names::UniqueName};
use parking_lot::Mutex;
use serde_json::json;

use super::super::{AttachDetach, Config, Controller};
use super::{attachment, one_pod, say_attached};
use crate::testing::{Bench, DRIVER, Process};

/// What happens to a request of the controller.
#[derive(Clone, Copy)]
pub(super) enum Fate {
    Pass,
    /// It is refused with this code.
    Refuse(u16),
    /// It takes effect only after a while.
    Slow(Duration),
    /// The code that sends it panics.
    Panic,
}

type Script = dyn Fn(&str, &str) -> Fate + Send + Sync;

/// The controller's way to the API.
#[derive(Clone)]
pub(super) struct Wire {
    script: Arc<Mutex<Arc<Script>>>,
    sent: Arc<Mutex<Vec<String>>>,
}

impl Wire {
    fn new() -> Self {
        let pass: Arc<Script> = Arc::new(|_, _| Fate::Pass);
        Self { script: Arc::new(Mutex::new(pass)), sent: Arc::default() }
    }

    /// From now on, `script` decides by method and path.
    pub(super) fn script(&self, script: impl Fn(&str, &str) -> Fate + Send + Sync + 'static) {
        *self.script.lock() = Arc::new(script);
    }

    /// Everything passes again.
    pub(super) fn calm(&self) {
        self.script(|_, _| Fate::Pass);
    }

    /// The requests so far whose line holds `part`, in order.
    pub(super) fn sent(&self, part: &str) -> Vec<String> {
        self.sent.lock().iter().filter(|line| line.contains(part)).cloned().collect()
    }

    fn api(&self, client: kube::Client) -> Api {
        let wire = self.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let (client, wire) = (client.clone(), wire.clone());
            async move {
                let (method, path) = (request.method().as_str(), request.uri().path());
                wire.sent.lock().push(format!("{method} {path}"));
                let script = wire.script.lock().clone();
                match script(method, path) {
                    Fate::Pass => {}
                    Fate::Slow(time) => tokio::time::sleep(time).await,
                    Fate::Refuse(code) => return Ok(refusal(code)),
                    Fate::Panic => panic!("a planted panic"),
                }
                client.send(request).await
            }
        });
        Api::new(kube::Client::new(service, "default"))
    }
}

fn refusal(code: u16) -> http::Response<kube::client::Body> {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        _ => "InternalError",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "reason": reason, "message": "no", "code": code});
    let body = kube::client::Body::from(status.to_string().into_bytes());
    let answer = http::Response::builder().status(code).header("content-type", "application/json");
    answer.body(body).expect("an answer")
}

/// Writes of a node's report.
pub(super) fn is_report(method: &str, path: &str) -> bool {
    method == "PATCH" && path.starts_with("/api/v1/nodes/")
}

/// Deletions of attachments.
pub(super) fn is_detach(method: &str, path: &str) -> bool {
    method == "DELETE" && path.contains("/volumeattachments/")
}

/// The controller under test.
pub(super) struct Rig {
    pub(super) bench: Bench,
    pub(super) wire: Wire,
    pub(super) metrics: Metrics,
    pub(super) controller: Arc<Controller>,
    process: Process,
}

impl Rig {
    pub(super) async fn start() -> Self {
        Self::on(Bench::start().await, Config::default())
    }

    pub(super) async fn with(config: Config) -> Self {
        Self::on(Bench::start().await, config)
    }

    /// A controller that finds the bench as it is.
    pub(super) fn on(bench: Bench, config: Config) -> Self {
        let wire = Wire::new();
        let mut process = bench.process();
        let metrics = process.context.metrics.clone();
        let context = process.context.with_api(wire.api(process.api.client().clone()));
        let running = AttachDetach::new(&context, config);
        let (controller, shutdown) = (running.controller.clone(), process.shutdown.clone());
        process.spawn(running.run(shutdown));
        Self { bench, wire, metrics, controller, process }
    }

    /// The same bench under a new controller, as after `kill -9`.
    pub(super) fn restart(self) -> Self {
        let Self { bench, process, .. } = self;
        process.kill();
        Self::on(bench, Config::default())
    }

    pub(super) fn state(&self, handle: &str, node: &str) -> AttachState {
        self.controller
            .state
            .lock()
            .actual
            .state(&UniqueName::new(&DRIVER.into(), &handle.into()), &node.into())
    }

    /// Waits, in virtual time, until the controller knows this of the volume.
    pub(super) async fn until_state(&self, handle: &str, node: &str, want: AttachState) {
        for _ in 0..20_000 {
            if self.state(handle, node) == want {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{handle} on {node} is {:?}, not {want:?}", self.state(handle, node));
    }

    /// Whether the node's report lists the volume, written or not.
    pub(super) fn reported(&self, handle: &str, node: &str) -> bool {
        self.controller
            .state
            .lock()
            .actual
            .is_reported(&UniqueName::new(&DRIVER.into(), &handle.into()), &node.into())
    }

    pub(super) fn wanted(&self, handle: &str, node: &str) -> bool {
        self.controller
            .state
            .lock()
            .desired
            .get(&UniqueName::new(&DRIVER.into(), &handle.into()), &node.into())
            .is_some()
    }

    /// The value of the metric with exactly these labels.
    pub(super) fn metric(&self, line: &str) -> Option<f64> {
        let text = self.metrics.render();
        let value = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
        value.map(|value| value.parse().expect("a number"))
    }

    pub(super) async fn attachment(&self, handle: &str, node: &str) -> Option<VolumeAttachment> {
        self.bench.get(&attachment(handle, node)).await
    }

    /// One pod on n1 with its volume h1 attached, and the node using nothing.
    pub(super) async fn attached(&self) {
        one_pod(&self.bench).await;
        say_attached(&self.bench, &attachment("h1", "n1")).await;
        self.until_state("h1", "n1", AttachState::Attached).await;
        self.bench.in_use("n1", &[]).await;
    }
}

/// How many forced detaches were counted for this reason.
pub(super) fn forced(rig: &Rig, reason: &str) -> f64 {
    let name = "attach_detach_controller_attachdetach_controller_forced_detaches_total";
    rig.metric(&format!("{name}{{reason=\"{reason}\"}}")).unwrap_or_default()
}
