//! The calls that a foreign driver gets: a relay between `longshore up` and the driver's socket writes them down.
//!
//! It passes requests and responses on as they are and reads only the method and the status.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use http::{HeaderMap, Request, Response, Uri};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinHandle,
};
use tonic::Code;

/// One call that the driver has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeenCall {
    /// `CreateVolume`.
    pub method: String,
    pub took: Duration,
    pub code: Code,
    /// What the driver said about it.
    pub message: String,
}

impl SeenCall {
    pub(super) fn failed(&self) -> bool {
        self.code != Code::Ok
    }

    /// Whether it is part of a volume's life, and no question about the driver itself.
    pub(super) fn is_about_volumes(&self) -> bool {
        !["Probe", "GetPluginInfo", "NodeGetInfo", "NodeGetVolumeStats"]
            .contains(&self.method.as_str())
            && !self.method.ends_with("GetCapabilities")
            && !self.method.ends_with("GetPluginCapabilities")
    }
}

/// All calls so far, shared with the relay.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls(Arc<Mutex<Vec<SeenCall>>>);

impl Calls {
    /// The calls from the `first` on.
    pub(super) fn since(&self, first: usize) -> Vec<SeenCall> {
        self.0.lock().iter().skip(first).cloned().collect()
    }

    pub(super) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Listens on `socket` and relays every connection to the driver, until the handle is aborted.
    pub(super) fn relay(&self, socket: &Path, driver: PathBuf) -> Result<JoinHandle<()>> {
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        let calls = self.clone();
        Ok(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (calls, driver) = (calls.clone(), driver.clone());
                // A connection that breaks is made anew by its client.
                tokio::spawn(async move { calls.connection(stream, &driver).await.ok() });
            }
        }))
    }

    /// Relays one connection. It ends when either side does, so that a lost driver is noticed.
    async fn connection(&self, inbound: UnixStream, driver: &Path) -> Result<()> {
        let outbound = TokioIo::new(UnixStream::connect(driver).await?);
        let (sender, to_driver) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), outbound).await?;
        let forward = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (sender, calls) = (sender.clone(), self.clone());
            async move { calls.forward(sender, request).await }
        });
        let from_client = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(inbound), forward);
        tokio::select! {
            ended = to_driver => Ok(ended?),
            ended = from_client => Ok(ended?),
        }
    }

    async fn forward(
        &self,
        mut sender: hyper::client::conn::http2::SendRequest<Incoming>,
        request: Request<Incoming>,
    ) -> Result<Response<impl Body<Data = bytes::Bytes, Error = hyper::Error> + use<>>> {
        let (mut parts, body) = request.into_parts();
        let method = parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        parts.uri = Uri::builder()
            .scheme("http")
            .authority("localhost")
            .path_and_query(parts.uri.path().to_owned())
            .build()?;
        let began = Instant::now();
        let response = sender.send_request(Request::from_parts(parts, body)).await?;
        let (parts, body) = response.into_parts();
        let calls = self.clone();
        let note = move |headers: &HeaderMap| {
            if let Some((code, message)) = status(headers) {
                let took = began.elapsed();
                calls.0.lock().push(SeenCall { method: method.clone(), took, code, message });
            }
        };
        // An error without a body has its status among the headers.
        note(&parts.headers);
        let body = body.map_frame(move |frame| {
            if let Some(trailers) = frame.trailers_ref() {
                note(trailers);
            }
            frame
        });
        Ok(Response::from_parts(parts, body))
    }
}

/// The status of a call, if these headers have it.
fn status(headers: &HeaderMap) -> Option<(Code, String)> {
    let code = Code::from_bytes(headers.get("grpc-status")?.as_bytes());
    let message = headers.get("grpc-message").map(http::HeaderValue::as_bytes).unwrap_or_default();
    let message = percent_encoding::percent_decode(message).decode_utf8_lossy().into_owned();
    Some((code, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read_with_their_messages() {
        let mut headers = HeaderMap::new();
        assert_eq!(status(&headers), None);
        headers.insert("grpc-status", "9".parse().unwrap());
        headers.insert("grpc-message", "not%20staged".parse().unwrap());
        assert_eq!(status(&headers), Some((Code::FailedPrecondition, "not staged".into())));
    }

    #[test]
    fn questions_about_the_driver_are_told_from_calls_for_volumes() {
        let call = |method: &str| SeenCall {
            method: method.into(),
            took: Duration::ZERO,
            code: Code::Ok,
            message: String::new(),
        };
        for (method, about) in [
            ("CreateVolume", true),
            ("NodeUnpublishVolume", true),
            ("Probe", false),
            ("ControllerGetCapabilities", false),
            ("GetPluginCapabilities", false),
        ] {
            assert_eq!(call(method).is_about_volumes(), about, "{method}");
        }
    }
}
