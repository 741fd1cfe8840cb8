//! Kubeconfig files with everything in them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::pki::Pair;

/// A kubeconfig for one user of one server.
pub(super) fn text(server: &str, ca: &str, user: &str, pair: &Pair) -> String {
    let config = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "real",
            "cluster": { "server": server, "certificate-authority-data": STANDARD.encode(ca) },
        }],
        "users": [{
            "name": user,
            "user": {
                "client-certificate-data": STANDARD.encode(&pair.certificate),
                "client-key-data": STANDARD.encode(&pair.key),
            },
        }],
        "contexts": [{ "name": "real", "context": { "cluster": "real", "user": user } }],
        "current-context": "real",
    });
    // JSON is YAML, and every reader of kubeconfigs reads YAML.
    format!("{config:#}\n")
}
