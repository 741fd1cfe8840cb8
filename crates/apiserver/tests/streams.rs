//! `pods/exec` and `pods/attach`: what is refused, the subprotocols, and the rights.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::{Raw, Running, admin_token, connect};
use futures::future::BoxFuture;
use futures::{FutureExt, SinkExt, StreamExt};
use http::Request;
use longshore_apiserver::{StreamSource, Streams};
use longshore_core::model::streams::{StreamEnd, StreamError, StreamRequest};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

/// A node on which each process writes back what it reads, and then ends with 3.
#[derive(Clone, Default)]
struct Echo {
    sizes: Arc<Mutex<Vec<(u16, u16)>>>,
    asked: Arc<Mutex<Vec<StreamRequest>>>,
}

fn refusal(request: &StreamRequest) -> Option<StreamError> {
    match request.pod.as_str() {
        "stopped" => Some(StreamError::NotRunning),
        "elsewhere" => Some(StreamError::NoNode("node far is not of this instance".into())),
        _ => None,
    }
}

impl StreamSource for Echo {
    fn check(&self, request: StreamRequest) -> BoxFuture<'static, Result<(), StreamError>> {
        async move { refusal(&request).map_or(Ok(()), Err) }.boxed()
    }

    fn open(&self, request: StreamRequest) -> BoxFuture<'static, Result<Streams, StreamError>> {
        let sizes = Arc::clone(&self.sizes);
        self.asked.lock().push(request.clone());
        async move {
            if let Some(error) = refusal(&request) {
                return Err(error);
            }
            let (stdin, process) = tokio::io::duplex(1024);
            let (ended, end) = futures::channel::oneshot::channel();
            let read =
                futures::stream::unfold((process, Some(ended)), |(mut process, ended)| async {
                    let mut buffer = vec![0; 1024];
                    let count = process.read(&mut buffer).await.unwrap_or(0);
                    buffer.truncate(count);
                    if count == 0 {
                        ended.map(|ended| ended.send(()));
                        return None;
                    }
                    Some((Bytes::from(buffer), (process, ended)))
                });
            Ok(Streams {
                stdin: Some(Box::new(stdin)),
                stdout: Some(read.boxed()),
                stderr: None,
                resize: Box::new(move |width, height| sizes.lock().push((width, height))),
                ended: async move {
                    let _ = end.await;
                    StreamEnd::Exited(3)
                }
                .boxed(),
            })
        }
        .boxed()
    }
}

async fn server(echo: &Echo, has_node: bool) -> Running {
    let running = Running::start().await;
    if has_node {
        running.server.set_stream_source(echo.clone());
    }
    let client = running.server.client();
    for (name, containers, node) in [
        ("ok", &["main"][..], "here"),
        ("two", &["a", "b"], "here"),
        ("stopped", &["main"], "here"),
        ("elsewhere", &["main"], "far"),
        ("new", &["main"], ""),
    ] {
        let containers: Vec<Value> =
            containers.iter().map(|name| json!({"name": name, "image": "host"})).collect();
        let mut spec = json!({"containers": containers});
        if !node.is_empty() {
            spec["nodeName"] = node.into();
        }
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        let request = Request::post("/api/v1/namespaces/default/pods")
            .header("Content-Type", "application/json")
            .body(serde_json::to_vec(&pod).unwrap())
            .unwrap();
        client.request::<Value>(request).await.unwrap();
    }
    running
}

fn path(pod: &str, query: &str) -> String {
    format!("/api/v1/namespaces/default/pods/{pod}/{query}")
}

/// Sends a request and reads the answer.
async fn ask(
    running: &Running,
    token: &str,
    method: &str,
    path: &str,
    headers: &str,
) -> (u16, String) {
    let mut raw = connect(running, &[b"http/1.1"]).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{headers}Content-Length: 0\r\n\r\n"
    );
    raw.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&answer).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length: ")?.trim().parse().ok()
            });
            if body.len() >= length.unwrap_or(0) {
                let code = head.split(' ').nth(1).unwrap().parse().unwrap();
                let status: Value = serde_json::from_str(body).unwrap_or_default();
                let body = status["message"].as_str().map_or(body.to_owned(), str::to_owned);
                return (code, body);
            }
        }
        let count = raw.read(&mut buffer).await.unwrap();
        assert!(count > 0, "the answer ends: {text}");
        answer.extend_from_slice(&buffer[..count]);
    }
}

const WEBSOCKET: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n";
const SPDY: &str =
    "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n";

async fn open(
    running: &Running,
    path: &str,
    protocols: &str,
) -> Result<WebSocketStream<Raw>, tungstenite::Error> {
    let raw = connect(running, &[b"http/1.1"]).await.unwrap();
    let mut request = Request::get(format!("wss://x{path}"))
        .header("Host", "x")
        .header("Authorization", format!("Bearer {}", admin_token(running)))
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
    if !protocols.is_empty() {
        request = request.header("Sec-WebSocket-Protocol", protocols);
    }
    let (socket, response) = client_async(request.body(()).unwrap(), raw).await?;
    let chosen = response.headers().get("Sec-WebSocket-Protocol");
    let chosen = chosen.map(|value| value.to_str().unwrap());
    let wanted = protocols.split(", ").find(|one| one.starts_with("v5"));
    assert_eq!(chosen, wanted.or(Some(protocols).filter(|all| !all.is_empty())));
    Ok(socket)
}

#[tokio::test]
async fn a_refusal_has_the_same_words_over_websocket_and_spdy() {
    let running = server(&Echo::default(), true).await;
    let token = admin_token(&running);
    let all = "stdout=true&command=ls";
    for (pod, query, code, words) in [
        ("none", format!("exec?{all}"), 404, "pods \"none\" not found"),
        ("new", format!("exec?{all}"), 400, "pod new does not have a host assigned"),
        ("ok", format!("exec?{all}&container=zzz"), 400, "container zzz is not valid for pod ok"),
        (
            "two",
            format!("exec?{all}"),
            400,
            "a container name must be specified for pod two, choose one of: [a b]",
        ),
        ("stopped", format!("exec?{all}"), 500, "container not found (\"main\")"),
        (
            "stopped",
            "attach?stdout=true".into(),
            500,
            "container main not found in pod stopped_default",
        ),
        (
            "ok",
            "exec?command=ls".into(),
            400,
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        ("elsewhere", format!("exec?{all}"), 503, "node far is not of this instance"),
    ] {
        let path = path(pod, &query);
        for (method, headers) in [("GET", WEBSOCKET), ("POST", SPDY)] {
            let answer = ask(&running, &token, method, &path, headers).await;
            assert_eq!(answer, (code, words.to_owned()), "{method} {path}");
        }
    }
    let good = path("ok", &format!("exec?{all}"));
    let (code, words) = ask(&running, &token, "POST", &good, SPDY).await;
    assert!(code == 400 && words.contains("need WebSocket"), "{words}");
    let (code, words) = ask(&running, &token, "POST", &good, WEBSOCKET).await;
    assert_eq!((code, words.as_str()), (405, "bad method"));
    let (code, words) = ask(&running, &token, "GET", &good, "").await;
    assert_eq!((code, words.as_str()), (400, "Upgrade request required"));
    let unknown = WEBSOCKET.replace("v5.", "v9.");
    assert_eq!(ask(&running, &token, "GET", &good, &unknown).await, (403, String::new()));
    running.stop().await;
}

#[tokio::test]
async fn without_a_node_there_are_neither_streams_nor_logs() {
    let running = server(&Echo::default(), false).await;
    let token = admin_token(&running);
    for what in ["exec?stdout=true&command=ls", "attach?stdout=true", "log"] {
        let (code, words) = ask(&running, &token, "GET", &path("ok", what), WEBSOCKET).await;
        assert!(code == 503 && words.contains("no node of this server"), "{what}: {code} {words}");
    }
    running.stop().await;
}

// case: workloads/W121
#[tokio::test]
async fn each_subprotocol_carries_input_output_and_the_end() {
    let echo = Echo::default();
    let running = server(&echo, true).await;
    let all = path("ok", "exec?stdin=true&stdout=true&command=cat&command=-");
    for protocols in [
        "v5.channel.k8s.io",
        "v4.channel.k8s.io, v5.channel.k8s.io",
        "v4.channel.k8s.io",
        "v2.channel.k8s.io",
        "channel.k8s.io",
        "",
        "base64.channel.k8s.io",
    ] {
        let mut socket = open(&running, &all, protocols).await.unwrap();
        let base64 = protocols.starts_with("base64");
        let message = |channel: u8, base64_text: &'static str, bytes: &[u8]| match base64 {
            true => Message::text(format!("{channel}{base64_text}")),
            false => Message::binary([&[channel], bytes].concat()),
        };
        let first = socket.next().await.unwrap().unwrap();
        assert_eq!(first, message(1, "", b""), "{protocols}: the streams are open");
        socket.send(message(0, "aGk=", b"hi")).await.unwrap();
        let echoed = socket.next().await.unwrap().unwrap();
        assert_eq!(echoed, message(1, "aGk=", b"hi"), "{protocols}");
        if !protocols.contains("v5") {
            continue;
        }
        socket.send(message(4, "", br#"{"Width":111,"Height":33}"#)).await.unwrap();
        socket.send(message(255, "", &[0])).await.unwrap();
        let status = socket.next().await.unwrap().unwrap().into_data();
        assert_eq!(status[0], 3);
        let status: Value = serde_json::from_slice(&status[1..]).unwrap();
        assert_eq!(status["details"]["causes"][0]["message"], "3");
        let close = socket.next().await.unwrap().unwrap();
        assert!(matches!(&close, Message::Close(Some(frame)) if u16::from(frame.code) == 1000));
    }
    assert_eq!(*echo.sizes.lock(), [(111, 33), (111, 33)]);
    let asked = echo.asked.lock()[0].clone();
    assert_eq!(asked.command, Some(vec!["cat".into(), "-".into()]));
    assert_eq!((asked.node.as_str(), asked.container.as_str()), ("here", "main"));
    assert!(asked.stdin && asked.stdout && !asked.stderr && !asked.tty);
    running.stop().await;
}

#[tokio::test]
async fn reading_streams_needs_the_right_to_create_them() {
    let running = server(&Echo::default(), true).await;
    let client = running.server.client();
    let create = async |path: &str, object: Value| {
        let request = Request::post(path)
            .header("Content-Type", "application/json")
            .body(serde_json::to_vec(&object).unwrap())
            .unwrap();
        client.request::<Value>(request).await.unwrap()
    };
    for (name, verbs) in [("reader", &["get"][..]), ("both", &["get", "create"])] {
        let role = json!({"metadata": {"name": name}, "rules": [
            {"apiGroups": [""], "resources": ["pods/exec"], "verbs": verbs}]});
        create("/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles", role).await;
        let account = json!({"metadata": {"name": name}});
        create("/api/v1/namespaces/default/serviceaccounts", account).await;
        let binding = json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]});
        create("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding).await;
    }
    for (name, verb, code) in
        [("reader", "GET", 403), ("reader", "POST", 403), ("both", "GET", 101)]
    {
        let token = create(
            &format!("/api/v1/namespaces/default/serviceaccounts/{name}/token"),
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}),
        )
        .await;
        let token = token["status"]["token"].as_str().unwrap();
        let headers = if verb == "GET" { WEBSOCKET } else { SPDY };
        let path = path("ok", "exec?stdout=true&command=ls");
        let (got, words) = ask(&running, token, verb, &path, headers).await;
        assert_eq!(got, code, "{name} {verb}: {words}");
        if code == 403 {
            let why = "cannot create resource \"pods/exec\" in API group \"\" in the namespace \"default\"";
            assert!(words.contains(why), "{words}");
        }
    }
    running.stop().await;
}

#[tokio::test]
async fn what_up_does_not_serve_is_named() {
    let running = Running::start().await;
    let token = admin_token(&running);
    for (path, words) in [
        ("/apis/apps/v1/namespaces/default/statefulsets", "does not serve statefulsets.apps"),
        ("/api/v1/namespaces/default/services", "does not serve services"),
    ] {
        let (code, said) = ask(&running, &token, "POST", path, "").await;
        assert!(code == 404 && said.contains(words), "{path}: {code} {said}");
    }
    let (code, said) = ask(&running, &token, "GET", &path("ok", "portforward"), WEBSOCKET).await;
    assert!(code == 404 && said.contains("does not serve pods/portforward"), "{said}");
    running.stop().await;
}
