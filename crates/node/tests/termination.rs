//! Termination messages, with real containers.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod rig;

use longshore_testing::{Need, need};
use rig::Rig;
use serde_json::{Value, json};

fn pod(name: &str, policy: &str, containers: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {
        "nodeName": "n1", "terminationGracePeriodSeconds": 0, "restartPolicy": policy,
        "volumes": [{"name": "scratch", "emptyDir": {}}], "containers": containers,
    }})
}

fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "image": "host", "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]})
}

fn message<'a>(pod: &'a Value, list: &str, index: usize, state: &str) -> &'a Value {
    &pod["status"][list][index][state]["terminated"]["message"]
}

#[tokio::test]
async fn messages_of_init_containers_restarts_and_users_reach_the_status() {
    let name = "messages_of_init_containers_restarts_and_users_reach_the_status";
    if !need(name, &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let mut wanted = pod(
        "p",
        "OnFailure",
        json!([
            container(
                "again",
                "test -e /scratch/x || { touch /scratch/x; printf first > /dev/termination-log; exit 3; }; \
                 head -c 9000 /dev/zero | tr '\\0' a > /dev/termination-log; printf end >> /dev/termination-log",
            ),
            container("user", "id -u > /own/path"),
            container("plain", "true"),
        ]),
    );
    wanted["spec"]["initContainers"] =
        json!([container("init", "printf prepared > /dev/termination-log")]);
    wanted["spec"]["containers"][1]["terminationMessagePath"] = "../own/path".into();
    wanted["spec"]["containers"][1]["securityContext"] =
        json!({"runAsUser": 1000, "readOnlyRootFilesystem": true});
    rig.create_pod(wanted).await;
    let pod = rig.wait_phase("p", "Succeeded").await;
    assert_eq!(message(&pod, "initContainerStatuses", 0, "state"), "prepared");
    let main = "containerStatuses";
    assert_eq!(message(&pod, main, 0, "lastState"), "first");
    // Four containers share the pod's 12 KiB, so each has less than its own limit of 4 KiB.
    let long = message(&pod, main, 0, "state").as_str().unwrap();
    assert_eq!(long, "a".repeat(3072));
    assert_eq!(message(&pod, main, 1, "state"), "1000\n");
    assert_eq!(message(&pod, main, 2, "state"), &Value::Null);
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn the_log_stands_in_when_the_policy_says_so() {
    if !need("the_log_stands_in_when_the_policy_says_so", &[Need::Root]) {
        return;
    }
    let rig = Rig::start(false).await;
    let mut wanted = pod(
        "p",
        "Never",
        json!([
            container("fails", "seq 1 100; echo no such disk >&2; exit 4"),
            container("privileged", "printf 'by root' > /dev/termination-log; exit 5"),
            container("ends", "echo all is well"),
        ]),
    );
    for index in [0, 2] {
        wanted["spec"]["containers"][index]["terminationMessagePolicy"] =
            "FallbackToLogsOnError".into();
    }
    wanted["spec"]["containers"][1]["securityContext"] = json!({"privileged": true});
    rig.create_pod(wanted).await;
    let pod = rig.wait_phase("p", "Failed").await;
    let main = "containerStatuses";
    let end: String = (22..=100).map(|number| format!("{number}\n")).collect();
    assert_eq!(message(&pod, main, 0, "state"), &json!(end + "no such disk\n"));
    assert_eq!(message(&pod, main, 1, "state"), "by root");
    assert_eq!(message(&pod, main, 2, "state"), &Value::Null);
    assert!(!std::path::Path::new("/dev/termination-log").exists(), "nothing is left on the host");
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    rig.stop(true).await;
}

#[tokio::test]
async fn a_restarted_agent_reads_the_message_of_a_container_it_did_not_start() {
    let name = "a_restarted_agent_reads_the_message_of_a_container_it_did_not_start";
    if !need(name, &[Need::Root]) {
        return;
    }
    let mut rig = Rig::start(false).await;
    let script = "printf begun > /dev/termination-log; until test -e /scratch/go; do sleep 0.05; done; \
         printf ' and done' >> /dev/termination-log; exit 6";
    let uid = rig.create_pod(pod("p", "Never", json!([container("main", script)]))).await;
    rig.wait_phase("p", "Running").await;
    rig.kill_agent().await;
    let scratch =
        rig.root().join("pods").join(&uid).join("volumes/kubernetes.io~empty-dir/scratch/go");
    std::fs::write(scratch, "").unwrap();
    rig.until("the container ends", async || rig.pids(&uid).len() == 1).await;
    rig.start_agent().await;
    let pod = rig.wait_phase("p", "Failed").await;
    assert_eq!(message(&pod, "containerStatuses", 0, "state"), "begun and done");
    rig.delete_pod("p").await;
    rig.wait_gone("p").await;
    rig.stop(true).await;
}
