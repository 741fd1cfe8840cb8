//! Where metrics and health are served.

use super::{UsageError, values};

/// The diagnostics endpoint of the sidecars.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Diagnostics")]
pub(crate) struct DiagnosticsFlags {
    /// Serve metrics and health checks on HOST:PORT or :PORT.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ADDR")]
    pub http_endpoint: String,
    /// Old form of --http-endpoint, without health checks.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "ADDR")]
    pub metrics_address: String,
    /// Path of the metrics.
    #[arg(long, default_value = "/metrics", value_name = "PATH")]
    pub metrics_path: String,
}

/// Where to serve metrics and health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Diagnostics {
    /// `HOST:PORT` to listen on.
    pub address: String,
    /// Path of the metrics.
    pub metrics_path: String,
    /// Whether `/healthz/leader-election` is served: with `--http-endpoint`, not with `--metrics-address`.
    pub leader_health: bool,
    /// Whether `/debug/pprof/` is served.
    pub pprof: bool,
}

impl Diagnostics {
    /// The same for a program that elects a leader, or does not: the health of its lease is served
    /// only where there is one.
    #[must_use]
    pub(crate) fn with_election(self, elects: bool) -> Self {
        Self { leader_health: self.leader_health && elects, ..self }
    }

    /// The same with `/debug/pprof/`, or without.
    #[must_use]
    pub(crate) fn with_pprof(self, pprof: bool) -> Self {
        Self { pprof, ..self }
    }
}

impl DiagnosticsFlags {
    /// The endpoint, or none when no address is given.
    ///
    /// # Errors
    /// When both addresses are given or one cannot be read.
    pub(crate) fn endpoint(self) -> Result<Option<Diagnostics>, UsageError> {
        let Self { http_endpoint, metrics_address, metrics_path } = self;
        let (flag, text) = match (http_endpoint.is_empty(), metrics_address.is_empty()) {
            (true, true) => return Ok(None),
            (false, true) => ("--http-endpoint", http_endpoint),
            (true, false) => ("--metrics-address", metrics_address),
            (false, false) => {
                return Err(UsageError::AsOfficial(
                    "--http-endpoint and --metrics-address cannot be used together; keep --http-endpoint".into(),
                ));
            }
        };
        if !metrics_path.starts_with('/') {
            return Err(UsageError::bad_value(
                "--metrics-path",
                metrics_path,
                "a path begins with /",
            ));
        }
        let address =
            values::listen_address(&text).map_err(|why| UsageError::bad_value(flag, &text, why))?;
        let leader_health = flag == "--http-endpoint";
        Ok(Some(Diagnostics { address, metrics_path, leader_health, pprof: false }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diagnostics_addresses() {
        let flags = |http: &str, metrics: &str| DiagnosticsFlags {
            http_endpoint: http.into(),
            metrics_address: metrics.into(),
            metrics_path: "/metrics".into(),
        };
        assert_eq!(flags("", "").endpoint(), Ok(None));
        let http = flags(":8080", "").endpoint().unwrap().unwrap();
        assert_eq!((http.address.as_str(), http.leader_health), ("0.0.0.0:8080", true));
        let metrics = flags("", "127.0.0.1:1").endpoint().unwrap().unwrap();
        assert!(!metrics.leader_health);
        // case: csi-protocol/14.21
        assert_eq!(flags(":1", ":2").endpoint().unwrap_err().exit_code(), 1);
        assert_eq!(flags("nowhere", "").endpoint().unwrap_err().exit_code(), 2);
    }
}
