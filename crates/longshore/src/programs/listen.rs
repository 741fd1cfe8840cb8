//! Where the embedded API listens, and under which names and addresses clients reach it.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use longshore_apiserver::auth::ServerNames;
use longshore_cluster::listen::both_families;
use longshore_node::ApiAddress;
use tokio::net::TcpListener;

/// `--listen`: an address or a name of this machine, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listen {
    host: Host,
    /// Port 0 takes a free one.
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Address(IpAddr),
    Name(String),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(address) => SocketAddr::new(*address, self.port).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

/// Reads the value of `--listen`.
pub(crate) fn listen(text: &str) -> Result<Listen, String> {
    const WRONG: &str = "it is HOST:PORT, for example 127.0.0.1:6443, or 0.0.0.0:6443 for every address of this machine";
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(Listen { host: Host::Address(address.ip()), port: address.port() });
    }
    let (host, port) = text.rsplit_once(':').ok_or(WRONG)?;
    let port = port.parse().map_err(|_| WRONG)?;
    let host = match host {
        "" => Host::Address(Ipv4Addr::UNSPECIFIED.into()),
        name if is_dns_name(name) => Host::Name(name.to_lowercase()),
        _ => return Err(WRONG.to_owned()),
    };
    Ok(Listen { host, port })
}

/// Reads a value of `--tls-san`: an IP address or a DNS name, whose first label may be `*`.
pub(crate) fn tls_san(text: &str) -> Result<San, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(San::Address(address));
    }
    if is_dns_name(text.strip_prefix("*.").unwrap_or(text)) {
        return Ok(San::Name(text.to_lowercase()));
    }
    Err("it is an IP address or a DNS name, for example 192.0.2.7 or box.example.org".to_owned())
}

/// One more name of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum San {
    Address(IpAddr),
    Name(String),
}

/// A name with a part of digits only at its end would be an IP address that went wrong.
fn is_dns_name(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    text.len() <= 253
        && text.split('.').all(label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

/// A listener, and how clients reach it.
pub(crate) struct Bound {
    pub listener: TcpListener,
    /// `HOST:PORT` for a kubeconfig on this machine.
    pub local: String,
    /// For pods, which share the network of this machine.
    pub for_pods: ApiAddress,
    address: SocketAddr,
    name: Option<String>,
}

impl Listen {
    /// Takes the port.
    pub(crate) async fn bind(&self) -> std::io::Result<Bound> {
        let listener = match &self.host {
            // Every address of both families, as for all other listeners.
            Host::Address(any) if any.is_unspecified() => both_families(self.port)?,
            Host::Address(address) => TcpListener::bind((*address, self.port)).await?,
            Host::Name(name) => TcpListener::bind((name.as_str(), self.port)).await?,
        };
        let address = listener.local_addr()?;
        let near = SocketAddr::new(nearest(address.ip(), has_ipv4_loopback()), address.port());
        let (local, name) = match &self.host {
            Host::Address(_) => (near.to_string(), None),
            Host::Name(name) => (format!("{name}:{}", address.port()), Some(name.clone())),
        };
        let for_pods = ApiAddress { host: near.ip().to_string(), port: near.port() };
        Ok(Bound { listener, local, for_pods, address, name })
    }
}

/// The address under which this machine reaches its own listener.
fn nearest(address: IpAddr, has_ipv4_loopback: bool) -> IpAddr {
    match address {
        IpAddr::V6(any) if any.is_unspecified() && !has_ipv4_loopback => Ipv6Addr::LOCALHOST.into(),
        any if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        other => other,
    }
}

/// Whether 127.0.0.1 is an address of this machine, which it is not everywhere.
fn has_ipv4_loopback() -> bool {
    std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).is_ok()
}

impl Bound {
    /// What the certificate names, asked again whenever this machine may have got another address.
    pub(crate) fn names(&self, sans: &[San]) -> impl Fn() -> ServerNames + Send + Sync + use<> {
        let (address, name, sans) = (self.address.ip(), self.name.clone(), sans.to_vec());
        move || {
            let mut all = ServerNames::default();
            all.names.extend(name.clone());
            let host = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
            all.names.extend(Some(host).filter(|host| is_dns_name(host)));
            if address.is_unspecified() {
                all.addresses = own_addresses();
            } else {
                all.addresses.insert(address);
            }
            for san in &sans {
                match san {
                    San::Address(address) => all.addresses.extend([*address]),
                    San::Name(name) => all.names.extend([name.clone()]),
                }
            }
            all
        }
    }
}

/// The addresses of all network interfaces.
fn own_addresses() -> BTreeSet<IpAddr> {
    match if_addrs::get_if_addrs() {
        Ok(interfaces) => interfaces.iter().map(if_addrs::Interface::ip).collect(),
        Err(error) => {
            tracing::warn!(%error, "the addresses of this machine are not known; name them with --tls-san");
            BTreeSet::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_read() {
        for (text, shown) in [
            ("127.0.0.1:6443", "127.0.0.1:6443"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("[::]:6443", "[::]:6443"),
            (":6443", "0.0.0.0:6443"),
            ("Box.lan:1", "box.lan:1"),
            ("localhost:0", "localhost:0"),
        ] {
            assert_eq!(listen(text).unwrap().to_string(), shown, "{text}");
        }
        for text in
            ["localhost", "127.0.0.1", "1.2.3:4", "a_b:1", "[::]", "x:99999", "-a:1", "::1:5"]
        {
            listen(text).expect_err(text);
        }
    }

    #[test]
    fn names_for_the_certificate_are_addresses_or_dns_names() {
        assert_eq!(tls_san("192.0.2.7"), Ok(San::Address([192, 0, 2, 7].into())));
        assert_eq!(tls_san("*.Example.org"), Ok(San::Name("*.example.org".into())));
        for text in ["", "300.1.1.1", "https://x", "a b", "a.*.b", "x:1"] {
            tls_san(text).expect_err(text);
        }
    }

    #[test]
    fn a_wildcard_is_reached_at_the_loopback_address() {
        for (bound, has_ipv4, near) in [
            ("0.0.0.0", true, "127.0.0.1"),
            ("::", true, "127.0.0.1"),
            ("::", false, "::1"),
            ("192.0.2.7", true, "192.0.2.7"),
            ("::1", false, "::1"),
        ] {
            let near: IpAddr = near.parse().unwrap();
            assert_eq!(nearest(bound.parse().unwrap(), has_ipv4), near, "{bound}");
        }
    }

    #[tokio::test]
    async fn the_certificate_of_a_wildcard_has_every_address_and_what_was_asked_for() {
        let bound = listen("0.0.0.0:0").unwrap().bind().await.unwrap();
        assert_eq!(bound.local, format!("127.0.0.1:{}", bound.address.port()));
        let sans = [tls_san("203.0.113.9").unwrap(), tls_san("lb.example.org").unwrap()];
        let names = bound.names(&sans)();
        assert!(own_addresses().is_subset(&names.addresses) && !own_addresses().is_empty());
        assert!(names.addresses.contains(&IpAddr::from([203, 0, 113, 9])));
        assert!(names.names.contains("lb.example.org"));
        let one = listen("localhost:0").unwrap().bind().await.unwrap();
        assert!(
            one.local.starts_with("localhost:") && one.names(&[])().names.contains("localhost")
        );
    }
}
