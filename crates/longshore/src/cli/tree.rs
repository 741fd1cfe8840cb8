//! The tree of commands: one place for names, summaries and help texts.

use crate::flags::goify;

use super::{
    attacher, controllers, driver, liveness_probe, node, node_registrar, people, plain,
    provisioner, up,
};

/// The hidden program that keeps one pod's processes.
pub(super) const POD_SHIM: &str = "pod-shim";

/// The hidden program that holds a filesystem frozen.
pub(super) const FREEZE_HOLDER: &str = "freeze-holder";

/// The hidden program that is one node of several; its argument is a file.
pub(super) const UP_NODE: &str = "up-node";

/// Names under which the binary behaves as the official program, with our name of it if it is there.
pub(super) const OFFICIAL: &[(&str, Option<&str>)] = &[
    ("csi-provisioner", Some("provisioner")),
    ("csi-attacher", Some("attacher")),
    ("csi-resizer", None),
    ("csi-snapshotter", None),
    ("snapshot-controller", None),
    ("livenessprobe", Some("liveness-probe")),
    ("csi-node-driver-registrar", Some("node-registrar")),
    ("csi-external-health-monitor-controller", None),
];

/// Programs of the contract that do not exist yet.
pub(super) const NOT_YET: &[&str] = &[
    "resizer",
    "snapshotter",
    "snapshot-controller",
    "health-monitor",
    "sidecars",
    "status",
    "explain",
    "audit",
];

type Augment = fn(clap::Command) -> clap::Command;

/// Name, summary, flags and an example of every program.
const PROGRAMS: &[(&str, &str, Augment, &str)] = &[
    (
        "demo",
        "Walk one volume through its whole life in a temporary directory, and leave nothing behind",
        <up::DemoFlags as clap::Args>::augment_args,
        "longshore demo",
    ),
    (
        "up",
        "Run everything on this machine: API, controllers, node and drivers",
        <up::Flags as clap::Args>::augment_args,
        "longshore up --data-dir /var/lib/longshore\n  kubectl --kubeconfig /var/lib/longshore/kubeconfig get storageclass",
    ),
    (
        "apply",
        "Create or change objects from a file",
        <people::ApplyFlags as clap::Args>::augment_args,
        "longshore apply -f claim.yaml\n  cat claim.yaml | longshore apply -n demo -f -",
    ),
    (
        "get",
        "Show objects",
        <people::GetFlags as clap::Args>::augment_args,
        "longshore get pvc\n  longshore get pod web -o yaml\n  longshore get pvc,pv -A\n  longshore get pvc -w",
    ),
    (
        "describe",
        "Show one object in detail, with its events",
        <people::DescribeFlags as clap::Args>::augment_args,
        "longshore describe pvc data",
    ),
    (
        "delete",
        "Delete objects by name or from a file",
        <people::DeleteFlags as clap::Args>::augment_args,
        "longshore delete pod web\n  longshore delete -f claim.yaml --wait=false",
    ),
    (
        "logs",
        "Show what a pod's container wrote",
        <people::LogsFlags as clap::Args>::augment_args,
        "longshore logs web -f",
    ),
    (
        "provisioner",
        "Make and delete volumes for claims through a CSI driver (as csi-provisioner)",
        <provisioner::Flags as clap::Args>::augment_args,
        "longshore provisioner --csi-address=/run/csi/socket --leader-election -v=2",
    ),
    (
        "attacher",
        "Attach and detach volumes through a CSI driver (as csi-attacher)",
        <attacher::Flags as clap::Args>::augment_args,
        "longshore attacher --csi-address=/run/csi/socket --leader-election -v=2",
    ),
    (
        "controllers",
        "Bind, protect and attach volumes, and place pods",
        <controllers::Flags as clap::Args>::augment_args,
        "longshore controllers --kubeconfig admin.kubeconfig '--controllers=*,scheduler'",
    ),
    (
        "node",
        "Mount volumes and run pods on one node",
        <node::Flags as clap::Args>::augment_args,
        "longshore node --kubeconfig node.kubeconfig --node-name n1 --root-dir /var/lib/node",
    ),
    (
        "node-registrar",
        "Introduce a CSI driver to the kubelet of its node (as csi-node-driver-registrar)",
        <node_registrar::Flags as clap::Args>::augment_args,
        "longshore node-registrar --csi-address=/csi/csi.sock --kubelet-registration-path=/var/lib/kubelet/plugins/DRIVER/csi.sock",
    ),
    (
        "liveness-probe",
        "Show over HTTP whether a CSI driver is alive (as livenessprobe)",
        <liveness_probe::Flags as clap::Args>::augment_args,
        "longshore liveness-probe --csi-address=/csi/csi.sock --http-endpoint=:9808",
    ),
    (
        "driver",
        "Serve a CSI driver with volumes in directories of this machine",
        <driver::Flags as clap::Args>::augment_args,
        "longshore driver --endpoint unix:///run/csi.sock --node-id n1 --pool /srv/volumes",
    ),
    (
        "hostpath-provisioner",
        "Make a directory of this node for each claim",
        <plain::HostpathFlags as clap::Args>::augment_args,
        "longshore hostpath-provisioner --kubeconfig admin.kubeconfig --root /srv/volumes",
    ),
    (
        "nfs-provisioner",
        "Make a directory of an NFS export for each claim",
        <plain::NfsFlags as clap::Args>::augment_args,
        "longshore nfs-provisioner --server 10.0.0.1 --path /export --mount /persistentvolumes",
    ),
    (
        "apiserver",
        "Serve the Kubernetes API alone",
        <up::ApiServerFlags as clap::Args>::augment_args,
        "longshore apiserver --data-dir ./data --listen 127.0.0.1:0",
    ),
    (
        "completions",
        "Print completions for a shell",
        <people::CompletionsFlags as clap::Args>::augment_args,
        "longshore completions bash > /etc/bash_completion.d/longshore",
    ),
];

/// Names of all programs that a person may call.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    PROGRAMS.iter().map(|(name, ..)| *name)
}

/// The program called `name`, which is one of [`names`].
pub(super) fn subcommand(name: &str) -> clap::Command {
    let program = PROGRAMS.iter().find(|(known, ..)| *known == name);
    let (name, about, augment, example) = program.expect("callers check the name");
    let command = clap::Command::new(*name)
        .disable_version_flag(true)
        .disable_help_flag(true)
        .arg(help_flag())
        .after_help(format!("Examples:\n  {example}"));
    // The summary comes last: flag groups bring their own, which describe the group.
    goify(augment(command)).about(*about).long_about(None)
}

/// One form of help, the compact one.
fn help_flag() -> clap::Arg {
    clap::Arg::new("help")
        .short('h')
        .long("help")
        .help("Print help")
        .action(clap::ArgAction::HelpShort)
        .display_order(1000)
}

/// Everything, for help and completions.
pub(super) fn tree() -> clap::Command {
    let official: Vec<&str> =
        OFFICIAL.iter().filter_map(|(name, ours)| ours.map(|_| *name)).collect();
    clap::Command::new("longshore")
        .about("Kubernetes storage, end to end, in one binary.")
        .version(super::VERSION)
        .disable_help_subcommand(true)
        .disable_help_flag(true)
        .arg(help_flag())
        .subcommand_required(true)
        .subcommands(names().map(subcommand))
        .after_help(format!(
            "Start with `longshore demo`, then `longshore up`.\n\
             Started through a link named {}, the binary behaves as that program.\n\
             Flags are written as in Go: --flag=value, -flag value, --switch=false, durations as 1m30s.\n\
             Exit codes: 0 done, 1 failed, 2 wrong usage.",
            official.join(" or ")
        ))
}
