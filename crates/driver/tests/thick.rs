//! Room: what is promised, what is set aside, and who notices a full pool.

mod common;

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::*;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::*;
use longshore_driver::{DriverKind, FsType};
use tonic::Code;

fn with(mut request: CreateVolumeRequest, all: &[(&str, &str)]) -> CreateVolumeRequest {
    for (key, value) in all {
        request.parameters.insert((*key).to_owned(), (*value).to_owned());
    }
    request
}

/// Fills the filesystem below the pool to the last byte.
fn fill(pool: &Path) {
    let mut file = File::create(pool.join("ballast")).expect("a file");
    let chunk = vec![7; 1 << 20];
    for part in [chunk.len(), 4096, 1] {
        loop {
            match file.write(&chunk[..part]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    let _ = file.sync_all();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thick_volume_never_notices_a_full_pool() {
    if !able_all("a_thick_volume_never_notices_a_full_pool") {
        return;
    }
    for (below, mib) in [(FsType::Ext4, 256), (FsType::Btrfs, 256), (FsType::Xfs, 320)] {
        let world = World::new();
        world.own_pool(below, mib);
        let running = start(world.config(DriverKind::Local, "n1")).await;
        let client = &running.client;
        let request = with(create("thick", 40 * MIB, writer()), &[("provisioning", "thick")]);
        let id = client.create_volume(request.clone()).await.unwrap().volume.unwrap().volume_id;
        client.create_volume(request).await.expect("the same again");
        let stat = image(&world, &id).metadata().unwrap();
        assert!(stat.blocks() * 512 >= 40 << 20, "{below}: {} blocks", stat.blocks());
        let thin = make(client, "thin", 20 * MIB, writer()).await;
        assert!(image(&world, &thin).metadata().unwrap().blocks() * 512 < 2 << 20);

        // Full before it is staged for the first time: it has its filesystem already.
        fill(&world.pool());
        let staging = world.dir("staging");
        client.node_stage_volume(stage(&id, &staging, writer())).await.unwrap();
        let mut file = File::create(Path::new(&staging).join("data")).unwrap();
        let part = vec![5; 1 << 20];
        for _ in 0..24 {
            file.write_all(&part).expect("its own room");
        }
        file.sync_all().expect("its own room");
        drop(file);
        // Neither deletes nor trims give its room away.
        std::fs::remove_file(Path::new(&staging).join("data")).unwrap();
        let trimmed = std::process::Command::new("fstrim").arg(&staging).output().unwrap();
        assert!(!trimmed.status.success(), "{below}: it took a discard");
        let stat = image(&world, &id).metadata().unwrap();
        assert!(stat.blocks() * 512 >= 40 << 20, "{below}: {} blocks", stat.blocks());

        // New work is refused early, in so many words, and so is growth.
        for request in [
            create("more", 4 * MIB, writer()),
            with(create("more", 4 * MIB, writer()), &[("overcommit", "10")]),
        ] {
            let refusal = client.create_volume(request).await;
            let text = refusal.as_ref().map(|_| ()).unwrap_err().to_string();
            assert!(text.contains("nearly full"), "{text}");
            assert_eq!(refused(refusal), Code::ResourceExhausted);
        }
        let grow = grow_on_node(&id, &staging, 80 * MIB);
        assert_eq!(refused(client.node_expand_volume(grow).await), Code::ResourceExhausted);
        assert_eq!(image(&world, &id).metadata().unwrap().len(), 40 << 20);
        let capacity = client.get_capacity(GetCapacityRequest::default()).await.unwrap();
        assert_eq!(capacity.available_capacity, 0);
        // The thin neighbour is in danger, and says so; the thick one is not.
        let condition = |id: &str| {
            let request = ControllerGetVolumeRequest { volume_id: id.to_owned() };
            async move {
                let got = client.controller_get_volume(request).await.unwrap();
                got.status.unwrap().volume_condition.unwrap()
            }
        };
        let of_thin = condition(&thin).await;
        assert!(of_thin.abnormal && of_thin.message.contains("nearly full"), "{of_thin:?}");
        assert!(!condition(&id).await.abnormal);

        std::fs::remove_file(world.pool().join("ballast")).unwrap();
        client.node_unstage_volume(unstage(&id, &staging)).await.unwrap();
        // The device's number serves others next: it must take discards again.
        client.node_stage_volume(stage(&thin, &staging, writer())).await.unwrap();
        run("fstrim", &[&staging]);
        client.node_unstage_volume(unstage(&thin, &staging)).await.unwrap();
        assert_eq!(world.volume_loops(), Vec::<std::path::PathBuf>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn overcommit_is_a_class_parameter() {
    let Some(world) = World::for_test("overcommit_is_a_class_parameter") else { return };
    let mut config = world.config(DriverKind::Local, "n1");
    config.pools[0].limit_bytes = Some(40 << 20);
    let running = start(config).await;
    let client = &running.client;
    let capacity = |parameters: &[(&str, &str)]| {
        let pairs = parameters.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let request = GetCapacityRequest { parameters: pairs.collect(), ..Default::default() };
        async move { client.get_capacity(request).await.unwrap().available_capacity }
    };
    assert_eq!(capacity(&[]).await, 40 * MIB);
    assert_eq!(capacity(&[("overcommit", "2")]).await, 80 * MIB);
    let twice = [("overcommit", "2")];
    client.create_volume(with(create("a", 60 * MIB, writer()), &twice)).await.unwrap();
    assert_eq!(capacity(&[]).await, 0);
    assert_eq!(capacity(&twice).await, 20 * MIB);
    let once = client.create_volume(create("b", 4 * MIB, writer())).await;
    assert_eq!(refused(once), Code::ResourceExhausted);
    // A thick volume is never one of those that are promised twice.
    let thick = [("overcommit", "2"), ("provisioning", "thick")];
    let refusal = client.create_volume(with(create("c", 4 * MIB, writer()), &thick)).await;
    assert_eq!(refused(refusal), Code::ResourceExhausted);
    for bad in [("overcommit", "0.5"), ("overcommit", "NaN"), ("provisioning", "fat")] {
        let got = client.create_volume(with(create("d", 4 * MIB, writer()), &[bad])).await;
        assert_eq!(refused(got), Code::InvalidArgument, "{bad:?}");
    }
    assert_eq!(world.files().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thick_raw_volume_is_set_aside_and_grows_so() {
    let Some(world) = World::for_test("a_thick_raw_volume_is_set_aside_and_grows_so") else {
        return;
    };
    let running = start(world.config(DriverKind::Local, "n1")).await;
    let client = &running.client;
    let raw = || block(Mode::SingleNodeWriter);
    let request = with(create("raw", 4 * MIB, raw()), &[("provisioning", "thick")]);
    let id = client.create_volume(request).await.unwrap().volume.unwrap().volume_id;
    let blocks = || image(&world, &id).metadata().unwrap().blocks() * 512;
    assert!(blocks() >= 4 << 20);
    let staging = world.dir("staging");
    client.node_stage_volume(stage(&id, &staging, raw())).await.unwrap();
    client.node_expand_volume(grow_on_node(&id, &staging, 8 * MIB)).await.unwrap();
    assert!(blocks() >= 8 << 20);
}
