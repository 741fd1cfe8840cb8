//! Passes bytes between clients and servers, and spoils connections: swallows them, resets them, and
//! goes to the next server when one refuses.

use std::net::SocketAddr;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

#[derive(Clone)]
pub struct Wire {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    servers: Vec<SocketAddr>,
    /// Where the next connection goes first.
    turn: AtomicUsize,
    /// What happens to the connections that are open now.
    fate: Mutex<Fate>,
    opened: AtomicUsize,
}

#[derive(Clone, Default)]
struct Fate {
    swallow: CancellationToken,
    reset: CancellationToken,
}

impl Wire {
    /// Takes the servers in turn; one that refuses is passed over.
    pub async fn start(servers: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            servers,
            turn: AtomicUsize::new(0),
            fate: Mutex::default(),
            opened: AtomicUsize::new(0),
        });
        let accepting = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(accepting.clone().pass(client));
            }
        });
        Self { address, shared }
    }

    /// Connections that are open now stay open and are acknowledged, but nothing passes any more: what
    /// a load balancer does that has forgotten them.
    pub fn swallow(&self) {
        std::mem::take(&mut *self.shared.fate.lock()).swallow.cancel();
    }

    /// Connections that are open now are reset.
    pub fn reset(&self) {
        std::mem::take(&mut *self.shared.fate.lock()).reset.cancel();
    }

    /// How many connections there were.
    pub fn opened(&self) -> usize {
        self.shared.opened.load(Ordering::Relaxed)
    }
}

impl Shared {
    async fn pass(self: Arc<Self>, mut client: TcpStream) {
        self.opened.fetch_add(1, Ordering::Relaxed);
        let Fate { swallow, reset } = self.fate.lock().clone();
        let Some(mut server) = self.connect().await else {
            let _ = client.set_zero_linger();
            return;
        };
        tokio::select! {
            _ = copy_bidirectional(&mut client, &mut server) => {}
            () = swallow.cancelled() => {
                let mut bytes = [0; 4096];
                while matches!(client.read(&mut bytes).await, Ok(1..)) {}
            }
            () = reset.cancelled() => {
                let _ = client.set_zero_linger();
            }
        }
    }

    async fn connect(&self) -> Option<TcpStream> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for step in 0..self.servers.len() {
            let server = self.servers[(turn + step) % self.servers.len()];
            if let Ok(stream) = TcpStream::connect(server).await {
                return Some(stream);
            }
        }
        None
    }
}
