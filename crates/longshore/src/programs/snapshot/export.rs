//! A snapshot into a file.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use longshore_core::{
    model::{
        ObjectKey,
        keys::embedded,
        kinds::{VolumeSnapshot, VolumeSnapshotContent},
    },
    words,
};
use longshore_driver::transfer::{self, Transferred};

use super::{At, Place};

pub(super) async fn run(name: String, file: Option<PathBuf>, at: At) -> Result<()> {
    if file.is_none() && std::io::stdout().is_terminal() {
        bail!("the snapshot would go to the terminal; name a file, or send it into a pipe");
    }
    let (handle, pools) = match &at {
        At::Pool(pool) => (name.clone(), vec![pool.clone()]),
        At::Instance(place) => (place.handle(&name).await?, place.pools()?),
    };
    let pools: Vec<&Path> = pools.iter().map(PathBuf::as_path).collect();
    let done = match &file {
        Some(file) => into_file(file, &pools, &handle),
        None => transfer::export(&pools, &handle, &mut BufWriter::new(std::io::stdout().lock()))
            .map_err(Into::into),
    };
    let done = done.with_context(|| format!("cannot export snapshot {name}"))?;
    let Transferred { size_bytes, file_bytes, created, .. } = done;
    let (size, bytes) = (words::size(size_bytes), words::size(file_bytes));
    let what = file.map_or_else(|| "the standard output".into(), |file| file.display().to_string());
    // The standard output may be the snapshot.
    eprintln!("snapshot {name} of {created}, a volume of {size}, is in {what} ({bytes})");
    Ok(())
}

/// The file has its name when it is whole and on disk.
fn into_file(file: &Path, pools: &[&Path], handle: &str) -> Result<Transferred> {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let new = tempfile::Builder::new().prefix(".longshore-snapshot-").tempfile_in(dir);
    let new = new.with_context(|| format!("cannot make a file in {}", dir.display()))?;
    let mut out = BufWriter::with_capacity(1 << 20, new);
    let done = transfer::export(pools, handle, &mut out)?;
    out.flush()?;
    let new = out.into_inner()?;
    let flushed = new.as_file().sync_all().and_then(|()| new.persist(file).map_err(|e| e.error));
    flushed
        .and_then(|_| File::open(dir)?.sync_all())
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(done)
}

impl Place {
    /// All pools of the instance.
    fn pools(&self) -> Result<Vec<PathBuf>> {
        let of = |node: super::NodeConfig| {
            node.pools.into_iter().map(|pool| pool.dir).chain([node.shared_pool])
        };
        Ok(self.nodes()?.into_iter().flat_map(of).collect())
    }

    /// The driver's handle of a VolumeSnapshot, which has to be one of ours and ready.
    async fn handle(&self, name: &str) -> Result<String> {
        let (api, key) = self.reach(name).await?;
        let snapshot = api.get::<VolumeSnapshot>(&key).await?;
        let snapshot = snapshot.with_context(|| {
            format!("there is no VolumeSnapshot {key}; see `longshore get volumesnapshots -A`")
        })?;
        let bound = snapshot.bound_content().filter(|_| snapshot.ready()).with_context(|| {
            format!(
                "VolumeSnapshot {key} is not ready; see `longshore describe volumesnapshot {name}`"
            )
        })?;
        let content = api.get::<VolumeSnapshotContent>(&ObjectKey::cluster(bound)).await?;
        let content = content.with_context(|| format!("VolumeSnapshotContent {bound} is gone"))?;
        let driver = &content.spec.driver;
        if ![embedded::LOCAL_DRIVER, embedded::SHARED_DRIVER].contains(&driver.as_str()) {
            bail!(
                "VolumeSnapshot {key} is of the driver {driver}, and only snapshots of longshore's drivers can be exported"
            );
        }
        let handle = content.status.and_then(|status| status.snapshot_handle);
        handle.with_context(|| format!("VolumeSnapshotContent {bound} has no handle"))
    }
}
