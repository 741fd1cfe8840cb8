//! Containers end with their shim, whatever they do.

use std::time::Duration;

use longshore_node::pods::shim_client::{ShimClient, kill_leftovers, living_shim};
use longshore_node::shim::protocol::process_start;
use longshore_testing::{Need, need, report};

use super::{Pod, start_and_wait, started};

#[tokio::test]
async fn a_killed_shim_takes_its_containers_along() {
    if !need("a_killed_shim_takes_its_containers_along", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let client = start_and_wait(&pod, pod.run("echo up; sleep 1000")).await;
    let pid = started(&client).await;
    kill(living_shim(pod.path()).unwrap().pid);
    client.view().wait_for(|view| view.gone).await.unwrap();
    kill_leftovers(pod.path()).await;
    assert_eq!(process_start(pid), None);
    assert!(ShimClient::adopt(pod.path()).await.unwrap().is_none());
}

/// Kills the shim and waits until the container has ended, with no agent that would see to it.
async fn kill_shim_and_wait_for_the_end_of(container: i32, pod: &Pod) {
    kill(living_shim(pod.path()).unwrap().pid);
    let end = tokio::time::Instant::now() + Duration::from_secs(10);
    while process_start(container).is_some() {
        assert!(tokio::time::Instant::now() < end, "the container runs on without its shim");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// The guard among the shim's children.
fn guard_of(pod: &Pod) -> Option<i32> {
    let shim = living_shim(pod.path())?.pid;
    let children = std::fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).ok()?;
    let is_guard = |pid: &i32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name == "pod-guard\n") && process_start(*pid).is_some()
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_guard)
}

#[tokio::test]
async fn a_container_that_clears_its_parent_death_signal_ends_with_its_shim() {
    let name = "a_container_that_clears_its_parent_death_signal_ends_with_its_shim";
    if !need(name, &[Need::Root, Need::Tool("setpriv")]) {
        return;
    }
    let pod = Pod::new();
    let run = pod.run("exec setpriv --pdeathsig clear sh -c 'echo up; sleep 1000'");
    let client = start_and_wait(&pod, run).await;
    kill_shim_and_wait_for_the_end_of(started(&client).await, &pod).await;
}

#[tokio::test]
async fn a_killed_guard_is_replaced_and_the_next_one_knows_the_containers() {
    let name = "a_killed_guard_is_replaced_and_the_next_one_knows_the_containers";
    if !need(name, &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let client = start_and_wait(&pod, pod.run("echo up; sleep 1000")).await;
    let container = started(&client).await;
    let first = guard_of(&pod).unwrap();
    report(&format!("guard of a pod: {} of its own memory", own_memory(first)));
    kill(first);
    let next = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            match guard_of(&pod) {
                Some(pid) if pid != first => break pid,
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    });
    next.await.expect("another guard");
    assert!(process_start(container).is_some(), "the container goes on");
    kill_shim_and_wait_for_the_end_of(container, &pod).await;
}

/// What a process shares with no other.
fn own_memory(pid: i32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:"));
    line.unwrap_or_default().trim().to_owned()
}
