//! The one port of the process: metrics, leases, controllers, and what the probes of a node say.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use http::StatusCode;
use longshore_node::liveness::Liveness;
use longshore_node::registrar::Health;

use super::board::Board;

/// What is asked for `/healthz`.
#[derive(Default)]
pub(super) struct Probes {
    pub(super) liveness: Option<Liveness>,
    pub(super) registrar: Option<Health>,
}

/// The pages about health.
#[derive(Clone)]
pub(super) struct Pages {
    pub(super) board: Board,
    /// Absent without a probe among the controllers; not set before the driver has answered.
    pub(super) probes: Option<Arc<OnceLock<Probes>>>,
}

impl Pages {
    pub(super) fn routes(self) -> Router {
        Router::new()
            .route("/healthz", any(probes))
            .route("/healthz/controllers", any(controllers))
            .route("/healthz/leader-election", any(|pages| leases(pages, None)))
            .route(
                "/healthz/leader-election/{controller}",
                any(|pages, Path(controller): Path<String>| leases(pages, Some(controller))),
            )
            .with_state(self)
    }
}

fn sick(reason: &str) -> Response {
    tracing::warn!(reason, "unhealthy");
    let text = format!("internal server error: {reason}\n");
    (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
}

fn absent() -> Response {
    (StatusCode::NOT_FOUND, "404 page not found\n").into_response()
}

async fn controllers(State(pages): State<Pages>) -> Response {
    let (text, well) = pages.board.controllers();
    let status = if well { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
    (status, text).into_response()
}

async fn leases(State(pages): State<Pages>, only: Option<String>) -> Response {
    match pages.board.leases(only.as_deref()) {
        None => absent(),
        Some(Ok(())) => (StatusCode::OK, "ok").into_response(),
        Some(Err(error)) => sick(&error.to_string()),
    }
}

/// As livenessprobe and csi-node-driver-registrar answer; with both, both must be well.
async fn probes(State(pages): State<Pages>) -> Response {
    let Some(probes) = pages.probes else { return absent() };
    let Some(probes) = probes.get() else {
        return sick("the driver has not answered yet");
    };
    if let Some(liveness) = &probes.liveness
        && let Err(error) = liveness.probe().await
    {
        let (driver, reason) = (liveness.driver(), error.to_string());
        tracing::error!(driver, reason, "health check failed");
        return (StatusCode::INTERNAL_SERVER_ERROR, reason).into_response();
    }
    if let Some(registrar) = &probes.registrar
        && let Err(sick) = registrar.check().await
    {
        tracing::error!(socket = %registrar.socket.display(), reason = sick.1, "health check failed");
        return sick.into_response();
    }
    (StatusCode::OK, "ok").into_response()
}
