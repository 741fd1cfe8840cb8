//! Every program ends on the first signal, whatever it waits for.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod sidecar;

use std::{fmt, path::Path, time::Duration};

use sidecar::{Program, Served};
use tokio::time::{Instant, timeout};

const DRIVER: &str = "late.csi.test";

/// How long a program may take to end.
const LIMIT: Duration = Duration::from_secs(2);

/// What a program waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lack {
    /// Connections to the API server are refused.
    RefusedApi,
    /// The API server accepts connections and never answers.
    SilentApi,
    /// There is no socket.
    Socket,
    /// The driver says that it is not ready.
    Ready,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A program and its arguments; `{api}`, `{socket}`, `{registry}` and `{dir}` are filled in.
const PROGRAMS: &[(&str, &[Lack])] = &[
    (
        "provisioner --csi-address={socket} --kubeconfig={api}",
        &[Lack::RefusedApi, Lack::SilentApi, Lack::Socket, Lack::Ready],
    ),
    (
        "provisioner --csi-address={socket} --kubeconfig={api} --leader-election",
        &[Lack::RefusedApi, Lack::SilentApi],
    ),
    (
        "provisioner --csi-address={socket} --kubeconfig={api} --leak-guard",
        &[Lack::RefusedApi, Lack::SilentApi],
    ),
    (
        "attacher --csi-address={socket} --kubeconfig={api}",
        &[Lack::RefusedApi, Lack::SilentApi, Lack::Socket, Lack::Ready],
    ),
    (
        "attacher --csi-address={socket} --kubeconfig={api} --leader-election",
        &[Lack::RefusedApi, Lack::SilentApi],
    ),
    (
        "resizer --csi-address={socket} --kubeconfig={api}",
        &[Lack::RefusedApi, Lack::SilentApi, Lack::Socket, Lack::Ready],
    ),
    (
        "resizer --csi-address={socket} --kubeconfig={api} --leader-election",
        &[Lack::RefusedApi, Lack::SilentApi],
    ),
    (
        "snapshotter --csi-address={socket} --kubeconfig={api}",
        &[Lack::RefusedApi, Lack::SilentApi, Lack::Socket, Lack::Ready],
    ),
    (
        "snapshotter --csi-address={socket} --kubeconfig={api} --leader-election",
        &[Lack::RefusedApi, Lack::SilentApi],
    ),
    ("snapshot-controller --kubeconfig={api}", &[Lack::RefusedApi, Lack::SilentApi]),
    (
        "snapshot-controller --kubeconfig={api} --leader-election",
        &[Lack::RefusedApi, Lack::SilentApi],
    ),
    (
        "controllers --kubeconfig={api} --controllers=*,scheduler",
        &[Lack::RefusedApi, Lack::SilentApi],
    ),
    (
        "controllers --kubeconfig={api} --controllers=*,scheduler --leader-elect=false",
        &[Lack::RefusedApi, Lack::SilentApi],
    ),
    (
        "node --kubeconfig={api} --root-dir={dir}/node --node-name=n1",
        &[Lack::RefusedApi, Lack::SilentApi],
    ),
    (
        "node-registrar --csi-address={socket} --kubelet-registration-path=/csi.sock --plugin-registration-path={registry}",
        &[Lack::Socket],
    ),
    ("liveness-probe --csi-address={socket} --http-endpoint=127.0.0.1:0", &[Lack::Socket]),
    (
        "hostpath-provisioner --kubeconfig={api} --root={dir}/volumes",
        &[Lack::RefusedApi, Lack::SilentApi],
    ),
    (
        "nfs-provisioner --kubeconfig={api} --server=nfs --path=/srv --mount={dir}",
        &[Lack::RefusedApi, Lack::SilentApi],
    ),
    (
        "up --data-dir={dir}/data --listen=127.0.0.1:0 --csi-endpoint={socket}",
        &[Lack::Socket, Lack::Ready],
    ),
    ("apply -f {dir}/pod.yaml --kubeconfig={api}", &[Lack::SilentApi]),
    ("get pods --kubeconfig={api}", &[Lack::SilentApi]),
];

#[tokio::test]
async fn every_program_ends_on_the_first_signal() {
    let mut failures = Vec::new();
    for (line, lacks) in PROGRAMS {
        for lack in *lacks {
            if let Err(why) = stop(line, *lack).await {
                failures.push(format!("{line} with {lack}: {why}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

async fn stop(line: &str, lack: Lack) -> Result<(), String> {
    let mut served = Served::silent(DRIVER);
    served.driver.configure(|config| config.ready = Some(lack != Lack::Ready));
    if lack != Lack::Socket {
        served.start();
    }
    let api = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let kubeconfig = write_files(served.dir.path(), &api.local_addr().unwrap().to_string());
    if lack == Lack::RefusedApi {
        drop(api);
    }
    let line = line
        .replace("{api}", &kubeconfig)
        .replace("{socket}", &served.socket().display().to_string())
        .replace("{registry}", &served.registry().display().to_string())
        .replace("{dir}", &served.dir.path().display().to_string());
    let args: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let mut program = Program::start(&args);
    tokio::time::sleep(Duration::from_secs(1)).await;
    if !program.running() {
        return Err(format!("ended before the signal:\n{}", program.text()));
    }
    let begin = Instant::now();
    let log = program.log();
    // A program that hangs is killed with the value.
    let Ok(code) = timeout(3 * LIMIT, program.terminate()).await else {
        return Err(format!("hangs:\n{}", log.borrow().as_str()));
    };
    let took = begin.elapsed();
    println!("{took:?} {code:?} {line}");
    // A program that waits for a user's request fails; one that serves was told to stop.
    let want = if line.starts_with("apply") || line.starts_with("get") { None } else { Some(0) };
    if code != want {
        return Err(format!("exit code {code:?} after {took:?}:\n{}", log.borrow().as_str()));
    }
    if took > LIMIT {
        return Err(format!("took {took:?}:\n{}", log.borrow().as_str()));
    }
    Ok(())
}

fn write_files(dir: &Path, api: &str) -> String {
    let pod = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}";
    std::fs::write(dir.join("pod.yaml"), pod).unwrap();
    let file = dir.join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: 'http://{api}'}}}}], \
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}], users: [{{name: u, user: {{}}}}]}}"
    );
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}
