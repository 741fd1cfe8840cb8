//! Volumes that are mounted and idle, in the embedded mode.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use longshore_real_kube::Program;
use serde_json::{Value, json};

use super::super::{
    burst::{server, with_instance},
    follow::Seen,
    http::Server,
    load::{self, NAMESPACE},
    release_binary,
};
use super::{
    Args,
    objects::{numbered, storm},
};
use crate::sanity::Mounted;

/// The class of the claims: the local driver, without waiting for a pod.
const CLASS: &str = "longshore-local-immediate";
const SIZE: &str = "16Mi";
/// Volumes of one pod.
const SHARE: usize = 20;

pub(super) fn turn(args: &Args) -> Result<Vec<(String, f64)>> {
    let binary = release_binary()?;
    let mut figures = Vec::new();
    for pool in ["xfs", "ext4"] {
        let home = tempfile::Builder::new().prefix("longshore-storm-").tempdir_in(&args.dir)?;
        let at = home.path().join("pool");
        fs::create_dir(&at).context("cannot make a pool")?;
        let mounted = match pool {
            "xfs" => Some(Mounted::new("xfs", &home.path().join("pool.img"), &at)?),
            // The disk's own, which is ext4 nearly everywhere.
            _ => None,
        };
        let volumes = at.join("volumes");
        let flags = ["--pool".to_owned(), format!("default={}", volumes.display())];
        let seen = with_instance(&binary, &args.dir, &flags, |_: &Program, data: &Path| {
            measure(&server(data)?, args.claims)
        });
        drop(mounted);
        let (ready, gone) = seen.with_context(|| format!("on {pool}"))?;
        let label = |what: &str| format!("{} mounted, {pool} pool: {what}, s", args.claims);
        figures.extend([(label("ready"), ready), (label("gone"), gone)]);
    }
    Ok(figures)
}

fn measure(server: &Server, count: usize) -> Result<(f64, f64)> {
    load::make_namespace(server)?;
    let claims = numbered("one", count);
    let pods: Vec<String> = numbered("pod", count.div_ceil(SHARE));
    let seen = Seen::start_with_pods(server)?;
    let bound = load::burst(server, "one", count, CLASS, SIZE)?;
    let mut connection = server.connect()?;
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    for (name, claims) in pods.iter().zip(claims.chunks(SHARE)) {
        connection.post(&path, &pod(name, claims).to_string())?;
    }
    drop(seen.wait("the pods to run", |state| {
        pods.iter().all(|name| state.running.contains_key(name))
    })?);
    let took = storm(server, &numbered("snap", count), &claims, None)?;
    for name in &pods {
        connection.call("DELETE", &format!("{path}/{name}"), None)?;
    }
    bound.delete()?;
    Ok((took.ready, took.gone))
}

fn pod(name: &str, claims: &[String]) -> Value {
    let volume =
        |claim: &String| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    let mount = |claim: &String| json!({"name": claim, "mountPath": format!("/{claim}")});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "host", "command": ["sleep", "100000"],
            "volumeMounts": claims.iter().map(mount).collect::<Vec<_>>()}],
        "volumes": claims.iter().map(volume).collect::<Vec<_>>()}})
}
