//! The connection to the API server, and how its death is noticed.
//!
//! A load balancer or a firewall may forget a connection without a word. The peer is asked in
//! three ways: HTTP/2 pings (through proxies too), TCP keep-alive probes on idle connections, and
//! a limit to how long sent bytes may stay unacknowledged. kube's own client has none of them.

use std::time::Duration;

use hyper_rustls::builderstates::WantsProtocols1;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::client::legacy::{self, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use tower::{BoxError, ServiceBuilder};

use crate::proxy::{self, Proxy};

const SECOND: Duration = Duration::from_secs(1);

/// How soon a dead connection to the API server is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAlive {
    /// A connection that was silent for this long is asked for a sign of life.
    pub interval: Duration,
    /// A connection that does not answer for this long is dead.
    pub timeout: Duration,
}

/// As the Go clients: 45 s in all.
impl Default for KeepAlive {
    fn default() -> Self {
        Self { interval: Duration::from_secs(30), timeout: Duration::from_secs(15) }
    }
}

/// Makes a client whose connections are watched.
pub(crate) fn client(config: &kube::Config, alive: KeepAlive) -> kube::Result<kube::Client> {
    let tls = tls(config)?.enable_http1().enable_http2();
    match proxy::of(config).map_err(service_error)? {
        None => over(config, alive, tls.wrap_connector(tcp(config, alive))),
        Some(proxy) => over(config, alive, tls.wrap_connector(tunnel(config, alive, proxy))),
    }
}

fn over<C>(
    config: &kube::Config,
    alive: KeepAlive,
    connector: HttpsConnector<C>,
) -> kube::Result<kube::Client>
where
    HttpsConnector<C>: Connect + Clone + Send + Sync + 'static,
{
    let client: Client<_, Body> = builder(alive).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}

fn service_error(error: impl Into<BoxError>) -> kube::Error {
    kube::Error::Service(error.into())
}

fn builder(alive: KeepAlive) -> legacy::Builder {
    let mut builder = Client::builder(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(alive.interval)
        .http2_keep_alive_timeout(alive.timeout)
        .http2_keep_alive_while_idle(true);
    builder
}

fn tcp(config: &kube::Config, alive: KeepAlive) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    // The kernel counts whole seconds.
    tcp.set_keepalive(Some((alive.interval / 2).max(SECOND)));
    tcp.set_keepalive_interval(Some((alive.timeout / 3).max(SECOND)));
    tcp.set_keepalive_retries(Some(3));
    tcp.set_tcp_user_timeout(Some(alive.interval));
    tcp
}

/// A connection through a proxy: the kernel watches the way to it, pings the way to the server.
fn tunnel(config: &kube::Config, alive: KeepAlive, proxy: Proxy) -> Tunnel<HttpConnector> {
    let tunnel = Tunnel::new(proxy.address, tcp(config, alive));
    match proxy.auth {
        Some(auth) => tunnel.with_auth(auth),
        None => tunnel,
    }
}

fn tls(config: &kube::Config) -> kube::Result<HttpsConnectorBuilder<WantsProtocols1>> {
    let tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    let Some(name) = &config.tls_server_name else { return Ok(tls) };
    let name = name.clone().try_into().map_err(|source| kube::Error::Service(Box::new(source)))?;
    Ok(tls.with_server_name_resolver(FixedServerNameResolver::new(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way to notice has its end by then.
    #[test]
    fn a_dead_connection_is_noticed_within_45_s() {
        let alive = KeepAlive::default();
        assert_eq!(alive.interval + alive.timeout, Duration::from_secs(45), "by pings");
        assert!(alive.interval < Duration::from_secs(45), "by bytes that stay unacknowledged");
        assert!(alive.interval / 2 + alive.timeout < Duration::from_secs(45), "by probes");
    }
}
