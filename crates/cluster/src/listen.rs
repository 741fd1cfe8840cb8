//! Listens as the official programs do.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpListener, TcpSocket, lookup_host};

/// Waiting connections before the kernel refuses more.
const BACKLOG: u32 = 1024;

/// Listens on an address in Go's form. `:PORT`, `0.0.0.0:PORT` and `[::]:PORT` mean every address
/// of both families, as in Go, so that the same flags work on IPv4-only and IPv6-only hosts.
///
/// # Errors
/// When the address is not HOST:PORT, is taken or belongs to another host.
pub async fn listen(address: &str) -> io::Result<TcpListener> {
    if let Some(port) = any_address(address) {
        return both_families(port);
    }
    let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
    for found in lookup_host(address).await? {
        match TcpListener::bind(found).await {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Listens on a port of every address of both families, where the host has both.
///
/// # Errors
/// When the port is taken.
pub fn both_families(port: u16) -> io::Result<TcpListener> {
    match every_address_of_both(port) {
        // The kernel has no IPv6, or it is switched off.
        Err(error) if is_without_ipv6(&error) => {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?;
            socket.listen(BACKLOG)
        }
        other => other,
    }
}

fn every_address_of_both(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    set_ipv6_v6only(&socket, false)?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))?;
    socket.listen(BACKLOG)
}

fn is_without_ipv6(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let codes = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// The port, if the address stands for every address of the host.
fn any_address(address: &str) -> Option<u16> {
    let (host, port) = address.rsplit_once(':')?;
    matches!(host, "" | "0.0.0.0" | "[::]").then(|| port.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_of_either_family_mean_both() {
        for (address, port) in [
            (":8080", Some(8080)),
            ("0.0.0.0:0", Some(0)),
            ("[::]:1", Some(1)),
            ("127.0.0.1:1", None),
            ("[::1]:1", None),
            ("localhost:1", None),
            (":http", None),
            ("8080", None),
        ] {
            assert_eq!(any_address(address), port, "{address}");
        }
    }

    #[tokio::test]
    async fn a_wildcard_is_reached_over_both_families() {
        for address in [":0", "0.0.0.0:0", "[::]:0"] {
            let listener = listen(address).await.expect("listens");
            let port = listener.local_addr().expect("bound").port();
            for host in ["127.0.0.1", "::1"] {
                let connect = tokio::net::TcpStream::connect((host, port));
                connect.await.unwrap_or_else(|error| panic!("{address} by {host}: {error}"));
            }
        }
    }

    #[tokio::test]
    async fn one_address_is_reached_alone() {
        let listener = listen("127.0.0.1:0").await.expect("listens");
        let port = listener.local_addr().expect("bound").port();
        assert!(tokio::net::TcpStream::connect(("::1", port)).await.is_err());
        assert!(listen("nowhere").await.is_err());
    }
}
