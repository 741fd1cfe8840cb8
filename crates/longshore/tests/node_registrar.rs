//! `longshore node-registrar`: the real binary, a fake driver, and the kubelet's side of the registration.

mod sidecar;

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_csi::registration::registration_client::RegistrationClient;
use longshore_csi::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use longshore_csi::{Call, code_name, fake, server};
use longshore_node::registrar::{Introduction, Registrar};
use sidecar::{Program, Served, appears, get, http, soon};
use tokio_util::sync::CancellationToken;

const DRIVER: &str = "reg.csi.test";
const ENDPOINT: &str = "/host/csi.sock";

fn args(served: &Served, more: &[&str]) -> Vec<String> {
    let mut args = vec![
        "node-registrar".to_owned(),
        format!("--csi-address={}", served.socket().display()),
        format!("--kubelet-registration-path={ENDPOINT}"),
        format!("-plugin-registration-path={}", served.registry().display()),
    ];
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    args
}

fn registration_socket(served: &Served) -> PathBuf {
    served.registry().join(format!("{DRIVER}-reg.sock"))
}

async fn info(socket: &Path) -> PluginInfo {
    let channel = longshore_csi::client::channel(socket).await.expect("the socket answers");
    let mut kubelet = RegistrationClient::new(channel);
    soon("GetInfo", kubelet.get_info(InfoRequest {})).await.expect("an answer").into_inner()
}

/// The kubelet's verdict, and the code of the answer.
async fn notify(socket: &Path, registered: bool, error: &str) -> &'static str {
    let channel = longshore_csi::client::channel(socket).await.expect("the socket answers");
    let mut kubelet = RegistrationClient::new(channel);
    let status = RegistrationStatus { plugin_registered: registered, error: error.to_owned() };
    match soon("NotifyRegistrationStatus", kubelet.notify_registration_status(status)).await {
        Ok(_) => "OK",
        Err(status) => code_name(status.code()),
    }
}

/// case: liveness-registrar-health/14, liveness-registrar-health/16
/// case: liveness-registrar-health/17, liveness-registrar-health/18
#[tokio::test]
async fn a_registered_driver_stays_until_sigterm() {
    let served = Served::new(DRIVER);
    let mut program = Program::start(&args(&served, &[]));
    let socket = registration_socket(&served);
    appears(&socket).await;
    let mode = std::fs::metadata(&socket).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    program.says("waiting for the kubelet").await;
    let expected = PluginInfo {
        r#type: "CSIPlugin".to_owned(),
        name: DRIVER.to_owned(),
        endpoint: ENDPOINT.to_owned(),
        supported_versions: vec!["1.0.0".to_owned()],
    };
    assert_eq!(info(&socket).await, expected);
    assert_eq!(notify(&socket, true, "").await, "OK");
    // The answers are constant: the driver was asked once, for its name, and may be gone since.
    let calls: Vec<Call> = served.driver.calls().iter().map(|record| record.call).collect();
    assert_eq!(calls, [Call::GetPluginInfo]);
    assert!(program.running());
    assert_eq!(program.terminate().await, Some(0));
    assert!(!socket.exists());
}

/// case: liveness-registrar-health/17
#[tokio::test]
async fn a_refused_driver_ends_the_program_without_an_answer() {
    let served = Served::new(DRIVER);
    let program = Program::start(&args(&served, &[]));
    let socket = registration_socket(&served);
    program.says("waiting for the kubelet").await;
    // The connection ends instead; clients have different words for that.
    assert_ne!(notify(&socket, false, "wrong version").await, "OK");
    program.says("wrong version; a restart tries it again").await;
    assert_eq!(program.ends().await, Some(1));
    assert!(std::fs::metadata(&socket).expect("it stays").file_type().is_socket());
}

/// case: liveness-registrar-health/15
#[tokio::test]
async fn an_old_socket_is_replaced_and_another_file_is_not() {
    let served = Served::new(DRIVER);
    let socket = registration_socket(&served);
    // One that nobody serves any more.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    let first = Program::start(&args(&served, &[]));
    first.says("waiting for the kubelet").await;
    assert_eq!(info(&socket).await.name, DRIVER);
    // One that a predecessor still serves. When that ends, the new one's socket stays.
    let second = Program::start(&args(&served, &[]));
    second.says("waiting for the kubelet").await;
    assert_eq!(first.terminate().await, Some(0));
    assert_eq!(info(&socket).await.name, DRIVER);
    assert_eq!(second.terminate().await, Some(0));

    std::fs::write(&socket, "mine").expect("a file");
    let third = Program::start(&args(&served, &[]));
    third.says("but it's not a socket").await;
    assert_eq!(third.ends().await, Some(1));
    assert_eq!(std::fs::read_to_string(&socket).expect("untouched"), "mine");
}

#[tokio::test]
async fn a_registry_that_is_not_mounted_is_not_made() {
    let served = Served::new(DRIVER);
    std::fs::remove_dir(served.registry()).expect("empty");
    let program = Program::start(&args(&served, &[]));
    program.says(&format!("cannot bind {}", registration_socket(&served).display())).await;
    assert_eq!(program.ends().await, Some(1));
    assert!(!served.registry().exists());
}

/// case: liveness-registrar-health/22
#[tokio::test]
async fn a_driver_that_does_not_tell_its_name_in_time_ends_the_program() {
    let served = Served::new(DRIVER);
    served.driver.script(Call::GetPluginInfo, [fake::Fault::Delay(Duration::from_secs(60))]);
    let program = Program::start(&args(&served, &["--timeout=200ms"]));
    program.says("cannot learn the driver's name").await;
    assert_eq!(program.ends().await, Some(1));
    assert!(!registration_socket(&served).exists());
}

#[tokio::test]
async fn the_driver_may_come_late() {
    let mut served = Served::silent(DRIVER);
    let program = Program::start(&args(&served, &[]));
    tokio::time::sleep(Duration::from_millis(300)).await;
    served.start();
    program.says("waiting for the kubelet").await;
    assert_eq!(info(&registration_socket(&served)).await.name, DRIVER);
    // Nor does it end with the driver.
    served.stop().await;
    assert_eq!(info(&registration_socket(&served)).await.name, DRIVER);
}

/// case: liveness-registrar-health/19
#[tokio::test]
async fn health_follows_the_socket() {
    let served = Served::new(DRIVER);
    let program = Program::start(&args(&served, &["--http-endpoint=127.0.0.1:0"]));
    let address = program.address("serving /healthz").await;
    let ok = (200, "ok".to_owned());
    assert_eq!(get(&address, "/healthz").await, ok);
    assert_eq!(http(&address, "POST", "/healthz").await, ok);
    assert_eq!(get(&address, "/").await.0, 404);
    // case: liveness-registrar-health/21
    assert_eq!(get(&address, "/debug/pprof/").await.0, 404);

    let socket = registration_socket(&served);
    std::fs::remove_file(&socket).expect("the socket");
    let gone = (404, "registration socket does not exist".to_owned());
    assert_eq!(get(&address, "/healthz").await, gone);
    std::fs::write(&socket, "").expect("a file");
    let other = (500, format!("{} is not a socket", socket.display()));
    assert_eq!(get(&address, "/healthz").await, other);
    std::fs::remove_file(&socket).expect("the file");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("a socket"));
    let (status, body) = get(&address, "/healthz").await;
    let sentence = format!("error connecting to node-registrar socket {}: ", socket.display());
    assert!(status == 500 && body.starts_with(&sentence), "{status} {body}");
}

/// case: liveness-registrar-health/20
#[tokio::test]
async fn health_notices_another_owner_of_the_socket() {
    let served = Served::new(DRIVER);
    let args = args(&served, &["--http-endpoint=127.0.0.1:0", "--timeout=300ms"]);
    let program = Program::start(&args);
    let address = program.address("serving /healthz").await;
    let socket = registration_socket(&served);
    std::fs::remove_file(&socket).expect("the socket");

    // Somebody who accepts and never answers.
    let mute = std::os::unix::net::UnixListener::bind(&socket).expect("a socket");
    let (status, body) = get(&address, "/healthz").await;
    assert!(status == 500 && body.starts_with("error getting info from node-registrar"), "{body}");
    drop(mute);
    std::fs::remove_file(&socket).expect("the socket");

    // Somebody who is not a registrar.
    let listener = server::Listener::bind(&socket).expect("a socket");
    let stop = CancellationToken::new();
    let task = tokio::spawn(server::serve(served.driver.routes(), listener, stop.clone()));
    let (status, body) = get(&address, "/healthz").await;
    let sentence = "error getting info from node-registrar socket: rpc error: code = Unimplemented";
    assert!(status == 500 && body.starts_with(sentence), "{body}");
    stop.cancel();
    soon("the server ends", task).await.expect("no panic").expect("no failure");

    // A registrar of another driver that took this one's socket.
    let elsewhere = Introduction {
        driver: "someone.else".to_owned(),
        endpoint: "/other".into(),
        registry: served.dir.path().join("other"),
    };
    let other = elsewhere.socket();
    let stop = CancellationToken::new();
    let task = tokio::spawn(Registrar::bind(elsewhere).expect("a socket").run(stop.clone()));
    std::fs::rename(&other, &socket).expect("moved");
    let foreign = (500, "invalid driver name someone.else".to_owned());
    assert_eq!(get(&address, "/healthz").await, foreign);
    stop.cancel();
    soon("the server ends", task).await.expect("no panic").expect("no failure");
}

/// case: liveness-registrar-health/12, liveness-registrar-health/13, liveness-registrar-health/21
#[tokio::test]
async fn exit_codes_of_flags() {
    let served = Served::new(DRIVER);
    let probe = "--mode=kubelet-registration-probe";
    for (more, code, words) in [
        (vec![probe], 0, ""),
        (vec![probe, "--kubelet-registration-path="], 1, "--kubelet-registration-path is required"),
        (vec!["--http-endpoint=:1", "--health-port=1"], 1, "cannot be used together"),
        (vec!["--enable-pprof"], 2, "--enable-pprof is not part of this version yet"),
        (vec!["--nope"], 2, "unknown flag --nope"),
        (vec!["--version", "--kubelet-registration-path="], 0, ""),
    ] {
        let program = Program::start(&args(&served, &more));
        if !words.is_empty() {
            program.says(words).await;
        }
        assert_eq!(program.ends().await, Some(code), "{more:?}");
    }
    assert!(served.driver.calls().is_empty());
    assert_eq!(std::fs::read_dir(served.registry()).expect("a directory").count(), 0);
}

#[tokio::test]
async fn a_taken_port_ends_the_program() {
    let served = Served::new(DRIVER);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let program = Program::start(&args(&served, &[&format!("--http-endpoint={address}")]));
    program.says(&format!("cannot serve /healthz on {address}")).await;
    assert_eq!(program.ends().await, Some(1));
}
