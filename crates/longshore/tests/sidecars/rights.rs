//! Rules of `deploy/rbac`: whoever lacks one says so before it leads, and the others go on.

use longshore_csi::capabilities::ControllerCapability as Can;
use longshore_csi::{Call, fake::Version};
use serde_json::{Value, json};

use crate::rig::{LEASES, Rig, until};

const FLAGS: &str = "--leader-election --leader-election-namespace=longshore-system";

/// A kubeconfig of an account with the rights of `deploy/rbac` for sidecars.
pub async fn account(rig: &Rig) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/rbac/");
    for file in ["00-namespace.yaml", "sidecars.yaml", "leader-election.yaml"] {
        rig.api.apply(&std::fs::read_to_string(format!("{root}{file}")).unwrap());
    }
    let mut config = kube::config::Kubeconfig::read_from(&rig.api.kubeconfig).unwrap();
    let admin = longshore_cluster::ClientConfig::from_kubeconfig(&rig.api.kubeconfig);
    let accounts: kube::Api<k8s_openapi::api::core::v1::ServiceAccount> =
        kube::Api::namespaced(admin.client().await.unwrap(), "longshore-system");
    let asked = k8s_openapi::api::authentication::v1::TokenRequest::default();
    let granted = accounts
        .create_token_request("longshore-sidecars", &kube::api::PostParams::default(), &asked)
        .await
        .unwrap();
    let token = granted.status.unwrap().token;
    let user = json!({"token": token});
    config.auth_infos[0].auth_info = Some(serde_json::from_value(user).unwrap());
    let path = rig.home.path().join("account.json");
    std::fs::write(&path, serde_json::to_string(&config).unwrap()).unwrap();
    path.display().to_string()
}

/// Changes the role of that account.
pub fn set_rules(rig: &Rig, change: impl FnOnce(&mut Vec<Value>)) {
    let mut role = rig.api.json("clusterrole", "longshore-sidecars");
    let mut rules = role["rules"].take().as_array().unwrap().clone();
    change(&mut rules);
    let patch = json!({"rules": rules}).to_string();
    rig.patch("clusterrole", "longshore-sidecars", &patch);
}

/// Takes one verb from the role.
fn forbid(rig: &Rig, resource: &str, verb: &str) {
    set_rules(rig, |rules| {
        let about = |rule: &&mut Value| rule["resources"] == json!([resource]);
        let rule = rules.iter_mut().find(about).unwrap_or_else(|| panic!("no rule on {resource}"));
        let verbs = rule["verbs"].as_array_mut().unwrap();
        let before = verbs.len();
        verbs.retain(|one| one != verb);
        assert_eq!(verbs.len() + 1, before, "no verb {verb} on {resource}");
        rules.retain(|rule| rule["verbs"] != json!([]));
    });
}

// case: sidecars/A33
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_forbidden_is_found_before_anything_is_written() {
    let rig = Rig::new("sidecars-writes");
    let account = account(&rig).await;
    forbid(&rig, "persistentvolumeclaims/status", "patch");
    let sidecars = rig.sidecars(&format!("{FLAGS} --kubeconfig={account}")).await;
    let (status, line) = sidecars.is("resizer", "down").await;
    assert_eq!(status, 500);
    let rule = "{apiGroups: [\"\"], resources: [persistentvolumeclaims/status], verbs: [patch]}";
    assert_eq!(line, format!("resizer down: the resizer needs in a role of its account: {rule}"));
    for name in ["attacher", "provisioner", "snapshotter"] {
        sidecars.is(name, "leading").await;
    }
    rig.bound("a").await;
    rig.grow("a", "1Gi");
    let lease = ["get", "lease", LEASES[2].1, "-n", "longshore-system"];
    assert!(!rig.api.cli(&lease).status.success(), "who may not work does not lead");
    assert_eq!(rig.calls(Call::ControllerExpandVolume), 0);
    set_rules(&rig, |rules| {
        rules.push(json!({"apiGroups": [""], "resources": ["persistentvolumeclaims/status"],
            "verbs": ["patch"]}));
    });
    sidecars.is("resizer", "leading").await;
    until("it grows", || (rig.calls(Call::ControllerExpandVolume) > 0).then_some(())).await;
}

/// Who cannot work without which verb, beside a driver that attaches.
const NEEDED: [(&str, &str, &[&str]); 15] = [
    ("attacher", "volumeattachments", &["list", "watch", "patch"]),
    ("attacher", "volumeattachments/status", &["patch"]),
    ("attacher", "persistentvolumes", &["get", "list", "watch", "patch"]),
    ("attacher", "csinodes", &["list", "watch"]),
    ("provisioner", "persistentvolumes", &["get", "list", "watch", "create", "patch", "delete"]),
    ("provisioner", "persistentvolumeclaims", &["get", "list", "watch", "update"]),
    ("provisioner", "storageclasses", &["list", "watch"]),
    ("resizer", "persistentvolumes", &["list", "watch", "patch"]),
    ("resizer", "persistentvolumeclaims", &["get", "list", "watch"]),
    ("resizer", "persistentvolumeclaims/status", &["patch"]),
    ("snapshotter", "volumesnapshotclasses", &["list", "watch"]),
    ("snapshotter", "volumesnapshotcontents", &["get", "list", "watch", "patch"]),
    ("snapshotter", "volumesnapshotcontents/status", &["patch"]),
    ("health-monitor", "persistentvolumes", &["list", "watch"]),
    ("health-monitor", "persistentvolumeclaims", &["list", "watch"]),
];

const CONTROLLERS: [&str; 5] =
    ["attacher", "provisioner", "resizer", "snapshotter", "health-monitor"];

/// Takes one verb after the other from the role: five of them at random, all with `LONGSHORE_LONG=1`.
#[tokio::test(flavor = "multi_thread")]
async fn each_verb_is_missed_by_those_that_need_it_and_by_no_other() {
    let mut all: Vec<(&str, &str)> = NEEDED
        .iter()
        .flat_map(|(_, resource, verbs)| verbs.iter().map(|verb| (*resource, *verb)))
        .collect();
    all.sort_unstable();
    all.dedup();
    fastrand::shuffle(&mut all);
    if std::env::var_os("LONGSHORE_LONG").is_none() {
        all.truncate(5);
    }
    println!("taken away, one at a time: {all:?}");
    let rig = Rig::new("sidecars-verbs");
    rig.served.driver.configure(|config| {
        config.version = Version::V1_12;
        config.controller.insert(Can::VolumeCondition);
    });
    let account = account(&rig).await;
    let whole = rig.api.json("clusterrole", "longshore-sidecars")["rules"].take();
    for (resource, verb) in all {
        forbid(&rig, resource, verb);
        let sidecars = rig.sidecars(&format!("--kubeconfig={account}")).await;
        for name in CONTROLLERS {
            let needs = |(who, what, verbs): &(&str, &str, &[&str])| {
                (*who, *what) == (name, resource) && verbs.contains(&verb)
            };
            let missing = NEEDED.iter().any(needs);
            let (_, line) = sidecars.is(name, if missing { "down" } else { "leading" }).await;
            assert!(!missing || line.contains(" needs "), "{verb} {resource}: {line}");
        }
        drop(sidecars);
        rig.patch("clusterrole", "longshore-sidecars", &json!({"rules": whole}).to_string());
    }
}
