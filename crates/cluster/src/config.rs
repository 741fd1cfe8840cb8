//! Makes a client from flags and environment.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderValue, Uri, header};
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::limit::{Limit, limited};
use crate::telemetry::Metrics;
use crate::transport::{self, KeepAlive};

/// A renewal may take ten seconds in all: half of them to notice that its connection is dead.
const LEASE_KEEP_ALIVE: KeepAlive =
    KeepAlive { interval: Duration::from_secs(3), timeout: Duration::from_secs(2) };

/// How to reach the API server.
///
/// Sources in order: `kubeconfig`, the environment variable `KUBECONFIG`, `master` alone, the
/// service account of the pod this runs in. `master` replaces the server's address in all of them.
#[derive(Debug, Clone, Default)]
pub struct ClientConfig {
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server; wins over the kubeconfig's.
    pub master: Option<String>,
    /// Context within the kubeconfig; its current one with `None`.
    pub context: Option<String>,
    /// Requests a second. `None` limits requests in flight adaptively, a negative value not at all.
    pub qps: Option<f32>,
    /// Requests at once if `qps` is set.
    pub burst: Option<u32>,
    pub user_agent: Option<String>,
    /// How soon a dead connection is noticed.
    pub keep_alive: KeepAlive,
    pub metrics: Option<Metrics>,
}

/// Why there is no client. The messages say what to do next.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be opened.
    #[error("cannot read kubeconfig {file}: {}", unreadable(.cause))]
    Unreadable {
        file: String,
        /// No source of the error: the message has it in words.
        cause: io::Error,
    },
    /// The file makes no sense.
    #[error(
        "kubeconfig {file}: {source}; check the path and the file, or name another with --kubeconfig"
    )]
    Kubeconfig { file: String, source: KubeconfigError },
    /// The address cannot be parsed.
    #[error(
        "--master {master:?} is not an address ({source}); write it like https://10.0.0.1:6443"
    )]
    Master { master: String, source: http::uri::InvalidUri },
    /// There is no source at all.
    #[error(
        "no cluster is configured and this is not a pod with a service account ({source}); \
         name a kubeconfig with --kubeconfig or the KUBECONFIG environment variable"
    )]
    NotInCluster { source: InClusterError },
    /// The user agent has characters that a header cannot hold.
    #[error("the user agent {0:?} cannot be sent; use printable ASCII")]
    UserAgent(String),
    /// Certificates or credentials do not work.
    #[error("{origin}: {source}; check its certificates and credentials")]
    Client { origin: String, source: kube::Error },
}

impl ClientConfig {
    /// Reads a kubeconfig; everything else as by default.
    #[must_use]
    pub fn from_kubeconfig(file: impl Into<PathBuf>) -> Self {
        Self { kubeconfig: Some(file.into()), ..Self::default() }
    }

    /// A client for the loops, with limits.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub async fn client(&self) -> Result<kube::Client, ConfigError> {
        let client = self.plain_client(self.keep_alive).await?;
        Ok(limited(client, self.limit(), self.metrics.as_ref()))
    }

    /// A client of its own for leases: no throttling of the work can delay a renewal, and a
    /// connection that died without a word is noticed while there is time to renew on another.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub async fn lease_client(&self) -> Result<kube::Client, ConfigError> {
        let KeepAlive { interval, timeout } = self.keep_alive;
        let keep_alive = KeepAlive {
            interval: interval.min(LEASE_KEEP_ALIVE.interval),
            timeout: timeout.min(LEASE_KEEP_ALIVE.timeout),
        };
        self.plain_client(keep_alive).await
    }

    fn limit(&self) -> Limit {
        match self.qps {
            None => Limit::Adaptive,
            Some(qps) if qps < 0.0 => Limit::None,
            // The Go clients read zero as their default.
            Some(qps) => {
                let qps = if qps == 0.0 { 5.0 } else { f64::from(qps) };
                let burst = self.burst.filter(|b| *b > 0).unwrap_or(10);
                Limit::Fixed { qps, burst }
            }
        }
    }

    async fn plain_client(&self, keep_alive: KeepAlive) -> Result<kube::Client, ConfigError> {
        // Fails only if a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (mut config, origin) = self.load().await?;
        if let Some(master) = &self.master {
            config.cluster_url = parse_master(master)?;
        }
        // Refusals are handled by the limit; two layers of retries would multiply.
        config.default_retry = false;
        if let Some(agent) = &self.user_agent {
            let value =
                HeaderValue::from_str(agent).map_err(|_| ConfigError::UserAgent(agent.clone()))?;
            config.headers.push((header::USER_AGENT, value));
        }
        transport::client(&config, keep_alive)
            .map_err(|source| ConfigError::Client { origin, source })
    }

    /// The configuration and a name for where it came from.
    async fn load(&self) -> Result<(kube::Config, String), ConfigError> {
        if let Some(file) = &self.kubeconfig {
            check_readable(file)?;
            let kubeconfig = Kubeconfig::read_from(file).map_err(|e| bad_file(file, e))?;
            let config = self.choose(kubeconfig).await.map_err(|e| bad_file(file, e))?;
            return Ok((config, format!("kubeconfig {}", file.display())));
        }
        if let Some(variable) = std::env::var_os("KUBECONFIG").filter(|v| !v.is_empty()) {
            let file = PathBuf::from(variable);
            // A list of files is passed over where one does not exist, as kubectl does.
            if std::env::split_paths(&file).count() == 1 {
                check_readable(&file)?;
            }
            let kubeconfig = Kubeconfig::from_env().map_err(|e| bad_file(&file, e))?;
            let kubeconfig = kubeconfig.unwrap_or_default();
            let config = self.choose(kubeconfig).await.map_err(|e| bad_file(&file, e))?;
            return Ok((config, format!("KUBECONFIG {}", file.display())));
        }
        if let Some(master) = &self.master {
            return Ok((kube::Config::new(parse_master(master)?), format!("--master {master}")));
        }
        let config =
            kube::Config::incluster().map_err(|source| ConfigError::NotInCluster { source })?;
        Ok((config, "service account".to_owned()))
    }

    async fn choose(&self, kubeconfig: Kubeconfig) -> Result<kube::Config, KubeconfigError> {
        let options = KubeConfigOptions { context: self.context.clone(), ..Default::default() };
        kube::Config::from_custom_kubeconfig(kubeconfig, &options).await
    }
}

/// The client library has one sentence for all ways in which a file cannot be read.
fn check_readable(file: &Path) -> Result<(), ConfigError> {
    let failed = |cause| ConfigError::Unreadable { file: file.display().to_string(), cause };
    File::open(file).map(drop).map_err(failed)
}

fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "there is no such file; name another with --kubeconfig or KUBECONFIG".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "permission denied; run as its owner, or give this user a copy".to_owned()
        }
        _ => error.to_string(),
    }
}

fn bad_file(file: &Path, source: KubeconfigError) -> ConfigError {
    ConfigError::Kubeconfig { file: file.display().to_string(), source }
}

/// An address without a scheme means https.
fn parse_master(master: &str) -> Result<Uri, ConfigError> {
    let with_scheme =
        if master.contains("://") { master.to_owned() } else { format!("https://{master}") };
    with_scheme.parse().map_err(|source| ConfigError::Master { master: master.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: one, cluster: {server: 'http://127.0.0.1:1'}}
- {name: two, cluster: {server: 'http://127.0.0.1:2'}}
users:
- {name: u, user: {token: t}}
contexts:
- {name: one, context: {cluster: one, user: u, namespace: first}}
- {name: two, context: {cluster: two, user: u, namespace: second}}
";

    fn file() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        std::fs::write(file.path(), FILE).expect("written");
        file
    }

    #[tokio::test]
    async fn a_file_its_contexts_and_master() {
        let file = file();
        let mut config = ClientConfig::from_kubeconfig(file.path());
        let url = async |config: &ClientConfig| {
            let (loaded, _) = config.load().await.expect("loads");
            (loaded.cluster_url.to_string(), loaded.default_namespace)
        };
        assert_eq!(url(&config).await, ("http://127.0.0.1:1/".into(), "first".into()));
        config.context = Some("two".into());
        assert_eq!(url(&config).await, ("http://127.0.0.1:2/".into(), "second".into()));
        let client = config.client().await.expect("a client");
        assert_eq!(client.default_namespace(), "second");
    }

    #[tokio::test]
    async fn errors_name_the_file_and_the_next_thing_to_do() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let missing = dir.path().join("missing");
        let error = ClientConfig::from_kubeconfig(&missing).client().await.err().expect("fails");
        let text = error.to_string();
        assert!(text.contains(&missing.display().to_string()), "{text}");
        let advice = "there is no such file; name another with --kubeconfig or KUBECONFIG";
        assert_eq!(text, format!("cannot read kubeconfig {}: {advice}", missing.display()));
        let denied = unreadable(&io::ErrorKind::PermissionDenied.into());
        assert!(denied.starts_with("permission denied; run as its owner"), "{denied}");
        let file = file();
        let mut config = ClientConfig::from_kubeconfig(file.path());
        config.context = Some("three".into());
        let text = config.client().await.err().expect("fails").to_string();
        assert!(text.contains("three"), "{text}");
        config.context = None;
        config.master = Some("http://[".into());
        let text = config.client().await.err().expect("fails").to_string();
        assert!(text.starts_with("--master \"http://[\" is not an address"), "{text}");
    }

    #[test]
    fn limits_follow_the_flags() {
        let limit = |qps, burst| ClientConfig { qps, burst, ..ClientConfig::default() }.limit();
        assert_eq!(limit(None, Some(10)), Limit::Adaptive);
        assert_eq!(limit(Some(-1.0), None), Limit::None);
        assert_eq!(limit(Some(0.0), None), Limit::Fixed { qps: 5.0, burst: 10 });
        assert_eq!(limit(Some(20.0), Some(40)), Limit::Fixed { qps: 20.0, burst: 40 });
    }
}
