//! Who reaches the API of an instance: this machine, others, and its own pods.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use common::*;

/// An address of this machine that is not the loopback one.
fn outer_address() -> Option<std::net::IpAddr> {
    // Nothing is sent: connecting a datagram socket only chooses the address.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback())
}

#[test]
fn an_api_on_every_address_is_reached_at_each_of_them() {
    if !can_kubectl("listen on all") {
        return;
    }
    let home = Home::new("reach");
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let args = ["apiserver", "--tls-san", "lb.example.org", "--tls-san=203.0.113.9"];
        let api = Instance::start_at(&home, "api", &args, listen);
        let address = api.address();
        let port = address.strip_prefix("127.0.0.1:").unwrap_or_else(|| panic!("{address}"));
        let mut hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        hosts.extend(outer_address().map(|address| address.to_string()));
        for host in hosts {
            let server = format!("https://{host}:{port}");
            let done = api.kubectl(&["--server", &server, "get", "ns", "default"]);
            assert!(done.status.success(), "{listen} at {server}: {}", text(&done));
        }
        for name in ["lb.example.org", "203.0.113.9"] {
            let done = api.kubectl(&["--tls-server-name", name, "get", "ns", "default"]);
            assert!(done.status.success(), "{listen} as {name}: {}", text(&done));
        }
        let done = api.kubectl(&["--tls-server-name", "other.example.org", "get", "ns"]);
        assert!(text(&done).contains("certificate is valid for"), "{}", text(&done));
        assert_eq!(api.stop(), Some(0));
        // The next start has another list.
        let api =
            Instance::start_at(&home, "api", &["apiserver", "--tls-san=new.example.org"], listen);
        let done = api.kubectl(&["--tls-server-name", "new.example.org", "get", "ns", "default"]);
        assert!(done.status.success(), "{}", text(&done));
        let done = api.kubectl(&["--tls-server-name", "lb.example.org", "get", "ns"]);
        assert!(!done.status.success(), "{}", text(&done));
        assert_eq!(api.stop(), Some(0));
    }
}

#[test]
fn an_api_that_listens_under_a_name_is_reached_by_it() {
    if !can_kubectl("listen by name") {
        return;
    }
    let home = Home::new("reach-name");
    let api = Instance::start_at(&home, "api", &["apiserver"], "localhost:0");
    assert!(api.address().starts_with("localhost:"), "{}", api.address());
    let done = api.kubectl(&["get", "ns", "default"]);
    assert!(done.status.success(), "{}", text(&done));
    assert_eq!(api.stop(), Some(0));
}

/// Runs a command of the host in a pod with this spec beside its container, to its end, and returns what it printed.
fn in_pod(up: &Instance, namespace: &str, name: &str, spec: &str, script: &str) -> String {
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  restartPolicy: Never\n\
         {spec}\n  containers:\n  - name: main\n    image: host\n    command: [sh, -c, {script:?}]\n"
    );
    let done = up.kubectl_with(&["create", "-f", "-"], &manifest);
    assert!(done.status.success(), "{}", text(&done));
    let began = std::time::Instant::now();
    loop {
        let get = ["get", "pod", "-n", namespace, name, "-o", "jsonpath={.status.phase}"];
        let phase = text(&up.kubectl(&get));
        if phase == "Succeeded" || phase == "Failed" {
            return text(&up.kubectl(&["logs", "-n", namespace, name]));
        }
        let describe = || text(&up.kubectl(&["describe", "pod", "-n", namespace, name]));
        assert!(began.elapsed() < PATIENCE, "{}\n{}", describe(), up.log_text());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

#[test]
fn programs_in_pods_reach_the_api_as_their_account() {
    if !can_kubectl("in-cluster") {
        return;
    }
    let home = Home::outside_tmp("in-cluster");
    let up = Instance::start_at(&home, "data", &["up"], "0.0.0.0:0");
    let ok = |args: &[&str]| {
        let done = up.kubectl(args);
        assert!(done.status.success(), "kubectl {args:?}: {}", text(&done));
        text(&done)
    };
    ok(&["create", "namespace", "team"]);
    ok(&["create", "serviceaccount", "bot", "-n", "team"]);
    ok(&["wait", "--for=create", "-n", "team", "configmap/kube-root-ca.crt", "--timeout=30s"]);
    ok(&["create", "role", "reader", "-n", "team", "--verb=list", "--resource=configmaps"]);
    ok(&[
        "create",
        "rolebinding",
        "bot",
        "-n",
        "team",
        "--role=reader",
        "--serviceaccount=team:bot",
    ]);

    // Neither a kubeconfig nor a home directory: kubectl falls back to what the pod was given.
    let who = "unset KUBECONFIG; export HOME=/tmp; kubectl auth whoami -o jsonpath='{.status.userInfo.username}'";
    let said = in_pod(&up, "team", "who", "  serviceAccountName: bot", who);
    assert_eq!(said.trim_end(), "system:serviceaccount:team:bot");
    let list = "unset KUBECONFIG; export HOME=/tmp; kubectl get configmaps -o name; kubectl get pods 2>&1; \
        cat /var/run/secrets/kubernetes.io/serviceaccount/namespace";
    let said = in_pod(&up, "team", "list", "  serviceAccountName: bot", list);
    assert!(said.contains("configmap/kube-root-ca.crt"), "{said}");
    assert!(
        said.contains("cannot list resource \"pods\"") && said.trim_end().ends_with("team"),
        "{said}"
    );

    let look = "ls /var/run/secrets/kubernetes.io/serviceaccount 2>&1 || true";
    let said = in_pod(&up, "team", "none", "  automountServiceAccountToken: false", look);
    assert!(said.contains("No such file"), "{said}");
    let spec = ok(&["get", "pod", "-n", "team", "who", "-o", "jsonpath={.spec.volumes[*].name}"]);
    assert!(spec.starts_with("kube-api-access-"), "{spec}");

    let unknown = "apiVersion: v1\nkind: Pod\nmetadata: {name: x, namespace: team}\nspec:\n  serviceAccountName: nobody\n  \
        containers: [{name: c, image: host, command: [sleep, '1']}]\n";
    let refused = text(&up.kubectl_with(&["create", "-f", "-"], unknown));
    let why = "error looking up service account team/nobody: serviceaccount \"nobody\" not found";
    assert!(refused.contains(why), "{refused}");

    let token = ok(&["create", "token", "bot", "-n", "team"]);
    let server = format!("https://{}", up.address());
    let as_bot = ["--kubeconfig=/dev/null", "--insecure-skip-tls-verify", "--server", &server];
    let done = std::process::Command::new("kubectl")
        .args(as_bot)
        .args(["--token", token.trim(), "auth", "whoami"])
        .output()
        .unwrap();
    assert!(text(&done).contains("system:serviceaccount:team:bot"), "{}", text(&done));
    up.stop_without_a_trace(&home);
}

// case: workloads/W146
#[test]
fn a_provisioner_runs_as_a_pod_of_the_instance_that_it_serves() {
    if !can_kubectl("provisioner in a pod") {
        return;
    }
    let home = Home::outside_tmp("in-pod");
    let up = Instance::up(&home, "data");
    let volumes = home.path().join("volumes");
    let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for file in [
        "rbac/00-namespace.yaml",
        "hostpath-provisioner/rbac.yaml",
        "hostpath-provisioner/storageclass.yaml",
    ] {
        let done = up.kubectl(&["apply", "-f", deploy.join(file).to_str().unwrap()]);
        assert!(done.status.success(), "{file}: {}", text(&done));
    }
    let (binary, volumes) = (binary(), volumes.display().to_string());
    up.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: provisioner, namespace: longshore-system}}\nspec:\n  \
         serviceAccountName: longshore-hostpath-provisioner\n  terminationGracePeriodSeconds: 5\n  containers:\n  \
         - name: provisioner\n    image: host\n    command: [{}, hostpath-provisioner, --root={volumes}]\n    env:\n    \
         - {{name: NODE_NAME, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}\n    \
         - {{name: POD_NAMESPACE, valueFrom: {{fieldRef: {{fieldPath: metadata.namespace}}}}}}\n    \
         volumeMounts: [{{name: volumes, mountPath: {volumes}}}]\n  \
         volumes: [{{name: volumes, hostPath: {{path: {volumes}, type: DirectoryOrCreate}}}}]\n",
        binary.display()
    ));
    up.apply(&claim("data", "custom-storage"));
    let began = std::time::Instant::now();
    while up.json("pvc", "data")["status"]["phase"] != "Bound" {
        let logs = || text(&up.kubectl(&["logs", "-n", "longshore-system", "provisioner"]));
        let describe = || text(&up.kubectl(&["describe", "pod", "-n", "longshore-system"]));
        assert!(began.elapsed() < PATIENCE, "{}\n{}\n{}", logs(), describe(), up.log_text());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(
        std::fs::read_dir(&volumes).unwrap().flatten().filter(|one| one.path().is_dir()).count(),
        1
    );
    up.stop_without_a_trace(&home);
}

/// Runs the binary without an instance's kubeconfig.
fn longshore(args: &[&str]) -> std::process::Output {
    std::process::Command::new(binary())
        .args(args)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_kubeconfig_is_shown_and_merged_into_the_users_own() {
    if !can_kubectl("kubeconfig merge") {
        return;
    }
    let home = Home::new("merge");
    let api = Instance::start_at(&home, "api", &["apiserver"], "0.0.0.0:0");
    let dir = api.data_dir.display().to_string();
    let own = home.path().join("config");
    std::fs::write(&own, "# mine\nclusters:\n- name: work\n  cluster: {server: https://work}\ncurrent-context: work\n")
        .unwrap();
    let into = own.display().to_string();
    let done = longshore(&["kubeconfig", "merge", "--data-dir", &dir, "--into", &into]);
    assert!(done.status.success(), "{}", text(&done));
    assert!(text(&done).contains("kubectl --context longshore"), "{}", text(&done));
    let merged = std::fs::read_to_string(&own).unwrap();
    assert!(merged.starts_with("# mine\n") && merged.contains("current-context: work"), "{merged}");
    let with_own = |args: &[&str]| {
        std::process::Command::new("kubectl")
            .arg("--kubeconfig")
            .arg(&own)
            .args(args)
            .output()
            .unwrap()
    };
    let done = with_own(&["--context", "longshore", "get", "ns", "default"]);
    assert!(done.status.success(), "{}", text(&done));
    let done =
        longshore(&["kubeconfig", "merge", "--data-dir", &dir, "--into", &into, "--set-current"]);
    assert!(done.status.success(), "{}", text(&done));
    assert!(with_own(&["get", "ns", "default"]).status.success());
    let taken = longshore(&[
        "kubeconfig",
        "merge",
        "--data-dir",
        &dir,
        "--into",
        &into,
        "--context",
        "work",
    ]);
    assert!(text(&taken).contains("choose another name with --context"), "{}", text(&taken));

    let shown = text(&longshore(&["kubeconfig", "--data-dir", &dir]));
    assert_eq!(shown, std::fs::read_to_string(&api.kubeconfig).unwrap());
    let path = text(&longshore(&["kubeconfig", "path", "--data-dir", &dir]));
    assert_eq!(path.trim(), api.kubeconfig.display().to_string());
    let for_others = text(&longshore(&["kubeconfig", "--data-dir", &dir, "--server", "localhost"]));
    std::fs::write(&own, for_others).unwrap();
    assert!(with_own(&["get", "ns", "default"]).status.success());
    let none = longshore(&["kubeconfig", "--data-dir", "/nosuch"]);
    assert!(text(&none).contains("start `longshore up`"), "{}", text(&none));
    assert_eq!(api.stop(), Some(0));
}

#[test]
fn a_reset_ends_everything_after_a_crash() {
    if !can_run("reset") {
        return;
    }
    let home = Home::new("reset");
    let up = Instance::up(&home, "data");
    up.apply(&claim("data", "longshore-local"));
    up.apply(&pod("worker", "data", "echo kept > /data/file; sleep 1000"));
    up.wait("pod", "worker", "runs", |pod| pod["status"]["phase"] == "Running");
    let dir = up.data_dir.clone();
    let named = dir.display().to_string();
    let reset = |more: &[&str]| longshore(&[&["reset", "--data-dir", &named], more].concat());

    let held = reset(&["--yes"]);
    assert!(text(&held).contains(&format!("in use by process {}", up.pid())), "{}", text(&held));
    up.kill();
    assert!(!loops_below(home.path()).is_empty() && !mounts_below(home.path()).is_empty());
    let asked = reset(&[]);
    assert!(!asked.status.success() && text(&asked).contains("say --yes"), "{}", text(&asked));
    assert!(dir.join("api").exists());

    // What cannot be ended is named, and the directory stays.
    let mount =
        mounts_below(home.path()).into_iter().find(|path| path.ends_with("/mount")).unwrap();
    let mut busy =
        std::process::Command::new("sleep").arg("1000").current_dir(&mount).spawn().unwrap();
    let failed = reset(&["--yes"]);
    busy.kill().unwrap();
    busy.wait().unwrap();
    assert!(!failed.status.success() && text(&failed).contains(&mount), "{}", text(&failed));
    assert!(dir.join("api").exists() && !images_below(&dir).is_empty());

    let done = reset(&["--yes"]);
    assert!(done.status.success(), "{}", text(&done));
    assert!(text(&done).contains(&format!("removed {named}")), "{}", text(&done));
    assert!(!dir.exists());
    assert_eq!(processes_of(home.path()), Vec::<u32>::new());
    assert_eq!(loops_below(home.path()), Vec::<String>::new());
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
    assert!(text(&reset(&["--yes"])).contains("nothing to do"));
}

#[test]
fn a_reset_leaves_pools_elsewhere_and_directories_of_others() {
    if !can_run("reset elsewhere") {
        return;
    }
    let home = Home::new("reset-pool");
    let pool = home.path().join("fast");
    let flag = format!("--pool=default={}", pool.display());
    let up = Instance::start(&home, "data", &["up", "--nodes=2", &flag]);
    up.apply(&claim("data", "longshore-local"));
    up.apply(&pod("worker", "data", "sleep 1000"));
    up.wait("pod", "worker", "runs", |pod| pod["status"]["phase"] == "Running");
    let dir = up.data_dir.display().to_string();
    // As every program has that is just being given a root of its own.
    let script = longshore_testing::without_volumes_of_others(home.path()) + "exec sleep 1.5";
    let mut copy = std::process::Command::new("unshare")
        .args(["--mount", "--propagation=private", "sh", "-c", &script])
        .spawn()
        .unwrap();
    let name = format!("/proc/{}/comm", copy.id());
    let sleeps = || std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep");
    eventually("a copy of the mounts", sleeps);
    up.kill();
    let done = longshore(&["reset", "--data-dir", &dir, "-y"]);
    copy.wait().unwrap();
    assert!(done.status.success(), "{}", text(&done));
    assert!(text(&done).contains("is outside of it and stays"), "{}", text(&done));
    assert_eq!(loops_below(home.path()), Vec::<String>::new());
    assert_eq!(mounts_below(home.path()), Vec::<String>::new());
    assert!(!images_below(&pool).is_empty());

    std::fs::write(pool.join("lock"), "").unwrap();
    let other = longshore(&["reset", "--yes", "--data-dir", &pool.display().to_string()]);
    assert!(text(&other).contains("is not a data directory of longshore"), "{}", text(&other));
    assert!(!images_below(&pool).is_empty());
}

#[test]
fn the_doctor_says_what_this_machine_lacks() {
    if !can_run("doctor") {
        return;
    }
    let home = Home::new("doctor");
    let dir = home.path().join("data").display().to_string();
    let args = ["doctor", "--data-dir", &dir, "--listen", "127.0.0.1:0"];
    let done = longshore(&args);
    assert!(done.status.success(), "{}", text(&done));
    for line in ["ok    root ", "ok    loop-devices ", "ok    ext4 ", "ok    port "] {
        assert!(text(&done).contains(line), "{line}\n{}", text(&done));
    }
    assert!(!home.path().join("data").exists(), "it only looks");
    let json = longshore(&[&args[..], &["-o", "json"]].concat());
    let found: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&found[0]["check"], &found[0]["state"]), (&"root".into(), &"ok".into()));

    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let failed =
        longshore(&["doctor", "--data-dir", file.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert_eq!(failed.status.code(), Some(1), "{}", text(&failed));
    assert!(text(&failed).contains("fail  data-dir"), "{}", text(&failed));
    assert!(text(&failed).contains("1 of 12 checks failed"), "{}", text(&failed));
}
