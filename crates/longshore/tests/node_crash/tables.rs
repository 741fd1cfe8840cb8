//! What the kernel's tables hold, and what they should hold.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    common::{images_below, loops_below, mounts_below},
    load::Seen,
};

/// Where a pod's volume is mounted for it.
pub fn publish_path(root: &Path, uid: &str, volume: &str) -> PathBuf {
    root.join(format!("pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount"))
}

/// The volume of each pod that runs or is to run: where it is mounted, by the volume's name.
pub fn needed(root: &Path, seen: &Seen) -> BTreeMap<String, PathBuf> {
    let mut all = BTreeMap::new();
    for pod in seen.pods.values() {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
        for one in volumes.into_iter().flatten() {
            let claim = one.persistent_volume_claim.as_ref().map(|claim| &claim.claim_name);
            let claim = claim.and_then(|name| seen.claims.get(name));
            let spec = claim.and_then(|claim| claim.spec.as_ref());
            if let Some(volume) = spec.and_then(|spec| spec.volume_name.clone()) {
                let path = publish_path(root, &uid, &volume);
                all.insert(volume, path);
            }
        }
    }
    all
}

/// Exactly the mounts, loop devices, images and directories that these volumes need.
pub fn exact(home: &Path, needed: &BTreeMap<String, PathBuf>) -> Result<(), String> {
    let root = home.join("n");
    let text = |path: &PathBuf| path.display().to_string();
    let wanted: BTreeSet<String> = needed.values().map(text).collect();
    let (staged, published): (Vec<String>, Vec<String>) =
        mounts_below(home).into_iter().partition(|point| point.ends_with("/globalmount"));
    let found: BTreeSet<String> = published.iter().cloned().collect();
    if published.len() != found.len() || found != wanted {
        return Err(format!("published {published:#?}, wanted {wanted:#?}"));
    }
    if staged.len() != needed.len() {
        return Err(format!("staged {staged:#?} for {} volumes", needed.len()));
    }
    let loops = loops_below(home);
    if loops.len() != needed.len() {
        return Err(format!("loop devices {loops:?} for {} volumes", needed.len()));
    }
    let images = images_below(home);
    if images.len() != needed.len() {
        return Err(format!("images {images:?} for {} volumes", needed.len()));
    }
    let pods = names(&root.join("pods"));
    if pods.len() != needed.len() {
        return Err(format!("pod directories {pods:?} for {} pods", needed.len()));
    }
    let csi = root.join("plugins/kubernetes.io/csi");
    let stages: Vec<String> =
        names(&csi).iter().flat_map(|driver| names(&csi.join(driver))).collect();
    if stages.len() != needed.len() {
        return Err(format!("staging directories {stages:?} for {} volumes", needed.len()));
    }
    Ok(())
}

/// Waits until it is so; work goes on for a moment after the last word of the API.
pub fn becomes_exact(
    home: &Path,
    needed: &BTreeMap<String, PathBuf>,
    patience: Duration,
) -> Result<(), String> {
    let began = Instant::now();
    loop {
        match exact(home, needed) {
            Err(_) if began.elapsed() < patience => std::thread::sleep(Duration::from_millis(50)),
            verdict => return verdict,
        }
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// A container as the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alive {
    pid: u64,
    started: u64,
    /// What the API says of its beginnings.
    restarts: i32,
    started_at: String,
}

/// The containers of all pods, by pod. Each must really be there.
pub fn alive(root: &Path, seen: &Seen) -> BTreeMap<String, Alive> {
    let mut all = BTreeMap::new();
    for (name, pod) in &seen.pods {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let file = root.join(format!("pods/{uid}/shim/run-main-0.json"));
        let run: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(run["outcome"], Value::Null, "{name} ended: {run}");
        let pid = run["pid"].as_u64().unwrap();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let started = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap();
        let status = pod.status.as_ref().and_then(|status| status.container_statuses.clone());
        let status = status.unwrap_or_default().remove(0);
        let running = status.state.and_then(|state| state.running);
        let alive = Alive {
            pid,
            started: started.parse().unwrap(),
            restarts: status.restart_count,
            started_at: format!("{:?}", running.and_then(|running| running.started_at)),
        };
        all.insert(name.clone(), alive);
    }
    all
}

/// What a counting pod wrote is whole: the file as summed, the numbers without a gap.
pub fn data_is_whole(mount: &Path) {
    let sum = Command::new("sha256sum").args(["-c", "sum"]).current_dir(mount).output().unwrap();
    assert!(sum.status.success(), "{}: {sum:?}", mount.display());
    let ticks = fs::read_to_string(mount.join("ticks")).unwrap();
    let (whole, _) = ticks.rsplit_once('\n').unwrap();
    for (at, line) in whole.lines().enumerate() {
        assert_eq!(line, (at + 1).to_string(), "{}: a number is missing", mount.display());
    }
}

/// Looks all the time whether some mounts are there.
pub struct Guard {
    stop: Arc<AtomicBool>,
    task: Option<JoinHandle<(usize, BTreeSet<PathBuf>)>>,
}

impl Guard {
    pub fn over(home: &Path, mounts: &BTreeMap<String, PathBuf>) -> Self {
        let (stop, home) = (Arc::new(AtomicBool::new(false)), home.to_owned());
        let mounts: Vec<PathBuf> = mounts.values().cloned().collect();
        let flag = stop.clone();
        let task = std::thread::spawn(move || {
            let (mut looks, mut missing) = (0, BTreeSet::new());
            while !flag.load(Ordering::Relaxed) {
                let now: BTreeSet<PathBuf> =
                    mounts_below(&home).into_iter().map(PathBuf::from).collect();
                missing.extend(mounts.iter().filter(|one| !now.contains(*one)).cloned());
                looks += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            (looks, missing)
        });
        Self { stop, task: Some(task) }
    }

    /// They were there at every look.
    pub fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let (looks, missing) = self.task.take().unwrap().join().unwrap();
        assert!(looks > 0);
        assert_eq!(missing, BTreeSet::new(), "taken from a running pod");
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
