//! What calls leave in the log. One test in a process of its own, because subscribers share state between threads.

use longshore_csi::fake::{self, Driver, Fault};
use longshore_csi::{Call, Options, v1};
use longshore_testing::Captured;
use tonic::Code;

async fn logged(level: tracing::Level, max_log_length: Option<usize>) -> String {
    let lines = Captured::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let driver = Driver::new("log.test");
    let client = driver.client_with(Options { max_log_length, ..Options::default() });
    let request = v1::CreateVolumeRequest {
        secrets: [("password".to_owned(), "hunter2".to_owned())].into(),
        ..fake::create_request("pvc-1", 1)
    };
    client.create_volume(request).await.expect("created");
    driver.script(Call::DeleteVolume, [Fault::before(Code::Internal)]);
    let gone = v1::DeleteVolumeRequest {
        volume_id: "v".into(),
        secrets: [("token".to_owned(), "hunter2".to_owned())].into(),
    };
    client.delete_volume(gone).await.expect_err("scripted");
    let text = lines.text();
    text.lines().filter(|line| line.contains("longshore_csi")).collect::<Vec<_>>().join("\n")
}

/// case: csi-protocol/14.7, case: csi-protocol/14.9
#[tokio::test(start_paused = true)]
async fn calls_are_logged_without_secrets() {
    let text = logged(tracing::Level::DEBUG, None).await;
    for part in [
        "GRPC call",
        "/csi.v1.Controller/CreateVolume",
        r#"\"name\":\"pvc-1\""#,
        r#"\"secrets\":\"***stripped***\""#,
        "GRPC response",
        r#"\"volume_id\":\"vol-1\""#,
        r#"code=\"OK\""#,
        r#"code=\"Internal\""#,
        "took=",
        "rpc error: code = Internal desc = scripted failure",
    ] {
        let plain = part.replace('\\', "");
        assert!(text.contains(part) || text.contains(&plain), "{part}\nin\n{text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
    assert!(!text.contains("password"), "{text}");

    let capped = logged(tracing::Level::DEBUG, Some(10)).await;
    assert!(capped.contains("[response body too large, log capped to 10 chars]"), "{capped}");
    assert_eq!(logged(tracing::Level::INFO, None).await, "");
}
