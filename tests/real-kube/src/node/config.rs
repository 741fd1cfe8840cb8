//! The configuration files of a node's programs.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

use super::PAUSE;
use super::packages::Packages;

/// The longest path that a unix socket can have.
const SOCKET_PATH: usize = 107;
/// A long name among those of the sockets below a node's directory.
const LONG_SOCKET: &str = "kubelet/plugins_registry/local.csi.longshore.dev-reg.sock";

/// Where things are.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) dir: PathBuf,
}

impl Layout {
    /// Makes the directories below `dir`.
    pub(super) fn make(dir: &Path) -> Result<Self> {
        let layout = Self { dir: dir.to_owned() };
        let longest = dir.join(LONG_SOCKET);
        if longest.as_os_str().len() > SOCKET_PATH {
            bail!(
                "{} is too long for the sockets of a node: set TMPDIR to a shorter path",
                dir.display()
            );
        }
        for hidden in ["/run", "/var/run", "/var/lib", "/var/log"] {
            if dir.starts_with(hidden) {
                bail!(
                    "a node has a {hidden} of its own, so {} cannot be there: set TMPDIR to another path",
                    dir.display()
                );
            }
        }
        for part in [layout.kubelet(), layout.network(), layout.dir.join("logs")] {
            fs::create_dir_all(&part).with_context(|| format!("cannot make {}", part.display()))?;
        }
        Ok(layout)
    }

    /// The kubelet's directory: plugins, their registry, pods.
    pub(super) fn kubelet(&self) -> PathBuf {
        self.dir.join("kubelet")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("containerd.sock")
    }

    fn network(&self) -> PathBuf {
        self.dir.join("network")
    }

    /// Writes containerd's configuration and that of the pods' network.
    pub(super) fn containerd(&self, packages: &Packages, pods: &str) -> Result<PathBuf> {
        let dir = self.dir.display();
        let text = format!(
            r#"version = 2
root = "{dir}/containerd/root"
state = "{dir}/containerd/state"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{dir}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{network}"
"#,
            socket = self.socket().display(),
            snapshotter = snapshotter(&self.dir),
            plugins = packages.plugins.display(),
            network = self.network().display(),
        );
        self.write_network(pods)?;
        let file = self.dir.join("containerd.toml");
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }

    /// Each pod has a wire to the node and no way beyond it.
    fn write_network(&self, pods: &str) -> Result<()> {
        let list = json!({
            "cniVersion": "0.4.0",
            "name": "longshore",
            "plugins": [{
                "type": "ptp",
                "ipMasq": false,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": pods }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                    "dataDir": self.dir.join("addresses"),
                },
            }],
        });
        let file = self.network().join("10-longshore.conflist");
        fs::write(&file, list.to_string())
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Writes the kubelet's configuration.
    pub(super) fn kubelet_config(&self, address: Ipv4Addr, ca: &Path) -> Result<PathBuf> {
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            // The address is this node's alone, so the usual port is free.
            "address": address.to_string(),
            "healthzPort": 0,
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": false },
                "x509": { "clientCAFile": ca },
            },
            "authorization": { "mode": "AlwaysAllow" },
            "containerRuntimeEndpoint": format!("unix://{}", self.socket().display()),
            "failCgroupV1": false,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": false,
            "enforceNodeAllocatable": [],
            "failSwapOn": false,
            // As a hardened node has it: a pod that asks for no profile has the runtime's.
            "seccompDefault": true,
            // The chains would stay in the machine's tables.
            "makeIPTablesUtilChains": false,
            "evictionHard": {
                "memory.available": "1Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
            },
            // Images cannot be fetched again.
            "imageGCHighThresholdPercent": 100,
            "volumePluginDir": self.dir.join("flexvolumes"),
            "podLogsDir": self.dir.join("logs"),
            "resolvConf": "",
        });
        let file = self.dir.join("kubelet.json");
        fs::write(&file, config.to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(file)
    }
}

/// An overlay cannot hold the upper part of another one; there layers are copied.
fn snapshotter(dir: &Path) -> &'static str {
    const OVERLAY: u32 = 0x794c_7630;
    match rustix::fs::statfs(dir) {
        Ok(found) if u32::try_from(found.f_type) == Ok(OVERLAY) => "native",
        _ => "overlayfs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_cannot_work_are_refused() {
        for (dir, part) in [
            (format!("/tmp/{}", "x".repeat(60)), "shorter path"),
            ("/run/user/0/longshore-rk-x/node".to_owned(), "/run of its own"),
            ("/var/lib/x/node".to_owned(), "/var/lib of its own"),
        ] {
            let error = Layout::make(Path::new(&dir)).unwrap_err().to_string();
            assert!(error.contains(part), "{dir}: {error}");
            assert!(!Path::new(&dir).exists());
        }
    }
}
