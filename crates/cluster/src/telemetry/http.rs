//! The HTTP endpoint: metrics and health.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use ::http::{StatusCode, header};
use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Metrics, pprof};
use crate::listen;

/// What is wrong, in the words of the response; `None` when nothing is.
type Check = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// What the endpoint serves: metrics, `/healthz` (all checks) and `/healthz/<check>` (one).
#[derive(Clone)]
pub struct Endpoint {
    metrics: Metrics,
    metrics_path: String,
    checks: Vec<(String, Check)>,
    pprof: bool,
    routes: Router,
}

/// Why the endpoint does not run.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; choose a free address with --http-endpoint")]
pub struct EndpointError {
    address: String,
    source: std::io::Error,
}

impl Endpoint {
    /// Metrics under `/metrics`, health without checks.
    #[must_use]
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            metrics: metrics.clone(),
            metrics_path: "/metrics".to_owned(),
            checks: Vec::new(),
            pprof: false,
            routes: Router::new(),
        }
    }

    /// Serves metrics under another path.
    #[must_use]
    pub fn metrics_path(mut self, path: &str) -> Self {
        self.metrics_path = format!("/{}", path.trim_start_matches('/'));
        self
    }

    /// Serves `/debug/pprof/` too, as far as that can be.
    #[must_use]
    pub fn pprof(mut self, served: bool) -> Self {
        self.pprof = served;
        self
    }

    /// Adds a check.
    #[must_use]
    pub fn check<F, E>(mut self, name: &str, check: F) -> Self
    where
        F: Fn() -> Result<(), E> + Send + Sync + 'static,
        E: Display,
    {
        let check = move || check().err().map(|error| error.to_string());
        self.checks.push((name.to_owned(), Arc::new(check)));
        self
    }

    /// Serves further paths of the program.
    #[must_use]
    pub fn routes(mut self, routes: Router) -> Self {
        self.routes = self.routes.merge(routes);
        self
    }

    /// The routes, for programs that listen themselves.
    pub fn router(self) -> Router {
        let (routes, endpoint) = (self.routes.clone(), Arc::new(self));
        routes.fallback(move |request: Request| {
            let endpoint = endpoint.clone();
            async move { endpoint.answer(request.uri().path()) }
        })
    }

    /// Serves on `address` (Go's form `:8080` means all interfaces) until `shutdown`. Returns the
    /// address in use.
    ///
    /// # Errors
    /// Fails if the address cannot be listened on.
    pub async fn serve(
        self,
        address: &str,
        shutdown: &CancellationToken,
    ) -> Result<(SocketAddr, JoinHandle<()>), EndpointError> {
        let served = self.start(address, shutdown).await?;
        tracing::info!(address = %served.0, "serving metrics and health");
        Ok(served)
    }

    /// Serves as [`Self::serve`] does and leaves it to the program to say so.
    ///
    /// # Errors
    /// Fails if the address cannot be listened on.
    pub async fn start(
        self,
        address: &str,
        shutdown: &CancellationToken,
    ) -> Result<(SocketAddr, JoinHandle<()>), EndpointError> {
        let failed = |source| EndpointError { address: address.to_owned(), source };
        let listener = listen::listen(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let (router, stop) = (self.router(), shutdown.clone());
        let task = tokio::spawn(async move {
            let serve = axum::serve(listener, router);
            let serve = serve.with_graceful_shutdown(async move { stop.cancelled().await });
            if let Err(error) = serve.await {
                tracing::error!(%error, "the HTTP endpoint stopped");
            }
        });
        Ok((bound, task))
    }

    fn answer(&self, path: &str) -> Response {
        if path == self.metrics_path {
            let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
            return (kind, self.metrics.render()).into_response();
        }
        if let Some(rest) = path.strip_prefix("/debug/pprof").filter(|_| self.pprof) {
            return pprof::answer(rest);
        }
        match path.strip_prefix("/healthz") {
            Some("" | "/") => self.health(None),
            Some(check) => self.health(Some(check.trim_start_matches('/'))),
            None => (StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
        }
    }

    fn health(&self, only: Option<&str>) -> Response {
        let asked = self.checks.iter().filter(|(name, _)| only.is_none_or(|one| one == name));
        let mut found = only.is_none();
        for (name, check) in asked {
            found = true;
            if let Some(reason) = check() {
                tracing::warn!(check = %name, reason, "unhealthy");
                let text = format!("internal server error: {reason}\n");
                return (StatusCode::INTERNAL_SERVER_ERROR, text).into_response();
            }
        }
        if found {
            return (StatusCode::OK, "ok").into_response();
        }
        (StatusCode::NOT_FOUND, "404 page not found\n").into_response()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    async fn ask(endpoint: &Endpoint, path: &str) -> (u16, String) {
        let response = endpoint.answer(path);
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn health_is_all_checks_or_one() {
        let endpoint = Endpoint::new(&Metrics::new())
            .check("leader-election", || Err("stuck"))
            .check("driver", || Ok::<(), &str>(()));
        assert_eq!(ask(&endpoint, "/healthz/driver").await, (200, "ok".into()));
        let stuck = (500, "internal server error: stuck\n".to_owned());
        assert_eq!(ask(&endpoint, "/healthz/leader-election").await, stuck);
        assert_eq!(ask(&endpoint, "/healthz").await, stuck);
        assert_eq!(ask(&endpoint, "/healthz/other").await.0, 404);
        assert_eq!(ask(&endpoint, "/other").await.0, 404);
    }

    #[tokio::test]
    async fn profiles_say_that_there_are_none() {
        let endpoint = Endpoint::new(&Metrics::new());
        assert_eq!(ask(&endpoint, "/debug/pprof/").await.0, 404);
        let endpoint = endpoint.pprof(true);
        assert_eq!(ask(&endpoint, "/debug/pprof/").await.0, 200);
        let (status, line) = ask(&endpoint, "/debug/pprof/cmdline").await;
        assert_eq!((status, line.is_empty()), (200, false));
        for profile in ["profile", "symbol", "trace", "heap"] {
            let (status, text) = ask(&endpoint, &format!("/debug/pprof/{profile}")).await;
            assert_eq!(status, 501, "{profile}");
            assert!(text.contains("no Go runtime"), "{text}");
        }
    }

    #[tokio::test]
    async fn metrics_are_served_over_http_in_the_text_format() {
        let metrics = Metrics::new();
        let stop = CancellationToken::new();
        let endpoint = Endpoint::new(&metrics).metrics_path("numbers");
        let (address, task) = endpoint.serve("127.0.0.1:0", &stop).await.expect("serves");
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("connects");
        let request = "GET /numbers HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("read");
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(answer.contains("text/plain; version=0.0.4"), "{answer}");
        assert!(answer.contains("\nprocess_start_time_seconds "), "{answer}");
        stop.cancel();
        task.await.expect("ends");
    }

    #[tokio::test]
    async fn a_taken_address_is_named() {
        let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = taken.local_addr().expect("address").to_string();
        let endpoint = Endpoint::new(&Metrics::new());
        let error = endpoint.serve(&address, &CancellationToken::new()).await.expect_err("taken");
        assert!(error.to_string().contains(&address), "{error}");
    }
}
