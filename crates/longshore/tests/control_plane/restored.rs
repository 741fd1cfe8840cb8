//! Etcd is restored from an older snapshot while our programs run: versions go back, volumes vanish and
//! come back. Nothing may be deleted on the word of the old world, and work goes on in the new one.

use std::process::Command;
use std::time::Instant;

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{DeleteParams, Patch, PatchParams};
use longshore_real_kube::Cluster;
use longshore_real_kube::tools::{self, Tool};
use serde_json::json;

use super::stack::{Access, Stack, again};
use super::{can_run, cluster};

/// The store's file, copied while nobody writes to it.
fn snapshot(cluster: &mut Cluster) {
    let (etcd, data) = (cluster.etcd_port().unwrap(), cluster.etcd_data().unwrap());
    cluster.end_at(etcd, false).unwrap();
    std::fs::copy(data.join("member/snap/db"), data.with_extension("snapshot")).unwrap();
    cluster.begin_again_at(etcd).unwrap();
}

/// Restores it as the documentation of etcd says, with the API server ended meanwhile; without
/// `--bump-revision`, which not everybody knows.
fn restore(cluster: &mut Cluster) {
    let (etcd, data) = (cluster.etcd_port().unwrap(), cluster.etcd_data().unwrap());
    let server = cluster.apiserver_ports()[0];
    cluster.end_at(server, true).unwrap();
    cluster.end_at(etcd, false).unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    let mut etcdutl = Command::new(tools::path(Tool::Etcdutl).unwrap());
    etcdutl.args(["snapshot", "restore", "--skip-hash-check", "--name=real"]);
    // The member keeps its name and its address.
    let flags = cluster.flags_at(etcd).unwrap();
    let same = ["--data-dir=", "--initial-cluster=", "--initial-advertise-peer-urls="];
    etcdutl.args(flags.iter().filter(|flag| same.iter().any(|same| flag.starts_with(same))));
    let done = etcdutl.arg(data.with_extension("snapshot")).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    cluster.begin_again_at(etcd).unwrap();
    cluster.begin_again_at(server).unwrap();
}

async fn bound(stack: &Stack, claim: &str, when: &str) -> PersistentVolume {
    stack
        .within(when, Instant::now(), || async {
            match stack.users.is_bound(claim).await {
                true => Ok(()),
                false => Err(format!("{claim} is not bound")),
            }
        })
        .await;
    let claim = again(|| stack.users.claims.get(claim)).await.unwrap();
    let name = claim.spec.unwrap().volume_name.unwrap();
    again(|| stack.users.volumes.get(&name)).await.unwrap()
}

fn handle(volume: &PersistentVolume) -> String {
    volume.spec.as_ref().unwrap().csi.as_ref().unwrap().volume_handle.clone()
}

/// Deletes a claim and waits until its volume is gone at the driver, too.
async fn delete(stack: &Stack, claim: &str, handle: &str, when: &str) {
    stack.users.delete(claim).await;
    stack
        .within(when, Instant::now(), || async {
            match stack.served.driver.volumes().contains_key(handle) {
                false => Ok(()),
                true => Err(format!("the volume of {claim} is still there")),
            }
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_deleted_on_the_word_of_a_world_that_a_restore_has_ended() {
    if !can_run() || !tools::need(&[Tool::Etcdutl]) {
        return;
    }
    let mut cluster = cluster();
    let kubeconfig = cluster.kubeconfig().to_owned();
    // Whoever has a lease may end when it goes back; without one, everybody lives through it.
    let mut stack =
        Stack::start_with(Access::Kubeconfig(kubeconfig.clone()), &kubeconfig, false).await;
    for claim in ["kept", "rescued"] {
        stack.users.create(claim).await;
    }
    let kept = bound(&stack, "kept", "before").await;
    let rescued = bound(&stack, "rescued", "before").await;
    tokio::task::block_in_place(|| snapshot(&mut cluster));

    // In the world that will not have been: a claim that the snapshot does not know, and a volume whose
    // claim is deleted after somebody has rescued it.
    stack.users.create("later").await;
    let later = bound(&stack, "later", "after the snapshot").await;
    let name = rescued.metadata.name.clone().unwrap();
    let retain = Patch::Merge(json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    let params = PatchParams::default();
    again(|| stack.users.volumes.patch(&name, &params, &retain)).await.unwrap();
    stack.users.delete("rescued").await;
    stack
        .within("rescued", Instant::now(), || async {
            let volume = again(|| stack.users.volumes.get(&name)).await.unwrap();
            match volume.status.unwrap().phase.as_deref() {
                Some("Released") => Ok(()),
                phase => Err(format!("{phase:?}")),
            }
        })
        .await;
    let gone = DeleteParams::default();
    again(|| stack.users.volumes.delete(&name, &gone)).await;
    // Versions shall be far ahead of the snapshot's.
    for number in 0..20 {
        let claim = format!("busy-{number}");
        stack.users.create(&claim).await;
        let volume = bound(&stack, &claim, "after the snapshot").await;
        delete(&stack, &claim, &handle(&volume), "after the snapshot").await;
    }
    tokio::task::block_in_place(|| restore(&mut cluster));

    for (name, program) in &mut stack.programs {
        assert!(program.running(), "{name} has ended");
    }
    // Work goes on: the programs know that the world is another one.
    stack.users.create("new").await;
    let new = bound(&stack, "new", "after the restore").await;
    delete(&stack, "new", &handle(&new), "after the restore").await;
    // Both are bound, as the snapshot has it.
    for (claim, before) in [("kept", &kept), ("rescued", &rescued)] {
        let volume = bound(&stack, claim, "after the restore").await;
        assert_eq!(volume.metadata.uid, before.metadata.uid, "{claim}");
        assert_eq!(volume.metadata.deletion_timestamp, None, "{claim}");
    }
    let real = stack.served.driver.volumes();
    for (what, volume) in [("kept", &kept), ("rescued", &rescued), ("later", &later)] {
        assert!(real.contains_key(&handle(volume)), "{what} was deleted\n{}", stack.logs());
    }
    // What is deleted now is deleted.
    delete(&stack, "kept", &handle(&kept), "at the end").await;
    delete(&stack, "rescued", &handle(&rescued), "at the end").await;
    let left: Vec<String> = stack.served.driver.volumes().into_keys().collect();
    assert_eq!(left, [handle(&later)], "nobody knows it any more, so nobody may delete it");
    stack.stop().await;
    tokio::task::block_in_place(|| cluster.stop().unwrap());
}
