//! The two wires of the controllers, with a number and perhaps a fault on every call.

use std::future::pending;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use longshore_apiserver::http::Service;
use longshore_csi::Call;
use longshore_csi::fake::{Action, CallEvent, Driver, Phase};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::checks::Checks;
use crate::latency::Latency;
use crate::ledger::{CallOutcome, Ledger};
use crate::process::Environment;

/// Callers wait ten seconds for the driver.
const IN_TIME: Duration = Duration::from_millis(9_900);

type Body = UnsyncBoxBody<Bytes, io::Error>;
type Error = Box<dyn std::error::Error + Send + Sync>;

/// A client of the API for one process.
pub(crate) fn api_client(
    environment: &Environment,
    process: u64,
    killed: &CancellationToken,
) -> kube::Client {
    let wire = Wire {
        ledger: environment.ledger.clone(),
        latency: environment.latency.clone(),
        service: environment.service.clone(),
        checks: environment.checks.clone(),
        process,
    };
    let killed = killed.clone();
    let layer = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (wire, killed) = (wire.clone(), killed.clone());
        let response: BoxFuture<'static, Result<Response<Body>, Error>> = Box::pin(async move {
            tokio::select! {
                biased;
                () = killed.cancelled() => pending().await,
                response = wire.exchange(request) => response,
            }
        });
        response
    });
    kube::Client::new(layer, "default")
}

/// The connection of one process to the API.
#[derive(Clone)]
struct Wire {
    ledger: Ledger,
    latency: Latency,
    service: Service,
    checks: Option<Checks>,
    process: u64,
}

impl Wire {
    async fn exchange(
        &self,
        request: Request<kube::client::Body>,
    ) -> Result<Response<Body>, Error> {
        let (point, object) = describe(&request);
        let watched = point.strip_prefix("api watch ").map(str::to_owned);
        let checks = self.checks.as_ref().filter(|_| request.method() != Method::GET);
        let asked = checks.map(|checks| (checks, point.clone(), object.clone()));
        let ticket = match self.ledger.begin(self.process, point, object) {
            (CallOutcome::Go, Some(ticket)) => ticket,
            (CallOutcome::Refused, _) => return Ok(server_error()),
            (CallOutcome::Conflict, _) => return self.overtaken(request).await,
            (CallOutcome::Lost, _) => {
                return Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
            }
            _ => pending().await,
        };
        if let Some((checks, point, object)) = &asked {
            checks.before_write(point, object);
        }
        let response = self.service.handle(request).await;
        if let Some((checks, point, _)) = asked.filter(|_| response.status().is_success()) {
            checks.after_write(&point);
        }
        match (self.ledger.end(&ticket), watched) {
            (CallOutcome::Go, None) => Ok(response),
            (CallOutcome::Go, Some(plural)) => Ok(self.latency.delay(&plural, response)),
            (CallOutcome::Lost | CallOutcome::Refused | CallOutcome::Conflict, _) => {
                Err(io::Error::from(io::ErrorKind::ConnectionReset).into())
            }
            (CallOutcome::Dead, _) => pending().await,
        }
    }

    /// Sends a create twice and returns the second response; any other change gets a conflict.
    async fn overtaken(
        &self,
        request: Request<kube::client::Body>,
    ) -> Result<Response<Body>, Error> {
        match *request.method() {
            Method::GET => Ok(server_error()),
            Method::POST => {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let again = || Request::from_parts(head.clone(), Full::new(body.clone()));
                drop(self.service.handle(again()).await);
                Ok(self.service.handle(again()).await)
            }
            _ => {
                let text = "the object has been modified; please apply your changes to the latest version and try again";
                Ok(status(http::StatusCode::CONFLICT, "Conflict", text))
            }
        }
    }
}

fn server_error() -> Response<Body> {
    let code = http::StatusCode::INTERNAL_SERVER_ERROR;
    status(code, "InternalError", "the simulated server fails")
}

fn status(code: http::StatusCode, reason: &str, message: &str) -> Response<Body> {
    let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code.as_u16(), "reason": reason, "message": message});
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = code;
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}

/// What a request is, for example `api patch persistentvolumeclaims/status`, and about what.
fn describe<B>(request: &Request<B>) -> (String, String) {
    let path = request.uri().path();
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    parts.drain(..if path.starts_with("/apis/") { 3 } else { 2 }.min(parts.len()));
    let mut namespace = "";
    if parts.first() == Some(&"namespaces") && parts.len() > 2 {
        namespace = parts[1];
        parts.drain(..2);
    }
    let (plural, name) = (part(&parts, 0), part(&parts, 1));
    let watch = request.uri().query().is_some_and(|q| q.split('&').any(|p| p == "watch=true"));
    let verb = match *request.method() {
        Method::GET if watch => "watch",
        Method::GET if name.is_empty() => "list",
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        _ => "delete",
    };
    let sub = match part(&parts, 2) {
        "" => String::new(),
        sub => format!("/{sub}"),
    };
    // Names of events hold the time of day, which a run does not repeat.
    let name = if plural == "events" { "" } else { name };
    let object = match (namespace, name) {
        ("", name) => name.to_owned(),
        (namespace, "") => namespace.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    };
    (format!("api {verb} {plural}{sub}"), object)
}

fn part<'a>(parts: &[&'a str], index: usize) -> &'a str {
    parts.get(index).copied().unwrap_or_default()
}

/// The name under which a process calls the driver.
pub(crate) fn caller(process: u64) -> String {
    format!("controllers-{process}")
}

fn process_of(caller: &str) -> Option<u64> {
    caller.strip_prefix("controllers-")?.parse().ok()
}

/// Puts the ledger and the checks around every call of the driver.
pub(crate) fn hook_driver(driver: &Driver, ledger: &Ledger, checks: Checks) {
    let (ledger, severing) = (ledger.clone(), driver.clone());
    driver.hook(move |moment| {
        if !checks.power.is_on(moment.node) {
            return Action::Fail(Status::unavailable("the node is off"));
        }
        match moment.phase {
            Phase::Before => checks.before(moment),
            Phase::After => checks.after(moment),
        }
        let Some(process) = process_of(moment.node) else { return Action::Continue };
        match moment.phase {
            Phase::Before => before(&ledger, &checks, process, moment),
            Phase::After => after(&ledger, &checks, process, moment, &severing),
        }
    });
}

fn before(ledger: &Ledger, checks: &Checks, process: u64, moment: &CallEvent<'_>) -> Action {
    let (fate, ticket) = ledger.begin(process, format!("csi {}", moment.call), about(moment));
    if let Some(ticket) = ticket {
        ledger.keep_csi(moment.call, moment.request, ticket);
    }
    match fate {
        CallOutcome::Go => checks.latency.before(moment.call),
        CallOutcome::Refused => {
            heard(checks, moment);
            Action::Fail(Status::internal("the simulated driver fails"))
        }
        CallOutcome::Conflict => {
            Action::Fail(Status::aborted("the same volume is being worked on"))
        }
        // A dead process gets no response, so any will do; a call that never arrived has no
        // verdict.
        CallOutcome::Lost | CallOutcome::Dead => {
            Action::Fail(Status::unavailable("connection refused"))
        }
    }
}

fn after(
    ledger: &Ledger,
    checks: &Checks,
    process: u64,
    moment: &CallEvent<'_>,
    driver: &Driver,
) -> Action {
    let Some(ticket) = ledger.take_csi(process, moment.call, moment.request) else {
        return Action::Fail(Status::unavailable("connection lost"));
    };
    match ledger.end(&ticket) {
        CallOutcome::Go => {
            let action = checks.latency.after(moment.call);
            let wait = match &action {
                Action::Delay(wait) => *wait,
                _ => Duration::ZERO,
            };
            // A caller whose time is over does not hear it.
            if ledger.age(&ticket) + wait < IN_TIME {
                heard(checks, moment);
            }
            action
        }
        // A response is lost either with the connection or in a proxy on the way.
        CallOutcome::Lost if ticket.number.is_multiple_of(2) => {
            driver.sever();
            Action::Hang
        }
        _ => Action::Fail(Status::unavailable("connection lost")),
    }
}

/// The caller gets a verdict.
fn heard(checks: &Checks, moment: &CallEvent<'_>) {
    if let (Call::ControllerModifyVolume, Some(memory)) = (moment.call, &checks.changes) {
        memory.answered(&field(moment.request, "volume_id"));
    }
}

/// Which volume a call is about.
fn about(moment: &CallEvent<'_>) -> String {
    match moment.call {
        Call::CreateVolume | Call::CreateSnapshot | Call::CreateVolumeGroupSnapshot => {
            field(moment.request, "name")
        }
        Call::DeleteSnapshot | Call::GetSnapshot => field(moment.request, "snapshot_id"),
        Call::DeleteVolumeGroupSnapshot => field(moment.request, "group_snapshot_id"),
        _ => field(moment.request, "volume_id"),
    }
}

/// The text of one field in a request that is shown as one line of JSON.
pub(crate) fn field(request: &str, name: &str) -> String {
    let key = format!("\"{name}\":\"");
    let Some(start) = request.find(&key).map(|at| at + key.len()) else { return String::new() };
    request[start..].split('"').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_named_by_verb_and_resource() {
        let rows = [
            ("GET", "/api/v1/persistentvolumes", "api list persistentvolumes", ""),
            ("GET", "/api/v1/pods?watch=true&x=y", "api watch pods", ""),
            ("GET", "/api/v1/nodes/n", "api get nodes", "n"),
            ("GET", "/api/v1/namespaces/default", "api get namespaces", "default"),
            ("POST", "/api/v1/namespaces/d/pods/p/binding", "api create pods/binding", "d/p"),
            ("POST", "/api/v1/namespaces/d/events", "api create events", "d"),
            ("PATCH", "/api/v1/namespaces/d/events/e.17", "api patch events", "d"),
            (
                "PATCH",
                "/apis/storage.k8s.io/v1/volumeattachments/a/status",
                "api patch volumeattachments/status",
                "a",
            ),
            ("DELETE", "/api/v1/namespaces/d/configmaps/c", "api delete configmaps", "d/c"),
        ];
        for (method, uri, point, object) in rows {
            let request = Request::builder().method(method).uri(uri).body(()).expect("a request");
            assert_eq!(describe(&request), (point.to_owned(), object.to_owned()), "{uri}");
        }
    }

    #[test]
    fn fields_are_found_in_a_request() {
        let request = r#"{"name":"pvc-1","parameters":{"x/name":"other"},"volume_id":"v"}"#;
        assert_eq!(field(request, "name"), "pvc-1");
        assert_eq!(field(request, "volume_id"), "v");
        assert_eq!(field(request, "node_id"), "");
    }
}
