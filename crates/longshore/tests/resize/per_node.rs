//! `longshore resizer --node-deployment`: one beside every node's own driver. Only that one reaches a volume
//! whose image is there, and no lease stands between them.

use std::process::Command;

use super::{attributes, common::*, volume::Volume};

const NODES: [&str; 2] = ["a", "b"];
const DRIVER: &str = "local.csi.longshore.dev";

const OBJECTS: &str = "
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: local.csi.longshore.dev}
spec: {attachRequired: false}
";

/// The programs of one node.
fn node(home: &Home, api: &Instance, name: &str) -> Vec<Beside> {
    let dir = home.path().join(name);
    std::fs::create_dir_all(dir.join("plugins_registry")).unwrap();
    let at = |file: &str| dir.join(file).display().to_string();
    let config = format!("--kubeconfig={}", api.kubeconfig.display());
    let address = format!("--csi-address={}", at("csi.sock"));
    let start = |program: &str, args: &[&str]| {
        let mut command = Command::new(binary());
        command.arg(program).args(args).env("NODE_NAME", name);
        Beside::start_command(home, &format!("{program}-{name}"), &mut command)
    };
    let endpoint = format!("unix://{}", at("csi.sock"));
    let pool = at("pool");
    let of_node = [&address, &config, "--node-deployment"];
    vec![
        start(
            "driver",
            &["--kind=local", "--node-id", name, "--pool", &pool, "--endpoint", &endpoint],
        ),
        start("node", &["--node-name", name, "--root-dir", dir.to_str().unwrap(), &config]),
        start(
            "node-registrar",
            &[
                &address,
                &format!("--kubelet-registration-path={}", at("csi.sock")),
                &format!("--plugin-registration-path={}", at("plugins_registry")),
            ],
        ),
        start("provisioner", &of_node),
        start("resizer", &of_node),
    ]
}

#[test]
fn resizers_of_two_nodes_serve_the_volumes_that_are_there() {
    let test = "resize-per-node";
    if !can_kubectl(test) {
        return;
    }
    let home = Home::new(test);
    let api = Instance::start(&home, "api", &["apiserver"]);
    api.apply(OBJECTS);
    let config = format!("--kubeconfig={}", api.kubeconfig.display());
    let all = ["controllers", "--controllers=*,scheduler", "--leader-elect=false", &config];
    let _controllers = Beside::start(&home, "controllers", &all);
    let _nodes: Vec<Vec<Beside>> = NODES.iter().map(|name| node(&home, &api, name)).collect();
    api.apply(&attributes("direct", DRIVER, "directIO: \"true\""));

    let mut volumes = Vec::new();
    for name in NODES {
        let mut volume = Volume::new("local", "", 16).on(Some(name));
        volume.name = format!("raw-{name}");
        volume.make(&api);
        volume.start_unwaited(&api);
        api.runs(&volume.name);
        volumes.push(volume);
    }
    let mut before = Vec::new();
    for (volume, name) in volumes.iter_mut().zip(NODES) {
        volume.find_below(&api, home.path());
        let image = volume.image().display().to_string();
        assert!(image.contains(&format!("/{name}/pool/")), "{image} of {}", volume.name);
        assert_eq!(volume.sysfs("loop/dio"), "0");
        before.push(volume.seen());
    }
    let both = r#"{"spec": {"volumeAttributesClassName": "direct", "resources": {"requests": {"storage": "48Mi"}}}}"#;
    for volume in &volumes {
        api.patch(&volume.name, both);
    }
    for (volume, before) in volumes.iter().zip(before) {
        volume.grows(&api, before, 32);
        api.wait("pvc", &volume.name, "has the class", |claim| {
            claim["status"]["currentVolumeAttributesClassName"] == "direct"
                && claim["status"]["modifyVolumeStatus"].is_null()
        });
        assert_eq!(volume.sysfs("loop/dio"), "1", "{}", volume.name);
        // A driver that is asked for the other's volume says that it does not exist.
        let events = api.events(&volume.name);
        assert!(!events.iter().any(|event| event.contains("Failed")), "{events:#?}");
    }
    let leases = api.kubectl(&["get", "leases", "-A", "-o", "name"]);
    assert!(!text(&leases).contains("external-resizer"), "{}", text(&leases));
    for volume in &volumes {
        volume.stop(&api);
    }
    eventually("nothing is mapped", || loops_below(home.path()).is_empty());
}
