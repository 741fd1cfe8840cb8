//! The proxy between this program and the API server, if there is one.

use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;

/// Where connections are tunnelled through.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) address: Uri,
    /// The header that lets us in.
    pub(crate) auth: Option<HeaderValue>,
}

/// Why a proxy cannot be used. Its address may hold a password, so only its kind is said.
#[derive(Debug, thiserror::Error)]
#[error(
    "the configured proxy is one of {scheme}://, and only those of http:// can be used; change `proxy-url` in the \
     kubeconfig, or HTTPS_PROXY"
)]
pub(crate) struct UnknownProxy {
    scheme: String,
}

/// The proxy to the server of a configuration. One that the kubeconfig names is always taken; one of the environment
/// has the exceptions of `NO_PROXY` and those for this machine, as in the Go clients.
pub(crate) fn of(config: &kube::Config) -> Result<Option<Proxy>, UnknownProxy> {
    let Some(proxy) = &config.proxy_url else { return Ok(None) };
    let set = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
    let general = ["HTTPS_PROXY", "https_proxy"].into_iter().find_map(set);
    let is_general = general.is_some_and(|text| text.parse::<Uri>().is_ok_and(|uri| uri == *proxy));
    let exceptions = ["NO_PROXY", "no_proxy"].into_iter().find_map(set).unwrap_or_default();
    if is_general && is_excepted(&config.cluster_url, &exceptions) {
        return Ok(None);
    }
    parse(proxy).map(Some)
}

fn parse(proxy: &Uri) -> Result<Proxy, UnknownProxy> {
    let unknown = |scheme: &str| UnknownProxy { scheme: scheme.to_owned() };
    let scheme = proxy.scheme_str().unwrap_or("http");
    let authority =
        proxy.authority().filter(|_| scheme == "http").ok_or_else(|| unknown(scheme))?;
    let (user, host) = match authority.as_str().rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority.as_str()),
    };
    let auth = user.and_then(|user| {
        let pair = STANDARD.encode(percent_decode_str(user).collect::<Vec<u8>>());
        HeaderValue::try_from(format!("Basic {pair}")).ok()
    });
    let address = format!("http://{host}").parse().map_err(|_| unknown(scheme))?;
    Ok(Proxy { address, auth })
}

/// Whether a server is reached without the proxy of the environment.
fn is_excepted(server: &Uri, exceptions: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    let port = server.port_u16().unwrap_or(443);
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    exceptions.split(',').map(str::trim).filter(|one| !one.is_empty()).any(|exception| {
        let exception = exception.to_lowercase();
        if exception == "*" {
            return true;
        }
        if let Some(address) = address
            && let Some((net, bits)) = network(&exception)
        {
            return contains(net, bits, address);
        }
        let (name, only) = split_port(&exception);
        let name = name.trim_start_matches('*');
        let here = match name.strip_prefix('.') {
            Some(_) => host.ends_with(name),
            None => host == name || host.ends_with(&format!(".{name}")),
        };
        here && only.is_none_or(|only| only == port)
    })
}

/// `10.0.0.0/8`, or one address.
fn network(text: &str) -> Option<(IpAddr, u32)> {
    match text.split_once('/') {
        Some((net, bits)) => Some((net.parse().ok()?, bits.parse().ok()?)),
        None => {
            let one: IpAddr = text.trim_matches(['[', ']']).parse().ok()?;
            Some((one, if one.is_ipv4() { 32 } else { 128 }))
        }
    }
}

fn contains(net: IpAddr, bits: u32, address: IpAddr) -> bool {
    let same = |net: u128, address: u128, width: u32| {
        let shift = width.saturating_sub(bits);
        net.checked_shr(shift).unwrap_or(0) == address.checked_shr(shift).unwrap_or(0)
    };
    match (net, address) {
        (IpAddr::V4(net), IpAddr::V4(address)) => {
            same(net.to_bits().into(), address.to_bits().into(), 32)
        }
        (IpAddr::V6(net), IpAddr::V6(address)) => same(net.to_bits(), address.to_bits(), 128),
        _ => false,
    }
}

/// A name and the only port that is meant.
fn split_port(text: &str) -> (&str, Option<u16>) {
    match text.rsplit_once(':') {
        Some((name, port)) => match port.parse() {
            Ok(port) => (name.trim_matches(['[', ']']), Some(port)),
            Err(_) => (text, None),
        },
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().expect("an address")
    }

    #[test]
    fn who_is_reached_without_the_proxy_of_the_environment() {
        for (server, exceptions, want) in [
            ("https://10.0.0.1:6443", "", false),
            ("https://127.0.0.1:6443", "", true),
            ("https://[::1]:6443", "", true),
            ("https://localhost:6443", "", true),
            ("https://api.example.com", "*", true),
            ("https://api.example.com", "example.com", true),
            ("https://API.example.com", " x, Example.Com ", true),
            ("https://example.com", "example.com", true),
            ("https://example.com", ".example.com", false),
            ("https://api.example.com", "*.example.com", true),
            ("https://notexample.com", "example.com", false),
            ("https://api.example.com", "example.com:443", true),
            ("https://api.example.com:6443", "example.com:443", false),
            ("https://10.1.2.3:6443", "10.0.0.0/8", true),
            ("https://11.1.2.3:6443", "10.0.0.0/8", false),
            ("https://11.1.2.3:6443", "0.0.0.0/0", true),
            ("https://10.1.2.3:6443", "10.1.2.3", true),
            ("https://10.1.2.3:6443", "10.1.2.3:6443", true),
            ("https://10.1.2.3:6443", "10.1.2.3:443", false),
            ("https://[fd00::7]:6443", "fd00::/8", true),
            ("https://[fd00::7]:6443", "fd00::7", true),
            ("https://[fd00::7]:6443", "10.0.0.0/8,fe80::/10", false),
        ] {
            assert_eq!(is_excepted(&uri(server), exceptions), want, "{server} {exceptions:?}");
        }
    }

    #[test]
    fn proxies_are_of_http_and_their_passwords_are_decoded() {
        let parsed = parse(&uri("http://me:pa%40ss@proxy.test:3128")).expect("of http");
        assert_eq!(parsed.address, uri("http://proxy.test:3128"));
        let pair = format!("Basic {}", STANDARD.encode("me:pa@ss"));
        assert_eq!(parsed.auth.expect("a header"), pair.as_str());
        let bare = parse(&uri("proxy.test:3128")).expect("as in the Go clients");
        assert_eq!(bare, Proxy { address: uri("http://proxy.test:3128"), auth: None });
        let refused = parse(&uri("socks5://me:secret@proxy.test:1080")).expect_err("of SOCKS");
        let text = refused.to_string();
        assert!(text.contains("socks5://") && !text.contains("secret"), "{text}");
    }
}
