use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::fake::{Driver, Fault};
use crate::metrics::Side;
use crate::{server, v1};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// case: csi-protocol/14.5
#[tokio::test(start_paused = true)]
async fn probing_goes_on_until_ready() {
    let driver = Driver::new("probe.test");
    let client = driver.client();
    client.wait_ready(seconds(15)).await.expect("absent means ready");
    assert_eq!(driver.calls_of(Call::Probe).len(), 1);

    driver.clear_calls();
    driver.configure(|config| config.ready = Some(false));
    let start = Instant::now();
    let later = driver.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(2500)).await;
        later.configure(|config| config.ready = Some(true));
    });
    client.wait_ready(seconds(15)).await.expect("ready in the end");
    assert_eq!(driver.calls_of(Call::Probe).len(), 4);
    assert_eq!(start.elapsed().as_secs(), 3);

    driver.script(Call::Probe, [Fault::Hang, Fault::before(Code::DeadlineExceeded)]);
    let start = Instant::now();
    client.wait_ready(seconds(15)).await.expect("deadlines keep it going");
    assert_eq!(start.elapsed().as_secs(), 17);

    for fatal in [Code::Unimplemented, Code::FailedPrecondition, Code::Unavailable] {
        driver.script(Call::Probe, [Fault::before(fatal)]);
        let error = client.wait_ready(seconds(15)).await.expect_err("fatal");
        assert_eq!(
            error.to_string(),
            format!(
                "CSI driver probe failed: rpc error: code = {} desc = scripted failure",
                crate::code_name(fatal)
            )
        );
    }
}

/// A driver responds alike with and without a connection in between.
#[tokio::test(start_paused = true)]
async fn services_in_this_process_respond_as_over_a_connection() {
    let driver = Driver::new("near.test");
    let options = || Options { timeout: Some(seconds(5)), ..Options::default() };
    let near = Client::in_process(driver.routes(), options());
    let far = driver.client().with_timeout(Some(seconds(5)));
    for client in [&near, &far] {
        assert_eq!(client.driver_name().await.expect("a name"), "near.test");
        driver.script(Call::Probe, [Fault::before(Code::ResourceExhausted), Fault::Hang]);
        let refused = client.probe(v1::ProbeRequest {}).await.expect_err("scripted");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.to_string().ends_with("desc = scripted failure"), "{refused}");
        let start = Instant::now();
        let late = client.probe(v1::ProbeRequest {}).await.expect_err("hangs");
        assert_eq!(late.code(), Code::DeadlineExceeded);
        assert_eq!(start.elapsed().as_secs(), 5);
        client.probe(v1::ProbeRequest {}).await.expect("responds again");
    }
    assert_eq!(*near.connection_losses().borrow(), 0);
    let unknown = v1::NodeGetInfoRequest {};
    let bare = Client::in_process(server::Routes::default(), options());
    let missing = bare.node_get_info(unknown).await.expect_err("nothing is served");
    assert_eq!(missing.code(), Code::Unimplemented);
}

/// case: csi-protocol/14.6
#[tokio::test(start_paused = true)]
async fn a_useless_driver_name_is_fatal() {
    let driver = Driver::new("");
    let error = driver.client().driver_name().await.expect_err("empty");
    assert_eq!(error.to_string(), "driver name is empty");
    driver.configure(|config| config.name = "a_b".into());
    let error = driver.client().driver_name().await.expect_err("invalid");
    assert!(matches!(error, DriverNameError::Name(_)), "{error}");
    driver.configure(|config| config.name = "good.name".into());
    assert_eq!(driver.client().driver_name().await.expect("good"), "good.name");
    driver.script(Call::GetPluginInfo, [Fault::before(Code::Internal)]);
    let error = driver.client().driver_name().await.expect_err("failed call");
    assert!(matches!(error, DriverNameError::Call(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn each_call_has_its_deadline_and_several_can_share_one() {
    let driver = Driver::new("deadline.test");
    let client = driver.client().with_timeout(Some(seconds(10)));
    driver.script(Call::Probe, [Fault::Hang]);
    let start = Instant::now();
    let error = client.probe(v1::ProbeRequest {}).await.expect_err("no response");
    assert_eq!(
        error.to_string(),
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
    );
    assert_eq!(start.elapsed().as_secs(), 10);

    driver.always(Call::Probe, Fault::Delay(seconds(6)));
    let shared = client.with_deadline(Instant::now() + seconds(10));
    shared.probe(v1::ProbeRequest {}).await.expect("in time");
    let error = shared.probe(v1::ProbeRequest {}).await.expect_err("too late");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    let sent = driver.calls_of(Call::Probe).len();
    let error = shared.probe(v1::ProbeRequest {}).await.expect_err("nothing left");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert_eq!(driver.calls_of(Call::Probe).len(), sent, "not even sent");

    driver.always(Call::Probe, Fault::Delay(seconds(7200)));
    client.with_timeout(None).probe(v1::ProbeRequest {}).await.expect("no timeout");
}

#[tokio::test(start_paused = true)]
async fn drivers_are_told_the_deadline_and_a_plain_authority() {
    let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
    let ours = Mutex::new(Some(ours));
    let dial = move || {
        let stream = ours.lock().take().ok_or(std::io::ErrorKind::ConnectionRefused.into());
        std::future::ready(stream)
    };
    let client =
        Client::with_dialer(dial, None, Options::default()).with_timeout(Some(seconds(15)));
    let calling = tokio::spawn(async move { client.probe(v1::ProbeRequest {}).await });
    let mut preface = [0; 24];
    theirs.read_exact(&mut preface).await.expect("preface");
    let headers = loop {
        let mut head = [0; 9];
        theirs.read_exact(&mut head).await.expect("a frame");
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        theirs.read_exact(&mut payload).await.expect("its payload");
        if head[3] == 1 {
            break loona_hpack::Decoder::new().decode(&payload).expect("headers");
        }
    };
    let find = |wanted: &str| {
        let found = headers.iter().find(|(name, _)| name == wanted.as_bytes());
        String::from_utf8(found.expect(wanted).1.clone()).expect("text")
    };
    assert_eq!(find(":authority"), "localhost");
    assert_eq!(find(":path"), "/csi.v1.Identity/Probe");
    let timeout = find("grpc-timeout");
    assert!(timeout.starts_with("1") && timeout.len() > 1, "{timeout}");
    calling.abort();
}

/// case: csi-protocol/14.10, case: csi-protocol/14.11, case: csi-protocol/14.12
#[tokio::test(start_paused = true)]
async fn every_call_is_counted() {
    let mut registry = Registry::default();
    let metrics = Some(Metrics::register(&mut registry, Side::Sidecar));
    let driver = Driver::new("metrics.test");
    let client = driver.client_with(Options { metrics, ..Options::default() });
    client.probe(v1::ProbeRequest {}).await.expect("ok");
    client.driver_name().await.expect("name");
    driver.script(Call::Probe, [Fault::Delay(seconds(3)), Fault::before(Code::NotFound)]);
    let migrated = client.with_migrated(Some(true));
    migrated.probe(v1::ProbeRequest {}).await.expect("slow");
    client.probe(v1::ProbeRequest {}).await.expect_err("scripted");
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
    let probe = r#"method_name="/csi.v1.Identity/Probe""#;
    let rows = [
        format!(r#"_count{{driver_name="unknown-driver",{probe},grpc_status_code="OK"}} 1"#),
        format!(
            r#"_sum{{driver_name="metrics.test",{probe},grpc_status_code="OK",migrated="true"}} 3"#
        ),
        format!(r#"_count{{driver_name="metrics.test",{probe},grpc_status_code="NotFound"}} 1"#),
    ];
    for row in rows {
        assert!(text.contains(&format!("csi_sidecar_operations_seconds{row}")), "{row}\n{text}");
    }
}

/// case: csi-protocol/14.18
#[tokio::test(start_paused = true)]
async fn a_missing_socket_is_waited_for_and_then_given_up() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("csi.sock");
    let options = ConnectOptions::from(format!("unix://{}", path.display()));
    let start = Instant::now();
    let error = Client::connect(options.clone()).await.expect_err("not listening");
    assert_eq!(start.elapsed().as_secs(), 30);
    assert!(matches!(error, ConnectError::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("csi.sock within 30"), "{error}");

    let bad = Client::connect("tcp://127.0.0.1:1".into()).await.expect_err("not a socket");
    assert!(matches!(bad, ConnectError::Address(_)), "{bad}");

    let start = Instant::now();
    let patient = tokio::spawn(Client::connect(ConnectOptions { timeout: None, ..options }));
    tokio::time::sleep(seconds(100)).await;
    let listener = server::Listener::bind(&path).expect("bound");
    let stop = CancellationToken::new();
    let routes = Driver::new("late.test").routes();
    let served = tokio::spawn(server::serve(routes, listener, stop.clone()));
    let client = patient.await.expect("joined").expect("connected");
    assert_eq!(client.driver_name().await.expect("name"), "late.test");
    assert!((100..=102).contains(&start.elapsed().as_secs()));
    stop.cancel();
    served.await.expect("joined").expect("clean end");
}

#[tokio::test]
async fn a_restarted_driver_is_found_again() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("csi.sock");
    let driver = Driver::new("again.test");
    let serve = || {
        let listener = server::Listener::bind(&path).expect("bound");
        let stop = CancellationToken::new();
        let routes = driver.routes();
        (tokio::spawn(server::serve(routes, listener, stop.clone())), stop)
    };
    let (first, _stop) = serve();
    let lost = Arc::new(AtomicUsize::new(0));
    let count = lost.clone();
    let on_lost: OnLost = Arc::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let mut options = ConnectOptions::from(path.display().to_string());
    options.on_lost = Some(on_lost);
    let client = Client::connect(options).await.expect("connected");
    client.probe(v1::ProbeRequest {}).await.expect("served");
    assert_eq!(lost.load(Ordering::SeqCst), 0);

    first.abort();
    client.connection_lost().await;
    assert_eq!(lost.load(Ordering::SeqCst), 1);
    let error = client.probe(v1::ProbeRequest {}).await.expect_err("not listening");
    assert_eq!((error.code(), error.is_final()), (Code::Unavailable, false), "{error}");

    let (second, stop) = serve();
    client.probe(v1::ProbeRequest {}).await.expect("served again");
    stop.cancel();
    second.await.expect("joined").expect("clean end");
}

#[tokio::test(start_paused = true)]
async fn closing_the_client_is_no_loss() {
    let driver = Driver::new("close.test");
    let client = driver.client();
    client.probe(v1::ProbeRequest {}).await.expect("served");
    let losses = client.connection_losses();
    drop(client);
    tokio::time::sleep(seconds(1)).await;
    assert_eq!(*losses.borrow(), 0);
}

struct Blocks;

#[tonic::async_trait]
impl v1::snapshot_metadata_server::SnapshotMetadata for Blocks {
    type GetMetadataAllocatedStream =
        futures::stream::Iter<std::vec::IntoIter<Result<v1::GetMetadataAllocatedResponse, Status>>>;
    type GetMetadataDeltaStream =
        futures::stream::Empty<Result<v1::GetMetadataDeltaResponse, Status>>;

    async fn get_metadata_allocated(
        &self,
        request: tonic::Request<v1::GetMetadataAllocatedRequest>,
    ) -> Result<tonic::Response<Self::GetMetadataAllocatedStream>, Status> {
        let part = |volume_capacity_bytes| v1::GetMetadataAllocatedResponse {
            volume_capacity_bytes,
            ..Default::default()
        };
        let first = i64::from(request.into_inner().max_results);
        let parts = vec![Ok(part(first)), Ok(part(first + 1))];
        Ok(tonic::Response::new(futures::stream::iter(parts)))
    }

    async fn get_metadata_delta(
        &self,
        _: tonic::Request<v1::GetMetadataDeltaRequest>,
    ) -> Result<tonic::Response<Self::GetMetadataDeltaStream>, Status> {
        Err(Status::failed_precondition("changed-block tracking is off"))
    }
}

#[tokio::test]
async fn streams_of_metadata_arrive() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("csi.sock");
    let listener = server::Listener::bind(&path).expect("bound");
    let stop = CancellationToken::new();
    let service = v1::snapshot_metadata_server::SnapshotMetadataServer::new(Blocks);
    let served = tokio::spawn(server::serve(server::Routes::new(service), listener, stop.clone()));
    let client = Client::connect(path.display().to_string().into()).await.expect("connected");
    let request = v1::GetMetadataAllocatedRequest { max_results: 5, ..Default::default() };
    let mut stream = client.get_metadata_allocated(request).await.expect("a stream");
    let mut seen = Vec::new();
    while let Some(part) = stream.message().await.expect("a part") {
        seen.push(part.volume_capacity_bytes);
    }
    assert_eq!(seen, [5, 6]);
    let refused = client.get_metadata_delta(v1::GetMetadataDeltaRequest::default()).await;
    assert_eq!(refused.expect_err("off").code(), Code::FailedPrecondition);
    drop((stream, client));
    stop.cancel();
    served.await.expect("joined").expect("clean end");
}

const CHILD: &str = "LONGSHORE_CSI_TEST_CHILD";

/// Runs only when started by the test below: connects, loses the driver and is ended by that.
#[tokio::test]
async fn child_that_loses_its_driver() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let dir = Path::new(&dir);
    let path = dir.join("csi.sock");
    let listener = server::Listener::bind(&path).expect("bound");
    let routes = Driver::new("lost.test").routes();
    let server = tokio::spawn(server::serve(routes, listener, CancellationToken::new()));
    let mut options = ConnectOptions::from(path.display().to_string());
    options.on_lost = Some(exit_on_loss(&dir.join("termination-log")));
    let client = Client::connect(options).await.expect("connected");
    client.probe(v1::ProbeRequest {}).await.expect("served");
    server.abort();
    tokio::time::sleep(seconds(60)).await;
    // Reaching this line means that the loss went unnoticed; the parent sees another exit code.
    std::process::exit(7);
}

/// case: csi-protocol/14.17
#[test]
fn a_lost_driver_ends_the_process_with_a_message() {
    let dir = tempfile::tempdir().expect("directory");
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "client::tests::child_that_loses_its_driver"])
        .env(CHILD, dir.path())
        .output()
        .expect("started");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let log = dir.path().join("termination-log");
    assert_eq!(std::fs::read_to_string(&log).expect("written"), LOST_CONNECTION);
    let mode = std::fs::metadata(&log).expect("there").permissions().mode();
    assert_eq!(mode & 0o600, 0o600);
    assert_eq!(mode & 0o133, 0, "never wider than 0644");
}
