//! Connections that die without a word: what a load balancer does that forgets them.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longshore_apiserver::{ApiServer, Config};
use longshore_cluster::{Api, Cache, ClientConfig, KeepAlive, ObjectKey, Scope};
use longshore_core::model::kinds::ConfigMap;
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// A proxy that passes bytes until it is told to swallow those of all connections it has. It keeps
/// them open and goes on acknowledging, and it serves new ones.
#[derive(Clone)]
struct Proxy {
    address: SocketAddr,
    swallow: Arc<std::sync::Mutex<CancellationToken>>,
}

impl Proxy {
    async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let proxy =
            Self { address: listener.local_addr().expect("bound"), swallow: Arc::default() };
        let accepting = proxy.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let swallow = accepting.swallow.lock().expect("not poisoned").clone();
                tokio::spawn(async move {
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

async fn through(proxy: &Proxy, server: &ApiServer, file: &Path) -> Api {
    std::fs::write(file, server.kubeconfig(proxy.address)).expect("written");
    let keep_alive =
        KeepAlive { interval: Duration::from_millis(300), timeout: Duration::from_millis(300) };
    let config = ClientConfig { keep_alive, ..ClientConfig::from_kubeconfig(file) };
    Api::new(config.client().await.expect("a client"))
}

#[tokio::test]
async fn a_watch_and_a_call_on_a_swallowed_connection_go_on_over_a_new_one() {
    let server = ApiServer::open(Config::memory()).await.expect("opens");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let proxy = Proxy::start(listener.local_addr().expect("bound")).await;
    let stop = CancellationToken::new();
    tokio::spawn({
        let (server, stop) = (server.clone(), stop.clone());
        async move { server.serve(listener, stop).await }
    });
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let api = through(&proxy, &server, file.path()).await;
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
    // Without a sign of life it took 220 s.
    tokio::time::timeout(Duration::from_secs(30), seen).await.expect("the watch is made anew");
    proxy.swallow_what_is_open();
    let call = api.get::<ConfigMap>(&key);
    let lost = tokio::time::timeout(Duration::from_secs(30), call).await.expect("the call ends");
    lost.expect_err("its connection is dead");
    assert!(api.get::<ConfigMap>(&key).await.expect("a new connection").is_some());
    stop.cancel();
}
