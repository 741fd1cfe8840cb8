//! Carries bytes between a WebSocket and the streams of a process.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::MissedTickBehavior;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};

use super::protocol::{CLOSE, Protocol, RESIZE, STATUS, STDERR, STDIN, STDOUT};
use crate::streams::Streams;

/// Clients may send all of their input as one message.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// Finds clients that have vanished: the system gives a connection up whose packets get no reply.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long a client may take to close its side after the last message.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Serves the streams until the process has ended or the client has left; then the process is ended.
pub(super) async fn run(on_upgrade: OnUpgrade, protocol: &'static Protocol, streams: Streams) {
    let upgraded = match on_upgrade.await {
        Ok(upgraded) => upgraded,
        Err(error) => {
            tracing::debug!(%error, "a client left before its streams were open");
            return;
        }
    };
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_MESSAGE_BYTES));
    let socket =
        WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    let (mut sink, mut source) = socket.split();
    let Streams { stdin, stdout, stderr, resize, ended } = streams;
    let output = Output { protocol, stdout, stderr, ended };
    let finished = tokio::select! {
        sent = output.send(&mut sink) => sent,
        received = receive(&mut source, protocol, stdin, &*resize) => {
            if let Err(error) = received {
                tracing::debug!(%error, "streams of a container");
            }
            return;
        }
    };
    if let Err(error) = finished {
        tracing::debug!(%error, "streams of a container");
        return;
    }
    close(sink, source).await;
}

struct Output {
    protocol: &'static Protocol,
    stdout: Option<futures::stream::BoxStream<'static, Bytes>>,
    stderr: Option<futures::stream::BoxStream<'static, Bytes>>,
    ended: futures::future::BoxFuture<'static, longshore_core::model::streams::StreamEnd>,
}

impl Output {
    /// Sends all output, then how the process ended.
    async fn send(self, sink: &mut SplitSink<Socket, Message>) -> tungstenite::Result<()> {
        let Self { protocol, stdout, stderr, mut ended } = self;
        let first = match (&stdout, &stderr) {
            (Some(_), _) => STDOUT,
            (None, Some(_)) => STDERR,
            (None, None) => STATUS,
        };
        // Tells the client that the streams are open.
        sink.send(protocol.message(first, &[])).await?;
        let on = |channel: u8, stream: Option<futures::stream::BoxStream<'static, Bytes>>| {
            let pieces = futures::stream::iter(stream).flatten();
            pieces.map(move |piece| (channel, piece))
        };
        let mut output = futures::stream::select(on(STDOUT, stdout), on(STDERR, stderr));
        let mut all_sent = false;
        let mut pings = tokio::time::interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.reset();
        let end = loop {
            tokio::select! {
                piece = output.next(), if !all_sent => match piece {
                    Some((channel, bytes)) => sink.send(protocol.message(channel, &bytes)).await?,
                    None => all_sent = true,
                },
                end = &mut ended, if all_sent => break end,
                _ = pings.tick() => sink.send(Message::Ping(Bytes::new())).await?,
            }
        };
        if let Some(status) = protocol.status(&end) {
            sink.feed(status).await?;
        }
        let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        sink.send(Message::Close(Some(frame))).await
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Size {
    width: u16,
    height: u16,
}

/// Takes what the client sends, until it leaves.
async fn receive(
    source: &mut SplitStream<Socket>,
    protocol: &Protocol,
    mut stdin: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    resize: &(dyn Fn(u16, u16) + Send + Sync),
) -> tungstenite::Result<()> {
    while let Some(message) = source.next().await {
        let message = message?;
        if message.is_close() {
            return Ok(());
        }
        match protocol.read(message) {
            Some((STDIN, bytes)) => {
                if let Some(open) = &mut stdin
                    && open.write_all(&bytes).await.is_err()
                {
                    // The process reads no more.
                    stdin = None;
                }
            }
            Some((RESIZE, bytes)) => {
                if let Ok(Size { width, height }) = serde_json::from_slice(&bytes) {
                    resize(width, height);
                }
            }
            Some((CLOSE, bytes)) if protocol.closes && bytes.first() == Some(&STDIN) => {
                stdin = None;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Lets the client read the last messages. A connection that is closed while the client still sends would be
/// reset, and they would be lost.
async fn close(sink: SplitSink<Socket, Message>, mut source: SplitStream<Socket>) {
    let rest = async { while let Some(Ok(_)) = source.next().await {} };
    // Who does not answer is not waited for.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, rest).await;
    if let Ok(mut socket) = sink.reunite(source) {
        let _ = socket.get_mut().shutdown().await;
    }
}
