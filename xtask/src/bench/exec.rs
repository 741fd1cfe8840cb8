//! `cargo xtask bench exec`: a command in a running pod, from the connection to the last message, with a WebSocket
//! client that does nothing else; in the embedded mode.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tungstenite::{Message, http::Request};

use super::{
    burst::{server, with_instance},
    http::Server,
    load::{NAMESPACE, make_namespace},
    release_binary,
    report::median,
};

/// Commands before the measured ones.
const WARM_UP: usize = 10;
const POD: &str = "exec";
const PATIENCE: Duration = Duration::from_secs(30);

/// What was asked for.
struct Args {
    times: usize,
    json: Option<PathBuf>,
}

impl Args {
    fn read(args: &[String]) -> Result<Self> {
        let mut read = Self { times: 200, json: None };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().with_context(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--times" => {
                    read.times =
                        value.parse().with_context(|| format!("{flag} {value}: not a number"))?;
                }
                "--json" => read.json = Some(value.into()),
                _ => bail!("bench exec has no flag {flag}; it takes --times, --json"),
            }
        }
        ensure!(read.times > 0, "--times is at least 1");
        Ok(read)
    }
}

/// One command, in seconds.
#[derive(Debug, serde::Serialize)]
struct Times {
    /// With the TCP and TLS handshakes.
    whole: f64,
    /// From the request on.
    request: f64,
}

/// Runs it.
pub fn bench(args: &[String]) -> Result<()> {
    let args = Args::read(args)?;
    let binary = release_binary()?;
    let times = with_instance(&binary, &std::env::temp_dir(), &[], |_, data| {
        let server = server(data)?;
        start_pod(&server)?;
        for _ in 0..WARM_UP {
            run(&server)?;
        }
        (0..args.times).map(|_| run(&server)).collect::<Result<Vec<Times>>>()
    })?;
    let row = |name: &str, of: fn(&Times) -> f64| {
        let mut all: Vec<f64> = times.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        let late = all[all.len() * 99 / 100] * 1e3;
        println!("| {name} | {:.1} | {late:.1} |", median(all) * 1e3);
    };
    println!("\n| `true` in a pod, {} times | median, ms | 99 %, ms |\n|---|---|---|", times.len());
    row("with a new connection", |times| times.whole);
    row("from the request on", |times| times.request);
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec_pretty(&times)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

fn start_pod(server: &Server) -> Result<()> {
    make_namespace(server)?;
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [
            {"name": "main", "image": "host", "command": ["sleep", "10000"]}]},
    });
    let mut connection = server.connect()?;
    connection.call("POST", &pods, Some(&pod))?;
    let began = Instant::now();
    while connection.call("GET", &format!("{pods}/{POD}"), None)?["status"]["phase"] != "Running" {
        ensure!(began.elapsed() < PATIENCE, "the pod does not run");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Runs `true` in the pod.
fn run(server: &Server) -> Result<Times> {
    let began = Instant::now();
    let stream = server.connect_raw()?;
    let connected = Instant::now();
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{POD}/exec?command=true&stdout=true");
    let request = Request::get(format!("wss://localhost{path}"))
        .header("Host", "localhost")
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", tungstenite::handshake::client::generate_key())
        .header("Sec-WebSocket-Protocol", "v5.channel.k8s.io")
        .body(())?;
    let (mut socket, _) = tungstenite::client(request, stream)
        .map_err(|error| anyhow::anyhow!("exec is refused: {error}"))?;
    loop {
        let Message::Binary(bytes) = socket.read()? else { continue };
        if let Some((3, status)) = bytes.split_first() {
            let status: Value = serde_json::from_slice(status)?;
            ensure!(status["status"] == "Success", "the command failed: {status}");
            let (whole, request) = (began.elapsed(), connected.elapsed());
            return Ok(Times { whole: whole.as_secs_f64(), request: request.as_secs_f64() });
        }
    }
}
