//! Binder, provisioner and attacher, each with its lease, and a fake driver; and users of theirs.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use longshore_cluster::ClientConfig;
use longshore_testing::without_volumes_of_others;
use serde_json::json;

use super::common::{binary, class};
use super::sidecar::{Program, Served, soon};

pub const DRIVER: &str = "weather.example.com";
/// A dead connection is noticed within 45 s, as by the official programs; the rest is for busy machines.
pub const RECOVERY: Duration = Duration::from_secs(45 + 45);

/// Between two claims of the users.
const PAUSE: Duration = Duration::from_millis(400);

/// How many claims users keep.
const MOST: usize = 500;

const NODE: &str = "---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: n1}
spec: {drivers: [{name: weather.example.com, nodeID: node-1}]}
";

/// How the programs reach the API.
pub enum Access {
    Kubeconfig(PathBuf),
    /// The provisioner is a user of its own, so that its requests can be told apart.
    Apart {
        provisioner: PathBuf,
        others: PathBuf,
    },
    /// As in a pod, with these files of a service account and a server on this port of loopback.
    Pod {
        account: PathBuf,
        port: u16,
    },
}

impl Access {
    /// A program of ours with this access; its arguments follow.
    fn command(&self, name: &str) -> tokio::process::Command {
        let with = |kubeconfig: &Path| {
            let mut command = tokio::process::Command::new(binary());
            command.env("KUBECONFIG", kubeconfig);
            command
        };
        match self {
            Self::Kubeconfig(file) => with(file),
            Self::Apart { provisioner, .. } if name == "provisioner" => with(provisioner),
            Self::Apart { others, .. } => with(others),
            Self::Pod { account, port } => {
                // The place of the files is fixed, so it is one of a mount namespace.
                let script = without_volumes_of_others(account)
                    + "at=/run/secrets/kubernetes.io/serviceaccount
                    mount -t tmpfs none /run && mkdir -p $at && mount --bind \"$0\" $at && exec \"$@\"";
                let mut command = tokio::process::Command::new("unshare");
                command.args(["--mount", "--", "sh", "-c", &script]).arg(account).arg(binary());
                command.env_remove("KUBECONFIG").env("KUBERNETES_SERVICE_HOST", "127.0.0.1");
                command.env("KUBERNETES_SERVICE_PORT", port.to_string());
                command
            }
        }
    }
}

/// Those who make claims and attachments.
#[derive(Clone)]
pub struct Users {
    pub claims: Api<PersistentVolumeClaim>,
    pub volumes: Api<PersistentVolume>,
    /// The class of their claims.
    class: &'static str,
    /// Whether they attach what they have.
    attach: bool,
    attachments: Api<VolumeAttachment>,
}

pub struct Stack {
    pub served: Served,
    pub programs: Vec<(&'static str, Program)>,
    pub users: Users,
    theirs: Access,
    /// Whether the programs campaign for leases.
    election: bool,
    leases: Api<Lease>,
    held: Vec<(String, String)>,
}

impl Stack {
    /// Starts everything; the programs reach the API by `theirs`, the users by `ours`.
    pub async fn start(theirs: &Path, ours: &Path) -> Self {
        Self::start_with(Access::Kubeconfig(theirs.to_owned()), ours, true).await
    }

    pub async fn start_with(theirs: Access, ours: &Path, election: bool) -> Self {
        apply(ours, &(class("fast", DRIVER, "reclaimPolicy: Delete") + NODE));
        let client = ClientConfig::from_kubeconfig(ours).client().await.unwrap();
        let served = Served::new(DRIVER);
        served.driver.on_node("node-1", [].into());
        let mut stack = Self {
            served,
            programs: Vec::new(),
            users: Users {
                claims: Api::namespaced(client.clone(), "default"),
                volumes: Api::all(client.clone()),
                class: "fast",
                attach: true,
                attachments: Api::all(client.clone()),
            },
            theirs,
            election,
            leases: Api::namespaced(client, "default"),
            held: Vec::new(),
        };
        for name in ["controllers", "provisioner", "attacher"] {
            let program = stack.program(name);
            if election {
                program.says("became leader").await;
            }
            stack.programs.push((name, program));
        }
        // A first claim, so that every loop has what it needs before anything goes wrong.
        stack.users.create("first").await;
        stack.settle("calm", Instant::now()).await;
        stack.clear("calm").await;
        stack.held = stack.leases_now().await;
        stack
    }

    /// Starts one of the programs.
    pub fn program(&self, name: &str) -> Program {
        let mut args = vec![name.to_owned(), "-v=3".to_owned()];
        if name == "controllers" {
            args.push("--leader-elect-resource-namespace=default".to_owned());
            args.push(format!("--leader-elect={}", self.election));
        } else {
            args.push(format!("--csi-address={}", self.served.socket().display()));
            args.push(format!("--leader-election={}", self.election));
            args.push("--leader-election-namespace=default".to_owned());
        }
        if name == "provisioner" {
            args.push("--leak-guard".to_owned());
        }
        let mut command = self.theirs.command(name);
        command.args(args);
        Program::start_command(command)
    }

    /// Starts again what has ended, as a kubelet does; gives how many there were.
    pub fn restart_ended(&mut self) -> usize {
        let mut ended = Vec::new();
        for (place, (name, program)) in self.programs.iter_mut().enumerate() {
            if !program.running() {
                ended.push((place, *name));
            }
        }
        for (place, name) in &ended {
            self.programs[*place].1 = self.program(name);
        }
        ended.len()
    }

    /// Waits until every claim is bound or gone, every volume of the driver has its
    /// PersistentVolume and the other way round, and every attachment has been made.
    pub async fn settle(&self, when: &str, since: Instant) {
        self.within(when, since, || async {
            let claims = self.users.claims.list(&ListParams::default()).await.map_err(text)?;
            let volumes = self.users.volumes.list(&ListParams::default()).await.map_err(text)?;
            let attachments =
                self.users.attachments.list(&ListParams::default()).await.map_err(text)?;
            let bound = |claim: &PersistentVolumeClaim| {
                claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
                    && claim.metadata.deletion_timestamp.is_none()
            };
            let attached = |one: &VolumeAttachment| {
                one.status.as_ref().is_some_and(|status| status.attached)
                    && one.metadata.deletion_timestamp.is_none()
            };
            let handles = handles_of(&volumes.items, DRIVER);
            let real: BTreeSet<String> = self.served.driver.volumes().into_keys().collect();
            let done = claims.iter().all(bound)
                && attachments.iter().all(attached)
                && handles.len() == claims.items.len()
                && handles == real;
            match done {
                true => Ok(()),
                false => Err(format!(
                    "{} claims, {} bound; volumes {handles:?}; at the driver {real:?}; {} \
                     attachments, {} attached",
                    claims.items.len(),
                    claims.iter().filter(|claim| bound(claim)).count(),
                    attachments.items.len(),
                    attachments.iter().filter(|one| attached(one)).count(),
                )),
            }
        })
        .await;
    }

    /// Deletes everything; nothing may be left.
    pub async fn clear(&self, when: &str) {
        let all = (DeleteParams::default(), ListParams::default());
        again(|| self.users.attachments.delete_collection(&all.0, &all.1)).await;
        again(|| self.users.claims.delete_collection(&all.0, &all.1)).await;
        self.within(when, Instant::now(), || async {
            let claims =
                self.users.claims.list(&ListParams::default()).await.map_err(text)?.items.len();
            let volumes = self.users.volumes.list(&ListParams::default()).await.map_err(text)?;
            let volumes = handles_of(&volumes.items, DRIVER).len();
            let attached = self
                .users
                .attachments
                .list(&ListParams::default())
                .await
                .map_err(text)?
                .items
                .len();
            let real = self.served.driver.volumes().len();
            match (claims, volumes, attached, real) {
                (0, 0, 0, 0) => Ok(()),
                left => Err(format!("claims, volumes, attachments, at the driver: {left:?}")),
            }
        })
        .await;
    }

    pub async fn within<F>(&self, when: &str, since: Instant, look: impl Fn() -> F)
    where
        F: Future<Output = Result<(), String>>,
    {
        loop {
            let Err(now) = look().await else { return };
            if since.elapsed() > RECOVERY {
                panic!("{when}: not settled within {RECOVERY:?}: {now}\n{}", self.logs());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Every lease has the holder it had, without interruption, and nobody's program has ended.
    pub async fn nobody_lost_a_lease(&mut self, when: &str) {
        let logs = self.logs();
        for (name, program) in &mut self.programs {
            assert!(program.running(), "{when}: {name} has ended\n{logs}");
            let text = program.text();
            assert!(!text.contains("leadership lost"), "{when}: {name} lost its lease\n{logs}");
        }
        assert_eq!(self.leases_now().await, self.held, "{when}\n{logs}");
    }

    /// Holder and number of transitions of every lease, by name.
    async fn leases_now(&self) -> Vec<(String, String)> {
        let params = ListParams::default();
        let all = again(|| self.leases.list(&params)).await.unwrap();
        let told = all.into_iter().map(|lease| {
            let spec = lease.spec.unwrap();
            let held = format!("{:?} {:?}", spec.holder_identity, spec.lease_transitions);
            (lease.metadata.name.unwrap(), held)
        });
        told.collect()
    }

    pub fn logs(&self) -> String {
        let last = |text: String| {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        let all = self.programs.iter();
        all.map(|(name, program)| format!("== {name}\n{}\n", last(program.text()))).collect()
    }

    /// Every program ends as it should.
    pub async fn stop(self) {
        for (name, program) in self.programs {
            let code = soon(name, program.terminate()).await;
            assert_eq!(code, Some(0), "{name}");
        }
        assert_eq!(self.served.driver.violations(), Vec::<String>::new());
    }
}

impl Users {
    /// Users of another class in a namespace of their own, who attach nothing.
    pub async fn of_class(class: &'static str, kubeconfig: &Path) -> Self {
        let client = ClientConfig::from_kubeconfig(kubeconfig).client().await.unwrap();
        Self {
            claims: Api::namespaced(client.clone(), class),
            volumes: Api::all(client.clone()),
            class,
            attach: false,
            attachments: Api::all(client),
        }
    }

    pub async fn create(&self, name: &str) {
        let claim = json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": self.class,
                     "resources": {"requests": {"storage": "1Mi"}}},
        });
        let claim = serde_json::from_value(claim).unwrap();
        let params = PostParams::default();
        again(|| self.claims.create(&params, &claim)).await;
    }

    pub async fn delete(&self, name: &str) {
        let params = DeleteParams::default();
        again(|| self.claims.delete(name, &params)).await;
    }

    pub async fn is_bound(&self, name: &str) -> bool {
        let claim = again(|| self.claims.get(name)).await;
        claim.and_then(|claim| claim.status?.phase).as_deref() == Some("Bound")
    }

    /// Asks for a volume of a bound claim on the node.
    pub async fn attach(&self, claim: &str) {
        let claimed = again(|| self.claims.get(claim)).await.unwrap();
        let attachment = json!({
            "metadata": {"name": format!("of-{claim}")},
            "spec": {"attacher": DRIVER, "nodeName": "n1",
                     "source": {"persistentVolumeName": claimed.spec.unwrap().volume_name}},
        });
        let attachment = serde_json::from_value(attachment).unwrap();
        let params = PostParams::default();
        again(|| self.attachments.create(&params, &attachment)).await;
    }

    /// Claims are made until it is over: one in four is deleted at once, two are attached as soon as
    /// they are bound, and the oldest go when there are many. Gives how many there were.
    pub async fn churn(&self, round: &str, over: impl Fn() -> bool) -> usize {
        let (mut to_attach, mut kept) = (Vec::new(), VecDeque::new());
        let mut number = 0;
        while number == 0 || !over() {
            let name = format!("{round}-{number}");
            self.create(&name).await;
            match number % 4 {
                0 => self.delete(&name).await,
                1 | 2 if self.attach => to_attach.push(name),
                _ => kept.push_back(name),
            }
            number += 1;
            tokio::time::sleep(PAUSE).await;
            let mut waiting = Vec::new();
            for name in to_attach {
                if self.is_bound(&name).await {
                    self.attach(&name).await;
                    kept.push_back(name);
                } else {
                    waiting.push(name);
                }
            }
            to_attach = waiting;
            if kept.len() > MOST
                && let Some(oldest) = kept.pop_front()
            {
                if self.attach {
                    let (attachment, params) = (format!("of-{oldest}"), DeleteParams::default());
                    again(|| self.attachments.delete(&attachment, &params)).await;
                }
                self.delete(&oldest).await;
            }
        }
        number
    }
}

/// The handles of a driver's volumes.
pub fn handles_of(volumes: &[PersistentVolume], driver: &str) -> BTreeSet<String> {
    let csi = volumes.iter().filter_map(|one| one.spec.as_ref()?.csi.as_ref());
    csi.filter(|csi| csi.driver == driver).map(|csi| csi.volume_handle.clone()).collect()
}

/// Repeats a request until there is an answer; a "no" is one. `None` for what is not there, or is
/// there already.
pub async fn again<T, F>(request: impl Fn() -> F) -> Option<T>
where
    F: Future<Output = kube::Result<T>>,
{
    let began = Instant::now();
    loop {
        match request().await {
            Ok(done) => return Some(done),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => return None,
            Err(error) => assert!(began.elapsed() < RECOVERY, "no answer: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn text(error: kube::Error) -> String {
    error.to_string()
}

/// Applies objects as a user does.
pub fn apply(kubeconfig: &Path, yaml: &str) {
    use std::io::Write as _;
    let mut child = Command::new(binary())
        .args(["apply", "-f", "-", "--kubeconfig"])
        .arg(kubeconfig)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(yaml.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{yaml}");
}
