//! The real helm on a cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{Cluster, chart};

pub const RELEASE: &str = "longshore";
pub const NAMESPACE: &str = "longshore-system";

/// The chart of this checkout.
pub fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/charts/longshore")
}

pub struct Helm<'a> {
    cluster: &'a Cluster,
    values: PathBuf,
}

impl<'a> Helm<'a> {
    pub fn new(cluster: &'a Cluster) -> Self {
        let values = cluster.dir().join("values.json");
        let text = chart::values(cluster).unwrap();
        fs::write(&values, text.to_string()).unwrap();
        Self { cluster, values }
    }

    /// Runs helm; a failure fails the test with what helm and the cluster say.
    pub fn ok(&self, args: &[&str]) -> String {
        let mut command = Command::new(tools::path(Tool::Helm).unwrap());
        command.args(args).env("KUBECONFIG", self.cluster.kubeconfig());
        for (name, dir) in [
            ("HELM_CACHE_HOME", "cache"),
            ("HELM_CONFIG_HOME", "config"),
            ("HELM_DATA_HOME", "data"),
        ] {
            command.env(name, self.cluster.dir().join("helm").join(dir));
        }
        let output = command.output().unwrap();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            panic!("helm {}: {said}\n{}", args.join(" "), self.look());
        }
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub fn install(&self, verb: &str, more: &[&str], chart: &Path) {
        let (chart, values) = (chart.display().to_string(), self.values.display().to_string());
        let mut line = vec![verb, RELEASE, chart.as_str(), "--namespace", NAMESPACE];
        line.extend(["--create-namespace", "--values", &values, "--wait", "--timeout", "3m"]);
        line.extend(more);
        self.ok(&line);
    }

    /// The chart as an archive of that version.
    pub fn packed(&self, version: &str) -> PathBuf {
        let dir = self.cluster.dir().display().to_string();
        let chart = checkout().display().to_string();
        self.ok(&["package", &chart, "--version", version, "--destination", &dir]);
        self.cluster.dir().join(format!("longshore-{version}.tgz"))
    }

    /// Pods, events and last log lines of the release.
    fn look(&self) -> String {
        let mut text = String::new();
        for args in [
            &["get", "pods", "--all-namespaces", "--output", "wide"][..],
            &["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"],
            &[
                "--namespace",
                NAMESPACE,
                "logs",
                "--all-containers",
                "--prefix",
                "--tail=8",
                "--selector",
                "app.kubernetes.io/part-of=longshore",
                "--max-log-requests=40",
            ],
        ] {
            if let Ok(output) = self.cluster.kubectl(args) {
                text.push_str(&String::from_utf8_lossy(&output.stdout));
                text.push_str(&String::from_utf8_lossy(&output.stderr));
            }
        }
        text
    }
}
