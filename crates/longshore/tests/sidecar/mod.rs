//! A sidecar of the binary in a child process, beside a fake driver on a real socket.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use longshore_csi::{fake, server};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a condition may take before a test gives up. Long, because machines can be busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Does something that has to end, or stops the test.
pub async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(done) => done,
        Err(_) => panic!("never happened: {what}"),
    }
}

/// A fake driver on a socket of its own, gone with the value.
pub struct Served {
    pub driver: fake::Driver,
    pub dir: tempfile::TempDir,
    serving: Option<(CancellationToken, tokio::task::JoinHandle<()>)>,
}

impl Served {
    pub fn new(driver: &str) -> Self {
        let mut served = Self::silent(driver);
        served.start();
        served
    }

    /// Without a socket until [`Served::start`].
    pub fn silent(driver: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("longshore-sidecar-").tempdir().unwrap();
        std::fs::create_dir(dir.path().join("reg")).unwrap();
        Self { driver: fake::Driver::new(driver), dir, serving: None }
    }

    pub fn start(&mut self) {
        let listener = server::Listener::bind(self.socket()).unwrap();
        let (stop, routes) = (CancellationToken::new(), self.driver.routes());
        let token = stop.clone();
        let task =
            tokio::spawn(async move { server::serve(routes, listener, token).await.unwrap() });
        self.serving = Some((stop, task));
    }

    /// Ends the server; the socket is gone then.
    pub async fn stop(&mut self) {
        let (stop, task) = self.serving.take().unwrap();
        stop.cancel();
        soon("the driver stops", task).await.unwrap();
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("csi.sock")
    }

    /// The kubelet's directory of registration sockets.
    pub fn registry(&self) -> PathBuf {
        self.dir.path().join("reg")
    }
}

/// A running program; killed with the value.
pub struct Program {
    child: Child,
    log: watch::Receiver<String>,
}

impl Program {
    /// `longshore NAME ARGS`.
    pub fn start(args: &[String]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
        command.args(args);
        Self::start_command(command)
    }

    /// Any command that becomes a program of ours.
    pub fn start_command(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (sender, log) = watch::channel(String::new());
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                sender.send_modify(|text| *text += &format!("{line}\n"));
            }
        });
        Self { child, log }
    }

    /// Waits for a log line with `words` and gives it.
    pub async fn says(&self, words: &str) -> String {
        let mut log = self.log.clone();
        let found = soon(words, log.wait_for(|text| text.contains(words))).await;
        let text = found.map(|text| text.clone());
        let text = text.unwrap_or_else(|_| panic!("ended without {words:?}:\n{}", self.text()));
        text.lines().find(|line| line.contains(words)).unwrap().to_owned()
    }

    /// Waits for the line that tells an address, and gives the address.
    pub async fn address(&self, words: &str) -> String {
        let line = self.says(words).await;
        let (_, rest) = line.split_once("address=\"").unwrap_or_else(|| panic!("{line}"));
        rest.split('"').next().unwrap().to_owned()
    }

    /// What it logs, also after its end.
    pub fn log(&self) -> watch::Receiver<String> {
        self.log.clone()
    }

    pub fn text(&self) -> String {
        self.log.borrow().clone()
    }

    pub fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// SIGTERM, then the exit code.
    pub async fn terminate(self) -> Option<i32> {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").arg(pid).status().await.unwrap().success());
        self.ends().await
    }

    /// The exit code, once it ends by itself and its whole log has been read.
    pub async fn ends(mut self) -> Option<i32> {
        let code = soon("the program ends", self.child.wait()).await.unwrap().code();
        // What it said last may still be in the pipe.
        let read = async { while self.log.changed().await.is_ok() {} };
        soon("its log ends", read).await;
        code
    }
}

/// One HTTP request: the status and the body.
pub async fn http(address: &str, method: &str, path: &str) -> (u16, String) {
    let asked = async {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = soon("an HTTP answer", asked).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

pub async fn get(address: &str, path: &str) -> (u16, String) {
    http(address, "GET", path).await
}

/// Waits until `path` is there.
pub async fn appears(path: &Path) {
    let look = async {
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(&format!("{} appears", path.display()), look).await;
}
