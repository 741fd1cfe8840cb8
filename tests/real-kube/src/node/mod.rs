//! A real node: containerd and the kubelet, in a private view of the machine.
//!
//! Everything is below the cluster's directory. Pods are real containers of images that are made
//! here. CSI drivers and other helpers run as programs inside the node, with [`Node::add`].

mod config;
mod images;
mod machine;
mod packages;
mod tar;
mod traces;

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

pub use images::Image;
pub use traces::Namespace;

use crate::cluster::{Cluster, Options};
use crate::program::{Interrupt, Lifetime};
use crate::tools::{self, Tool};
use config::Layout;
use machine::{Inside, Machine, Record};
use packages::Packages;

/// The node's name in the cluster.
pub const NAME: &str = "node-1";
/// Where pods reach the API server, with [`Options::service_accounts`].
pub const API_ADDRESS: &str = "198.19.255.1";
/// The image of pods: busybox with all its applets.
pub const IMAGE: &str = "longshore.test/busybox:1";
/// The image that holds a pod's namespaces.
const PAUSE: &str = "longshore.test/pause:1";
/// The directory of the node in the cluster's directory. Short: sockets are below it.
const DIR: &str = "node";
const TIMEOUT: Duration = Duration::from_secs(120);
/// How long a program inside may take to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// A running node.
#[derive(Debug)]
pub struct Node {
    layout: Layout,
    packages: Packages,
    programs: Vec<Inside>,
    machine: Machine,
    lifetime: Lifetime,
    interrupt: Option<Interrupt>,
}

impl Node {
    /// Starts a node for the cluster and waits until it is ready for pods.
    pub(crate) fn start(
        cluster: &Cluster,
        options: &Options,
        interrupt: Option<Interrupt>,
    ) -> Result<Self> {
        let lifetime = options.lifetime;
        if !packages::root() {
            bail!("a node needs root: it mounts and makes namespaces");
        }
        let mut packages = Packages::get()?;
        if options.pinned_containerd {
            packages.pin_containerd()?;
        }
        let layout = Layout::make(&cluster.dir().join(DIR))?;
        let name = cluster.dir().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let machine = Machine::start(&layout.dir, &name, lifetime, interrupt.as_ref())?;
        if options.service_accounts {
            machine.add_address(API_ADDRESS)?;
        }
        let programs = Vec::new();
        let mut node = Self { layout, packages, programs, machine, lifetime, interrupt };
        node.start_containerd()?;
        node.import(&[Image::pause(&[PAUSE]), Image::busybox(&[IMAGE])])?;
        node.start_kubelet(cluster)?;
        Ok(node)
    }

    fn start_containerd(&mut self) -> Result<()> {
        let config = self.layout.containerd(&self.packages, &self.machine.pods())?;
        let mut command = Command::new(&self.packages.containerd);
        command.arg("--config").arg(config).env("PATH", &self.packages.path);
        let socket = self.layout.socket();
        self.add_until("containerd", &command, || UnixStream::connect(&socket).is_ok())
    }

    fn start_kubelet(&mut self, cluster: &Cluster) -> Result<()> {
        let user = format!("system:node:{NAME}");
        let kubeconfig = cluster.kubeconfig_for(&user, &["system:nodes"])?;
        let address = self.machine.address();
        let config = self.layout.kubelet_config(address, &cluster.ca_file())?;
        let mut command = Command::new(tools::path(Tool::Kubelet)?);
        command.arg("--config").arg(config).arg("--kubeconfig").arg(kubeconfig);
        command.arg("--root-dir").arg(self.root());
        command.arg("--cert-dir").arg(self.layout.dir.join("certificates"));
        command.args(["--hostname-override", NAME, "--node-ip", &address.to_string(), "--v=2"]);
        // It tries out `umount` on a directory of its own, which it leaves when it is killed meanwhile. This
        // one goes with the node's view of the machine.
        command.env("TMPDIR", "/run");
        self.add_until("kubelet", &command, || ready(cluster))
    }

    /// The kubelet's directory, which drivers know as `/var/lib/kubelet`.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.layout.kubelet()
    }

    /// The directory for a driver's socket, made when it is not there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn plugin_dir(&self, driver: &str) -> Result<PathBuf> {
        let dir = self.root().join("plugins").join(driver);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }

    /// The directory of the kubelet's registration sockets.
    #[must_use]
    pub fn registry(&self) -> PathBuf {
        self.root().join("plugins_registry")
    }

    /// The node's directory: logs and data.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.layout.dir
    }

    /// The command as it runs inside the node, for a program that is waited for.
    #[must_use]
    pub fn inside(&self, command: &Command) -> Command {
        self.machine.inside(command)
    }

    /// Starts a program inside the node. It ends with the node. Its log is `NAME.log` in the
    /// node's directory. Returns its pid, as the machine counts.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn add(&mut self, name: &str, command: &Command) -> Result<u32> {
        let inside = self.machine.run(name, command, self.lifetime)?;
        let pid = inside.pid();
        self.programs.push(inside);
        Ok(pid)
    }

    /// Starts a program inside the node and waits until `probe` says yes.
    ///
    /// # Errors
    /// When it cannot be started or does not get ready.
    pub fn add_until(
        &mut self,
        name: &str,
        command: &Command,
        probe: impl FnMut() -> bool,
    ) -> Result<()> {
        self.add(name, command)?;
        let interrupt = self.interrupt.clone();
        let inside = self.programs.last_mut().context("the program was just added")?;
        inside.outer.wait_until(TIMEOUT, interrupt.as_ref(), probe)
    }

    /// Ends a program inside the node: SIGTERM, and SIGKILL when that does not help.
    ///
    /// # Errors
    /// When there is none of that name, or it cannot be ended.
    pub fn end_program(&mut self, name: &str) -> Result<()> {
        let at = self.programs.iter().position(|one| one.outer.name() == name);
        let at = at.with_context(|| format!("no program {name} runs inside the node"))?;
        self.programs.remove(at).stop(GRACE)
    }

    /// Makes images known to the node.
    ///
    /// # Errors
    /// When they cannot be made or imported.
    pub fn import(&self, images: &[Image]) -> Result<()> {
        let file = self.layout.dir.join("images.tar");
        images::archive(images, &self.packages.busybox, &file)?;
        let imported = self.import_archive(&file);
        let _ = fs::remove_file(&file);
        imported
    }

    /// Makes the images of an archive known to the node; its path must not be below `/run`, `/var/lib` or
    /// `/var/log`, which the node has for itself.
    ///
    /// # Errors
    /// When containerd does not take them.
    pub fn import_archive(&self, file: &Path) -> Result<()> {
        let mut command = Command::new(&self.packages.ctr);
        command.arg("--address").arg(self.layout.socket());
        command.args(["--namespace", "k8s.io", "images", "import"]).arg(file);
        let output = self.inside(&command).output().context("cannot run ctr")?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("containerd did not take {}: {}", file.display(), why.trim());
        }
        Ok(())
    }

    /// Ends the node: pods, shims, programs, mounts, cgroups, loop devices, interfaces.
    pub(crate) fn stop(mut self) -> Result<()> {
        // No process gets a signal first: process 1 takes all with it, and their data goes anyway.
        let ended = self.machine.end();
        self.programs.into_iter().map(|one| one.stop(GRACE)).fold(ended, Result::and)
    }

    /// Lets the node run on without this process.
    pub(crate) fn release(self) {
        for program in self.programs {
            let _ = program.outer.release();
        }
        self.machine.release();
    }
}

/// Ends the node of the cluster in `dir`, if it has one, from what is on disk.
pub(crate) fn end_recorded(dir: &Path) -> Result<()> {
    let dir = dir.join(DIR);
    match Record::load(&dir)? {
        Some(record) => record.end(&dir),
        None => Ok(()),
    }
}

/// Debian packages that a node needs and this machine lacks. Starting a node installs them, as root.
#[must_use]
pub fn missing_packages() -> Vec<&'static str> {
    packages::missing()
}

/// For tests: whether this machine can have a node. Otherwise one visible line says why not.
///
/// # Panics
/// With `LONGSHORE_TEST_STRICT=1`, when it cannot.
#[must_use]
pub fn possible() -> bool {
    if packages::root() {
        return true;
    }
    let thread = std::thread::current();
    let text = format!("SKIPPED {}: a node needs root", thread.name().unwrap_or("test"));
    let strict = std::env::var("LONGSHORE_TEST_STRICT").is_ok_and(|value| value == "1");
    assert!(!strict, "{text} (LONGSHORE_TEST_STRICT=1 makes a skip a failure)");
    eprintln!("{text}");
    false
}

/// Whether the cluster calls the node ready.
fn ready(cluster: &Cluster) -> bool {
    let condition = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    let output = cluster.kubectl(&["get", "node", NAME, "--output", condition]);
    output.is_ok_and(|output| output.stdout == b"True")
}
