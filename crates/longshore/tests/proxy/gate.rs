//! Ends TLS, asks the server behind it, and spoils requests: refuses some paths, answers late, loses
//! answers, and cuts watches in the middle of a line. It speaks HTTP/2 and 1.1, as servers do.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::Body;
use longshore_cluster::ClientConfig;
use longshore_real_kube::pki::Ca;
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// What is wrong with requests now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Weather {
    #[default]
    Calm,
    /// Every answer, and every piece of one, is late by this much.
    Slow(Duration),
    /// Requests of paths with these words are refused.
    Refuse { path: &'static str, code: u16, retry_after: Option<u32> },
    /// One write in two takes effect, and its answer is lost.
    LoseAnswers,
    /// One event in three of a watch is cut in the middle, and the watch ends as if all were well.
    CutLines,
}

pub struct Gate {
    pub address: SocketAddr,
    ca: String,
    shared: Arc<Shared>,
}

struct Shared {
    server: PathBuf,
    weather: Mutex<Weather>,
    spoiled: AtomicUsize,
}

impl Gate {
    /// Stands before the server of a kubeconfig, with that user's rights for everybody.
    pub async fn start(server: &Path) -> Self {
        let ca = Ca::new().unwrap();
        let pair = ca.serving(&["localhost"]).unwrap();
        let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server: server.to_owned(),
            weather: Mutex::default(),
            spoiled: AtomicUsize::new(0),
        });
        let accepting = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(accepting.clone(), acceptor.clone(), client));
            }
        });
        Self { address, ca: ca.pair().certificate.clone(), shared }
    }

    /// A kubeconfig that leads here by way of `address`.
    pub fn kubeconfig(&self, file: &Path, address: SocketAddr) -> PathBuf {
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "gate",
            "clusters": [{"name": "gate", "cluster": {
                "server": format!("https://{address}"),
                "certificate-authority-data": base64(self.ca.as_bytes()),
            }}],
            "users": [{"name": "gate", "user": {}}],
            "contexts": [{"name": "gate", "context": {"cluster": "gate", "user": "gate"}}],
        });
        std::fs::write(file, config.to_string()).unwrap();
        file.to_owned()
    }

    pub fn weather(&self, weather: Weather) {
        *self.shared.weather.lock() = weather;
    }

    /// How many requests and events suffered so far.
    pub fn spoiled(&self) -> usize {
        self.shared.spoiled.load(Ordering::Relaxed)
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

async fn serve(shared: Arc<Shared>, acceptor: TlsAcceptor, client: TcpStream) {
    let Ok(stream) = acceptor.accept(client).await else { return };
    // A connection of its own to the server: what ends here ends there.
    let client = ClientConfig::from_kubeconfig(&shared.server).lease_client().await.unwrap();
    let service = hyper::service::service_fn(move |request| {
        let (shared, client) = (shared.clone(), client.clone());
        async move { shared.answer(&client, request).await }
    });
    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    // However it ends, it has ended.
    let _ = server.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
}

impl Shared {
    async fn answer(
        self: Arc<Self>,
        client: &kube::Client,
        request: Request<Incoming>,
    ) -> Result<Answer, io::Error> {
        let weather = *self.weather.lock();
        let write = request.method() != http::Method::GET;
        let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        match weather {
            Weather::Refuse { path, code, retry_after } if request.uri().path().contains(path) => {
                self.count();
                return Ok(refusal(code, retry_after));
            }
            Weather::Slow(late) => {
                self.count();
                tokio::time::sleep(late).await;
            }
            _ => {}
        }
        let request = forward(request).await;
        let answer = client.send(request).await.map_err(io::Error::other)?;
        if weather == Weather::LoseAnswers && write && fastrand::bool() {
            self.count();
            return Err(io::Error::other("lost"));
        }
        let (head, body) = answer.into_parts();
        Ok(Response::from_parts(head, self.pieces(body, watch)))
    }

    /// The body, piece by piece, in the weather of each moment.
    fn pieces(self: Arc<Self>, body: Body, watch: bool) -> UnsyncBoxBody<Bytes, io::Error> {
        let pieces = futures::stream::unfold(Some(body), move |body| {
            let shared = self.clone();
            async move {
                let mut body = body?;
                let frame = match body.frame().await? {
                    Ok(frame) => frame,
                    Err(error) => return Some((Err(io::Error::other(error)), None)),
                };
                let weather = *shared.weather.lock();
                match (weather, frame.data_ref()) {
                    (Weather::Slow(late), _) if watch => tokio::time::sleep(late).await,
                    (Weather::CutLines, Some(line)) if watch && fastrand::u8(..3) == 0 => {
                        shared.count();
                        let half = line.slice(..line.len() / 2);
                        return Some((Ok(Frame::data(half)), None));
                    }
                    _ => {}
                }
                Some((Ok(frame), Some(body)))
            }
        });
        StreamBody::new(pieces).boxed_unsync()
    }

    fn count(&self) {
        self.spoiled.fetch_add(1, Ordering::Relaxed);
    }
}

/// The same request, for the server behind.
async fn forward(request: Request<Incoming>) -> Request<Body> {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    head.uri = path.parse().unwrap();
    head.version = http::Version::HTTP_11;
    for name in [header::HOST, header::AUTHORIZATION] {
        head.headers.remove(name);
    }
    // A body that did not come in full is none that a server could read.
    let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
    Request::from_parts(head, Body::from(body))
}

fn refusal(code: u16, retry_after: Option<u32>) -> Answer {
    let reason = if code == 429 { "TooManyRequests" } else { "ServiceUnavailable" };
    let status = serde_json::json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "metadata": {},
        "message": "not in this weather", "reason": reason, "code": code,
    });
    let body = Full::new(Bytes::from(status.to_string()));
    let mut answer =
        Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    if let Some(seconds) = retry_after {
        answer = answer.header(header::RETRY_AFTER, seconds);
    }
    answer.body(body.map_err(|never: Infallible| match never {}).boxed_unsync()).unwrap()
}
