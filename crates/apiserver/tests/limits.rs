//! What clients can use up, and what happens when they try, on real sockets.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::time::Duration;

use common::{Raw, Running, admin_token, client_config, connect};
use http_body_util::BodyExt;
use kube::Client;
use longshore_apiserver::{Config, Limits};
use longshore_testing::found;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn start(limits: Limits) -> Running {
    Running::with(|dir| Config { limits, ..Config::at(dir) }).await
}

async fn admin_of(running: &Running) -> Client {
    Client::try_from(client_config(&running.kubeconfig).await).unwrap()
}

/// Sends a request and reads the whole answer.
async fn ask(
    client: &Client,
    method: &str,
    path: &str,
    kind: &str,
    body: impl Into<Vec<u8>>,
) -> (u16, http::HeaderMap, Value) {
    let request = http::Request::builder().method(method).uri(path).header("Content-Type", kind);
    let answer = client.send(request.body(body.into().into()).unwrap()).await.unwrap();
    let (parts, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status.as_u16(), parts.headers, serde_json::from_slice(&body).unwrap_or_default())
}

async fn get(client: &Client, path: &str) -> (u16, http::HeaderMap, Value) {
    ask(client, "GET", path, "application/json", "").await
}

const DEEPS: &str = "/apis/example.com/v1/deeps";

/// Defines a kind whose objects hold anything.
async fn serve_deeps(client: &Client) {
    let free = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({"metadata": {"name": "deeps.example.com"}, "spec": {
        "group": "example.com", "scope": "Cluster", "names": {"plural": "deeps", "kind": "Deep"},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": free}}}}]}});
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, ..) = ask(client, "POST", path, "application/json", definition.to_string()).await;
    assert_eq!(code, 201);
    found("the definition is served", || async {
        (get(client, DEEPS).await.0 == 200).then_some(())
    })
    .await;
}

/// One request on a connection of its own, by the administrator; the client retries nothing.
async fn once(running: &Running, method: &str, path: &str, body: &str) -> (u16, String, Value) {
    let mut stream = connect(running, &[b"http/1.1"]).await.unwrap();
    let headers = format!(
        "Content-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    let mut request = head(running, &format!("{method} {path}"), &headers);
    request.extend_from_slice(body.as_bytes());
    stream.write_all(&request).await.unwrap();
    let answer = read_to_end(&mut stream).await;
    let (headers, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = headers.split(' ').nth(1).unwrap().parse().unwrap();
    (code, headers.to_lowercase(), serde_json::from_str(body).unwrap_or_default())
}

/// The head of a request by the administrator over HTTP/1.1.
fn head(running: &Running, line: &str, headers: &str) -> Vec<u8> {
    let token = admin_token(running);
    format!("{line} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{headers}\r\n").into()
}

/// Reads until the other side closes; an abrupt end is an end too.
async fn read_to_end(stream: &mut Raw) -> String {
    let mut all = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut all))
        .await
        .expect("the server does not close the connection");
    String::from_utf8_lossy(&all).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_and_objects_have_a_largest_size() {
    let running = start(Limits { body_bytes: 100_000, ..Limits::default() }).await;
    let client = admin_of(&running).await;
    let (code, _, status) =
        ask(&client, "POST", MAPS, "application/json", vec![b' '; 100_001]).await;
    let wanted = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Request entity too large: limit is 100000",
        "reason": "RequestEntityTooLarge", "code": 413});
    assert_eq!((code, status), (413, wanted));
    running.stop().await;

    // Each request is small enough, but objects do not grow by them for ever.
    let running = start(Limits::default()).await;
    let client = admin_of(&running).await;
    serve_deeps(&client).await;
    let body = json!({"apiVersion": "example.com/v1", "kind": "Deep",
        "metadata": {"name": "big"}, "spec": {"a": "x".repeat(700_000)}});
    assert_eq!(ask(&client, "POST", DEEPS, "application/json", body.to_string()).await.0, 201);
    let path = format!("{DEEPS}/big");
    let mut codes = Vec::new();
    for key in ["b", "c", "d", "e", "f"] {
        let patch = json!([{"op": "copy", "from": "/spec/a", "path": format!("/spec/{key}")}]);
        let kind = "application/json-patch+json";
        codes.push(ask(&client, "PATCH", &path, kind, patch.to_string()).await.0);
    }
    assert_eq!(codes, [200, 200, 200, 413, 413]);
    // A patch that copies again and again is stopped before it fills the memory.
    let steps: Vec<Value> =
        (0..64).map(|_| json!({"op": "copy", "from": "/spec", "path": "/spec/z"})).collect();
    let steps = json!(steps).to_string();
    let (code, _, status) =
        ask(&client, "PATCH", &path, "application/json-patch+json", steps).await;
    assert_eq!(code, 413, "{status}");
    let many = json!(vec![json!({"op": "test", "path": "/kind", "value": "ConfigMap"}); 10_001]);
    let (code, _, status) =
        ask(&client, "PATCH", &path, "application/json-patch+json", many.to_string()).await;
    assert_eq!(code, 413, "{status}");
    assert_eq!(
        status["message"],
        "The allowed maximum operations in a JSON patch is 10000, got 10001"
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_nested_too_deep_is_refused_and_never_stored() {
    let running = start(Limits::default()).await;
    let client = admin_of(&running).await;
    serve_deeps(&client).await;
    let path = DEEPS;
    let deep = |name: &str, levels: usize| {
        let spec = format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
        format!(
            r#"{{"apiVersion":"example.com/v1","kind":"Deep","metadata":{{"name":"{name}"}},"spec":{spec}}}"#
        )
    };
    // From shallow to bottomless, as JSON and as YAML: it is refused or it can be read again.
    let mut accepted = 0;
    for levels in [1, 50, 100, 110, 115, 118, 119, 120, 121, 123, 125, 126, 127, 128, 130, 5000] {
        for kind in ["application/json", "application/yaml"] {
            let name = format!("{}{levels}", &kind[12..13]);
            let (code, _, status) = ask(&client, "POST", path, kind, deep(&name, levels)).await;
            assert!(matches!(code, 201 | 400), "{levels} {kind}: {status}");
            accepted += usize::from(code == 201);
            let (list, ..) = get(&client, path).await;
            assert_eq!(list, 200, "{levels} {kind}");
            let (one, ..) = get(&client, &format!("{path}/{name}")).await;
            assert_eq!(one == 200, code == 201, "{levels} {kind}");
        }
    }
    assert!(accepted >= 3, "{accepted}");
    // A patch can dig deeper than any body.
    let steps: Vec<Value> =
        (0..300).map(|_| json!({"op": "copy", "from": "/spec", "path": "/spec/a"})).collect();
    let (code, _, status) = ask(
        &client,
        "PATCH",
        &format!("{path}/j1"),
        "application/json-patch+json",
        json!(steps).to_string(),
    )
    .await;
    assert_eq!(code, 400, "{status}");
    assert_eq!(get(&client, &format!("{path}/j1")).await.2["spec"], json!({"a": 1}));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_the_limit_get_429() {
    let limits = Limits { reads: 1, writes: 1, watches: 1, ..Limits::default() };
    let running = start(limits).await;
    let admin = admin_of(&running).await;
    // Requests whose bodies do not come hold their places: the open one and the administrator's.
    let mut holders = Vec::new();
    for line in [format!("POST {MAPS}"), format!("GET {MAPS}")] {
        for _ in 0..2 {
            let mut stream = connect(&running, &[b"http/1.1"]).await.unwrap();
            let head =
                head(&running, &line, "Content-Type: application/json\r\nContent-Length: 9\r\n");
            stream.write_all(&head).await.unwrap();
            holders.push(stream);
        }
    }
    let body = json!({"metadata": {"name": "m"}}).to_string();
    for method in ["POST", "GET"] {
        let (headers, status) = found("all places are taken", || async {
            let body = if method == "POST" { body.as_str() } else { "" };
            let (code, headers, status) =
                once(&running, method, &format!("{MAPS}?dryRun=All"), body).await;
            (code == 429).then_some((headers, status))
        })
        .await;
        let wanted = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "message": "Too many requests, please try again later.",
            "reason": "TooManyRequests", "details": {"retryAfterSeconds": 1}, "code": 429});
        assert_eq!(status, wanted);
        assert!(headers.contains("\r\nretry-after: 1"), "{headers}");
    }
    // Health checks and watches have no part in it.
    assert_eq!(get(&admin, "/healthz").await.0, 200);
    let watch = http::Request::get(format!("{MAPS}?watch=1")).body(kube::client::Body::empty());
    let first = admin.send(watch.unwrap()).await.unwrap();
    assert_eq!(first.status(), 200);
    // With the body the answer comes, and then the place is free.
    for stream in &mut holders {
        stream.write_all(b"{\"a\": 1} ").await.unwrap();
        let mut some = [0; 12];
        stream.read_exact(&mut some).await.unwrap();
        assert!(some.starts_with(b"HTTP/1.1 "), "{some:?}");
    }
    drop(holders);
    let (code, ..) = found("a place is free", || async {
        let answer = once(&running, "POST", MAPS, &body).await;
        (answer.0 != 429).then_some(answer)
    })
    .await;
    assert_eq!(code, 201);
    // Watches have a bound of their own, and leave their place when they end.
    let open = |path: String| {
        let admin = admin.clone();
        async move {
            let watch = http::Request::get(path).body(kube::client::Body::empty());
            admin.send(watch.unwrap()).await.unwrap()
        }
    };
    let second = open(format!("{MAPS}?watch=1")).await;
    assert_eq!(second.status(), 200, "the administrator's own place");
    let third = once(&running, "GET", &format!("{MAPS}?watch=1"), "").await;
    assert_eq!(third.0, 429);
    drop((first, second));
    found("watches leave their places", || async {
        let path = format!("{MAPS}?watch=1&timeoutSeconds=1");
        (once(&running, "GET", &path, "").await.0 == 200).then_some(())
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_send_its_request_is_not_waited_for() {
    let short = Duration::from_millis(300);
    let limits = Limits {
        request_timeout: short,
        idle_timeout: short,
        handshake_timeout: short,
        ..Limits::default()
    };
    let running = start(limits).await;
    // A body that stops half-way.
    let mut stream = connect(&running, &[b"http/1.1"]).await.unwrap();
    let headers = "Content-Type: application/json\r\nContent-Length: 100\r\n";
    stream.write_all(&head(&running, &format!("POST {MAPS}"), headers)).await.unwrap();
    stream.write_all(b"{\"metadata\":").await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
    assert!(answer.contains("request did not complete within the allotted timeout"), "{answer}");
    // Headers that never end, a connection that says nothing, one that says nothing any more.
    let mut stream = connect(&running, &[b"http/1.1"]).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ").await.unwrap();
    read_to_end(&mut stream).await;
    let mut stream = connect(&running, &[b"http/1.1"]).await.unwrap();
    assert_eq!(read_to_end(&mut stream).await, "");
    let mut stream = connect(&running, &[b"http/1.1"]).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert!(read_to_end(&mut stream).await.ends_with("ok"));
    // One that does not even begin with TLS.
    let mut stream = tokio::net::TcpStream::connect(running.address).await.unwrap();
    let mut all = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut all)).await;
    assert!(closed.is_ok(), "the handshake is waited for");
    // None of it did any harm.
    assert_eq!(get(&admin_of(&running).await, "/readyz").await.0, 200);
    running.stop().await;
}

/// Clients say how long they wait; a request whose body does not come in that time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_may_say_how_long_it_may_take() {
    let running = start(Limits::default()).await;
    for (asked, why) in
        [("abc", "invalid duration \"abc\""), ("15", "missing unit in duration \"15\"")]
    {
        let (code, _, status) = once(&running, "GET", &format!("{MAPS}?timeout={asked}"), "").await;
        let wanted = format!("invalid timeout specified in the request URL - time: {why}");
        assert_eq!((code, status["message"].as_str().unwrap()), (400, wanted.as_str()));
    }
    for fine in ["0s", "30s", "5m0s"] {
        assert_eq!(once(&running, "GET", &format!("{MAPS}?timeout={fine}"), "").await.0, 200);
    }
    let mut stream = connect(&running, &[b"http/1.1"]).await.unwrap();
    let headers = "Content-Type: application/json\r\nConnection: close\r\nContent-Length: 9\r\n";
    let line = format!("POST {MAPS}?timeout=300ms");
    stream.write_all(&head(&running, &line, headers)).await.unwrap();
    let answer = read_to_end(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 504 "), "{answer}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_limit_are_closed() {
    let running = start(Limits { connections: 2, ..Limits::default() }).await;
    let asked = head(&running, "GET /healthz", "");
    let ping = async |stream: &mut Raw| {
        stream.write_all(&asked).await.ok()?;
        let mut some = [0; 12];
        stream.read_exact(&mut some).await.ok()?;
        (&some == b"HTTP/1.1 200").then_some(())
    };
    let mut first = connect(&running, &[b"http/1.1"]).await.unwrap();
    ping(&mut first).await.unwrap();
    let mut second = connect(&running, &[b"http/1.1"]).await.unwrap();
    ping(&mut second).await.unwrap();
    assert!(connect(&running, &[b"http/1.1"]).await.is_err(), "there are two already");
    drop(first);
    found("a connection is free", || async {
        let mut third = connect(&running, &[b"http/1.1"]).await.ok()?;
        ping(&mut third).await
    })
    .await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_are_bounded_and_long_selectors_pass() {
    let running = start(Limits::default()).await;
    let client = admin_of(&running).await;
    // Longer than what servers take by default, over HTTP/2 and HTTP/1.1.
    let names: Vec<String> = (0..4000).map(|n| format!("value-{n}")).collect();
    let path = format!("{MAPS}?labelSelector=a%20in%20({})", names.join(","));
    assert_eq!(get(&client, &path).await.0, 200);
    let mut stream = connect(&running, &[b"http/1.1"]).await.unwrap();
    let line = format!("GET {path}");
    stream.write_all(&head(&running, &line, "Connection: close\r\n")).await.unwrap();
    assert!(read_to_end(&mut stream).await.starts_with("HTTP/1.1 200"));
    let mut stream = connect(&running, &[b"http/1.1"]).await.unwrap();
    let endless = format!("X-Long: {}\r\n", "x".repeat(1 << 20));
    let _ = stream.write_all(&head(&running, "GET /version", &endless)).await;
    let answer = read_to_end(&mut stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_ends_when_asked_and_takes_any_time() {
    let running = start(Limits::default()).await;
    let client = admin_of(&running).await;
    let (code, _, _) = get(&client, &format!("{MAPS}?watch=1&timeoutSeconds=1")).await;
    assert_eq!(code, 200, "it ended by itself");
    for seconds in ["9223372036854775807", "-9223372036854775808", "0", "-1"] {
        let path = format!("{MAPS}?watch=1&timeoutSeconds={seconds}");
        let request = http::Request::get(path).body(kube::client::Body::empty()).unwrap();
        assert_eq!(client.send(request).await.unwrap().status(), 200, "{seconds}");
        let (code, ..) = get(&client, &format!("{MAPS}?timeoutSeconds={seconds}")).await;
        assert_eq!(code, 200, "{seconds}");
    }
    for path in [format!("{MAPS}?watch=1&timeoutSeconds=x"), format!("{MAPS}?timeoutSeconds=1e3")] {
        let (code, _, status) = get(&client, &path).await;
        assert_eq!((code, &status["reason"]), (400, &json!("BadRequest")), "{path}");
    }
    running.stop().await;
}

/// A watcher holds no events; one that reads too slowly falls behind what is kept and is told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_watcher_is_cut_off_with_410() {
    let running = start(Limits { history_events: 4, ..Limits::default() }).await;
    let client = admin_of(&running).await;
    let mut slow = connect(&running, &[b"http/1.1"]).await.unwrap();
    let line = format!("GET {MAPS}?watch=1&resourceVersion=0");
    slow.write_all(&head(&running, &line, "")).await.unwrap();
    let mut start = [0; 15];
    slow.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200 OK");
    // More than all buffers on the way can hold, each event nearly a megabyte.
    let body = json!({"metadata": {"name": "m"}, "data": {"a": "x".repeat(1_000_000)}});
    assert_eq!(ask(&client, "POST", MAPS, "application/json", body.to_string()).await.0, 201);
    for number in 0..40 {
        let patch = json!({"data": {"n": number.to_string()}}).to_string();
        let path = format!("{MAPS}/m");
        let kind = "application/merge-patch+json";
        assert_eq!(ask(&client, "PATCH", &path, kind, patch).await.0, 200);
    }
    let mut text = Vec::new();
    let mut piece = vec![0; 1 << 16];
    let end = b"0\r\n\r\n";
    while !text.ends_with(end) {
        let read = tokio::time::timeout(Duration::from_secs(60), slow.read(&mut piece)).await;
        let count = read.expect("the stream goes on").unwrap();
        assert_ne!(count, 0, "cut off without the end of the stream");
        text.extend_from_slice(&piece[..count]);
        // Only the end matters.
        let spare = text.len().saturating_sub(64 << 10);
        text.drain(..spare);
    }
    let text = String::from_utf8_lossy(&text);
    let at = text.rfind(r#"{"type":"ERROR""#).expect("an error ends the stream");
    let event: Value = serde_json::from_str(text[at..].lines().next().unwrap()).unwrap();
    assert_eq!(event["object"]["code"], 410, "{event}");
    assert_eq!(event["object"]["reason"], "Expired", "{event}");
    assert_eq!(event["object"]["kind"], "Status", "{event}");
    running.stop().await;
}

/// A client that takes nothing at all does not keep its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stands_still_loses_its_connection() {
    let limits =
        Limits { stall_timeout: Duration::from_millis(500), connections: 2, ..Limits::default() };
    let running = start(limits).await;
    let admin = admin_of(&running).await;
    let body = json!({"metadata": {"name": "m"}, "data": {"a": "x".repeat(1_000_000)}});
    assert_eq!(ask(&admin, "POST", MAPS, "application/json", body.to_string()).await.0, 201);
    let mut still = connect(&running, &[b"http/1.1"]).await.unwrap();
    let one = head(&running, &format!("GET {MAPS}"), "");
    // Answers of many megabytes, none of which is read.
    for _ in 0..40 {
        still.write_all(&one).await.unwrap();
    }
    found("its connection is free", || async { connect(&running, &[b"http/1.1"]).await.ok() })
        .await;
    running.stop().await;
}

/// HTTP/2 has a window for each answer: a client that leaves some unread looks alive all the same.
/// Their places are free again after a while, and one that goes on like this loses its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_return_their_permits() {
    let limits =
        Limits { stall_timeout: Duration::from_millis(500), reads: 2, ..Limits::default() };
    let running = start(limits).await;
    let admin = admin_of(&running).await;
    let body = json!({"metadata": {"name": "m"}, "data": {"a": "x".repeat(1_000_000)}});
    assert_eq!(ask(&admin, "POST", MAPS, "application/json", body.to_string()).await.0, 201);
    let stream = connect(&running, &[b"h2"]).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
            .initial_stream_window_size(Some(1 << 16))
            .initial_connection_window_size(Some(1 << 26))
            .handshake::<_, http_body_util::Empty<bytes::Bytes>>(hyper_util::rt::TokioIo::new(
                stream,
            ))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let token = admin_token(&running);
    let list = || {
        let mut sender = sender.clone();
        let request = http::Request::get(format!("https://localhost{MAPS}"))
            .header("Authorization", format!("Bearer {token}"))
            .body(http_body_util::Empty::new())
            .unwrap();
        async move { sender.send_request(request).await }
    };
    let mut unread = Vec::new();
    // Two places, and two for administrators.
    for _ in 0..4 {
        let answer = list().await.unwrap();
        assert_eq!(answer.status(), 200);
        unread.push(answer);
    }
    found("a place is free again", || async {
        (once(&running, "GET", MAPS, "").await.0 == 200).then_some(())
    })
    .await;
    assert!(!connection.is_finished(), "one answer that is not read closes nothing");
    let whole = unread.swap_remove(0).into_body().collect().await;
    assert!(whole.is_err(), "half an answer is not taken for a whole one");
    let mut tries = 0;
    while !connection.is_finished() {
        tries += 1;
        assert!(tries < 3000, "the connection stays open");
        unread.extend(list().await.ok());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.stop().await;
}
