//! `longshore exec` and `longshore attach`.

use std::io::{Read as _, Write};

use futures::SinkExt as _;
use futures::channel::mpsc::Sender;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{Api, AttachParams, AttachedProcess, TerminalSize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::signal::unix::{SignalKind, signal};

use super::session::{Session, encode};
use super::{ClientError, Exec, Screen, terminal};

const PIECE_BYTES: usize = 32 << 10;

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
    let namespace = request.namespace.clone().unwrap_or_else(|| session.namespace().to_owned());
    let pods: Api<Pod> = Api::namespaced(session.client().clone(), &namespace);
    let params = params(&request);
    let opened = match &request.command {
        Some(command) => pods.exec(&request.pod, command, &params).await,
        None => pods.attach(&request.pod, &params).await,
    };
    let process = match opened {
        Ok(process) => process,
        Err(error) => return Err(refusal(session, &namespace, &request, error).await),
    };
    let raw = request.tty.then(terminal::Raw::begin).transpose()?;
    let ended = carry(process, screen).await;
    drop(raw);
    judge(&request, ended?)
}

fn params(request: &Exec) -> AttachParams {
    let params = AttachParams::default()
        .stdin(request.stdin)
        .stdout(true)
        .stderr(!request.tty)
        .tty(request.tty)
        .max_stdin_buf_size(PIECE_BYTES)
        .max_stdout_buf_size(PIECE_BYTES)
        .max_stderr_buf_size(PIECE_BYTES);
    match &request.container {
        Some(name) => params.container(name),
        None => params,
    }
}

/// Carries the streams until the process has ended.
async fn carry(
    mut process: AttachedProcess,
    screen: &mut Screen<'_>,
) -> Result<Option<Status>, ClientError> {
    if let Some(mut stdin) = process.stdin() {
        let mut pieces = read_stdin();
        tokio::spawn(async move {
            while let Some(piece) = pieces.recv().await {
                if stdin.write_all(&piece).await.is_err() {
                    return;
                }
            }
            // Tells the other side that there is no more.
            let _ = stdin.shutdown().await;
        });
    }
    if let Some(sizes) = process.terminal_size() {
        tokio::spawn(send_sizes(sizes));
    }
    let status = process.take_status();
    let (stdout, stderr) = (process.stdout(), process.stderr());
    let Screen { out, err } = screen;
    tokio::try_join!(copy(stdout, *out), copy(stderr, *err))?;
    Ok(match status {
        Some(status) => status.await,
        None => None,
    })
}

/// Standard input in pieces. It is read by a thread that nobody waits for: the command may end before its input.
fn read_stdin() -> tokio::sync::mpsc::Receiver<Vec<u8>> {
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

async fn send_sizes(mut sizes: Sender<TerminalSize>) {
    let Ok(mut changes) = signal(SignalKind::window_change()) else { return };
    loop {
        if let Some((width, height)) = terminal::size()
            && sizes.send(TerminalSize { width, height }).await.is_err()
        {
            return;
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

async fn copy(
    from: Option<impl AsyncRead + Unpin>,
    to: &mut (dyn Write + Send),
) -> Result<(), ClientError> {
    let Some(mut from) = from else { return Ok(()) };
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..count])?;
        to.flush()?;
    }
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
async fn refusal(
    session: &Session,
    namespace: &str,
    request: &Exec,
    error: kube::Error,
) -> ClientError {
    let what = if request.command.is_some() { "exec" } else { "attach" };
    let mut path = format!(
        "/api/v1/namespaces/{}/pods/{}/{what}?stdout=true",
        encode(namespace),
        encode(&request.pod)
    );
    for argument in request.command.iter().flatten() {
        path += &format!("&command={}", encode(argument));
    }
    if let Some(container) = &request.container {
        path += &format!("&container={}", encode(container));
    }
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
