//! One claim with a pod that writes to it, and the kernel's view of its volume.

use std::path::{Path, PathBuf};

use longshore_files::mounts::{Mount, MountTable};
use serde_json::Value;

use super::common::*;

const MIB: u64 = 1 << 20;

/// A claim, and what kind of volume it gets.
#[derive(Debug, Clone)]
pub struct Volume {
    pub name: String,
    driver: &'static str,
    /// Empty for a raw device.
    pub fstype: &'static str,
    pub size_mib: u64,
    node: Option<&'static str>,
    path: Option<PathBuf>,
    image: Option<PathBuf>,
}

/// Puts data where it can be compared, says so, and goes on writing small things.
const WRITER: &str = "cd /data; [ -e sum ] || { head -c 3000000 /dev/urandom > blob && \
    sha256sum blob > sum && sync; }; trap 'exit 0' TERM; echo up; \
    while :; do date >> ticks; sync ticks; sleep 0.05; done";
const RAW_WRITER: &str = "trap 'exit 0' TERM; head -c 3000000 /dev/urandom > /tmp/blob; \
    dd if=/tmp/blob of=/dev/raw bs=1M conv=notrunc,fsync 2>/dev/null; sha256sum < /tmp/blob; touch /tmp/written; \
    while :; do dd if=/tmp/blob of=/dev/raw bs=4k count=1 conv=notrunc,fsync 2>/dev/null; sleep 0.05; done";

impl Volume {
    pub fn new(driver: &'static str, fstype: &'static str, size_mib: u64) -> Self {
        let kind = if fstype.is_empty() { "raw" } else { fstype };
        let name = format!("{driver}-{kind}");
        Self { name, driver, fstype, size_mib, node: None, path: None, image: None }
    }

    pub fn on(self, node: Option<&'static str>) -> Self {
        Self { node, ..self }
    }

    pub fn is_raw(&self) -> bool {
        self.fstype.is_empty()
    }

    /// Class and claim.
    pub fn make(&self, up: &Instance) {
        let Self { name, fstype, size_mib, .. } = self;
        let provisioner = format!("{}.csi.longshore.dev", self.driver);
        let parameters = match self.is_raw() {
            true => String::new(),
            false => format!("parameters: {{csi.storage.k8s.io/fstype: {fstype}}}\n"),
        };
        let more = format!(
            "{parameters}allowVolumeExpansion: true\nvolumeBindingMode: WaitForFirstConsumer"
        );
        up.apply(&class(name, &provisioner, &more));
        let mode = if self.is_raw() { "  volumeMode: Block\n" } else { "" };
        let claim = claim(name, name).replace("16Mi", &format!("{size_mib}Mi"));
        up.apply(&format!("{claim}{mode}"));
    }

    /// Its pod, waited for until it runs.
    pub fn start(&self, up: &Instance) {
        self.start_unwaited(up);
        up.runs(&self.name);
        let began = || !up.run_in(&self.name, self.begun()).is_empty();
        eventually("the pod has written", began);
    }

    fn begun(&self) -> &'static str {
        if self.is_raw() { "ls /tmp/written || true" } else { "ls /data/ticks || true" }
    }

    pub fn start_unwaited(&self, up: &Instance) {
        let mut yaml = match self.is_raw() {
            false => pod(&self.name, &self.name, WRITER),
            true => pod(&self.name, &self.name, RAW_WRITER).replace(
                "volumeMounts: [{name: data, mountPath: /data}]",
                "volumeDevices: [{name: data, devicePath: /dev/raw}]",
            ),
        };
        if let Some(node) = self.node {
            yaml = on_node(&yaml, node);
        }
        up.apply(&yaml);
    }

    pub fn stop(&self, up: &Instance) {
        up.delete("pod", &self.name);
    }

    /// Learns where the node has it.
    pub fn find(&mut self, up: &Instance) {
        self.find_below(up, &up.data_dir);
    }

    /// The same, of nodes with their pools below a directory.
    pub fn find_below(&mut self, up: &Instance, dir: &Path) {
        let volume = up.bound(&self.name);
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str().unwrap().to_owned();
        let images = images_below(dir);
        let of_it = |image: &PathBuf| image.display().to_string().contains(&handle);
        self.image = Some(images.into_iter().find(of_it).unwrap());
        let pv = volume["metadata"]["name"].as_str().unwrap();
        let of_it = |point: &String| point.contains(pv) && point.ends_with("/mount");
        self.path = mounts_below(dir).into_iter().find(of_it).map(PathBuf::from);
        assert!(self.is_raw() || self.path.is_some(), "{pv} is not mounted");
    }

    pub fn image(&self) -> &PathBuf {
        self.image.as_ref().unwrap()
    }

    /// The loop device below it.
    pub fn device(&self) -> String {
        let image = self.image().display().to_string();
        loops().into_iter().find(|(_, file)| *file == image).unwrap().0
    }

    pub fn sysfs(&self, file: &str) -> String {
        let device = self.device();
        let name = device.trim_start_matches("/dev/");
        std::fs::read_to_string(format!("/sys/block/{name}/{file}")).unwrap().trim().to_owned()
    }

    pub fn mount(&self) -> Mount {
        MountTable::read().unwrap().at(self.path.as_ref().unwrap()).unwrap().clone()
    }

    /// Percent of the blocks that only root may use.
    pub fn reserved(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.path.as_ref().unwrap()).unwrap();
        (stat.f_bfree - stat.f_bavail) * 100 / stat.f_blocks
    }

    /// Bytes that its user can see.
    pub fn seen(&self) -> u64 {
        match self.is_raw() {
            true => self.sysfs("size").parse::<u64>().unwrap() * 512,
            false => {
                let stat = rustix::fs::statvfs(self.path.as_ref().unwrap()).unwrap();
                stat.f_blocks * stat.f_frsize
            }
        }
    }

    /// What its user must see when it has grown: tables of a filesystem take their part.
    pub fn enough(&self, before: u64, more_mib: u64) -> u64 {
        let share = if self.is_raw() { 100 } else { 85 };
        before + more_mib * MIB * share / 100
    }

    /// Waits until the claim says that it has grown. Whenever it says so, it must be true.
    pub fn grows(&self, up: &Instance, before: u64, more_mib: u64) {
        let want = format!("{}Mi", self.size_mib + more_mib);
        up.wait("pvc", &self.name, "has grown", |claim| {
            let says = claim["status"]["capacity"]["storage"] == *want;
            if says {
                let (seen, enough) = (self.seen(), self.enough(before, more_mib));
                assert!(
                    seen >= enough,
                    "{}: success is said too early: {seen} of {enough}",
                    self.name
                );
            }
            says && conditions(claim).is_empty()
        });
        let claim = up.json("pvc", &self.name);
        assert!(claim["status"]["allocatedResourceStatuses"].is_null(), "{claim:#}");
        let volume = up.bound(&self.name);
        assert_eq!(volume["spec"]["capacity"]["storage"], *want);
        assert!(self.image().metadata().unwrap().len() >= (self.size_mib + more_mib) * MIB);
    }

    /// The data is what was written first.
    pub fn is_whole(&self, up: &Instance) {
        if self.is_raw() {
            let logged = up.cli(&["logs", &self.name]);
            let sum = up.run_in(&self.name, "head -c 3000000 /dev/raw | sha256sum");
            assert_eq!(text(&logged).lines().next().unwrap_or_default(), sum, "{}", self.name);
        } else {
            up.run_in(&self.name, "cd /data && sha256sum --status -c sum");
        }
    }

    /// The checker finds nothing; nobody may have it mounted.
    pub fn is_clean(&self) {
        let image = self.image().display().to_string();
        let (tool, args): (&str, &[&str]) = match self.fstype {
            "ext4" => ("e2fsck", &["-f", "-n", &image]),
            "xfs" => ("xfs_repair", &["-n", &image]),
            "btrfs" => ("btrfs", &["check", "--readonly", &image]),
            _ => return,
        };
        let done = std::process::Command::new(tool).args(args).output().unwrap();
        assert!(done.status.success(), "{tool} {args:?}: {}", text(&done));
    }
}

/// What a growth may leave on a claim.
const OF_RESIZE: [&str; 4] =
    ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// The types of the claim's conditions that are about its growth.
pub fn conditions(claim: &Value) -> Vec<String> {
    let all = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let kinds = all.iter().map(|one| one["type"].as_str().unwrap_or_default().to_owned());
    kinds.filter(|kind| OF_RESIZE.contains(&kind.as_str())).collect()
}
