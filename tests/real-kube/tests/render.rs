//! What the chart renders for values that no cluster of the tests has: the shared driver alone and beside the local
//! one, without snapshots, with a monitor. Objects that refer to each other are all there, and each program takes the
//! arguments of its container.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use longshore_real_kube::longshore;
use longshore_real_kube::tools::{self, Tool};
use serde_json::{Value, json};

const NAMESPACE: &str = "longshore-system";

/// What the chart is with these values: its objects, or why helm refuses.
fn template(values: &Value, more: &[&str]) -> Result<Objects, String> {
    let home = tempfile::Builder::new().prefix("longshore-helm-").tempdir().unwrap();
    let file = home.path().join("values.json");
    std::fs::write(&file, values.to_string()).unwrap();
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/charts/longshore");
    let mut command = Command::new(tools::path(Tool::Helm).unwrap());
    command.args(["template", "longshore"]).arg(chart).arg("--values").arg(file);
    command.args(["--namespace", NAMESPACE, "--skip-tests"]).args(more);
    for name in ["CACHE", "CONFIG", "DATA"] {
        command.env(format!("HELM_{name}_HOME"), home.path());
    }
    let output = command.output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let parts = text.split("\n---\n").map(|part| part.trim_start_matches("---\n"));
    let objects = parts.map(|part| serde_saphyr::from_str::<Value>(part).unwrap());
    Ok(Objects(objects.filter(|object| !object.is_null()).collect()))
}

fn rendered(values: &Value, more: &[&str]) -> Objects {
    template(values, more).unwrap_or_else(|said| panic!("{values}: {said}"))
}

struct Objects(Vec<Value>);

impl Objects {
    fn of_kind<'a>(&'a self, kind: &str) -> impl Iterator<Item = &'a Value> {
        let kind = kind.to_owned();
        self.0.iter().filter(move |object| object["kind"] == kind.as_str())
    }

    fn names(&self, kind: &str) -> BTreeSet<String> {
        self.of_kind(kind).map(|object| name(object).to_owned()).collect()
    }

    fn named(&self, kind: &str, wanted: &str) -> &Value {
        let found = self.of_kind(kind).find(|object| name(object) == wanted);
        found.unwrap_or_else(|| panic!("no {kind} {wanted}, but {:?}", self.names(kind)))
    }

    /// Pods of the workloads, each with the workload's name.
    fn pods(&self) -> Vec<(&str, &Value)> {
        let workloads = self.of_kind("Deployment").chain(self.of_kind("DaemonSet"));
        workloads.map(|object| (name(object), &object["spec"]["template"]["spec"])).collect()
    }

    /// Rules that an account has in the cluster and in its namespace.
    fn rules(&self, account: &str) -> Vec<Value> {
        let mut found = Vec::new();
        for (binding, role) in [("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")] {
            for bound in self.of_kind(binding) {
                let subjects = bound["subjects"].as_array().unwrap();
                if !subjects.iter().any(|subject| subject["name"] == account) {
                    continue;
                }
                assert_eq!(bound["roleRef"]["kind"], role, "{bound}");
                let rules = &self.named(role, bound["roleRef"]["name"].as_str().unwrap())["rules"];
                found.extend(rules.as_array().unwrap().iter().cloned());
            }
        }
        found
    }
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn texts(value: &Value) -> Vec<String> {
    list(value).iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn containers(pod: &Value) -> Vec<&str> {
    list(&pod["containers"]).iter().map(|one| one["name"].as_str().unwrap()).collect()
}

/// Only the shared driver.
fn shared() -> Value {
    json!({"local": {"enabled": false}, "shared": {"enabled": true, "hostPath": "/mnt/shared"}})
}

#[test]
fn the_shared_driver_alone_is_a_deployment_and_a_daemon_set() {
    if !tools::need(&[Tool::Helm]) {
        return;
    }
    let all = rendered(&shared(), &[]);
    let controller = &all.named("Deployment", "longshore-shared-controller")["spec"];
    assert_eq!(
        containers(&controller["template"]["spec"]),
        [
            "driver",
            "csi-provisioner",
            "csi-attacher",
            "csi-resizer",
            "csi-snapshotter",
            "liveness-probe"
        ]
    );
    assert_eq!(controller["replicas"], 2);
    for container in list(&controller["template"]["spec"]["containers"]) {
        let sidecar = container["name"].as_str().unwrap().starts_with("csi-");
        let leads = texts(&container["args"]).contains(&"--leader-election=true".to_owned());
        assert_eq!(sidecar, leads, "{container}");
    }
    assert_eq!(all.names("DaemonSet"), BTreeSet::from(["longshore-shared".to_owned()]));
    let node = &all.named("DaemonSet", "longshore-shared")["spec"]["template"]["spec"];
    assert_eq!(containers(node), ["driver", "node-driver-registrar", "liveness-probe"]);
    assert_eq!(all.names("CSIDriver"), BTreeSet::from(["shared.csi.longshore.dev".to_owned()]));
    let driver = &all.named("CSIDriver", "shared.csi.longshore.dev")["spec"];
    assert_eq!(driver["attachRequired"], true);
    assert_eq!((&driver["fsGroupPolicy"], &driver["seLinuxMount"]), (&json!("File"), &json!(true)));
    assert_eq!(all.names("StorageClass"), BTreeSet::from(["longshore-shared".to_owned()]));
    // Two replicas are not drained at once; of one there is nothing to keep.
    let budget = "longshore-shared-controller".to_owned();
    assert!(all.names("PodDisruptionBudget").contains(&budget));
    let mut one = shared();
    one["controller"] = json!({"replicas": 1});
    assert!(!rendered(&one, &[]).names("PodDisruptionBudget").contains(&budget));
    // The nodes' account mounts; it asks the API server for nothing.
    assert_eq!(all.rules("longshore-node"), Vec::<Value>::new());
}

#[test]
fn snapshots_are_left_out_where_they_are_not_wanted() {
    if !tools::need(&[Tool::Helm]) {
        return;
    }
    let mut values = shared();
    values["local"] = json!({"enabled": true});
    values["snapshot-controller"] = json!({"enabled": false});
    let all = rendered(&values, &[]);
    for (workload, pod) in all.pods() {
        assert!(!containers(pod).contains(&"csi-snapshotter"), "{workload}");
    }
    for account in ["longshore-controller", "longshore-node"] {
        let contents = json!("volumesnapshotcontents/status");
        let rules = all.rules(account);
        assert!(!rules.is_empty(), "{account}");
        assert!(
            !rules.iter().any(|rule| list(&rule["resources"]).contains(&contents)),
            "{account}"
        );
    }
    assert_eq!(all.of_kind("VolumeSnapshotClass").count(), 0);
    // A cluster that has the kinds gets them all the same.
    let kinds = "snapshot.storage.k8s.io/v1/VolumeSnapshotContent";
    let there = rendered(&values, &["--api-versions", kinds]);
    let (_, pod) = there.pods().into_iter().find(|(name, _)| *name == "longshore-local").unwrap();
    assert!(containers(pod).contains(&"csi-snapshotter"));
}

/// Values for which everything is checked that must hold for all.
fn variants() -> [(&'static str, Value, &'static [&'static str]); 5] {
    let mut both = shared();
    both["local"] = json!({"enabled": true, "topology": ["topology.kubernetes.io/zone=a"]});
    let mut renamed = both.clone();
    renamed["fullnameOverride"] = json!("storage");
    renamed["controller"] = json!({"serviceAccount": {"name": "mine"}});
    renamed["leakGuard"] = json!(false);
    let mut extra = both.clone();
    extra["sidecars"] = json!({
        "provisioner": {"additionalArgs": ["--worker-threads=7"]},
        "attacher": {"additionalArgs": ["--default-fstype=xfs"]},
        "resizer": {"additionalArgs": ["--handle-volume-inuse-error=false"]},
        "snapshotter": {"enabled": true, "additionalArgs": ["--timeout=2m"]},
        "livenessProbe": {"additionalArgs": ["--probe-timeout=5s"]},
    });
    [
        ("as it is", json!({}), &[]),
        ("the shared driver", shared(), &[]),
        ("both drivers", both, &[]),
        ("other names, no leak guard", renamed, &[]),
        ("more arguments, a monitor", extra, &["--api-versions", "monitoring.coreos.com/v1"]),
    ]
}

#[test]
fn what_objects_refer_to_is_rendered_with_them() {
    if !tools::need(&[Tool::Helm]) {
        return;
    }
    for (variant, values, more) in variants() {
        let all = rendered(&values, more);
        let accounts = all.names("ServiceAccount");
        for (workload, pod) in all.pods() {
            let at = format!("{variant}: {workload}");
            let account = pod["serviceAccountName"].as_str().unwrap();
            assert!(accounts.contains(account), "{at}: no account {account}");
            let volumes: BTreeSet<&str> =
                list(&pod["volumes"]).iter().map(|one| one["name"].as_str().unwrap()).collect();
            let mut mounted = BTreeSet::new();
            for container in list(&pod["containers"]) {
                let mounts = list(&container["volumeMounts"]).iter();
                mounted.extend(mounts.map(|mount| mount["name"].as_str().unwrap()));
                let ports: Vec<&Value> =
                    list(&container["ports"]).iter().map(|port| &port["name"]).collect();
                let probe = &container["livenessProbe"]["httpGet"]["port"];
                assert!(probe.is_null() || ports.contains(&probe), "{at}: {container}");
            }
            assert_eq!(volumes, mounted, "{at}: volumes, and those that are mounted");
            for (program, resource) in [
                ("csi-provisioner", "persistentvolumeclaims"),
                ("csi-attacher", "volumeattachments/status"),
                ("csi-resizer", "persistentvolumeclaims/status"),
                ("csi-snapshotter", "volumesnapshotcontents/status"),
            ] {
                let about = |rule: &Value| list(&rule["resources"]).contains(&json!(resource));
                let allowed = all.rules(account).iter().any(about);
                assert!(
                    allowed || !containers(pod).contains(&program),
                    "{at}: {account} may not touch {resource}"
                );
            }
        }
        for binding in all.of_kind("ClusterRoleBinding").chain(all.of_kind("RoleBinding")) {
            let role = binding["roleRef"]["name"].as_str().unwrap();
            all.named(binding["roleRef"]["kind"].as_str().unwrap(), role);
            for subject in list(&binding["subjects"]) {
                let account = subject["name"].as_str().unwrap();
                assert!(accounts.contains(account), "{variant}: {binding}");
                assert_eq!(subject["namespace"], NAMESPACE, "{variant}: {binding}");
            }
        }
        let monitored = more.contains(&"monitoring.coreos.com/v1");
        assert_eq!(all.of_kind("ServiceMonitor").count() > 0, monitored, "{variant}");
    }
}

#[test]
fn each_program_takes_the_arguments_of_its_container() {
    if !tools::need(&[Tool::Helm]) {
        return;
    }
    let mut programs = BTreeSet::new();
    for (variant, values, more) in variants() {
        let all = rendered(&values, more);
        for (workload, pod) in all.pods() {
            for container in list(&pod["containers"]) {
                let at = format!("{variant}: {workload}/{}", container["name"]);
                let env: Vec<&str> = list(&container["env"])
                    .iter()
                    .map(|one| one["name"].as_str().unwrap())
                    .collect();
                let mut args: Vec<String> = texts(&container["args"]);
                for name in &env {
                    let reference = format!("$({name})");
                    args.iter_mut().for_each(|arg| *arg = arg.replace(&reference, "value"));
                }
                assert!(!args.iter().any(|arg| arg.contains("$(")), "{at}: unset in {args:?}");
                // A link with the program's own name, or the program's name as the first argument.
                if let Some(command) = texts(&container["command"]).first() {
                    args.insert(0, command.trim_start_matches('/').to_owned());
                } else {
                    assert!(
                        env.contains(&"POD_UID") && env.contains(&"NODE_NAME"),
                        "{at}: {env:?}"
                    );
                }
                programs.insert(args[0].clone());
                let mut command = Command::new(longshore());
                command.args(&args).arg("--version").env("NODE_NAME", "n").env("POD_UID", "u");
                let output = command.env("NAMESPACE", NAMESPACE).env("POD_NAME", "p").output();
                let output = output.unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{at}: {args:?}: {said}");
            }
        }
    }
    let want = [
        "attacher",
        "driver",
        "liveness-probe",
        "node-registrar",
        "provisioner",
        "resizer",
        "snapshot-controller",
        "snapshotter",
    ];
    assert_eq!(programs, want.map(str::to_owned).into());
}

#[test]
fn values_that_cannot_work_are_refused() {
    if !tools::need(&[Tool::Helm]) {
        return;
    }
    for (values, part) in [
        (
            json!({"shared": {"enabled": true}}),
            "shared.hostPath is the directory that all nodes see",
        ),
        (json!({"controler": {"replicas": 3}}), "controler"),
        (json!({"controller": {"replica": 3}}), "replica"),
        (json!({"local": {"pools": []}}), "pools"),
        (json!({"sidecars": {"snapshotter": {"enabled": "maybe"}}}), "enabled"),
        (json!({"kubeletPath": "var/lib/kubelet"}), "kubeletPath"),
        (json!({"storageClasses": [{"name": "x", "driver": "nfs"}]}), "driver"),
    ] {
        match template(&values, &[]) {
            Ok(_) => panic!("{values} is accepted"),
            Err(said) => assert!(said.contains(part), "{values}: {said}"),
        }
    }
}
