//! Just enough HTTP to ask a program whether it is ready.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::pki::Pair;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks servers of one CA, as one user.
#[derive(Clone)]
pub(crate) struct Https {
    config: Arc<ClientConfig>,
}

impl Https {
    pub(crate) fn new(ca: &str, user: &Pair) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).context("the CA")?)?;
        let certificate = CertificateDer::from_pem_slice(user.certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(user.key.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], key)?;
        Ok(Self { config: Arc::new(config) })
    }

    /// Status of a GET on loopback; an error without a response.
    pub(crate) fn status(&self, port: u16, path: &str) -> io::Result<u16> {
        let name = ServerName::IpAddress(Ipv4Addr::LOCALHOST.into());
        let session = ClientConnection::new(Arc::clone(&self.config), name);
        let session = session.map_err(io::Error::other)?;
        get(StreamOwned::new(session, connect(port)?), path)
    }
}

fn connect(port: u16) -> io::Result<TcpStream> {
    let stream =
        TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn get(mut stream: impl Read + Write, path: &str) -> io::Result<u16> {
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: */*\r\n\r\n")?;
    stream.flush()?;
    let mut head = Vec::new();
    let mut byte = [0; 512];
    while !head.windows(2).any(|pair| pair == b"\r\n") {
        match stream.read(&mut byte)? {
            0 => break,
            n => head.extend_from_slice(&byte[..n]),
        }
    }
    let text = String::from_utf8_lossy(&head);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| io::Error::other("the response is not HTTP"))
}
