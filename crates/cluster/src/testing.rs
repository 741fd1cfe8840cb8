//! A scripted API server for tests: a closure responds to each request.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
pub(crate) use longshore_testing::eventually;
use serde_json::Value;
use tokio::sync::mpsc;

pub(crate) type AnyBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// One request as the script sees it.
pub(crate) struct ScriptedRequest {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) accept: String,
    pub(crate) body: Value,
}

/// A client whose requests `script` responds to.
pub(crate) fn client<F, Fut>(script: F) -> kube::Client
where
    F: Fn(ScriptedRequest) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Response<AnyBody>> + Send + 'static,
{
    let script = Arc::new(script);
    let service = tower::service_fn(move |request: Request<Body>| {
        let script = script.clone();
        let response: BoxFuture<'static, Result<_, kube::Error>> = Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let request = ScriptedRequest {
                method: parts.method.to_string(),
                path: parts.uri.path().to_owned(),
                query: parts.uri.query().unwrap_or_default().to_owned(),
                accept: parts.headers[http::header::ACCEPT].to_str().unwrap_or_default().to_owned(),
                body: serde_json::from_slice(&body).unwrap_or(Value::Null),
            };
            Ok(script(request).await)
        });
        response
    });
    kube::Client::new(service, "default")
}

pub(crate) fn respond(code: u16, body: &Value) -> Response<AnyBody> {
    let full = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {});
    let mut response = Response::new(full.boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).expect("a status");
    response
}

pub(crate) fn failure(code: u16, reason: &str) -> Response<AnyBody> {
    respond(
        code,
        &serde_json::json!({"kind": "Status", "code": code, "reason": reason, "message": reason}),
    )
}

/// A watch whose events are sent by the test; it ends when the sender is dropped.
pub(crate) fn stream() -> (mpsc::UnboundedSender<Value>, Response<AnyBody>) {
    let (sender, mut receiver) = mpsc::unbounded_channel::<Value>();
    let frames = futures::stream::poll_fn(move |cx| {
        receiver
            .poll_recv(cx)
            .map(|event| event.map(|e| Ok(hyper::body::Frame::data(Bytes::from(format!("{e}\n"))))))
    });
    (sender, Response::new(StreamBody::new(frames).boxed_unsync()))
}

/// Lets all other tasks run until they wait, without moving a paused clock.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
