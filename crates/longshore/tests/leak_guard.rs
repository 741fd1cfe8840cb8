//! Our provisioner with `--leak-guard` is killed in the middle of a call, and the official one takes
//! over on the same API: claims bind and go, nothing hangs, and the records of ours do no harm. When ours
//! comes back, it brings to an end what the official one cannot know of.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;
mod sidecar;

use std::{process::Command, time::Instant};

use common::{Beside, Home, Instance, PATIENCE, claim, class};
use longshore_csi::{
    Call,
    fake::{Action, Phase},
};
use longshore_real_kube::tools::{self, Tool};
use serde_json::Value;
use sidecar::Served;

const DRIVER: &str = "guarded.example.com";

/// The embedded API, the binder, and a fake driver on a real socket.
struct Lab {
    home: Home,
    api: Instance,
    _controllers: Beside,
    served: Served,
    runtime: tokio::runtime::Runtime,
}

impl Lab {
    fn new(test: &str) -> Self {
        let home = Home::new(test);
        let api = Instance::start(&home, "api", &["apiserver"]);
        let kubeconfig = api.kubeconfig.display().to_string();
        let args = ["controllers", "--kubeconfig", &kubeconfig, "--leader-elect=false"];
        let controllers = Beside::start(&home, "controllers", &args);
        api.apply(&class("fast", DRIVER, "reclaimPolicy: Delete"));
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let served = runtime.block_on(async { Served::new(DRIVER) });
        Self { home, api, _controllers: controllers, served, runtime }
    }

    fn ours(&self) -> Beside {
        let kubeconfig = self.api.kubeconfig.display().to_string();
        let socket = self.served.socket().display().to_string();
        let args = ["provisioner", "--kubeconfig", &kubeconfig, "--csi-address", &socket];
        let more = ["--leak-guard", "--retry-interval-start=100ms", "-v=5"];
        Beside::start(&self.home, "ours", &[&args[..], &more[..]].concat())
    }

    fn official(&self) -> Beside {
        let mut command = Command::new(tools::path(Tool::CsiProvisioner).unwrap());
        command.arg(format!("--kubeconfig={}", self.api.kubeconfig.display()));
        command.arg(format!("--csi-address={}", self.served.socket().display()));
        command.args(["--retry-interval-start=100ms", "-v=5"]);
        Beside::start_command(&self.home, "official", &mut command)
    }

    /// Lets the first call of a kind hang, before or after its effect.
    fn hang(&self, call: Call, phase: Phase) {
        let first = std::sync::atomic::AtomicBool::new(true);
        self.served.driver.hook(move |moment| {
            let hit = moment.call == call && moment.phase == phase;
            match hit && first.swap(false, std::sync::atomic::Ordering::Relaxed) {
                true => Action::Hang,
                false => Action::Continue,
            }
        });
    }

    /// Waits until the driver has been asked, and for the effect if that is part of it.
    fn asked(&self, call: Call, phase: Phase) {
        let driver = &self.served.driver;
        self.until("the driver is asked", || {
            let made = !driver.volumes().is_empty();
            let effect = match (call, phase) {
                (_, Phase::Before) => true,
                (Call::DeleteVolume, Phase::After) => !made,
                (_, Phase::After) => made,
            };
            !driver.calls_of(call).is_empty() && effect
        });
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            let calls = self.served.driver.calls();
            assert!(began.elapsed() < PATIENCE, "never: {what}\n{calls:#?}\n{}", self.logs());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    fn logs(&self) -> String {
        let read = |name: &str| {
            let file = self.home.path().join(format!("{name}.log"));
            let text = std::fs::read_to_string(file).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("== {name}\n{}\n", lines[lines.len().saturating_sub(40)..].join("\n"))
        };
        ["ours", "official", "controllers"].map(read).concat()
    }

    fn records(&self) -> usize {
        let done = self.api.cli(&["get", "configmaps", "-A", "-o", "json"]);
        let list: Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
        let all = list["items"].as_array().cloned().unwrap_or_default();
        let ours = |one: &&Value| {
            let name = one["metadata"]["name"].as_str().unwrap_or_default();
            name.starts_with("longshore-create-volume-")
        };
        all.iter().filter(ours).count()
    }

    fn gone(&self) -> bool {
        let left = self.api.cli(&["get", "pv,pvc", "-A", "-o", "name"]);
        left.stdout.is_empty()
    }

    /// Ours comes back: whatever it left is brought to its end.
    fn ends_clean(mut self) {
        self.served.driver.clear_hook();
        let ours = self.ours();
        self.until("nothing is left", || {
            self.gone() && self.served.driver.volumes().is_empty() && self.records() == 0
        });
        assert_eq!(self.served.driver.violations(), Vec::<String>::new());
        drop(ours);
        self.runtime.block_on(self.served.stop());
    }
}

fn can_run() -> bool {
    tools::need(&[Tool::CsiProvisioner])
}

/// CreateVolume hangs, ours is killed, the official one binds the claim, and later deletes it.
fn bound_by_the_official_one(test: &str, phase: Phase) {
    if !can_run() {
        return;
    }
    let lab = Lab::new(test);
    lab.hang(Call::CreateVolume, phase);
    let ours = lab.ours();
    lab.api.apply(&claim("data", "fast"));
    lab.asked(Call::CreateVolume, phase);
    drop(ours);
    assert_eq!(lab.records(), 1, "the record stands for what was begun");
    let official = lab.official();
    lab.api.bound("data");
    assert_eq!(lab.served.driver.volumes().len(), 1, "made once");
    assert_eq!(lab.records(), 1, "the official one knows nothing of it");
    assert!(lab.api.cli(&["delete", "pvc", "data"]).status.success());
    lab.until("the claim and its volume go", || lab.gone());
    assert_eq!(lab.served.driver.volumes().len(), 0);
    drop(official);
    lab.ends_clean();
}

#[test]
fn killed_before_the_volume_was_made() {
    bound_by_the_official_one("guard-before", Phase::Before);
}

#[test]
fn killed_after_the_volume_was_made() {
    bound_by_the_official_one("guard-after", Phase::After);
}

/// The claim goes while nobody works for it: it must not hang, and the volume is ours to remember.
#[test]
fn a_claim_that_is_deleted_in_between_goes_at_once() {
    if !can_run() {
        return;
    }
    let lab = Lab::new("guard-deleted");
    lab.hang(Call::CreateVolume, Phase::After);
    let ours = lab.ours();
    lab.api.apply(&claim("data", "fast"));
    lab.asked(Call::CreateVolume, Phase::After);
    drop(ours);
    let official = lab.official();
    // It may answer the claim first; either way nothing holds the claim back.
    assert!(lab.api.cli(&["delete", "pvc", "data"]).status.success());
    lab.until("the claim goes", || lab.api.json("pvc", "data").is_null());
    drop(official);
    lab.ends_clean();
}

/// A deletion that was under way is the official one's to finish: finalizer and policy are the same.
#[test]
fn a_deletion_is_finished_by_the_official_one() {
    if !can_run() {
        return;
    }
    let lab = Lab::new("guard-deleting");
    let ours = lab.ours();
    lab.api.apply(&claim("data", "fast"));
    lab.api.bound("data");
    lab.hang(Call::DeleteVolume, Phase::Before);
    assert!(lab.api.cli(&["delete", "pvc", "data"]).status.success());
    lab.asked(Call::DeleteVolume, Phase::Before);
    drop(ours);
    let official = lab.official();
    lab.until("claim and volume go", || lab.gone());
    assert_eq!(lab.served.driver.volumes().len(), 0);
    drop(official);
    lab.ends_clean();
}
