//! Load for `cargo xtask bench driver`: serves our driver, and measures any driver by its socket.
//!
//! ```text
//! load serve POOL SOCKET     our driver, kind local
//! load measure SOCKET DIR    figures as one line of JSON; DIR is for staging and targets
//! ```

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use longshore_csi::Client;
use longshore_csi::v1::volume_capability::access_mode::Mode;
use longshore_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use longshore_csi::v1::*;
use longshore_driver::freeze::{HolderProgram, holder};
use longshore_driver::{DriverConfig, DriverKind, PoolConfig};
use tokio_util::sync::CancellationToken;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const MIB: i64 = 1 << 20;
/// Volumes made at once, and by how many callers.
const BURST: usize = 160;
const CALLERS: usize = 16;
/// Volumes made and staged one after the other.
const STAGED: usize = 15;
/// Bytes written to the volume that is copied.
const DATA: usize = 100 << 20;
const COPIES: usize = 3;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if args == ["hold"] {
        let _ = holder::main();
        return Ok(());
    }
    let runtime = tokio::runtime::Runtime::new()?;
    match args[..] {
        ["serve", pool, socket] => runtime.block_on(serve(pool, socket)),
        ["measure", socket, dir] => runtime.block_on(measure(socket, Path::new(dir))),
        _ => Err("say `serve POOL SOCKET` or `measure SOCKET DIR`".into()),
    }
}

async fn serve(pool: &str, socket: &str) -> Result<()> {
    let mut config = DriverConfig::new(DriverKind::Local, "n1");
    config.pools.push(PoolConfig::new("default", pool));
    config.freeze_holder =
        Some(HolderProgram { program: "/proc/self/exe".into(), args: vec!["hold".to_owned()] });
    longshore_driver::run(config, &format!("unix://{socket}"), CancellationToken::new()).await?;
    Ok(())
}

fn writer() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter as i32 }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn create(name: String, bytes: i64, source: Option<VolumeContentSource>) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name,
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capabilities: vec![writer()],
        volume_content_source: source,
        ..Default::default()
    }
}

async fn make(client: &Client, request: CreateVolumeRequest) -> Result<Volume> {
    let made = client.create_volume(request).await?;
    Ok(made.volume.ok_or("no volume in the answer")?)
}

async fn remove(client: &Client, volume_id: String) -> Result<()> {
    client.delete_volume(DeleteVolumeRequest { volume_id, ..Default::default() }).await?;
    Ok(())
}

async fn measure(socket: &str, dir: &Path) -> Result<()> {
    let client = Client::connect(socket.to_owned().into()).await?;
    let (creates, deletes) = burst(&client).await?;
    let staged = staged(&client, dir).await?;
    let (snapshot, clone) = copies(&client, dir).await?;
    let figures = serde_json::json!({
        "createsPerSecond": creates,
        "deletesPerSecond": deletes,
        "createToStagedMs": staged,
        "snapshotMs": snapshot,
        "cloneMs": clone,
    });
    println!("{figures}");
    Ok(())
}

/// Creates and deletes per second with many callers.
async fn burst(client: &Client) -> Result<(f64, f64)> {
    let begin = Instant::now();
    let mut callers = Vec::new();
    for caller in 0..CALLERS {
        let client = client.clone();
        callers.push(tokio::spawn(async move {
            let mut ids = Vec::new();
            for n in 0..BURST / CALLERS {
                let request = create(format!("burst-{caller}-{n}"), 16 * MIB, None);
                ids.push(make(&client, request).await?.volume_id);
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(ids)
        }));
    }
    let mut made = Vec::new();
    for caller in callers {
        made.push(caller.await??);
    }
    let creates = BURST as f64 / begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let mut callers = Vec::new();
    for ids in made {
        let client = client.clone();
        callers.push(tokio::spawn(async move {
            for id in ids {
                remove(&client, id).await?;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        }));
    }
    for caller in callers {
        caller.await??;
    }
    Ok((creates, BURST as f64 / begin.elapsed().as_secs_f64()))
}

fn path(dir: &Path, name: &str) -> Result<String> {
    let path: PathBuf = dir.join(name);
    Ok(path.to_str().ok_or("the directory's name is no text")?.to_owned())
}

async fn stage(client: &Client, volume: &Volume, at: &str) -> Result<()> {
    std::fs::create_dir_all(at)?;
    let request = NodeStageVolumeRequest {
        volume_id: volume.volume_id.clone(),
        staging_target_path: at.to_owned(),
        volume_capability: Some(writer()),
        volume_context: volume.volume_context.clone(),
        ..Default::default()
    };
    client.node_stage_volume(request).await?;
    Ok(())
}

async fn unstage(client: &Client, volume: &Volume, at: &str) -> Result<()> {
    let request = NodeUnstageVolumeRequest {
        volume_id: volume.volume_id.clone(),
        staging_target_path: at.to_owned(),
    };
    client.node_unstage_volume(request).await?;
    Ok(())
}

/// Milliseconds from CreateVolume to the end of NodeStageVolume, median.
async fn staged(client: &Client, dir: &Path) -> Result<f64> {
    let mut times = Vec::new();
    let at = path(dir, "staging")?;
    for n in 0..STAGED {
        let begin = Instant::now();
        let volume = make(client, create(format!("staged-{n}"), 16 * MIB, None)).await?;
        stage(client, &volume, &at).await?;
        times.push(begin.elapsed().as_secs_f64() * 1e3);
        unstage(client, &volume, &at).await?;
        remove(client, volume.volume_id).await?;
    }
    Ok(median(times))
}

/// Milliseconds for a snapshot and for a clone of a mounted 1 GiB volume with data, medians.
async fn copies(client: &Client, dir: &Path) -> Result<(f64, f64)> {
    let volume = make(client, create("source".to_owned(), 1024 * MIB, None)).await?;
    let (at, target) = (path(dir, "staging")?, path(dir, "target")?);
    stage(client, &volume, &at).await?;
    let request = NodePublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        staging_target_path: at.clone(),
        target_path: target.clone(),
        volume_capability: Some(writer()),
        volume_context: volume.volume_context.clone(),
        ..Default::default()
    };
    client.node_publish_volume(request).await?;
    write_data(&Path::new(&target).join("data"))?;
    let (mut snapshots, mut clones) = (Vec::new(), Vec::new());
    for n in 0..COPIES {
        let begin = Instant::now();
        let request = CreateSnapshotRequest {
            source_volume_id: volume.volume_id.clone(),
            name: format!("snapshot-{n}"),
            ..Default::default()
        };
        let made = client.create_snapshot(request).await?.snapshot.ok_or("no snapshot")?;
        snapshots.push(begin.elapsed().as_secs_f64() * 1e3);
        let snapshot_id = made.snapshot_id;
        let request = DeleteSnapshotRequest { snapshot_id, ..Default::default() };
        client.delete_snapshot(request).await?;

        let source = volume_content_source::VolumeSource { volume_id: volume.volume_id.clone() };
        let source = volume_content_source::Type::Volume(source);
        let source = Some(VolumeContentSource { r#type: Some(source) });
        let begin = Instant::now();
        let clone = make(client, create(format!("clone-{n}"), 1024 * MIB, source)).await?;
        clones.push(begin.elapsed().as_secs_f64() * 1e3);
        remove(client, clone.volume_id).await?;
    }
    let request =
        NodeUnpublishVolumeRequest { volume_id: volume.volume_id.clone(), target_path: target };
    client.node_unpublish_volume(request).await?;
    unstage(client, &volume, &at).await?;
    remove(client, volume.volume_id).await?;
    Ok((median(snapshots), median(clones)))
}

/// Bytes that do not compress, on disk when this returns.
fn write_data(file: &Path) -> Result<()> {
    use std::io::Write as _;
    let mut random = fastrand::Rng::with_seed(7);
    let mut bytes = vec![0; DATA];
    random.fill(&mut bytes);
    let mut file = std::fs::File::create(file)?;
    file.write_all(&bytes)?;
    Ok(file.sync_all()?)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
