//! Limits on requests, inside the client.
//!
//! By default the number of requests *in flight* is limited and adapts to the server; with a set
//! rate it is a token bucket as in the Go clients. Either way a server that asks to wait (429, or
//! a server error with `Retry-After`) is obeyed by all requests of this client about that resource, and
//! the refused request is sent again afterwards: its caller only sees that it took longer. Requests
//! about other resources go on, within the limit that all share.

mod adaptive;
mod gates;

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode, header};
use kube::client::Body;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::api::{RESPONSE_TIMEOUT, retry_after};
use crate::bucket::TokenBucket;
use crate::telemetry::Metrics;
use adaptive::Adaptive;
use gates::{Gates, Resource};

/// How often one refused request is sent again before its caller gets the refusal.
const RETRIES: u32 = 10;
/// The wait when the server names none, and the longest that is obeyed in one piece.
const WAIT_DEFAULT: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(30);

/// How a client limits itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    /// Between 4 and 32 requests in flight, by latency and refusals.
    Adaptive,
    /// At most `qps` requests a second on average, `burst` at once.
    Fixed { qps: f64, burst: u32 },
    /// No limit of our own; a server that asks to wait is still obeyed.
    None,
}

/// Puts a limit around a client.
#[must_use]
pub fn limited(client: kube::Client, limit: Limit, metrics: Option<&Metrics>) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let limiter = Arc::new(Limiter::new(limit, metrics));
    let service =
        tower::service_fn(move |request| exchange(limiter.clone(), client.clone(), request));
    kube::Client::new(service, namespace)
}

async fn exchange(
    limiter: Arc<Limiter>,
    client: kube::Client,
    mut request: Request<Body>,
) -> Result<Response<Body>, kube::Error> {
    // A watch responds for minutes; it neither takes a permit nor says anything about latency.
    let watch = request.uri().query().is_some_and(|q| q.split('&').any(|p| p == "watch=true"));
    let method = request.method().to_string();
    let resource = Resource::of(request.uri().path());
    let mut retries = 0;
    loop {
        let spare = copy(&request);
        let permit = limiter.acquire(watch, &resource).await;
        let sent = Instant::now();
        let response = match tokio::time::timeout(RESPONSE_TIMEOUT, client.send(request)).await {
            Ok(response) => response,
            Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
        };
        limiter.count(&method, response.as_ref().ok().map(Response::status));
        let response = response?;
        match wait_asked(&response) {
            Some(wait) => limiter.refused(&resource, sent, wait),
            None if response.status() == StatusCode::SERVICE_UNAVAILABLE => {
                limiter.overloaded(sent)
            }
            None if !watch => limiter.completed(sent),
            None => {}
        }
        drop(permit);
        match spare {
            Some(again) if wait_asked(&response).is_some() && retries < RETRIES => request = again,
            _ => return Ok(response),
        }
        retries += 1;
    }
}

/// The same request once more; `None` if its body can be read only once.
fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let body = request.body().try_clone()?;
    let mut copy = Request::new(body);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// How long the server asks to wait before the same request is sent again, if it does.
fn wait_asked(response: &Response<Body>) -> Option<Duration> {
    let status = response.status();
    let named = response.headers().contains_key(header::RETRY_AFTER);
    if status == StatusCode::TOO_MANY_REQUESTS || (status.is_server_error() && named) {
        return Some(retry_after(response.headers()).unwrap_or(WAIT_DEFAULT).min(WAIT_MAX));
    }
    None
}

/// Limits all requests of one client.
struct Limiter {
    permits: Option<Permits>,
    bucket: Option<Mutex<TokenBucket>>,
    gates: Gates,
    metrics: Option<Metrics>,
}

/// The adaptive limit as permits: `adaptive.limit()` = free + taken - `excess`.
struct Permits {
    free: Semaphore,
    state: Mutex<PermitsState>,
    gauge: Option<Gauge>,
}

struct PermitsState {
    adaptive: Adaptive,
    permits: usize,
    taken: usize,
}

impl Limiter {
    fn new(limit: Limit, metrics: Option<&Metrics>) -> Self {
        let permits = (limit == Limit::Adaptive).then(|| Permits::new(metrics));
        let bucket = match limit {
            Limit::Fixed { qps, burst } => Some(Mutex::new(TokenBucket::new(qps, burst))),
            Limit::Adaptive | Limit::None => None,
        };
        Self { permits, bucket, gates: Gates::default(), metrics: metrics.cloned() }
    }

    /// Waits until a request may be sent. Dropping the future gives the permit back.
    async fn acquire(&self, watch: bool, resource: &Resource) -> Option<Permit<'_>> {
        // Who waits at a closed gate has no permit: those who go elsewhere need it.
        self.gates.opened(resource).await;
        let wait = self.bucket.as_ref().map(|bucket| bucket.lock().reserve());
        if let Some(wait) = wait.filter(|w| !w.is_zero()) {
            tokio::time::sleep(wait).await;
        }
        loop {
            self.gates.opened(resource).await;
            let permit = match &self.permits {
                Some(permits) if !watch => Some(permits.take().await),
                _ => None,
            };
            // It may have closed while this request waited for the permit.
            if !self.gates.is_closed(resource) {
                return permit;
            }
        }
    }

    fn completed(&self, sent: Instant) {
        if let Some(permits) = &self.permits {
            permits.update(|state| state.adaptive.completed(sent.elapsed(), state.taken));
        }
    }

    fn overloaded(&self, sent: Instant) {
        if let Some(permits) = &self.permits {
            permits.update(|state| state.adaptive.refused(sent));
        }
    }

    fn refused(&self, resource: &Resource, sent: Instant, wait: Duration) {
        self.overloaded(sent);
        // Spread a little, so that many clients do not come back in step.
        let until = Instant::now() + wait.mul_f64(1.0 + 0.2 * fastrand::f64());
        self.gates.close(resource, until);
    }

    fn count(&self, method: &str, status: Option<StatusCode>) {
        if let Some(metrics) = &self.metrics {
            metrics.request(method, status.map(|s| s.as_u16()));
        }
    }
}

impl Permits {
    fn new(metrics: Option<&Metrics>) -> Self {
        let adaptive = Adaptive::new();
        let permits = adaptive.limit();
        let permits = Self {
            free: Semaphore::new(permits),
            state: Mutex::new(PermitsState { adaptive, permits, taken: 0 }),
            gauge: metrics.map(Metrics::in_flight_limit),
        };
        permits.update(|_| ());
        permits
    }

    async fn take(&self) -> Permit<'_> {
        let permit = self.free.acquire().await.expect("the semaphore is never closed");
        self.state.lock().taken += 1;
        Permit { permits: self, permit: Some(permit) }
    }

    /// Changes the state and makes the number of permits follow the limit.
    fn update(&self, act: impl FnOnce(&mut PermitsState)) {
        let mut state = self.state.lock();
        act(&mut state);
        let limit = state.adaptive.limit();
        if limit > state.permits {
            self.free.add_permits(limit - state.permits);
            state.permits = limit;
        } else {
            // Permits that are taken now are withdrawn when they come back.
            state.permits -= self.free.forget_permits(state.permits - limit);
        }
        if let Some(gauge) = &self.gauge {
            gauge.set(i64::try_from(limit).unwrap_or(i64::MAX));
        }
    }
}

/// Permits one request to be in flight.
struct Permit<'a> {
    permits: &'a Permits,
    permit: Option<SemaphorePermit<'a>>,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.permits.state.lock();
        state.taken -= 1;
        if state.permits > state.adaptive.limit()
            && let Some(permit) = self.permit.take()
        {
            permit.forget();
            state.permits -= 1;
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
