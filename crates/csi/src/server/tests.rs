use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use futures::StreamExt;
use loona_hpack::{Decoder, Encoder};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::*;
use crate::fake::{Driver, Fault};
use crate::{Call, Client, v1};

struct Served {
    _dir: TempDir,
    path: PathBuf,
    driver: Driver,
    stop: CancellationToken,
    server: JoinHandle<Result<(), ServeError>>,
}

fn start() -> Served {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("sub/dir/csi.sock");
    let listener = Listener::bind(&path).expect("bound");
    let (driver, stop) = (Driver::new("socket.test"), CancellationToken::new());
    let server = tokio::spawn(serve(driver.routes(), listener, stop.clone()));
    Served { _dir: dir, path, driver, stop, server }
}

async fn client(path: &Path) -> Client {
    Client::connect(path.display().to_string().into()).await.expect("connected")
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// What a client without any HTTP/2 library sends for GetPluginInfo.
fn raw_request(authority: &str) -> Vec<u8> {
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/csi.v1.Identity/GetPluginInfo"),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let block = Encoder::new().encode(headers.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())));
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    out.extend(frame(4, 0, 0, b""));
    out.extend(frame(1, 0x4, 1, &block));
    out.extend(frame(0, 0x1, 1, &[0; 5]));
    out
}

#[derive(Debug, PartialEq)]
enum RawResponse {
    Reset(u32),
    Status(String),
    Closed,
}

/// Reads frames until stream 1 has ended one way or the other.
async fn read_response(stream: &mut UnixStream) -> RawResponse {
    let mut decoder = Decoder::new();
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return RawResponse::Closed;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        if stream.read_exact(&mut payload).await.is_err() {
            return RawResponse::Closed;
        }
        match head[3] {
            1 => {
                let headers = decoder.decode(&payload).expect("headers");
                let status = headers.into_iter().find(|(name, _)| name == b"grpc-status");
                if let Some((_, value)) = status {
                    return RawResponse::Status(String::from_utf8(value).expect("text"));
                }
            }
            3 => {
                let code = payload.try_into().map(u32::from_be_bytes);
                return RawResponse::Reset(code.expect("four bytes"));
            }
            7 => return RawResponse::Closed,
            _ => {}
        }
    }
}

async fn ask(path: &Path, authority: &str) -> RawResponse {
    let mut stream = UnixStream::connect(path).await.expect("connected");
    stream.write_all(&raw_request(authority)).await.expect("sent");
    read_response(&mut stream).await
}

#[tokio::test]
async fn clients_that_send_the_socket_path_as_authority_are_served() {
    let served = start();
    for authority in [
        "localhost",
        "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fx-reg.sock",
        "/not even encoded",
        "",
    ] {
        let got = ask(&served.path, authority).await;
        assert_eq!(got, RawResponse::Status("0".to_owned()), "{authority:?}");
    }
    assert_eq!(served.driver.calls_of(Call::GetPluginInfo).len(), 4);
}

/// Shows that the request above is one that needs help.
#[tokio::test]
async fn without_the_adapter_such_clients_are_reset() {
    let dir = tempfile::tempdir().expect("directory");
    let listener = Listener::bind(dir.path().join("s.sock")).expect("bound");
    let path = listener.path().to_owned();
    let server = tokio::spawn(async move {
        let incoming = listener.incoming().map(|stream| stream);
        let routes = Driver::new("plain.test").routes();
        Server::builder().add_routes(routes).serve_with_incoming(incoming).await
    });
    assert_eq!(ask(&path, "localhost").await, RawResponse::Status("0".to_owned()));
    assert_eq!(ask(&path, "%2Fvar%2Fx.sock").await, RawResponse::Reset(1));
    server.abort();
}

#[tokio::test]
async fn garbage_ends_its_own_connection_only() {
    let served = start();
    let good = client(&served.path).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let broken: [Vec<u8>; 4] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        [&preface[..], &frame(4, 0, 0, b""), &frame(1, 0x4, 1, &[0xff; 40])].concat(),
        [&preface[..], &frame(4, 0, 0, b""), &frame(1, 0xc, 1, &[200, 1])].concat(),
        [&preface[..], &frame(1, 0, 1, &[0x82]), &frame(0, 0, 1, b"x")].concat(),
    ];
    for bytes in broken {
        let mut stream = UnixStream::connect(&served.path).await.expect("connected");
        stream.write_all(&bytes).await.expect("sent");
        assert_eq!(read_response(&mut stream).await, RawResponse::Closed);
    }
    good.probe(v1::ProbeRequest {}).await.expect("still served");
}

#[tokio::test]
async fn the_socket_is_private_and_disappears_at_the_end() {
    let served = start();
    let mode = std::fs::symlink_metadata(&served.path).expect("socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let client = client(&served.path).await;
    client.probe(v1::ProbeRequest {}).await.expect("served");
    served.stop.cancel();
    served.server.await.expect("joined").expect("clean end");
    assert!(!served.path.exists());
    client.connection_lost().await;
    assert!(!client.probe(v1::ProbeRequest {}).await.expect_err("gone").is_final());
}

#[tokio::test]
async fn another_mode_can_be_had() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s.sock");
    let listener = Listener::bind_with_mode(&path, 0o666).expect("bound");
    let mode = std::fs::symlink_metadata(&path).expect("socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
    listener.remove();
    assert!(!path.exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced_but_nothing_else_is() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s.sock");
    let first = Listener::bind(&path).expect("bound");
    assert!(matches!(Listener::bind(&path), Err(BindError::InUse(_))));
    drop(first);
    assert!(path.exists(), "a crashed process leaves its socket behind");
    let second = Listener::bind(&path).expect("replaced");

    // Another listener took the path: it is theirs now.
    std::fs::remove_file(&path).expect("removed");
    let third = Listener::bind(&path).expect("bound");
    second.remove();
    assert!(path.exists());
    third.remove();

    std::fs::write(&path, "data").expect("written");
    let refused = Listener::bind(&path).expect_err("a file").to_string();
    assert_eq!(
        refused,
        format!("file exists in socketPath {} but it's not a socket", path.display())
    );
    assert_eq!(std::fs::read_to_string(&path).expect("untouched"), "data");

    let long = dir.path().join("x".repeat(120));
    assert!(matches!(Listener::bind(long), Err(BindError::System { .. })));
}

#[tokio::test]
async fn a_process_too_busy_to_accept_still_owns_its_socket() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("s.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    rustix::net::listen(&listener, 0).expect("a short queue");
    let mut waiting = Vec::new();
    // The queue is full as soon as a connection has to wait.
    while let Ok(Ok(stream)) =
        tokio::time::timeout(Duration::from_millis(50), UnixStream::connect(&path)).await
    {
        waiting.push(stream);
        assert!(waiting.len() < 10_000, "the queue never fills up");
    }
    assert!(matches!(Listener::bind(&path), Err(BindError::InUse(_))));
    assert!(path.exists());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_ends_does_not_hold_up_the_end() {
    let driver = Driver::new("hang.test");
    driver.always(Call::Probe, Fault::Hang);
    let (ours, theirs) = tokio::io::duplex(4096);
    let stop = CancellationToken::new();
    let incoming =
        futures::stream::iter([io::Result::Ok(theirs)]).chain(futures::stream::pending());
    let server = tokio::spawn(serve_streams(driver.routes(), incoming, stop.clone()));
    let ours = parking_lot::Mutex::new(Some(ours));
    let dial = move || {
        let stream = ours.lock().take().ok_or(io::ErrorKind::ConnectionRefused.into());
        std::future::ready(stream)
    };
    let client = Client::with_dialer(dial, None, crate::Options::default());
    let calling = tokio::spawn(async move { client.probe(v1::ProbeRequest {}).await });
    while driver.calls().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let requested = tokio::time::Instant::now();
    stop.cancel();
    server.await.expect("joined").expect("clean end");
    assert_eq!(requested.elapsed().as_secs(), GRACE.as_secs());
    let error = calling.await.expect("joined").expect_err("cut");
    assert!(!error.is_final(), "{error}");
}

#[tokio::test]
async fn any_set_of_services_can_be_served() {
    use crate::registration::{self, registration_server};
    struct Plugin;
    #[tonic::async_trait]
    impl registration_server::Registration for Plugin {
        async fn get_info(
            &self,
            _: tonic::Request<registration::InfoRequest>,
        ) -> Result<tonic::Response<registration::PluginInfo>, tonic::Status> {
            let name = "reg.test".to_owned();
            Ok(tonic::Response::new(registration::PluginInfo { name, ..Default::default() }))
        }

        async fn notify_registration_status(
            &self,
            _: tonic::Request<registration::RegistrationStatus>,
        ) -> Result<tonic::Response<registration::RegistrationStatusResponse>, tonic::Status>
        {
            Err(tonic::Status::internal("not needed"))
        }
    }
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("reg.sock");
    let listener = Listener::bind(&path).expect("bound");
    let stop = CancellationToken::new();
    let routes = Routes::new(registration_server::RegistrationServer::new(Plugin));
    let server = tokio::spawn(serve(routes, listener, stop.clone()));
    let channel = crate::client::channel(&path).await.expect("channel");
    let mut client = registration::registration_client::RegistrationClient::new(channel);
    let info = client.get_info(registration::InfoRequest {}).await.expect("info").into_inner();
    assert_eq!(info.name, "reg.test");
    stop.cancel();
    server.await.expect("joined").expect("clean end");
}

#[tokio::test]
async fn a_removed_socket_file_is_recreated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sub/csi.sock");
    let listener = Listener::bind(&path).unwrap().kept();
    let stop = CancellationToken::new();
    let driver = Driver::new("socket.test");
    let server = tokio::spawn(serve(driver.routes(), listener, stop.clone()));
    for round in 0..4 {
        if round % 2 == 0 {
            std::fs::remove_file(&path).unwrap();
        } else {
            std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        }
        let began = std::time::Instant::now();
        while std::os::unix::net::UnixStream::connect(&path).is_err() {
            assert!(began.elapsed() < std::time::Duration::from_secs(30), "round {round}");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
    let client = client(&path).await;
    client.get_plugin_info(v1::GetPluginInfoRequest {}).await.unwrap();
    drop(client);
    stop.cancel();
    server.await.unwrap().unwrap();
    assert!(!path.exists(), "its own file goes at the end");
}
