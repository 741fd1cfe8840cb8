//! `/debug/pprof/`: what of Go's profiler there can be in a program without a Go runtime.

use ::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

const INDEX: &str = "/debug/pprof/\n\
    cmdline: the command line of this program\n\
    Profiles of the Go runtime do not exist here; use a profiler of the system, such as perf.\n";

const ABSENT: &str = "there is no Go runtime in this program, so it has no such profile; \
    use a profiler of the system, such as perf\n";

/// The answer for what follows `/debug/pprof` in a path.
pub(super) fn answer(path: &str) -> Response {
    let text = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    match path {
        "" | "/" => (text, INDEX).into_response(),
        "/cmdline" => {
            let line: Vec<String> =
                std::env::args_os().map(|one| one.to_string_lossy().into_owned()).collect();
            (text, line.join("\0")).into_response()
        }
        _ => (StatusCode::NOT_IMPLEMENTED, text, ABSENT).into_response(),
    }
}
