//! The little that the load generator needs of a kubeconfig.

use std::path::Path;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use serde_json::Value;

/// Server, CA, client certificate and key, as PEM.
pub struct Kubeconfig {
    server: String,
    pub ca: Vec<u8>,
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

impl Kubeconfig {
    /// Another server than that of a kubeconfig.
    pub fn of(server: String, ca: Vec<u8>, certificate: Vec<u8>, key: Vec<u8>) -> Self {
        Self { server, ca, certificate, key }
    }

    /// Reads a kubeconfig with one cluster and one user: in JSON, as our clusters write it, or in YAML
    /// with one value in a line, as `longshore` does.
    pub fn read(file: &Path) -> Result<Self> {
        let at = || format!("kubeconfig {}", file.display());
        let text = std::fs::read_to_string(file).with_context(at)?;
        let (cluster, user) = if text.starts_with('{') {
            let all: Value = serde_json::from_str(&text).with_context(at)?;
            (all["clusters"][0]["cluster"].clone(), all["users"][0]["user"].clone())
        } else {
            let all = lines(&text);
            (all.clone(), all)
        };
        let (cluster, user) = (&cluster, &user);
        let server = cluster["server"].as_str().with_context(at)?.to_owned();
        Ok(Self {
            server,
            ca: pem(cluster, "certificate-authority").with_context(at)?,
            certificate: pem(user, "client-certificate").with_context(at)?,
            key: pem(user, "client-key").with_context(at)?,
        })
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> Result<String> {
        let rest = self.server.strip_prefix("https://").context("the server is not https")?;
        Ok(rest.trim_end_matches('/').to_owned())
    }
}

fn lines(text: &str) -> Value {
    let pairs = text.lines().filter_map(|line| line.trim().split_once(": "));
    pairs.map(|(name, value)| (name.to_owned(), Value::String(value.to_owned()))).collect()
}

/// A PEM that is in the file itself, or in the file that it names.
fn pem(holder: &Value, name: &str) -> Result<Vec<u8>> {
    if let Some(data) = holder[format!("{name}-data")].as_str() {
        return Ok(base64::engine::general_purpose::STANDARD.decode(data)?);
    }
    let file = holder[name].as_str().with_context(|| format!("there is no {name}"))?;
    std::fs::read(file).with_context(|| file.to_owned())
}
