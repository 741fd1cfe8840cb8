//! Which driver a log line about a connection speaks of. One test in a process of its own, because subscribers share
//! state between threads.

use std::time::Duration;

use longshore_csi::fake::Driver;
use longshore_csi::{Client, server};
use longshore_testing::Captured;
use tokio_util::sync::CancellationToken;

async fn eventually(log: &Captured, part: &str) -> String {
    let look = async {
        loop {
            if let Some(line) = log.text().lines().find(|line| line.contains(part)) {
                return line.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(30), look).await;
    found.unwrap_or_else(|_| panic!("never logged: {part}\n{}", log.text()))
}

#[tokio::test]
async fn lines_about_a_connection_name_the_driver_or_its_socket() {
    let log = Captured::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("csi.sock");
    let driver = Driver::new("named.csi.test");
    driver.configure(|config| config.ready = Some(false));
    let listener = server::Listener::bind(&path).expect("bound");
    let serving = tokio::spawn(server::serve(driver.routes(), listener, CancellationToken::new()));

    let address = path.display().to_string();
    let client = Client::connect(address.as_str().into()).await.expect("connected");
    let (waiting, times_out) = (client.clone(), Duration::from_secs(30));
    let ready = tokio::spawn(async move { waiting.wait_ready(times_out).await });
    let line = eventually(&log, "CSI driver is not ready").await;
    assert!(line.contains(&address), "before its name is known: {line}");
    driver.configure(|config| config.ready = Some(true));
    ready.await.expect("joined").expect("ready");
    client.driver_name().await.expect("a name");

    serving.abort();
    let line = eventually(&log, "Lost connection to CSI driver").await;
    assert!(line.contains(&address) && line.contains("named.csi.test"), "{line}");
}
