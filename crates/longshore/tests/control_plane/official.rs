//! The official provisioner in the same weather, with a driver and users of its own: what it asks the API
//! server for and what it leaves behind is reported beside ours, not judged.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use kube::api::ListParams;
use longshore_real_kube::Cluster;
use longshore_real_kube::tools::{self, Tool};
use serde_json::Value;

use super::common::class;
use super::sidecar::{Program, Served, soon};
use super::stack::{RECOVERY, Users, apply, handles_of};

const DRIVER: &str = "official.example.com";
/// Its class, and the namespace of its claims.
const CLASS: &str = "official";
/// Users, as the audit log names them.
pub const OFFICIAL: &str = "official-provisioner";
pub const OURS: &str = "our-provisioner";

pub struct Official {
    pub users: Users,
    served: Served,
    kubeconfig: PathBuf,
    program: Program,
}

impl Official {
    /// `None`, and a line that says so, where the program is not there.
    pub async fn start(cluster: &Cluster, address: SocketAddr) -> Option<Self> {
        if !tools::need(&[Tool::CsiProvisioner]) {
            return None;
        }
        let namespace =
            format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {CLASS}}}\n");
        let class = class(CLASS, DRIVER, "reclaimPolicy: Delete");
        apply(cluster.kubeconfig(), &(class + &namespace));
        let kubeconfig = cluster.kubeconfig_of_at(OFFICIAL, address).unwrap();
        let served = Served::new(DRIVER);
        let users = Users::of_class(CLASS, &cluster.kubeconfig_at(address).unwrap()).await;
        let program = start(&kubeconfig, &served);
        Some(Self { users, served, kubeconfig, program })
    }

    /// It ends when it loses its lease; a kubelet starts it again.
    pub fn restart_ended(&mut self) -> usize {
        let ended = !self.program.running();
        if ended {
            self.program = start(&self.kubeconfig, &self.served);
        }
        usize::from(ended)
    }

    pub fn kill(&mut self) {
        // Dropped, and so killed, before the next one is started.
        self.program = Program::start_command(tokio::process::Command::new("true"));
        self.program = start(&self.kubeconfig, &self.served);
    }

    /// Waits until its claims are bound; says how it went.
    pub async fn settle(&self) -> String {
        let began = Instant::now();
        loop {
            let claims = self.users.claims.list(&ListParams::default()).await;
            let bound = |phase: Option<&str>| phase == Some("Bound");
            let open = claims.as_ref().map_or(1, |all| {
                let status = all.iter().map(|one| one.status.as_ref()?.phase.as_deref());
                status.filter(|phase| !bound(*phase)).count()
            });
            if open == 0 || began.elapsed() > RECOVERY {
                let volumes = self.users.volumes.list(&ListParams::default()).await.unwrap();
                let known = handles_of(&volumes.items, DRIVER);
                let real = self.served.driver.volumes();
                let leaked = real.keys().filter(|handle| !known.contains(*handle)).count();
                return format!(
                    "{open} claims not bound after {:.1} s, {leaked} volumes without PersistentVolume",
                    began.elapsed().as_secs_f32()
                );
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }

    pub async fn stop(self) {
        soon("csi-provisioner ends", self.program.terminate()).await;
    }
}

fn start(kubeconfig: &Path, served: &Served) -> Program {
    let mut command = tokio::process::Command::new(tools::path(Tool::CsiProvisioner).unwrap());
    command.arg("--kubeconfig").arg(kubeconfig).arg("--csi-address").arg(served.socket());
    command.args(["--leader-election", "--leader-election-namespace=default"]);
    command.env_remove("KUBECONFIG");
    Program::start_command(command)
}

/// What a user asked the API servers for: all requests, and those that were refused or failed.
pub fn asked(audit: &Path, user: &str) -> (usize, BTreeMap<String, usize>) {
    let text = std::fs::read_to_string(audit).unwrap();
    // The last line may be half written.
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let (mut all, mut refused) = (0, BTreeMap::new());
    for event in events {
        let ended = event["stage"] == "ResponseComplete" || event["stage"] == "Panic";
        if !ended || event["user"]["username"] != user {
            continue;
        }
        all += 1;
        let code = event["responseStatus"]["code"].as_u64().unwrap_or(0);
        if !(200..400).contains(&code) {
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (verb, resource) = (word(&event["verb"]), word(&event["objectRef"]["resource"]));
            *refused.entry(format!("{code} {verb} {resource}")).or_default() += 1;
        }
    }
    (all, refused)
}
