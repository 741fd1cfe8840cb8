//! HTTP/1.1 over TLS, by hand: what the load generator sends is what is written here, so that no
//! client library's habits favour either side.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::Value;

use super::kubeconfig::Kubeconfig;

/// How long an answer may take; a watch waits without a limit.
const PATIENCE: Duration = Duration::from_secs(60);

pub type Tls = StreamOwned<ClientConnection, TcpStream>;

/// The way to one API server. Cheap to clone.
#[derive(Clone)]
pub struct Server {
    address: String,
    host: ServerName<'static>,
    tls: Arc<ClientConfig>,
}

impl Server {
    /// Reads who is there and who we are.
    pub fn new(config: &Kubeconfig) -> Result<Self> {
        let address = config.address()?;
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host).to_owned();
        let mut roots = RootCertStore::empty();
        for one in CertificateDer::pem_slice_iter(&config.ca) {
            roots.add(one.context("the cluster's CA certificate")?)?;
        }
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(&config.certificate).collect();
        let key = PrivateKeyDer::from_pem_slice(&config.key).context("the client's key")?;
        // Fails only if a provider is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut tls = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(chain.context("the client's certificate")?, key)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let host = ServerName::try_from(host).context("the API server's address")?;
        Ok(Self { address, host, tls: Arc::new(tls) })
    }

    /// Opens a connection.
    pub fn connect(&self) -> Result<Connection> {
        let socket = TcpStream::connect(&self.address)
            .with_context(|| format!("cannot reach the API server at {}", self.address))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let tls = ClientConnection::new(self.tls.clone(), self.host.clone())?;
        let stream = BufReader::new(StreamOwned::new(tls, socket));
        Ok(Connection { stream, address: self.address.clone() })
    }

    /// Opens a connection for another protocol than HTTP's exchanges.
    pub fn connect_raw(&self) -> Result<Tls> {
        Ok(self.connect_now()?.stream.into_inner())
    }

    /// Opens a connection and greets, so that nothing but requests is left to do.
    pub fn connect_now(&self) -> Result<Connection> {
        let mut connection = self.connect()?;
        let stream = connection.stream.get_mut();
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(connection)
    }
}

/// One connection, one request at a time.
pub struct Connection {
    stream: BufReader<Tls>,
    address: String,
}

impl Connection {
    /// Sends one request and reads the whole answer, which must be a success.
    pub fn call(&mut self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let (status, text) = self.exchange(method, path, body)?;
        if !(200..300).contains(&status) {
            bail!("{method} {path}: {status} {}", String::from_utf8_lossy(&text).trim());
        }
        serde_json::from_slice(&text).with_context(|| format!("{method} {path}: not JSON"))
    }

    /// Creates an object from text; the answer is read and not looked at.
    pub fn post(&mut self, path: &str, body: &str) -> Result<()> {
        let (status, text) = self.exchange_text("POST", path, body)?;
        if status != 201 {
            bail!("POST {path}: {status} {}", String::from_utf8_lossy(&text).trim());
        }
        Ok(())
    }

    /// Reads something as it comes.
    pub fn get(&mut self, path: &str) -> Result<Vec<u8>> {
        let (status, text) = self.exchange_text("GET", path, "")?;
        if status != 200 {
            bail!("GET {path}: {status} {}", String::from_utf8_lossy(&text).trim());
        }
        Ok(text)
    }

    /// Reads an object; `None` when there is none.
    pub fn find(&mut self, path: &str) -> Result<Option<Value>> {
        let (status, text) = self.exchange_text("GET", path, "")?;
        match status {
            200 => serde_json::from_slice(&text).map(Some).context("not JSON"),
            404 => Ok(None),
            status => bail!("GET {path}: {status} {}", String::from_utf8_lossy(&text).trim()),
        }
    }

    fn exchange(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Vec<u8>)> {
        self.exchange_text(method, path, &body.map(Value::to_string).unwrap_or_default())
    }

    fn exchange_text(&mut self, method: &str, path: &str, body: &str) -> Result<(u16, Vec<u8>)> {
        self.send(method, path, body)?;
        self.receive().with_context(|| format!("{method} {path}"))
    }

    fn receive(&mut self) -> Result<(u16, Vec<u8>)> {
        let head = self.head()?;
        let mut text = Vec::new();
        match head.length {
            Some(length) => {
                text.resize(length, 0);
                self.stream.read_exact(&mut text)?;
            }
            None if head.chunked => while self.chunk(&mut text)? {},
            None => {}
        }
        Ok((head.status, text))
    }

    fn send(&mut self, method: &str, path: &str, body: &str) -> Result<()> {
        let length = body.len();
        let address = &self.address;
        let kind = if method == "PATCH" { "merge-patch+json" } else { "json" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nuser-agent: bench-load\r\n\
             accept: application/json\r\ncontent-type: application/{kind}\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        let stream = self.stream.get_mut();
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        Ok(())
    }

    fn head(&mut self) -> Result<Head> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.with_context(|| format!("not an HTTP answer: {first:?}"))?;
        let mut head = Head { status, length: None, chunked: false };
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(head);
            }
            let Some((name, value)) = line.split_once(':') else { continue };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => head.length = Some(value.trim().parse()?),
                "transfer-encoding" => head.chunked = value.trim() == "chunked",
                _ => {}
            }
        }
    }

    /// Appends one chunk; false after the last.
    fn chunk(&mut self, text: &mut Vec<u8>) -> Result<bool> {
        let size = self.line()?;
        let size = usize::from_str_radix(size.trim(), 16).context("the size of a chunk")?;
        let start = text.len();
        text.resize(start + size, 0);
        self.stream.read_exact(&mut text[start..])?;
        self.line()?;
        Ok(size > 0)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("the API server closed the connection");
        }
        Ok(line.trim_end().to_owned())
    }

    /// Starts a watch; events are read with [`Watch::next`].
    pub fn watch(mut self, path: &str) -> Result<Watch> {
        let socket = &self.stream.get_ref().sock;
        socket.set_read_timeout(None)?;
        let closer = Closer(socket.try_clone()?);
        self.send("GET", path, "")?;
        let head = self.head()?;
        if head.status != 200 || !head.chunked {
            bail!("GET {path}: {} instead of a watch", head.status);
        }
        Ok(Watch { connection: self, text: Vec::new(), read: 0, closer: Some(closer) })
    }
}

struct Head {
    status: u16,
    length: Option<usize>,
    chunked: bool,
}

/// A stream of changes.
pub struct Watch {
    connection: Connection,
    text: Vec<u8>,
    /// How much of the text has been handed out.
    read: usize,
    closer: Option<Closer>,
}

impl Watch {
    /// What ends this watch from another thread; can be taken once.
    pub fn closer(&mut self) -> Option<Closer> {
        self.closer.take()
    }

    /// The next event, as it came.
    pub fn next(&mut self) -> Result<Vec<u8>> {
        loop {
            let rest = &self.text[self.read..];
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = rest[..=end].to_vec();
                self.read += line.len();
                return Ok(line);
            }
            self.text.drain(..std::mem::take(&mut self.read));
            if !self.connection.chunk(&mut self.text)? {
                bail!("the API server ended the watch");
            }
        }
    }
}

/// Ends a watch.
pub struct Closer(TcpStream);

impl Drop for Closer {
    fn drop(&mut self) {
        // The watch's thread then reads an end; one that has ended already is just as well.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}
