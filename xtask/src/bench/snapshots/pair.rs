//! Beside the official programs, with csi-driver-host-path.

use std::process::Command;

use anyhow::{Context as _, Result};
use longshore_real_kube::{Cluster, Controllers, Options, tools::Tool};

use super::super::{
    DRIVER, http::Server, kubeconfig::Kubeconfig, load, release_binary, start_driver,
};
use super::{
    Args,
    objects::{CLASS, make_class, numbered, storm},
    programs::{Pair, Side},
};

const TUNED: &[&str] = &["--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=100"];

pub(super) fn turn(args: &Args, round: usize) -> Result<Vec<(String, f64)>> {
    let needed = [
        Tool::Etcd,
        Tool::KubeApiserver,
        Tool::KubeControllerManager,
        Tool::Kubectl,
        Tool::Hostpath,
        Tool::CsiSnapshotter,
        Tool::SnapshotController,
    ];
    crate::setup::build(&needed)?;
    let ours = release_binary()?;
    let mut cluster = Cluster::start(&Options {
        controllers: Controllers::Volumes,
        interrupt: Some(crate::interrupt::flag()?),
        ..Options::default()
    })?;
    define(&cluster)?;
    let server = Server::new(&Kubeconfig::read(cluster.kubeconfig())?)?;
    let (driver, socket) = start_driver(cluster.dir())?;
    load::prepare(&server, DRIVER)?;
    make_class(&server, DRIVER)?;
    let mut provisioner = Command::new(&ours);
    provisioner.arg("provisioner").arg(format!("--csi-address={}", socket.display()));
    provisioner.arg(format!("--kubeconfig={}", cluster.kubeconfig().display()));
    provisioner.env_remove("KUBECONFIG");
    cluster.add("provisioner", provisioner)?;
    let claims = numbered("one", args.claims);
    let bound = load::burst(&server, "one", args.claims, load::CLASS, "16Mi")?;
    let mut sides = [
        ("official", Side { ours: None, flags: &[] }),
        ("official, tuned", Side { ours: None, flags: TUNED }),
        ("ours", Side { ours: Some(&ours), flags: &[] }),
    ];
    sides.rotate_left(round % 3);
    let mut figures = Vec::new();
    for (name, side) in &sides {
        let pair = Pair::start(side, cluster.dir(), cluster.kubeconfig(), &socket)?;
        pair.settle();
        let names = numbered(&format!("r{round}-{}", name.replace([',', ' '], "")), args.claims);
        let took = storm(&server, &names, &claims, Some(CLASS));
        let took = took.with_context(|| format!("{name}: the logs end:\n{}", pair.tail()))?;
        pair.stop()?;
        let label = |what: &str| format!("{} of hostpath, {name}: {what}, s", args.claims);
        figures.extend([(label("ready"), took.ready), (label("gone"), took.gone)]);
    }
    bound.delete()?;
    driver.stop()?;
    cluster.stop()?;
    Ok(figures)
}

/// The kinds, from `deploy/crds`.
pub(super) fn define(cluster: &Cluster) -> Result<()> {
    let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crds");
    for args in [
        &["apply", "-f", crds][..],
        &["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"],
    ] {
        let done = cluster.kubectl(args)?;
        let said = String::from_utf8_lossy(&done.stderr);
        anyhow::ensure!(done.status.success(), "kubectl {args:?}: {said}");
    }
    Ok(())
}
