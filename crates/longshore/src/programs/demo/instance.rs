//! A `longshore up` of our own, in a child process.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use longshore_cluster::Api;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use super::display::Display;

/// How long the child may take to become ready, and to stop.
const PATIENCE: Duration = Duration::from_secs(30);

/// The running child and a client for its API.
pub(super) struct Instance {
    child: Child,
    data_dir: PathBuf,
    pub api: Api,
}

impl Instance {
    /// Starts the child, with `more` flags, and waits for its `ready` line.
    pub(super) async fn start(home: &Path, more: &[&str], display: &mut Display) -> Result<Self> {
        let data_dir = home.join("data");
        let log = home.join("longshore.log");
        let mut child = spawn(&data_dir, &log, more)?;
        let work = async {
            let kubeconfig = ready(&mut child, &log).await?;
            let config = longshore_cluster::config::ClientConfig {
                kubeconfig: Some(kubeconfig.clone()),
                ..Default::default()
            };
            let api = Api::new(config.client().await?);
            let text = format!("the API answers; kubeconfig={}", kubeconfig.display());
            Ok((api, text))
        };
        match display.step("start", work).await {
            Ok(api) => Ok(Self { child, data_dir, api }),
            Err(error) => {
                // Nobody has used it, so nothing is lost; its directory goes next.
                child.kill().await.context("cannot end the instance")?;
                Err(error)
            }
        }
    }

    /// Asks the child to stop, waits, and looks for what it left behind.
    pub(super) async fn stop(mut self, display: &mut Display) -> Result<()> {
        let work = async {
            let pid = self.child.id().context("the instance has ended already")?;
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            let pid = pid.context("the instance has no process id")?;
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)
                .context("cannot ask the instance to stop")?;
            let status = tokio::time::timeout(PATIENCE, self.child.wait())
                .await
                .context("the instance did not stop in time")??;
            if !status.success() {
                bail!("the instance ended with {status}");
            }
            let left = left_behind(&self.data_dir)?;
            if !left.is_empty() {
                bail!("left behind: {}", left.join(", "));
            }
            Ok(((), "stopped; no mount, no loop device, no process left".to_owned()))
        };
        display.step_to_its_end("stop", work).await
    }
}

fn spawn(data_dir: &Path, log: &Path, more: &[&str]) -> Result<Child> {
    let exe = std::env::current_exe().context("cannot find this program")?;
    let log_file = std::fs::File::create(log).context("cannot make the demo's log file")?;
    Command::new(exe)
        .args(["up", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(data_dir)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file)
        // A terminal's Ctrl-C is for the demo, which then stops it.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start `longshore up`")
}

/// Waits until the child serves; where its kubeconfig is.
async fn ready(child: &mut Child, log: &Path) -> Result<PathBuf> {
    let stdout = child.stdout.take().context("the instance has no output")?;
    let mut lines = BufReader::new(stdout).lines();
    let line = tokio::time::timeout(PATIENCE, lines.next_line())
        .await
        .context("`longshore up` did not get ready in time")?
        .context("cannot read from `longshore up`")?;
    match line.as_deref().and_then(|line| line.strip_prefix("ready kubeconfig=")) {
        Some(path) => Ok(PathBuf::from(path)),
        None => {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(5).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            bail!("`longshore up` did not start: {}", tail.join(" / "))
        }
    }
}

/// Mounts, loop devices and processes that still refer to `dir`.
fn left_behind(dir: &Path) -> Result<Vec<String>> {
    let mounts = longshore_files::mounts::mounts_below(dir)?;
    let mut left: Vec<String> =
        mounts.iter().map(|point| format!("mount {}", point.display())).collect();
    let dir = dir.display().to_string();
    for entry in std::fs::read_dir("/sys/block")? {
        let path = entry?.path();
        let backing = std::fs::read_to_string(path.join("loop/backing_file")).unwrap_or_default();
        if backing.contains(&dir) {
            left.push(format!("loop device {} on {}", path.display(), backing.trim()));
        }
    }
    for entry in std::fs::read_dir("/proc")? {
        let path = entry?.path();
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(&dir) {
            left.push(format!("process {}", path.display()));
        }
    }
    Ok(left)
}
