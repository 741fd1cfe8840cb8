//! Connections that die without a word: what a load balancer does that forgets them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longshore_apiserver::{ApiServer, Config};
use longshore_cluster::{Api, Cache, ClientConfig, KeepAlive, ObjectKey, Scope};
use longshore_core::model::kinds::ConfigMap;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// A proxy that passes bytes until it is told to swallow those of all connections it has. It keeps
/// them open and goes on acknowledging, and it serves new ones.
#[derive(Clone)]
struct Proxy {
    address: SocketAddr,
    swallow: Arc<std::sync::Mutex<CancellationToken>>,
}

/// How a client comes to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Its kubeconfig has the address of the proxy for that of the server.
    Forwarded,
    /// Its kubeconfig names the proxy, which is asked for a tunnel with this password.
    Tunnel,
}

/// What a tunnel is asked for with: `me:secret`.
const AUTHORIZATION: &str = "proxy-authorization: basic bwu6c2vjcmv0";

impl Proxy {
    async fn start(server: SocketAddr, way: Way) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let proxy =
            Self { address: listener.local_addr().expect("bound"), swallow: Arc::default() };
        let accepting = proxy.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let swallow = accepting.swallow.lock().expect("not poisoned").clone();
                tokio::spawn(async move {
                    if way == Way::Tunnel {
                        open_tunnel(&mut client, server).await;
                    }
                    let mut there = TcpStream::connect(server).await.expect("the server is up");
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut there) => {}
                        () = swallow.cancelled() => swallow_all(client).await,
                    }
                });
            }
        });
        proxy
    }

    fn swallow_what_is_open(&self) {
        let mut swallow = self.swallow.lock().expect("not poisoned");
        std::mem::take(&mut *swallow).cancel();
    }
}

/// Reads the head of a CONNECT, and nothing behind it: the client waits for the response.
async fn open_tunnel(client: &mut TcpStream, server: SocketAddr) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.expect("a head"));
    }
    let head = String::from_utf8(head).expect("text").to_lowercase();
    assert!(head.starts_with(&format!("connect {server} http/1.1\r\n")), "{head}");
    assert!(head.contains(AUTHORIZATION), "{head}");
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("open");
}

async fn swallow_all(client: TcpStream) {
    let mut bytes = [0; 4096];
    loop {
        client.readable().await.expect("open");
        match client.try_read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// A server, a client that comes to it through a proxy, and their end.
struct World {
    server: ApiServer,
    proxy: Proxy,
    api: Api,
    stop: CancellationToken,
    _kubeconfig: tempfile::NamedTempFile,
}

async fn start(way: Way, keep_alive: KeepAlive) -> World {
    let server = ApiServer::open(Config::memory()).await.expect("opens");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let proxy = Proxy::start(address, way).await;
    let stop = CancellationToken::new();
    tokio::spawn({
        let (server, stop) = (server.clone(), stop.clone());
        async move { server.serve(listener, stop).await }
    });
    let kubeconfig = match way {
        Way::Forwarded => server.kubeconfig(proxy.address),
        Way::Tunnel => with_proxy(&server.kubeconfig(address), proxy.address),
    };
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), kubeconfig).expect("written");
    let config = ClientConfig { keep_alive, ..ClientConfig::from_kubeconfig(file.path()) };
    let api = Api::new(config.client().await.expect("a client"));
    World { server, proxy, api, stop, _kubeconfig: file }
}

fn with_proxy(kubeconfig: &str, proxy: SocketAddr) -> String {
    let line = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        let named = line.trim_start().starts_with("server:");
        let proxy = format!("{:indent$}proxy-url: http://me:secret@{proxy}\n", "");
        if named { format!("{proxy}{line}\n") } else { format!("{line}\n") }
    };
    let text: String = kubeconfig.lines().map(line).collect();
    assert!(text.contains("proxy-url"), "{text}");
    text
}

#[tokio::test]
async fn a_watch_and_a_call_on_a_swallowed_connection_go_on_over_a_new_one() {
    let keep_alive =
        KeepAlive { interval: Duration::from_millis(300), timeout: Duration::from_millis(300) };
    for way in [Way::Forwarded, Way::Tunnel] {
        // Without a sign of life it took 220 s.
        go_on(way, keep_alive, Duration::from_secs(30)).await;
    }
}

/// As the programs are shipped: 45 s, and what a busy machine may add.
#[tokio::test]
async fn with_the_defaults_45_s_are_enough_also_through_a_proxy() {
    let within = Duration::from_secs(45 + 30);
    let ways = [Way::Forwarded, Way::Tunnel].map(|way| go_on(way, KeepAlive::default(), within));
    futures::future::join_all(ways).await;
}

async fn go_on(way: Way, keep_alive: KeepAlive, within: Duration) {
    let World { server, proxy, api, stop, _kubeconfig } = start(way, keep_alive).await;
    let (cache, _task) = Cache::<ConfigMap>::start(&api, Scope::namespace("default"), &stop);
    cache.synced().await;
    proxy.swallow_what_is_open();

    let map = json!({"metadata": {"name": "late", "namespace": "default"}});
    Api::new(server.client()).create::<ConfigMap>(&map).await.expect("made behind the proxy");
    let key = ObjectKey::new("default", "late");
    let seen = async {
        while cache.get(&key).is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let call = api.get::<ConfigMap>(&key);
    let (seen, call) =
        tokio::join!(tokio::time::timeout(within, seen), tokio::time::timeout(within, call));
    seen.unwrap_or_else(|_| panic!("{way:?}: the watch is not made anew"));
    call.expect("the call ends").expect_err("its connection is dead");
    assert!(api.get::<ConfigMap>(&key).await.expect("a new connection").is_some(), "{way:?}");
    stop.cancel();
}
