//! `pods/exec` and `pods/attach`: what is refused before the connection changes its protocol, and the change.
//!
//! Clients that are refused over WebSocket ask again with SPDY, and show the second answer. So both ways lead
//! through the same checks, and SPDY itself is refused last.

mod protocol;
mod pump;

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use longshore_core::model::streams::{StreamError, StreamRequest};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::body::{self, ApiResponse};
use super::objects::Call;
use super::route::Route;
use crate::error::{ApiResult, Status};
use crate::streams::StreamSource;
use protocol::Protocol;

const TEXT: &str = "text/plain; charset=utf-8";
const WEBSOCKET_ONLY: &str = "SPDY is not served: exec and attach need WebSocket, which kubectl uses from 1.31 on \
     unless KUBECTL_REMOTE_COMMAND_WEBSOCKETS is false";

/// What a connection does after it has changed its protocol.
#[derive(Clone, Default)]
pub(super) struct Afterwards(Arc<Mutex<Option<BoxFuture<'static, ()>>>>);

impl Afterwards {
    pub(super) fn set(&self, work: impl Future<Output = ()> + Send + 'static) {
        *self.0.lock() = Some(Box::pin(work));
    }

    pub(super) fn take(&self) -> Option<BoxFuture<'static, ()>> {
        self.0.lock().take()
    }
}

/// Whether a request is for streams. They go on by themselves, and to read them is to create something.
pub(super) fn is_stream(route: &Route<'_>) -> bool {
    let Route::Object(object) = route else { return false };
    object.group.is_empty()
        && object.plural == "pods"
        && matches!(object.subresource, "exec" | "attach")
}

/// The protocol that a client wants to change to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Upgrade {
    None,
    WebSocket,
    Other,
}

impl Upgrade {
    fn of(headers: &HeaderMap) -> Self {
        let has = |name: header::HeaderName, word: &str| {
            let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
            let mut words = values.flat_map(|value| value.split(','));
            words.any(|one| one.trim().eq_ignore_ascii_case(word))
        };
        match (has(header::CONNECTION, "upgrade"), has(header::UPGRADE, "websocket")) {
            (false, _) => Self::None,
            (true, true) => Self::WebSocket,
            (true, false) => Self::Other,
        }
    }
}

impl Call<'_> {
    /// Answers `exec` and `attach`.
    pub(super) async fn stream(&self, exec: bool) -> ApiResult<ApiResponse> {
        let request = self.stream_request(exec).await?;
        let Some(source) = self.inner.stream_source() else {
            return Err(Status::unavailable("no node of this server runs containers"));
        };
        let upgrade = Upgrade::of(&self.parts.headers);
        if upgrade == Upgrade::None {
            return Err(Status::bad_request("Upgrade request required"));
        }
        if upgrade == Upgrade::WebSocket && self.parts.method != Method::GET {
            return Ok(body::response(405, TEXT, "bad method"));
        }
        if !(request.stdin || request.stdout || request.stderr) {
            let text = "you must specify at least 1 of stdin, stdout, stderr";
            return Ok(body::response(400, TEXT, text));
        }
        if request.command.as_ref().is_some_and(Vec::is_empty) {
            return Ok(body::response(400, TEXT, "you must specify at least 1 command"));
        }
        let on_upgrade = self.parts.extensions.get::<OnUpgrade>().cloned();
        match (upgrade, on_upgrade) {
            (Upgrade::WebSocket, Some(on_upgrade)) => {
                self.start_stream(&**source, request, on_upgrade).await
            }
            (Upgrade::WebSocket, None) => Err(Status::bad_request(
                "exec and attach need a connection of their own, over HTTP/1.1",
            )),
            (Upgrade::None | Upgrade::Other, _) => match source.check(request.clone()).await {
                Ok(()) => Err(Status::bad_request(WEBSOCKET_ONLY)),
                Err(error) => refuse(&request, error),
            },
        }
    }

    async fn stream_request(&self, exec: bool) -> ApiResult<StreamRequest> {
        let pod = self.inner.core.get(&self.target, None).await?.value();
        let container = container_name(&pod, &self.target.name, self.query.get("container"))?;
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        if node.is_empty() {
            let text = format!("pod {} does not have a host assigned", self.target.name);
            return Err(Status::bad_request(text));
        }
        let tty = self.query.flag("tty");
        Ok(StreamRequest {
            namespace: self.target.namespace.clone(),
            pod: self.target.name.clone(),
            node,
            container,
            command: exec.then(|| self.query.all("command").map(str::to_owned).collect()),
            stdin: self.query.flag("stdin"),
            stdout: self.query.flag("stdout"),
            // A terminal has one output.
            stderr: self.query.flag("stderr") && !tty,
            tty,
        })
    }

    async fn start_stream(
        &self,
        source: &dyn StreamSource,
        request: StreamRequest,
        on_upgrade: OnUpgrade,
    ) -> ApiResult<ApiResponse> {
        let headers = &self.parts.headers;
        let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL);
        let offered = offered.iter().filter_map(|value| value.to_str().ok());
        let offered: Vec<&str> =
            offered.flat_map(|value| value.split(',')).map(str::trim).collect();
        let Some(protocol) = Protocol::choose(&offered) else {
            return Ok(body::response(403, TEXT, Bytes::new()));
        };
        let key = headers.get(header::SEC_WEBSOCKET_KEY);
        let version = headers.get(header::SEC_WEBSOCKET_VERSION);
        let (Some(key), true) = (key, version.is_some_and(|version| version == "13")) else {
            let text = "a WebSocket request needs Sec-WebSocket-Key, and Sec-WebSocket-Version 13";
            return Err(Status::bad_request(text));
        };
        let accepted = derive_accept_key(key.as_bytes());
        let streams = match source.open(request.clone()).await {
            Ok(streams) => streams,
            Err(error) => return refuse(&request, error),
        };
        let mut response = switching_protocols(&accepted, protocol);
        let afterwards = Afterwards::default();
        let ending = self.ending.clone();
        afterwards.set(async move {
            tokio::select! {
                () = pump::run(on_upgrade, protocol, streams) => {}
                () = ending.cancelled() => {}
            }
        });
        response.extensions_mut().insert(afterwards);
        Ok(response)
    }
}

fn switching_protocols(accepted: &str, protocol: &Protocol) -> ApiResponse {
    let mut response = body::response(200, TEXT, Bytes::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.clear();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accepted) = HeaderValue::from_str(accepted) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accepted);
    }
    if !protocol.name.is_empty() {
        let name = HeaderValue::from_static(protocol.name);
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, name);
    }
    response
}

/// A refusal of the node, which speaks in plain text.
fn refuse(request: &StreamRequest, error: StreamError) -> ApiResult<ApiResponse> {
    let StreamRequest { namespace, pod, container, .. } = request;
    let text = match (error, &request.command) {
        (StreamError::NoNode(why), _) => return Err(Status::unavailable(why)),
        (StreamError::NotRunning, Some(_)) => format!("container not found ({container:?})"),
        (StreamError::NotRunning, None) => {
            format!("container {container} not found in pod {pod}_{namespace}")
        }
        (StreamError::Failed(why), _) => why,
    };
    Ok(body::response(500, TEXT, text))
}

fn container_name(pod: &Value, name: &str, asked: Option<&str>) -> ApiResult<String> {
    let names = |list: &str| {
        let list = pod["spec"][list].as_array().into_iter().flatten();
        list.filter_map(|one| one["name"].as_str()).collect::<Vec<&str>>()
    };
    let containers = names("containers");
    let mut all = names("initContainers");
    all.extend(&containers);
    all.extend(names("ephemeralContainers"));
    match (asked, containers.as_slice()) {
        (Some(asked), _) if all.contains(&asked) => Ok(asked.to_owned()),
        (Some(asked), _) => {
            Err(Status::bad_request(format!("container {asked} is not valid for pod {name}")))
        }
        (None, [one]) => Ok((*one).to_owned()),
        (None, _) => Err(Status::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            all.join(" ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_container_must_be_one_of_the_pod() {
        let one = json!({"spec": {"containers": [{"name": "a"}]}});
        let two = json!({"spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "a"}, {"name": "b"}]}});
        let several = "a container name must be specified for pod p, choose one of: [i a b]";
        for (pod, asked, expected) in [
            (&one, None, Ok("a")),
            (&one, Some("a"), Ok("a")),
            (&one, Some("z"), Err("container z is not valid for pod p")),
            (&two, None, Err(several)),
            (&two, Some("i"), Ok("i")),
        ] {
            let found = container_name(pod, "p", asked).map_err(|status| status.message);
            assert_eq!(found.as_deref().map_err(String::as_str), expected);
        }
    }

    #[test]
    fn an_upgrade_is_asked_for_by_two_headers() {
        for (connection, upgrade, expected) in [
            ("Upgrade", "websocket", Upgrade::WebSocket),
            ("keep-alive, upgrade", "WebSocket", Upgrade::WebSocket),
            ("Upgrade", "SPDY/3.1", Upgrade::Other),
            ("keep-alive", "websocket", Upgrade::None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONNECTION, HeaderValue::from_static(connection));
            headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
            assert!(Upgrade::of(&headers) == expected, "{connection} {upgrade}");
        }
    }
}
