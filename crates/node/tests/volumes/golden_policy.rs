//! Recorded scenarios about what a volume's class and driver say: G05, G11, G12.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use base64::Engine;
use longshore_cluster::Patch;
use longshore_core::model::ObjectKey;
use longshore_core::model::kinds::{CsiDriver, Node, Pod, ServiceAccount};
use longshore_csi::Call;
use longshore_csi::fake::Fault;
use longshore_testing::{Need, need};
use serde_json::{Value, json};
use tonic::Code;

use crate::recorded::{
    Names, attach_and_run, context, detach, heard, heard_of, pod_info, pod_of, recorded, unstaged,
    volume, volume_named,
};
use crate::rig::{DRIVER, Rig};
use crate::{STAY, quick};

const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

#[tokio::test]
async fn g05_without_a_filesystem_type() {
    if !need("g05_without_a_filesystem_type", &[Need::Root]) {
        return;
    }
    let rig = recorded(true, json!({})).await;
    volume(&rig, json!({"fsType": ""})).await;
    let uid = rig.pod("p", STAY, quick()).await;
    attach_and_run(&rig, "p").await;
    rig.end("p").await;
    unstaged(&rig).await;
    let names = Names { mount: json!({}), ..Names::new(&rig, true) };
    assert_eq!(heard(&rig), names.life(&uid));
    detach(&rig).await;
    rig.stop(true).await;
}

/// What a volume holds before a pod gets it.
fn fill(root: &Path) {
    std::fs::create_dir(root.join("d")).unwrap();
    std::fs::write(root.join("pre"), "x").unwrap();
    for (path, mode) in [(root, 0o755), (&root.join("d"), 0o755), (&root.join("pre"), 0o600)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// Group and mode of `/`, `d` and `pre`.
fn owned(root: &Path) -> [(u32, u32); 3] {
    [root.to_owned(), root.join("d"), root.join("pre")].map(|path| {
        let data = path.metadata().unwrap();
        assert_eq!(data.uid(), 0);
        (data.gid(), data.mode() & 0o7777)
    })
}

const CHANGED: [(u32, u32); 3] = [(3000, 0o2775), (3000, 0o2775), (3000, 0o660)];
const UNCHANGED: [(u32, u32); 3] = [(0, 0o755), (0, 0o755), (0, 0o600)];

/// A volume and how a pod uses it.
struct Row {
    fs_type: &'static str,
    mode: &'static str,
    pod: Value,
    read_only: bool,
    expected: [(u32, u32); 3],
}

impl Row {
    fn new(fs_type: &'static str, mode: &'static str, expected: [(u32, u32); 3]) -> Self {
        Self { fs_type, mode, pod: json!({"fsGroup": 3000}), read_only: false, expected }
    }
}

async fn grouped(rig: &Rig, name: &str, row: &Row) -> String {
    volume_named(rig, name, json!({"fsType": row.fs_type, "accessModes": [row.mode]})).await;
    let mut pod = pod_of(name, &[name], STAY);
    pod["spec"]["securityContext"] = row.pod.clone();
    if row.read_only {
        pod["spec"]["volumes"][0]["persistentVolumeClaim"]["readOnly"] = true.into();
    }
    rig.create_pod(pod).await
}

async fn policy(policy: &str, rows: Vec<Row>) {
    let rig = recorded(false, json!({"fsGroupPolicy": policy})).await;
    rig.heard.prepare(fill);
    for (index, row) in rows.iter().enumerate() {
        let name = format!("v{index}");
        let uid = grouped(&rig, &name, row).await;
        rig.wait_phase(&name, "Running").await;
        let root = rig.publish_dir(&uid, &name).join("mount");
        assert_eq!(owned(&root), row.expected, "{policy} {} {}", row.fs_type, row.mode);
        let calls = heard_of(&rig, &rig.handle(&name));
        // No request has a trace of the group.
        assert!(!json!(calls).to_string().contains("3000"), "{calls:?}");
        assert_eq!(calls[1].1["readonly"] == true, row.read_only);
        rig.end(&name).await;
    }
    rig.stop(true).await;
}

#[tokio::test]
async fn g11_groups_and_policies() {
    if !need("g11_groups_and_policies", &[Need::Root]) {
        return;
    }
    let (once, many) = ("ReadWriteOnce", "ReadWriteMany");
    let by_type = vec![
        Row::new("ext4", once, CHANGED),
        Row::new("", once, UNCHANGED),
        Row::new("ext4", many, UNCHANGED),
        Row::new("ext4", "ReadWriteOncePod", CHANGED),
        Row { pod: json!({}), ..Row::new("ext4", once, UNCHANGED) },
    ];
    let root_only = json!({"fsGroup": 3000, "fsGroupChangePolicy": "OnRootMismatch"});
    let always = vec![
        Row::new("", many, CHANGED),
        Row { read_only: true, ..Row::new("ext4", once, UNCHANGED) },
        Row { pod: root_only, ..Row::new("ext4", once, CHANGED) },
        Row::new("ext4", "ReadOnlyMany", CHANGED),
    ];
    tokio::join!(
        policy("ReadWriteOnceWithFSType", by_type),
        policy("None", vec![Row::new("ext4", once, UNCHANGED)]),
        policy("File", always),
    );
}

#[tokio::test]
async fn g11_a_changed_policy_holds_for_the_next_pod() {
    if !need("g11_a_changed_policy_holds_for_the_next_pod", &[Need::Root]) {
        return;
    }
    let rig = recorded(false, json!({"fsGroupPolicy": "None"})).await;
    rig.heard.prepare(fill);
    volume(&rig, json!({})).await;
    let patch = json!({"spec": {"fsGroupPolicy": "File"}});
    rig.api.patch::<CsiDriver>(&ObjectKey::cluster(DRIVER), Patch::Merge(&patch)).await.unwrap();
    let mut extra = quick();
    extra["securityContext"] = json!({"fsGroup": 3000});
    rig.until("the agent knows", async || {
        let uid = rig.pod("p", STAY, extra.clone()).await;
        rig.wait_phase("p", "Running").await;
        let found = owned(&rig.publish_dir(&uid, "data").join("mount"));
        rig.end("p").await;
        found == CHANGED
    })
    .await;
    rig.stop(true).await;
}

/// The claims of a token; nobody here checks its signature.
fn claims(token: &Value) -> Value {
    let part = token.as_str().unwrap().split('.').nth(1).unwrap();
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

async fn account(rig: &Rig) {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": "default"}});
    // Somebody else may have made it.
    let _ = rig.api.create::<ServiceAccount>(&account).await;
}

/// Takes the tokens out of what was published and leaves the rest.
fn without_tokens(call: &mut Value, place: &str) -> Value {
    let text = call[place].as_object_mut().unwrap().remove(TOKENS).unwrap();
    serde_json::from_str(text.as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn g12_tokens_and_repeated_publishing() {
    if !need("g12_tokens_and_repeated_publishing", &[Need::Root]) {
        return;
    }
    let extra = json!({"requiresRepublish": true, "podInfoOnMount": true,
        "tokenRequests": [{"audience": ""}, {"audience": "gold", "expirationSeconds": 900}]});
    let rig = recorded(false, extra).await;
    account(&rig).await;
    volume(&rig, json!({})).await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    // The container's start is news of the pod, and with that the driver hears it again.
    rig.until("told again", async || rig.heard.of("NodePublishVolume").len() >= 2).await;
    let names = Names { pod_info: pod_info("p", &uid, false), ..Names::new(&rig, false) };
    let mut first = heard(&rig);
    assert_eq!(first.len(), 2, "all repetitions are the same: {first:?}");
    let tokens = without_tokens(&mut first[1].1, "volume_context");
    assert_eq!(first, [names.stage(), names.publish(&uid)]);
    check_tokens(&rig, &uid, &tokens).await;

    // Two refusals: nothing is taken from the pod, and it is tried again soon.
    let before = crate::rig::proxy::tree(&rig.root());
    let failure = Fault::before(Code::Internal);
    rig.driver.script(Call::NodePublishVolume, [failure.clone(), failure]);
    let told = rig.heard.of("NodePublishVolume").len();
    let touch = json!({"metadata": {"annotations": {"touched": "1"}}});
    rig.api.patch::<Pod>(&ObjectKey::new("default", "p"), Patch::Merge(&touch)).await.unwrap();
    rig.until("tried until it worked", async || {
        rig.heard.of("NodePublishVolume").len() >= told + 3
    })
    .await;
    let text =
        "MountVolume.SetUp failed for volume \"pv-data\" : rpc error: code = Internal desc = ";
    rig.until("both are said", async || rig.event_count("FailedMount", text).await == 2).await;
    assert_eq!(crate::rig::proxy::tree(&rig.root()), before);
    let pod = rig.wait_phase("p", "Running").await;
    assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(heard(&rig).len(), 2, "the same tokens all the time, and nothing is staged again");
    rig.end("p").await;
    unstaged(&rig).await;
    rig.stop(true).await;
}

async fn check_tokens(rig: &Rig, uid: &str, tokens: &Value) {
    let node = rig.api.get_raw::<Node>(&ObjectKey::cluster("n1")).await.unwrap().unwrap();
    for (audience, seconds) in [("", 3600), ("gold", 900)] {
        let one = &tokens[audience];
        let claims = claims(&one["token"]);
        let bound = &claims["kubernetes.io"];
        assert_eq!(bound["pod"], json!({"name": "p", "uid": uid}), "{claims}");
        assert_eq!(bound["node"], json!({"name": "n1", "uid": node["metadata"]["uid"]}));
        assert_eq!(bound["serviceaccount"]["name"], "default");
        let ends: jiff::Timestamp = one["expirationTimestamp"].as_str().unwrap().parse().unwrap();
        assert_eq!(ends.as_second() - claims["iat"].as_i64().unwrap(), seconds, "{audience:?}");
        if !audience.is_empty() {
            assert_eq!(claims["aud"], json!([audience]));
        }
    }
}

#[tokio::test]
async fn g12_tokens_among_the_secrets() {
    if !need("g12_tokens_among_the_secrets", &[Need::Root]) {
        return;
    }
    let extra = json!({"podInfoOnMount": true, "serviceAccountTokenInSecrets": true,
        "tokenRequests": [{"audience": "gold"}]});
    let rig = recorded(false, extra).await;
    account(&rig).await;
    volume(&rig, json!({})).await;
    let uid = rig.pod("p", STAY, quick()).await;
    rig.wait_phase("p", "Running").await;
    let mut calls = heard(&rig);
    let tokens = without_tokens(&mut calls[1].1, "secrets");
    assert!(tokens["gold"]["token"].is_string());
    calls[1].1.as_object_mut().unwrap().remove("secrets");
    let names = Names { pod_info: pod_info("p", &uid, false), ..Names::new(&rig, false) };
    assert_eq!(calls, [names.stage(), names.publish(&uid)]);
    assert_eq!(calls[0].1["volume_context"], context());
    rig.end("p").await;
    rig.stop(true).await;
}
