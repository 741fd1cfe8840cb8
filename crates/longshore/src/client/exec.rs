//! `longshore exec` and `longshore attach`.

use std::io::Read as _;
use std::time::Duration;

use futures::stream::{SplitSink, SplitStream};
use futures::{Sink, SinkExt as _, Stream, StreamExt as _};
use http_body_util::BodyExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::Receiver;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tokio_util::task::AbortOnDropHandle;

use super::session::{Session, encode};
use super::{ClientError, Exec, Screen, terminal};

const PIECE_BYTES: usize = 32 << 10;
const PING_EVERY: Duration = Duration::from_secs(5);
// The channels of the protocol, by the first byte of a message.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// Runs a command in a container, or attaches to the one that runs there.
pub(super) async fn exec(
    session: &Session,
    mut request: Exec,
    screen: &mut Screen<'_>,
) -> Result<(), ClientError> {
    if request.tty && !(request.stdin && terminal::is_there()) {
        request.tty = false;
        let text = "Unable to use a TTY - input is not a terminal or the right kind of file";
        writeln!(screen.err, "{text}")?;
    }
    let path = path(session, &request);
    let asked = http::Request::get(&path).body(Vec::new());
    let asked = asked.map_err(|error| refused(&request, 0, error.to_string()))?;
    let connection = match session.client().connect(asked).await {
        Ok(connection) => connection,
        Err(error) => return Err(refusal(session, &path, &request, error).await),
    };
    let raw = request.tty.then(terminal::Raw::begin).transpose()?;
    let (sink, source) = connection.into_stream().split();
    let ended = carry(sink, source, &request, screen).await;
    drop(raw);
    judge(&request, ended?)
}

fn path(session: &Session, request: &Exec) -> String {
    let Exec { pod, container, command, stdin, tty, namespace } = request;
    let namespace = namespace.as_deref().unwrap_or_else(|| session.namespace());
    let what = if command.is_some() { "exec" } else { "attach" };
    let mut path = format!(
        "/api/v1/namespaces/{}/pods/{}/{what}?stdin={stdin}&stdout=true&stderr={}&tty={tty}",
        encode(namespace),
        encode(pod),
        !tty
    );
    if let Some(container) = container {
        path += &format!("&container={}", encode(container));
    }
    for argument in command.iter().flatten() {
        path += &format!("&command={}", encode(argument));
    }
    path
}

/// Carries the streams until the process has ended. Both directions go on by themselves: a command that writes
/// while it reads would otherwise stop both.
async fn carry<S>(
    sink: SplitSink<S, Message>,
    mut source: SplitStream<S>,
    request: &Exec,
    screen: &mut Screen<'_>,
) -> Result<Option<Status>, ClientError>
where
    S: Stream<Item = Result<Message, SocketError>> + Sink<Message, Error = SocketError>,
    S: Send + Unpin + 'static,
{
    let input = request.stdin.then(read_stdin);
    let _sending = AbortOnDropHandle::new(tokio::spawn(send(sink, input, request.tty)));
    while let Some(message) = source.next().await {
        let message = message.map_err(|error| ClientError::Stream {
            object: format!("pod {}", request.pod),
            why: error.to_string(),
        })?;
        let Message::Binary(bytes) = message else { continue };
        match bytes.split_first() {
            Some((&STDOUT, bytes)) => {
                screen.out.write_all(bytes)?;
                screen.out.flush()?;
            }
            Some((&STDERR, bytes)) => {
                screen.err.write_all(bytes)?;
                screen.err.flush()?;
            }
            Some((&STATUS, bytes)) if !bytes.is_empty() => {
                return Ok(serde_json::from_slice(bytes).ok());
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Standard input in pieces. It is read by a thread that nobody waits for: the command may end before its input.
fn read_stdin() -> Receiver<Vec<u8>> {
    let (sender, pieces) = tokio::sync::mpsc::channel(4);
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut buffer = vec![0; PIECE_BYTES];
        while let Ok(count) = stdin.read(&mut buffer) {
            if count == 0 || sender.blocking_send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    pieces
}

/// Sends input, its end, and sizes of the terminal.
async fn send(
    mut sink: impl Sink<Message, Error = SocketError> + Unpin,
    mut input: Option<Receiver<Vec<u8>>>,
    tty: bool,
) -> Result<(), SocketError> {
    let mut changes = signal(SignalKind::window_change()).ok().filter(|_| tty);
    let mut pings = tokio::time::interval(PING_EVERY);
    if tty {
        sink.send(size()).await?;
    }
    loop {
        let next = async {
            match &mut input {
                Some(input) => input.recv().await,
                None => std::future::pending().await,
            }
        };
        let resized = async {
            match &mut changes {
                Some(changes) => changes.recv().await,
                None => std::future::pending().await,
            }
        };
        let message = tokio::select! {
            piece = next => match piece {
                Some(piece) => Message::binary([&[STDIN], piece.as_slice()].concat()),
                None => {
                    input = None;
                    Message::binary(vec![CLOSE, STDIN])
                }
            },
            _ = resized => size(),
            _ = pings.tick() => Message::Ping(bytes::Bytes::new()),
        };
        sink.send(message).await?;
    }
}

fn size() -> Message {
    let (width, height) = terminal::size().unwrap_or((80, 24));
    let size = serde_json::json!({"Width": width, "Height": height}).to_string();
    Message::binary([&[RESIZE], size.as_bytes()].concat())
}

/// What the last message of the server means.
fn judge(request: &Exec, status: Option<Status>) -> Result<(), ClientError> {
    let object = format!("pod {}", request.pod);
    let Some(status) = status else {
        let why = "the connection closed before the command had ended".to_owned();
        return Err(ClientError::Stream { object, why });
    };
    if status.status.as_deref() == Some("Success") {
        return Ok(());
    }
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = code.and_then(|cause| cause.message.as_ref()?.parse().ok());
    Err(match code {
        Some(code) => ClientError::Exited(code),
        None => refused(request, 500, status.message.unwrap_or_default()),
    })
}

fn refused(request: &Exec, code: u16, message: String) -> ClientError {
    let verb = if request.command.is_some() { "run a command in" } else { "attach to" };
    ClientError::Refused { verb, object: format!("pod {}", request.pod), code, message }
}

/// Why the server does not open the streams. The reason is lost in the change of protocols, so it is asked for in
/// the way that old clients do, which is refused for the same reason.
async fn refusal(session: &Session, path: &str, request: &Exec, error: kube::Error) -> ClientError {
    let asked = http::Request::post(path)
        .header(http::header::CONNECTION, "Upgrade")
        .header(http::header::UPGRADE, "SPDY/3.1")
        .body(kube::client::Body::empty());
    let Ok(asked) = asked else { return refused(request, 0, error.to_string()) };
    match session.client().send(asked).await {
        Err(error) => session.unreachable(&error),
        Ok(response) => {
            let code = response.status().as_u16();
            let body = response.into_body().collect().await.map(|body| body.to_bytes());
            let text = body.map_or_else(|_| error.to_string(), |body| words(&body));
            refused(request, code, text)
        }
    }
}

/// The message of a Status, or the text itself.
fn words(body: &[u8]) -> String {
    let status: Option<Status> = serde_json::from_slice(body).ok();
    let message = status.and_then(|status| status.message);
    message.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned())
}
