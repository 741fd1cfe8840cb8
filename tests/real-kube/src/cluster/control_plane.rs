//! The programs of the control plane and their flags.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::rolling::Served;
use super::{Cluster, Controllers, MASTERS, Options};
use crate::http::Https;
use crate::node::API_ADDRESS;
use crate::pki::{self, write_private};
use crate::ports;
use crate::program::Program;
use crate::tools::{self, Tool};

/// How long a program may take to get ready. Long, because machines can be busy.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
/// The controllers that volumes need.
const VOLUME_CONTROLLERS: [&str; 8] = [
    "persistentvolume-binder-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
    "persistentvolumeclaim-protection-controller",
    "persistentvolume-protection-controller",
    "ephemeral-volume-controller",
    "serviceaccount-controller",
    "namespace-controller",
];
const AUDIT_POLICY: &str = r#"{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],"rules":[{"level":"Metadata"}]}"#;
/// Names under which the servers may be asked, beside the loopback address.
const NAMES: [&str; 4] =
    ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];

impl Cluster {
    /// Starts a program on free ports, and again on others when another program was quicker.
    fn launch<const N: usize>(
        &mut self,
        tool: Tool,
        line: impl Fn(&[u16; N]) -> Vec<String>,
        ready: impl Fn(&[u16; N]) -> bool,
    ) -> Result<[u16; N]> {
        let more =
            self.programs.iter().filter(|one| one.name().starts_with(tool.program())).count();
        let name = match more {
            0 => tool.program().to_owned(),
            more => format!("{}-{}", tool.program(), more + 1),
        };
        let exe = tools::path(tool)?;
        let log = self.dir().join(format!("{name}.log"));
        let mut tries = 0;
        loop {
            tries += 1;
            let picked = ports::free::<N>()?;
            let line = line(&picked);
            let mut command = Command::new(&exe);
            command.args(&line).current_dir(self.dir());
            let mut program = Program::start(&name, command, &log, self.lifetime)?;
            self.record(program.process())?;
            let interrupt = self.interrupt.clone();
            let waited = program.wait_until(TIMEOUT, interrupt.as_ref(), || ready(&picked));
            match waited {
                Ok(()) => {
                    self.programs.push(program);
                    if let Some(port) = picked.first() {
                        self.served.push(Served { port: *port, tool, name, line });
                    }
                    return Ok(picked);
                }
                Err(_) if ports::taken(&program.tail()) && tries < ports::TRIES => {}
                Err(error) if tries > 1 => {
                    return Err(error)
                        .with_context(|| format!("after {tries} tries on other ports"));
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(super) fn start_etcd(&mut self, options: &Options) -> Result<u16> {
        // Under our own CA no program can mistake another cluster's store, on a port that was free a
        // moment ago, for this one. It dials itself with its serving certificate.
        let pair = self.ca.serving_and_client("etcd", &NAMES)?;
        let (certificate, key) = pair.save(&self.dir().join("pki"), "etcd")?;
        let mut fixed = vec![
            "--name=real".to_owned(),
            format!("--trusted-ca-file={}", self.ca_file().display()),
            "--client-cert-auth".to_owned(),
            format!("--cert-file={}", certificate.display()),
            format!("--key-file={}", key.display()),
            "--log-level=warn".to_owned(),
        ];
        if options.etcd_without_fsync {
            fixed.push("--unsafe-no-fsync".to_owned());
        }
        let data = self.dir().join("etcd").display().to_string();
        let line = |ports: &[u16; 2]| {
            let client = format!("https://127.0.0.1:{}", ports[0]);
            let peer = format!("http://127.0.0.1:{}", ports[1]);
            let mut line = vec![
                format!("--data-dir={data}-{}", ports[0]),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=real={peer}"),
            ];
            line.extend(fixed.iter().cloned());
            line
        };
        let https = self.https.clone();
        let ready = |ports: &[u16; 2]| is_ready(&https, Tool::Etcd, ports[0]);
        Ok(self.launch(Tool::Etcd, line, ready)?[0])
    }

    pub(super) fn start_apiserver(&mut self, options: &Options, etcd: u16) -> Result<u16> {
        self.apiserver_flags = self.make_apiserver_flags(options, etcd)?;
        self.launch_apiserver(&self.apiserver_flags.clone())
    }

    pub(super) fn launch_apiserver(&mut self, fixed: &[String]) -> Result<u16> {
        let line = |ports: &[u16; 1]| {
            let mut line = vec![format!("--secure-port={}", ports[0])];
            line.extend(fixed.iter().cloned());
            line
        };
        let https = self.https.clone();
        let ready = |ports: &[u16; 1]| is_ready(&https, Tool::KubeApiserver, ports[0]);
        let [port] = self.launch(Tool::KubeApiserver, line, ready)?;
        Ok(port)
    }

    fn make_apiserver_flags(&self, options: &Options, etcd: u16) -> Result<Vec<String>> {
        let keys = self.dir().join("pki");
        let names = [&NAMES[..], &[API_ADDRESS]].concat();
        let (serving, serving_key) = self.ca.serving(&names)?.save(&keys, "serving")?;
        let to_kubelet = self.ca.client("kube-apiserver-kubelet-client", &[MASTERS])?;
        let (kubelet, kubelet_key) = to_kubelet.save(&keys, "kubelet-client")?;
        let (sign, verify) = pki::token_keys()?;
        write_private(&keys.join("sa.key"), &sign)?;
        write_private(&keys.join("sa.pub"), &verify)?;
        let mode = match (options.rbac, options.node) {
            (false, _) => "AlwaysAllow",
            (true, false) => "RBAC",
            (true, true) => "Node,RBAC",
        };
        let mut flags = vec![
            format!("--etcd-servers=https://127.0.0.1:{etcd}"),
            format!("--etcd-cafile={}", self.ca_file().display()),
            format!("--etcd-certfile={}", keys.join("etcd.crt").display()),
            format!("--etcd-keyfile={}", keys.join("etcd.key").display()),
            // Loopback cannot be advertised as an endpoint.
            "--endpoint-reconciler-type=none".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            "--service-cluster-ip-range=10.233.0.0/24".to_owned(),
            format!("--authorization-mode={mode}"),
            format!("--client-ca-file={}", self.ca_file().display()),
            format!("--tls-cert-file={}", serving.display()),
            format!("--tls-private-key-file={}", serving_key.display()),
            format!("--kubelet-client-certificate={}", kubelet.display()),
            format!("--kubelet-client-key={}", kubelet_key.display()),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", keys.join("sa.pub").display()),
            format!("--service-account-signing-key-file={}", keys.join("sa.key").display()),
        ];
        flags.extend(if options.service_accounts {
            vec!["--bind-address=0.0.0.0".to_owned()]
        } else {
            let without = "--disable-admission-plugins=ServiceAccount".to_owned();
            vec!["--bind-address=127.0.0.1".to_owned(), without]
        });
        if let Some(log) = self.audit_log() {
            let policy = self.dir().join("audit-policy.yaml");
            write_private(&policy, AUDIT_POLICY)?;
            flags.push(format!("--audit-policy-file={}", policy.display()));
            flags.push(format!("--audit-log-path={}", log.display()));
        }
        flags.extend(options.more_apiserver_args.iter().cloned());
        Ok(flags)
    }

    pub(super) fn start_controllers(&mut self, options: &Options) -> Result<()> {
        let list = match options.controllers {
            Controllers::None => return Ok(()),
            // A new node cannot have pods until this controller has seen it ready.
            Controllers::Volumes if options.node => {
                format!("{},node-lifecycle-controller", VOLUME_CONTROLLERS.join(","))
            }
            Controllers::Volumes => VOLUME_CONTROLLERS.join(","),
            Controllers::Named(names) => names.join(","),
            Controllers::All => "*".to_owned(),
        };
        let keys = self.dir().join("pki");
        // It acts for all its controllers under one name, so it needs every right.
        let config = self.kubeconfig_for("system:kube-controller-manager", &[MASTERS])?;
        let (serving, key) = self.ca.serving(&NAMES)?.save(&keys, "controller-manager")?;
        let mut fixed = own_server_flags(&config, &serving, &key);
        fixed.extend([
            format!("--controllers={list}"),
            "--use-service-account-credentials=false".to_owned(),
            format!("--service-account-private-key-file={}", keys.join("sa.key").display()),
            format!("--root-ca-file={}", self.ca_file().display()),
            format!("--cluster-signing-cert-file={}", self.ca_file().display()),
            format!("--cluster-signing-key-file={}", keys.join("ca.key").display()),
            "--allocate-node-cidrs=false".to_owned(),
        ]);
        fixed.extend(options.more_controller_manager_args.iter().cloned());
        self.start_with_healthz(Tool::KubeControllerManager, &fixed)
            .context("the controllers of Kubernetes")
    }

    pub(super) fn start_scheduler(&mut self, options: &Options) -> Result<()> {
        if !options.scheduler {
            return Ok(());
        }
        let config = self.kubeconfig_for("system:kube-scheduler", &[])?;
        let serving = self.ca.serving(&NAMES)?;
        let (serving, key) = serving.save(&self.dir().join("pki"), "scheduler")?;
        let mut fixed = own_server_flags(&config, &serving, &key);
        fixed.extend(options.more_scheduler_args.iter().cloned());
        self.start_with_healthz(Tool::KubeScheduler, &fixed).context("the scheduler of Kubernetes")
    }

    fn start_with_healthz(&mut self, tool: Tool, fixed: &[String]) -> Result<()> {
        let line = |ports: &[u16; 1]| {
            let mut line = vec![format!("--secure-port={}", ports[0])];
            line.extend(fixed.iter().cloned());
            line
        };
        let https = self.https.clone();
        let ready = |ports: &[u16; 1]| is_ready(&https, tool, ports[0]);
        self.launch(tool, line, ready)?;
        Ok(())
    }
}

/// Whether a program answers as it does when it is ready.
pub(super) fn is_ready(https: &Https, tool: Tool, port: u16) -> bool {
    let paths: &[&str] = match tool {
        Tool::Etcd => &["/health"],
        // The namespace is made after the server calls itself ready.
        Tool::KubeApiserver => &["/readyz", "/api/v1/namespaces/default"],
        _ => &["/healthz"],
    };
    paths.iter().all(|path| matches!(https.status(port, path), Ok(200)))
}

/// Flags that the controllers and the scheduler share.
fn own_server_flags(config: &Path, certificate: &Path, key: &Path) -> Vec<String> {
    let config = config.display();
    vec![
        format!("--kubeconfig={config}"),
        format!("--authentication-kubeconfig={config}"),
        format!("--authorization-kubeconfig={config}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--tls-cert-file={}", certificate.display()),
        format!("--tls-private-key-file={}", key.display()),
        "--leader-elect=false".to_owned(),
    ]
}
