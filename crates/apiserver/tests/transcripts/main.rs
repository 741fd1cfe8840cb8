//! Recorded commands of the real kubectl, played against the server: the same output, the same exit
//! code. What is in ⟨angle⟩ brackets in the recording differs from run to run.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

#[path = "../common/mod.rs"]
mod common;
mod compare;
mod script;

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use common::Running;
use compare::differences;
use longshore_apiserver::Config;
use longshore_real_kube::tools::{self, Tool};
use longshore_testing::{Need, need};
use script::{Script, Step};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

/// No command of a recording runs longer than this, however loaded the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

struct Player {
    running: Running,
    dir: tempfile::TempDir,
    path: std::ffi::OsString,
}

impl Player {
    async fn start(script: &Script) -> Self {
        let dir = tempfile::Builder::new().prefix("longshore-kubectl-").tempdir().unwrap();
        for (name, text) in &script.files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let kubectl = tools::path(Tool::Kubectl).unwrap();
        let mut path = kubectl.parent().map(Path::as_os_str).unwrap().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        // A command that follows the deletion of a namespace finds it going, however late it comes.
        let patient = |dir: &Path| Config { namespace_grace: PATIENCE, ..Config::at(dir) };
        Self { running: Running::with(patient).await, dir, path }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        command
            .env_clear()
            .env("PATH", &self.path)
            .env("HOME", self.dir.path())
            .env("TMPDIR", self.dir.path())
            .env("KUBECONFIG", &self.running.kubeconfig)
            .env("EDITOR", "true")
            .current_dir(self.dir.path())
            .args(["-c", line])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, line: &str) -> Output {
        let output = self.command(line).output();
        tokio::time::timeout(PATIENCE, output).await.expect("the command takes too long").unwrap()
    }

    /// A watch beside other commands. The recording slept between them; here each of them waits for
    /// what the one before leads to.
    async fn watched(&self, step: &Step) -> Output {
        let mut parts = step.command.split(['&', ';']).map(str::trim);
        let watch = parts.next().unwrap().trim_start_matches("timeout 4 ");
        let changes = parts.filter(|part| part.starts_with("kubectl"));
        let mut child = self.command(&format!("exec {watch}")).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = String::new();
        let mut read = async |count: usize| {
            for _ in 0..count {
                let line = tokio::time::timeout(PATIENCE, lines.next_line()).await;
                let line = line.expect("the watch shows nothing").unwrap().unwrap();
                seen.push_str(&line);
                seen.push('\n');
            }
        };
        read(2).await;
        for change in changes {
            let change = change.split(" >").next().unwrap();
            let output = self.run(change).await;
            assert!(output.status.success(), "{change}: {output:?}");
            read(1).await;
        }
        child.kill().await.unwrap();
        let ended = Command::new("true").output().await.unwrap();
        Output { stdout: seen.into_bytes(), ..ended }
    }
}

/// What the recording says about itself: of `kubectl version` only the server's lines count.
fn only_server_lines(step: &Step, output: &mut Output) -> Option<Step> {
    if !step.command.starts_with("kubectl version") {
        return None;
    }
    let server = |text: &str| text.lines().skip(2).fold(String::new(), |all, l| all + l + "\n");
    output.stdout = server(&String::from_utf8_lossy(&output.stdout)).into_bytes();
    output.stderr.clear();
    let mut step = step.clone();
    step.stdout = server(&step.stdout);
    step.stderr.clear();
    Some(step)
}

/// A command that gives up after a second ends its own watch. Now and then kubectl notices the end
/// before it remembers that it was its own doing, and wonders about so short a watch.
fn without_its_own_haste(step: &Step, output: &mut Output) {
    if !step.command.contains("--timeout=1s") {
        return;
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let wonders = |line: &&str| line.contains("reflector.go") && line.contains("very short watch");
    let kept = text.split_inclusive('\n').filter(|line| !wonders(line)).collect::<String>();
    output.stderr = kept.into_bytes();
}

async fn play(file: &str) {
    if !need("kubectl transcripts", &[Need::Tool("bash"), Need::Tool("diff")])
        || !tools::need(&[Tool::Kubectl])
    {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/kubectl");
    let script = Script::parse(&std::fs::read_to_string(root.join(file)).unwrap());
    let player = Player::start(&script).await;
    let mut wrong = Vec::new();
    for step in &script.steps {
        let mut output = if step.command.contains(" -w ") {
            player.watched(step).await
        } else {
            player.run(&step.command).await
        };
        without_its_own_haste(step, &mut output);
        let server = only_server_lines(step, &mut output);
        let found = differences(server.as_ref().unwrap_or(step), &output);
        if !found.is_empty() {
            wrong.push(format!("$ {}\n{}", step.command, found.join("\n")));
        }
    }
    player.running.stop().await;
    let (total, bad) = (script.steps.len(), wrong.len());
    assert!(wrong.is_empty(), "{bad} of {total} commands differ:\n\n{}", wrong.join("\n\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_commands_give_the_recorded_output() {
    play("transcripts.md").await;
}
