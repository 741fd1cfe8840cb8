//! What every test here has: an API, a driver on a socket, and sidecars beside them.

use std::time::{Duration, Instant};

use crate::common::{Home, Instance, PATIENCE, class};
use crate::sidecar::{Program, Served, get};
use longshore_csi::Call;
use serde_json::{Value, json};
use tokio::process::Command;

pub const DRIVER: &str = "many.example.com";

/// Leases of the four usual controllers, in the order of their names.
pub const LEASES: [(&str, &str); 4] = [
    ("attacher", "external-attacher-leader-many-example-com"),
    ("provisioner", "many-example-com"),
    ("resizer", "external-resizer-many-example-com"),
    ("snapshotter", "external-snapshotter-leader-many-example-com"),
];

/// Short times: 6, 4 and 2 s.
pub const SHORT: &str = "--leader-election --leader-election-namespace=default --leader-election-lease-duration=6s \
    --leader-election-renew-deadline=4s --leader-election-retry-period=2s";

/// The usual times: 15, 10 and 5 s.
pub const USUAL: &str = "--leader-election --leader-election-namespace=default";

pub struct Rig {
    pub home: Home,
    pub api: Instance,
    pub served: Served,
}

/// Sidecars in one process, with their port.
pub struct Sidecars {
    pub program: Program,
    pub address: String,
}

impl Rig {
    pub fn new(test: &str) -> Self {
        let home = Home::new(test);
        let api = Instance::start(&home, "api", &["apiserver"]);
        let served = Served::new(DRIVER);
        api.apply(&class("fast", DRIVER, "reclaimPolicy: Delete\nallowVolumeExpansion: true"));
        api.apply(&format!(
            "apiVersion: storage.k8s.io/v1\nkind: CSINode\nmetadata: {{name: n1}}\nspec: {{drivers: [{{name: \
             {DRIVER}, nodeID: node-1}}]}}\n---\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\n\
             metadata: {{name: snap}}\ndriver: {DRIVER}\ndeletionPolicy: Delete\n"
        ));
        Self { home, api, served }
    }

    /// The process, not waited for.
    pub fn start(&self, flags: &str, environment: &[(&str, &str)]) -> Program {
        self.start_at(&self.served, flags, environment)
    }

    pub fn start_at(&self, served: &Served, flags: &str, environment: &[(&str, &str)]) -> Program {
        let mut command = self.command_at(served, flags);
        command.envs(environment.iter().copied());
        Program::start_command(command)
    }

    /// The command line of the process.
    pub fn command_at(&self, served: &Served, flags: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
        command.args(["sidecars", "-v=3", "--http-endpoint=127.0.0.1:0"]);
        command.arg(format!("--kubeconfig={}", self.api.kubeconfig.display()));
        command.arg(format!("--csi-address={}", served.socket().display()));
        command.args(flags.split_whitespace());
        command
    }

    pub async fn sidecars(&self, flags: &str) -> Sidecars {
        Sidecars::of(self.start(flags, &[])).await
    }

    pub fn lease(&self, name: &str) -> Value {
        self.api.json("lease", name)["spec"].take()
    }

    /// Who holds a lease; empty when nobody does.
    pub fn holder(&self, name: &str) -> String {
        self.lease(name)["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until somebody holds each of these leases, and says who.
    pub async fn holders(&self, leases: &[(&str, &str)]) -> Vec<String> {
        let held = || {
            let holders: Vec<String> = leases.iter().map(|(_, name)| self.holder(name)).collect();
            holders.iter().all(|holder| !holder.is_empty()).then_some(holders)
        };
        until("every lease is held", held).await
    }

    pub fn claim(&self, name: &str) {
        self.claim_of(name, "fast");
    }

    /// A claim as the binder leaves it for the provisioner.
    pub fn claim_of(&self, name: &str, class: &str) {
        let annotation =
            format!(", annotations: {{volume.kubernetes.io/storage-provisioner: {DRIVER}}}}}\n");
        let claim = crate::common::claim(name, class);
        self.api.apply(&claim.replacen("}\n", &annotation, 1));
    }

    /// Waits until the claim's volume is saved, and gives its name.
    pub async fn volume_of(&self, claim: &str) -> String {
        until(&format!("{claim} has a volume"), || {
            let uid = self.api.json("pvc", claim)["metadata"]["uid"].as_str()?.to_owned();
            let name = format!("pvc-{uid}");
            (!self.api.json("pv", &name).is_null()).then_some(name)
        })
        .await
    }

    /// A claim that has its volume, as the binder leaves them.
    pub async fn bound(&self, claim: &str) -> String {
        self.claim(claim);
        let volume = self.volume_of(claim).await;
        let patch = json!({"spec": {"volumeName": volume}}).to_string();
        self.patch("pvc", claim, &patch);
        let status = json!({"status": {"phase": "Bound", "capacity": {"storage": "16Mi"},
            "accessModes": ["ReadWriteOnce"]}});
        self.patch_status("pvc", claim, &status.to_string());
        volume
    }

    pub fn patch(&self, kind: &str, name: &str, patch: &str) {
        let done = self.api.cli(&["patch", kind, name, "--type=merge", "-p", patch]);
        assert!(done.status.success(), "{kind} {name}: {}", crate::common::text(&done));
    }

    pub fn patch_status(&self, kind: &str, name: &str, patch: &str) {
        let done = self.api.cli(&[
            "patch",
            kind,
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            patch,
        ]);
        assert!(done.status.success(), "{kind} {name}: {}", crate::common::text(&done));
    }

    pub fn grow(&self, claim: &str, size: &str) {
        let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
        self.patch("pvc", claim, &patch.to_string());
    }

    pub fn attach(&self, name: &str, volume: &str) {
        self.api.apply(&format!(
            "apiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {{name: {name}}}\nspec: {{attacher: \
             {DRIVER}, nodeName: n1, source: {{persistentVolumeName: {volume}}}}}\n"
        ));
    }

    pub async fn attached(&self, name: &str) {
        until(&format!("{name} is attached"), || {
            (self.api.json("volumeattachment", name)["status"]["attached"] == true).then_some(())
        })
        .await;
    }

    /// A content that asks for a snapshot of a volume.
    pub fn snapshot(&self, name: &str, handle: &str) {
        self.api.apply(&format!(
            "apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotContent\nmetadata: {{name: {name}}}\nspec: \
             {{driver: {DRIVER}, deletionPolicy: Delete, volumeSnapshotClassName: snap, source: {{volumeHandle: \
             {handle}}}, volumeSnapshotRef: {{name: {name}, namespace: default, uid: uid-{name}}}}}\n"
        ));
    }

    pub async fn snapshotted(&self, name: &str) {
        until(&format!("{name} is taken"), || {
            let content = self.api.json("volumesnapshotcontent", name);
            (content["status"]["readyToUse"] == true).then_some(())
        })
        .await;
    }

    pub fn handle(&self, volume: &str) -> String {
        let volume = self.api.json("pv", volume);
        volume["spec"]["csi"]["volumeHandle"].as_str().unwrap().to_owned()
    }

    pub fn calls(&self, call: Call) -> usize {
        self.served.driver.calls_of(call).len()
    }
}

impl Sidecars {
    pub async fn of(program: Program) -> Self {
        let address = program.address("serving metrics and health").await;
        Self { program, address }
    }

    /// The line of one controller, and the status of all.
    pub async fn controller(&self, name: &str) -> (u16, String) {
        if let Err(error) = tokio::net::TcpStream::connect(&self.address).await {
            panic!("{error}: it has ended\n{}", self.program.text());
        }
        let (status, text) = get(&self.address, "/healthz/controllers").await;
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        (status, line.to_owned())
    }

    /// Waits until a controller's line begins so.
    pub async fn is(&self, name: &str, state: &str) -> (u16, String) {
        let want = format!("{name} {state}");
        let began = Instant::now();
        loop {
            let found = self.controller(name).await;
            if found.1.starts_with(&want) {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "never {want}: {found:?}\n{}", self.program.text());
            pause().await;
        }
    }

    pub async fn all_lead(&self) {
        for (name, _) in LEASES {
            self.is(name, "leading").await;
        }
    }

    /// The value of a series.
    pub async fn metric(&self, series: &str) -> Option<f64> {
        let (_, text) = get(&self.address, "/metrics").await;
        text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }
}

pub async fn pause() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

pub async fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = tokio::task::block_in_place(&look) {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        pause().await;
    }
}
