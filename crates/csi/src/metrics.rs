//! How long calls take, by driver, method and outcome.

use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tonic::Code;

use crate::code_name;

/// The driver label until the driver's name is known.
pub const UNKNOWN_DRIVER: &str = "unknown-driver";
/// The code label of an error that is no gRPC status.
pub const NOT_GRPC: &str = "unknown-non-grpc";

const BUCKETS: [f64; 13] =
    [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

type Labels = Vec<(&'static str, String)>;

/// Which side of the socket measures; it decides the metric's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The caller: `csi_sidecar_operations_seconds`.
    Sidecar,
    /// The driver: `csi_plugin_operations_seconds`.
    Plugin,
    /// A node's caller, as the kubelet: `csi_operations_seconds`.
    Node,
}

/// The histogram of call durations. Clones share it.
#[derive(Clone, Debug)]
pub struct Metrics {
    seconds: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Metrics {
    pub fn register(registry: &mut Registry, side: Side) -> Self {
        let seconds: Family<_, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(BUCKETS));
        let name = match side {
            Side::Sidecar => "csi_sidecar_operations_seconds",
            Side::Plugin => "csi_plugin_operations_seconds",
            Side::Node => "csi_operations_seconds",
        };
        let help = "[ALPHA] Duration of Container Storage Interface calls by gRPC status code";
        registry.register(name, help, seconds.clone());
        Self { seconds }
    }

    /// Counts one call. `code` is absent when the failure was no gRPC status; `migrated` is present only for
    /// drivers that replace an in-tree plugin.
    pub fn record(
        &self,
        driver: Option<&str>,
        method: &str,
        code: Option<Code>,
        migrated: Option<bool>,
        took: Duration,
    ) {
        let mut labels = vec![
            ("driver_name", driver.unwrap_or(UNKNOWN_DRIVER).to_owned()),
            ("method_name", method.to_owned()),
            ("grpc_status_code", code.map_or(NOT_GRPC, code_name).to_owned()),
        ];
        if let Some(migrated) = migrated {
            labels.push(("migrated", migrated.to_string()));
        }
        self.seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrape(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).expect("encodes");
        text
    }

    /// case: csi-protocol/14.10, case: csi-protocol/14.11, case: csi-protocol/14.12
    #[test]
    fn labels_follow_the_outcome() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, Side::Sidecar);
        let probe = "/csi.v1.Identity/Probe";
        let second = Duration::from_secs(1);
        metrics.record(None, probe, Some(Code::Ok), None, second);
        metrics.record(Some("a.b"), probe, Some(Code::Cancelled), Some(true), second);
        metrics.record(Some("a.b"), probe, None, Some(false), second);
        let text = scrape(&registry);
        let count = "csi_sidecar_operations_seconds_count";
        let expected = [
            r#"driver_name="unknown-driver",method_name="/csi.v1.Identity/Probe",grpc_status_code="OK"} 1"#,
            r#"driver_name="a.b",method_name="/csi.v1.Identity/Probe",grpc_status_code="Canceled",migrated="true"} 1"#,
            r#"driver_name="a.b",method_name="/csi.v1.Identity/Probe",grpc_status_code="unknown-non-grpc",migrated="false"} 1"#,
        ];
        for line in expected {
            assert!(text.contains(&format!("{count}{{{line}\n")), "{line}\nin\n{text}");
        }
        assert!(text.contains("# HELP csi_sidecar_operations_seconds [ALPHA]"), "{text}");
        assert!(text.contains("# TYPE csi_sidecar_operations_seconds histogram"), "{text}");
        let bounds: Vec<&str> = ["0.1", "0.25", "0.5", "1.0", "2.5", "600.0"].into();
        for bound in bounds {
            assert!(text.contains(&format!("le=\"{bound}\"")), "{bound}");
        }
    }

    #[test]
    fn the_plugin_side_has_its_own_name() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, Side::Plugin);
        metrics.record(None, "/m", Some(Code::Ok), None, Duration::ZERO);
        assert!(scrape(&registry).contains("csi_plugin_operations_seconds_count"));
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, Side::Node);
        metrics.record(None, "/m", Some(Code::Ok), None, Duration::ZERO);
        assert!(scrape(&registry).contains("csi_operations_seconds_count"));
    }
}
