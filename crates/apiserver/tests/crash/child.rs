//! The process that gets killed: this test program again, as a server.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use longshore_apiserver::store::{DiskJournal, Entry, Journal, JournalError, Replay};
use longshore_apiserver::{ApiServer, Config, auth};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

const CHILD_DIR: &str = "LONGSHORE_TEST_CRASH_DIR";
const FAULT: &str = "LONGSHORE_TEST_CRASH_FAULT";

/// Not a test of its own: the process that gets killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process() {
    let Some(dir) = std::env::var_os(CHILD_DIR).map(PathBuf::from) else { return };
    // Without the parent there is no use for this process.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let config = Config::at(dir.join("data"));
    let server = if std::env::var_os(FAULT).is_some() {
        std::fs::create_dir_all(dir.join("data")).unwrap();
        let journal = DiskJournal::open(&dir.join("data/store")).unwrap();
        ApiServer::open_on(config, Box::new(Early { journal, held: Vec::new() })).await.unwrap()
    } else {
        ApiServer::open(config).await.unwrap()
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let kubeconfig = server.kubeconfig(listener.local_addr().unwrap());
    auth::write_private(&dir.join("kubeconfig"), &kubeconfig).unwrap();
    println!("\nready");
    server.serve(listener, CancellationToken::new()).await.unwrap();
}

fn spawn(dir: &Path, fault: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child::child_process", "--nocapture"])
        .env(CHILD_DIR, dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    if fault {
        command.env(FAULT, "1");
    }
    command.spawn().unwrap()
}

/// Starts a server and waits until it answers.
pub async fn start(dir: &Path, fault: bool) -> Result<Child, String> {
    let mut child = spawn(dir, fault);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line == "ready" {
            return Ok(child);
        }
    }
    Err("the server ended before it was ready".into())
}

/// Kills a server somewhere on its way.
pub async fn kill_while_starting(dir: &Path, fault: bool) {
    let mut child = spawn(dir, fault);
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..200))).await;
    child.kill().await.unwrap();
}

type Held = (u64, longshore_apiserver::store::Key, longshore_apiserver::store::Change, Vec<u8>);

/// The planted fault: a batch is answered at once and written with the one after it.
struct Early {
    journal: DiskJournal,
    held: Vec<Held>,
}

impl Journal for Early {
    fn load(&mut self, state: &mut dyn Replay) -> Result<u64, JournalError> {
        self.journal.load(state)
    }

    fn commit(&mut self, batch: &[Entry<'_>]) -> Result<(), JournalError> {
        let entries: Vec<Entry<'_>> = self
            .held
            .iter()
            .map(|(revision, key, change, body)| Entry {
                revision: *revision,
                key,
                change: *change,
                body,
            })
            .collect();
        self.journal.commit(&entries)?;
        self.held = batch
            .iter()
            .map(|entry| (entry.revision, entry.key.clone(), entry.change, entry.body.to_vec()))
            .collect();
        Ok(())
    }

    fn blocks(&self) -> bool {
        true
    }
}
