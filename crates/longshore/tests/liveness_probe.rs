//! `longshore liveness-probe`: the real binary beside a fake driver.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod sidecar;

use std::time::Duration;

use longshore_csi::{Call, fake::Fault};
use sidecar::{Program, Served, get, http, soon};

const DRIVER: &str = "live.csi.test";

fn args(served: &Served, more: &[&str]) -> Vec<String> {
    let address = format!("--csi-address={}", served.socket().display());
    let mut args = vec!["liveness-probe".to_owned(), address];
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    args
}

async fn started(served: &Served, more: &[&str]) -> (Program, String) {
    let program = Program::start(&args(served, &[&["--http-endpoint=127.0.0.1:0"], more].concat()));
    let address = program.address("serving /healthz").await;
    (program, address)
}

/// case: liveness-registrar-health/1, liveness-registrar-health/2, liveness-registrar-health/3
#[tokio::test]
async fn health_is_the_drivers_own_word() {
    let served = Served::new(DRIVER);
    let (_program, address) = started(&served, &[]).await;
    let ok = (200, "ok".to_owned());
    assert_eq!(get(&address, "/healthz").await, ok);
    assert_eq!(http(&address, "POST", "/healthz").await, ok);
    served.driver.configure(|config| config.ready = Some(true));
    assert_eq!(get(&address, "/healthz").await, ok);
    served.driver.configure(|config| config.ready = Some(false));
    let unready = (500, "driver responded but is not ready".to_owned());
    assert_eq!(get(&address, "/healthz").await, unready);
    served.driver.script(Call::Probe, [Fault::Before(9.into(), "no disk".to_owned())]);
    let refused = (500, "rpc error: code = FailedPrecondition desc = no disk".to_owned());
    assert_eq!(get(&address, "/healthz").await, refused);
    assert_eq!(get(&address, "/healthz/").await.0, 404);
    assert_eq!(get(&address, "/").await.0, 404);
}

/// case: liveness-registrar-health/4
#[tokio::test]
async fn a_driver_that_hangs_is_dead_after_the_timeout() {
    let served = Served::new(DRIVER);
    let (_program, address) = started(&served, &["--probe-timeout=300ms"]).await;
    served.driver.script(Call::Probe, [Fault::Hang]);
    let late =
        (500, "rpc error: code = DeadlineExceeded desc = context deadline exceeded".to_owned());
    assert_eq!(get(&address, "/healthz").await, late);
    assert_eq!(get(&address, "/healthz").await.0, 200);
}

/// case: liveness-registrar-health/5
#[tokio::test]
async fn a_driver_may_go_and_come_back() {
    let mut served = Served::new(DRIVER);
    let (mut program, address) = started(&served, &["--probe-timeout=300ms"]).await;
    assert_eq!(get(&address, "/healthz").await.0, 200);
    served.stop().await;
    let (status, body) = get(&address, "/healthz").await;
    assert!(status == 500 && body.contains("cannot connect"), "{status} {body}");
    served.start();
    assert_eq!(get(&address, "/healthz").await.0, 200);
    assert!(program.running());
    assert_eq!(program.terminate().await, Some(0));
}

/// case: liveness-registrar-health/6
#[tokio::test]
async fn nothing_is_served_before_the_driver_is_there() {
    let mut served = Served::silent(DRIVER);
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = port.local_addr().expect("an address").to_string();
    drop(port);
    let mut program = Program::start(&args(&served, &[&format!("--http-endpoint={address}")]));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(program.running());
    assert!(tokio::net::TcpStream::connect(&address).await.is_err(), "it listens already");
    served.start();
    program.says("serving /healthz").await;
    assert_eq!(get(&address, "/healthz").await.0, 200);
}

/// case: liveness-registrar-health/7
#[tokio::test]
async fn a_driver_without_a_name_ends_the_program() {
    let served = Served::new(DRIVER);
    served.driver.script(Call::GetPluginInfo, [Fault::Before(13.into(), "broken".to_owned())]);
    let program = Program::start(&args(&served, &["--http-endpoint=127.0.0.1:0"]));
    program.says("broken").await;
    assert_eq!(program.ends().await, Some(1));

    served.driver.configure(|config| config.name = String::new());
    let program = Program::start(&args(&served, &["--http-endpoint=127.0.0.1:0"]));
    program.says("cannot ask the driver").await;
    assert_eq!(program.ends().await, Some(1));
}

/// case: liveness-registrar-health/9
#[tokio::test]
async fn metrics_are_shown_when_asked_for() {
    let served = Served::new(DRIVER);
    let (_program, address) = started(&served, &["--metrics-path=/numbers"]).await;
    assert_eq!(get(&address, "/healthz").await.0, 200);
    assert_eq!(get(&address, "/metrics").await.0, 404);
    let (status, text) = get(&address, "/numbers").await;
    assert_eq!(status, 200);
    let count = "csi_sidecar_operations_seconds_count";
    for labels in [
        r#"driver_name="unknown-driver",method_name="/csi.v1.Identity/GetPluginInfo""#,
        r#"driver_name="live.csi.test",method_name="/csi.v1.Identity/Probe""#,
    ] {
        let line = format!("{count}{{{labels},grpc_status_code=\"OK\"}} 1");
        assert!(text.contains(&line), "{line} in\n{text}");
    }
    assert!(text.contains("process_start_time_seconds "), "{text}");

    // On an address of their own, without the health page there and without metrics here.
    let more = ["--health-port=0", "--metrics-address=127.0.0.1:0"];
    let program = Program::start(&args(&served, &more));
    let numbers = program.address("serving metrics").await;
    let port = program.address("serving /healthz").await.rsplit(':').next().unwrap().to_owned();
    let health = format!("127.0.0.1:{port}");
    assert_eq!(get(&numbers, "/metrics").await.0, 200);
    assert_eq!(get(&numbers, "/healthz").await.0, 404);
    assert_eq!(get(&health, "/healthz").await.0, 200);
    assert_eq!(get(&health, "/metrics").await.0, 404);

    let program = Program::start(&args(&served, &["--health-port=0"]));
    let port = program.address("serving /healthz").await.rsplit(':').next().unwrap().to_owned();
    assert_eq!(get(&format!("127.0.0.1:{port}"), "/metrics").await.0, 404);
}

/// case: liveness-registrar-health/10
#[tokio::test]
async fn each_request_has_a_connection_of_its_own() {
    let served = Served::silent(DRIVER);
    // Between the program and the driver: counts who comes and who goes.
    let inner = served.dir.path().join("inner.sock");
    let listener = longshore_csi::server::Listener::bind(&inner).expect("a socket");
    let stop = tokio_util::sync::CancellationToken::new();
    let driver =
        tokio::spawn(longshore_csi::server::serve(served.driver.routes(), listener, stop.clone()));
    let outer = tokio::net::UnixListener::bind(served.socket()).expect("a socket");
    let (count, mut seen) = tokio::sync::watch::channel((0, 0));
    let relay = tokio::spawn(async move {
        loop {
            let (mut caller, _) = outer.accept().await.expect("a caller");
            count.send_modify(|(opened, _)| *opened += 1);
            let (inner, count) = (inner.clone(), count.clone());
            tokio::spawn(async move {
                let mut driver = tokio::net::UnixStream::connect(inner).await.expect("a driver");
                // However a connection ends, it has ended.
                let _ = tokio::io::copy_bidirectional(&mut caller, &mut driver).await;
                count.send_modify(|(_, closed)| *closed += 1);
            });
        }
    });
    let (_program, address) = started(&served, &[]).await;
    // The first connection asked for the name.
    for asked in 1..=4 {
        soon("all are closed", seen.wait_for(|now| *now == (asked, asked))).await.expect("counted");
        assert_eq!(get(&address, "/healthz").await.0, 200);
    }
    relay.abort();
    stop.cancel();
    soon("the driver ends", driver).await.expect("no panic").expect("no failure");
}

/// case: liveness-registrar-health/8, liveness-registrar-health/11
#[tokio::test]
async fn exit_codes() {
    let served = Served::new(DRIVER);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let page = format!("--http-endpoint={address}");
    let numbers = format!("--metrics-address={address}");
    for (more, code, words) in [
        (vec!["--health-port=9999", "--http-endpoint=:1"], 1, "cannot be used together"),
        (vec!["--metrics-address=:1", "--http-endpoint=:1"], 1, "cannot be used together"),
        (vec!["--nope"], 2, "unknown flag --nope"),
        (vec![page.as_str()], 0, "cannot listen"),
        (vec!["--health-port=0", numbers.as_str()], 1, "cannot listen on"),
    ] {
        let program = Program::start(&args(&served, &more));
        program.says(words).await;
        assert_eq!(program.ends().await, Some(code), "{more:?}");
    }
}
