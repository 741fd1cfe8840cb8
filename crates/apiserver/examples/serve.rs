//! The API server alone: `serve DATA_DIR [ADDRESS]`.
//!
//! Prints `ready kubeconfig=PATH` when it answers, and stops on SIGTERM or Ctrl-C.

use std::path::PathBuf;

use longshore_apiserver::{ApiServer, Config, auth};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let mut arguments = std::env::args().skip(1);
    let data_dir = PathBuf::from(arguments.next().ok_or("usage: serve DATA_DIR [ADDRESS]")?);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".into());
    let server = ApiServer::open(Config::at(&data_dir)).await?;
    let listener = TcpListener::bind(&address).await?;
    let path = data_dir.join("kubeconfig");
    auth::write_private(&path, server.kubeconfig(listener.local_addr()?))?;
    let shutdown = CancellationToken::new();
    tokio::spawn({
        let shutdown = shutdown.clone();
        async move {
            wait_for_signal().await;
            shutdown.cancel();
        }
    });
    println!("ready kubeconfig={}", path.display());
    server.serve(listener, shutdown).await?;
    server.shutdown().await;
    Ok(())
}

async fn wait_for_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}
