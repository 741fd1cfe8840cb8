//! A world of processes with a fault at one named call.
//!
//! The provisioner is the real binary, and so are the volume controllers. Both talk to an API server and
//! a driver in this process, so that every request of the provisioner passes through here: at the first
//! request of a kind a [`Fault`] strikes, and a kill is a real `kill -9` while the request is on its way.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use http::{Method, Request};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use longshore_apiserver::{
    ApiServer, Config,
    auth::Identity,
    http::{Service, body::ApiResponse},
};
use longshore_cluster::{Api, DeleteParams, ListParams, ObjectKey};
use longshore_core::model::{
    ClaimPhase, Kind,
    kinds::{Claim, ConfigMap, StorageClass, Volume},
};
use longshore_csi::{
    Call,
    fake::{Action, CallEvent, Phase},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::watch;

use crate::sidecar::Served;

const DRIVER: &str = "matrix.example.com";
const CLAIM: &str = "data";
/// How long anything may take. Long, because machines can be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The provisioner is killed before the request takes effect.
    KillBefore,
    /// The provisioner is killed after it took effect, before the answer.
    KillAfter,
    /// It takes effect, and the answer is lost.
    Lost,
    /// It is refused.
    Refused,
    /// Somebody was faster: what is made is there already, and a change has the wrong version.
    Conflict,
}

impl Fault {
    pub const ALL: [Self; 5] =
        [Self::KillBefore, Self::KillAfter, Self::Lost, Self::Refused, Self::Conflict];

    pub fn name(self) -> &'static str {
        match self {
            Self::KillBefore => "kill-before",
            Self::KillAfter => "kill-after",
            Self::Lost => "lost-answer",
            Self::Refused => "refused",
            Self::Conflict => "conflict",
        }
    }

    /// Whether it can happen to a request of this kind: nobody is faster than a question.
    pub fn can_strike(self, point: &str) -> bool {
        let asks = ["api get ", "api list ", "api watch "];
        self != Self::Conflict || !asks.iter().any(|start| point.starts_with(start))
    }

    fn kills(self) -> bool {
        matches!(self, Self::KillBefore | Self::KillAfter)
    }
}

/// One round of the matrix.
#[derive(Debug, Clone)]
pub struct Round {
    /// The kind of request, for example `csi CreateVolume`.
    pub point: String,
    pub fault: Fault,
    /// The user deletes the claim at the moment of the fault.
    pub deletes: bool,
    /// A provisioner without the leak guard: the planted defect.
    pub unguarded: bool,
}

impl std::fmt::Display for Round {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let user = if self.deletes { "the claim is deleted" } else { "the user waits" };
        write!(f, "{} at {}, {user}", self.fault.name(), self.point)
    }
}

/// What every request meets.
struct Wire {
    round: Mutex<Option<(String, Fault)>>,
    seen: Mutex<BTreeMap<String, usize>>,
    /// Set once the fault has struck.
    struck: watch::Sender<bool>,
    /// The most volumes that the driver had at one time.
    most: AtomicUsize,
}

impl Wire {
    /// Whether the fault strikes now, and which; only the first request of its kind is struck.
    fn strike(&self, point: &str) -> Option<Fault> {
        *self.seen.lock().entry(point.to_owned()).or_default() += 1;
        let mut round = self.round.lock();
        match &*round {
            Some((wanted, fault)) if wanted == point => {
                let fault = *fault;
                *round = None;
                Some(fault)
            }
            _ => None,
        }
    }

    fn tell(&self) {
        self.struck.send_replace(true);
    }
}

async fn exchange(
    wire: Arc<Wire>,
    service: Service,
    request: Request<Incoming>,
) -> Result<ApiResponse, io::Error> {
    let agent = request.headers().get(http::header::USER_AGENT);
    let ours = agent.is_some_and(|agent| agent.as_bytes().starts_with(b"csi-provisioner/"));
    let fault = match ours {
        true => wire.strike(&describe(&request)),
        false => None,
    };
    match fault {
        None => return Ok(service.handle(request).await),
        Some(Fault::KillBefore) => {}
        Some(Fault::KillAfter) => drop(service.handle(request).await),
        Some(Fault::Lost) => {
            drop(service.handle(request).await);
            wire.tell();
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Some(Fault::Refused) => {
            wire.tell();
            // As from an API server whose store is away.
            let mut answer = service.handle(Request::new(String::new())).await;
            *answer.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            return Ok(answer);
        }
        Some(Fault::Conflict) => return conflict(&wire, &service, request).await,
    }
    wire.tell();
    // The one who asked is about to be killed.
    std::future::pending().await
}

/// A request to make something arrives twice, and the second answer is heard. Other changes meet one
/// that came before them.
async fn conflict(
    wire: &Wire,
    service: &Service,
    request: Request<Incoming>,
) -> Result<ApiResponse, io::Error> {
    let made = *request.method() == Method::POST;
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let again = || Request::from_parts(head.clone(), http_body_util::Full::new(body.clone()));
    if made {
        drop(service.handle(again()).await);
        wire.tell();
        return Ok(service.handle(again()).await);
    }
    wire.tell();
    let mut answer = service.handle(Request::new(String::new())).await;
    *answer.status_mut() = http::StatusCode::CONFLICT;
    Ok(answer)
}

/// What a request is: `api create persistentvolumes`.
fn describe<B>(request: &Request<B>) -> String {
    let path = request.uri().path();
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    parts.drain(..if path.starts_with("/apis/") { 3 } else { 2 }.min(parts.len()));
    if parts.first() == Some(&"namespaces") && parts.len() > 2 {
        parts.drain(..2);
    }
    let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let verb = match *request.method() {
        Method::GET if watch => "watch",
        Method::GET if parts.len() < 2 => "list",
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        _ => "delete",
    };
    format!("api {verb} {}", parts.first().unwrap_or(&path))
}

fn csi(wire: &Wire, late: &Mutex<Option<Fault>>, moment: &CallEvent<'_>) -> Action {
    if moment.phase == Phase::Before {
        let fault = wire.strike(&format!("csi {}", moment.call));
        *late.lock() = None;
        match fault {
            None => return Action::Continue,
            Some(fault @ (Fault::KillAfter | Fault::Lost)) => {
                *late.lock() = Some(fault);
                return Action::Continue;
            }
            Some(Fault::KillBefore) => {
                wire.tell();
                return Action::Hang;
            }
            Some(Fault::Refused) => {
                wire.tell();
                return Action::Fail(tonic::Status::internal("refused on purpose"));
            }
            Some(Fault::Conflict) => {
                wire.tell();
                return Action::Fail(tonic::Status::aborted("busy on purpose"));
            }
        }
    }
    match late.lock().take() {
        None => Action::Continue,
        Some(Fault::Lost) => {
            wire.tell();
            Action::Fail(tonic::Status::unavailable("the answer is lost on purpose"))
        }
        Some(_) => {
            wire.tell();
            Action::Hang
        }
    }
}

/// A process that is killed with its value.
struct Ours(Child);

impl Ours {
    fn ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// API server, driver and volume controllers; rounds are played in it one after the other.
pub struct World {
    dir: tempfile::TempDir,
    server: ApiServer,
    api: Api,
    served: Served,
    wire: Arc<Wire>,
    kubeconfig: PathBuf,
    _controllers: Ours,
}

impl World {
    pub async fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("longshore-matrix-").tempdir().unwrap();
        let server = ApiServer::open(Config::memory()).await.unwrap();
        let admin = Identity::new("system:admin", ["system:masters", "system:authenticated"]);
        let service = server.service_as(admin);
        let wire = Arc::new(Wire {
            round: Mutex::default(),
            seen: Mutex::default(),
            struck: watch::Sender::new(false),
            most: AtomicUsize::new(0),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, wire.clone(), service));
        let kubeconfig = dir.path().join("kubeconfig");
        let text = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "c", "user": {"token": "unused"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]});
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let served = Served::new(DRIVER);
        let controllers = program(
            &dir,
            "controllers",
            &[
                "controllers",
                "--kubeconfig",
                &kubeconfig.display().to_string(),
                "--leader-elect=false",
            ],
        );
        let api = Api::new(server.client());
        let class = json!({"metadata": {"name": "fast"}, "provisioner": DRIVER});
        api.create::<StorageClass>(&class).await.unwrap();
        Self { dir, server, api, served, wire, kubeconfig, _controllers: controllers }
    }

    fn start(&self, unguarded: bool) -> Ours {
        let kubeconfig = self.kubeconfig.display().to_string();
        let socket = self.served.socket().display().to_string();
        let mut args =
            vec!["provisioner", "--kubeconfig", &kubeconfig, "--csi-address", &socket, "-v=4"];
        args.extend(["--retry-interval-start=50ms", "--retry-interval-max=1s", "--timeout=5s"]);
        args.extend((!unguarded).then_some("--leak-guard"));
        program(&self.dir, "provisioner", &args)
    }

    /// The kinds of requests in one undisturbed life of a claim, with how often each was seen.
    pub async fn calm(&self) -> BTreeMap<String, usize> {
        let round =
            Round { point: "none".into(), fault: Fault::Refused, deletes: false, unguarded: false };
        self.wire.seen.lock().clear();
        let life = self.life(&round).await;
        assert!(matches!(life, Ok(false)), "an undisturbed life: {life:?}");
        self.wire.seen.lock().clone()
    }

    /// Plays one round: whether the fault struck, or what is wrong.
    pub async fn play(&self, round: &Round) -> Result<bool, String> {
        let played = self.life(round).await.map_err(|why| format!("{round}: {why}"));
        *self.wire.round.lock() = None;
        played
    }

    async fn life(&self, round: &Round) -> Result<bool, String> {
        self.served.driver.clear_calls();
        self.wire.most.store(0, Ordering::Relaxed);
        self.wire.struck.send_replace(false);
        *self.wire.round.lock() = Some((round.point.clone(), round.fault));
        self.hook_driver();
        let mut struck = self.wire.struck.subscribe();
        let mut ours = Some(self.start(round.unguarded));
        let claim = json!({"metadata": {"name": CLAIM, "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "resources": {"requests": {"storage": "1Mi"}}}});
        self.api.create::<Claim>(&claim).await.unwrap();
        let mut hit = false;
        // Once while the volume is made, once while it is removed: the fault comes when it comes.
        for deleting in [false, true] {
            if deleting {
                self.delete_claim().await;
            }
            let (mut done, mut began) = (false, Instant::now());
            while !done {
                if !hit && *struck.borrow_and_update() {
                    (hit, began) = (true, Instant::now());
                    if round.fault.kills() {
                        drop(ours.take());
                    }
                    if round.deletes {
                        self.delete_claim().await;
                    }
                    ours.get_or_insert_with(|| self.start(round.unguarded));
                }
                // One that cannot start, because its driver or the API said no, exits and is
                // started again, as anything does that keeps programs running.
                if ours.as_mut().is_some_and(Ours::ended) {
                    ours = Some(self.start(round.unguarded));
                }
                done = match deleting || (hit && round.deletes) {
                    true => self.is_clean().await,
                    false => self.is_bound().await,
                };
                if began.elapsed() > patience(round, hit) {
                    return Err(self.state().await);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        // The last request of a life may be struck while nothing is left to wait for.
        self.verdict().map(|()| hit || *struck.borrow_and_update())
    }

    fn hook_driver(&self) {
        let (wire, late) = (self.wire.clone(), Mutex::new(None));
        let driver = self.served.driver.clone();
        self.served.driver.hook(move |moment| {
            if moment.phase == Phase::After && moment.call == Call::CreateVolume {
                wire.most.fetch_max(driver.volumes().len(), Ordering::Relaxed);
            }
            csi(&wire, &late, moment)
        });
    }

    /// What may never be, however it ended.
    fn verdict(&self) -> Result<(), String> {
        let most = self.wire.most.load(Ordering::Relaxed);
        let violations = self.served.driver.violations();
        match (most, violations.is_empty()) {
            (0 | 1, true) => Ok(()),
            (0 | 1, false) => Err(format!("the driver was misused: {violations:?}")),
            _ => Err(format!("{most} volumes were made for one claim")),
        }
    }

    async fn delete_claim(&self) {
        let key = ObjectKey::new("default", CLAIM);
        match self.api.delete::<Claim>(&key, &DeleteParams::default()).await {
            Err(error) if !error.is_not_found() => panic!("{error}"),
            _ => {}
        }
    }

    async fn is_bound(&self) -> bool {
        let claim = self.api.get::<Claim>(&ObjectKey::new("default", CLAIM)).await.unwrap();
        claim.is_some_and(|claim| claim.status.phase == ClaimPhase::Bound)
    }

    async fn is_clean(&self) -> bool {
        self.served.driver.volumes().is_empty()
            && self.count::<Claim>().await == 0
            && self.count::<Volume>().await == 0
            && self.records().await == 0
    }

    async fn count<T: Kind + serde::de::DeserializeOwned>(&self) -> usize {
        self.api.list::<T>(None, &ListParams::default()).await.unwrap().len()
    }

    async fn records(&self) -> usize {
        let all = self.api.list::<ConfigMap>(None, &ListParams::default()).await.unwrap();
        let ours = |map: &&ConfigMap| map.metadata.name.starts_with("longshore-create-volume-");
        all.iter().filter(ours).count()
    }

    async fn state(&self) -> String {
        let log = std::fs::read_to_string(self.dir.path().join("provisioner.log"));
        let log = log.unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!(
            "left: {} volumes in the driver, {} claims, {} volumes and {} records in the API\n{:#?}\n{}",
            self.served.driver.volumes().len(),
            self.count::<Claim>().await,
            self.count::<Volume>().await,
            self.records().await,
            self.served.driver.calls(),
            lines[lines.len().saturating_sub(60)..].join("\n")
        )
    }

    /// Ends the world.
    pub async fn end(mut self) {
        self.served.driver.clear_hook();
        self.served.stop().await;
        self.server.shutdown().await;
    }
}

async fn serve(listener: tokio::net::TcpListener, wire: Arc<Wire>, service: Service) {
    while let Ok((stream, _)) = listener.accept().await {
        let (wire, service) = (wire.clone(), service.clone());
        tokio::spawn(async move {
            let answer =
                service_fn(move |request| exchange(wire.clone(), service.clone(), request));
            let connection = hyper::server::conn::http1::Builder::new();
            // A connection ends with its client, or with the answer that is lost on purpose.
            let _ = connection.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

fn program(dir: &tempfile::TempDir, name: &str, args: &[&str]) -> Ours {
    let log = dir.path().join(format!("{name}.log"));
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
    command.args(args).env_remove("KUBECONFIG").stdin(Stdio::null()).stdout(Stdio::null());
    Ours(command.stderr(log).spawn().unwrap())
}

/// With the planted defect the wait after the fault is for nothing.
fn patience(round: &Round, hit: bool) -> Duration {
    if round.unguarded && hit { Duration::from_secs(5) } else { PATIENCE }
}
