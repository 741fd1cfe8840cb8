//! Signals become a [`CancellationToken`].

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Returns a token that is cancelled by the first SIGTERM or SIGINT. The second signal ends the
/// process at once with status 1: whoever asks twice does not want to wait.
///
/// # Errors
/// Fails if the handlers cannot be installed.
pub fn on_signals() -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        let mut asked = false;
        loop {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            if asked {
                tracing::error!(signal = name, "second signal: leaving without waiting");
                std::process::exit(1);
            }
            asked = true;
            tracing::info!(signal = name, "stopping; a second signal leaves at once");
            stop.cancel();
        }
    });
    Ok(token)
}

#[cfg(test)]
mod tests {
    /// The signal is sent to a child of this test binary, never to the test process itself.
    #[test]
    fn the_first_signal_cancels_and_the_second_exits() {
        const CHILD: &str = "LONGSHORE_TEST_SHUTDOWN_CHILD";
        if std::env::var_os(CHILD).is_some() {
            return child();
        }
        let exe = std::env::current_exe().expect("own path");
        let mut child = std::process::Command::new(exe)
            .args([
                "--exact",
                "--nocapture",
                "shutdown::tests::the_first_signal_cancels_and_the_second_exits",
            ])
            .env(CHILD, "1")
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("child starts");
        let mut out = std::io::BufReader::new(child.stdout.take().expect("piped"));
        wait_for(&mut out, "ready");
        kill(child.id());
        wait_for(&mut out, "cancelled");
        kill(child.id());
        assert_eq!(child.wait().expect("child ends").code(), Some(1));
    }

    fn wait_for(out: &mut impl std::io::BufRead, word: &str) {
        let mut line = String::new();
        while out.read_line(&mut line).expect("readable") > 0 {
            if line.contains(word) {
                return;
            }
            line.clear();
        }
        panic!("the child ended before it said {word}");
    }

    fn kill(pid: u32) {
        let status = std::process::Command::new("kill").arg(pid.to_string()).status();
        assert!(status.expect("kill runs").success());
    }

    fn child() {
        let runtime = tokio::runtime::Runtime::new().expect("runtime");
        runtime.block_on(async {
            let token = super::on_signals().expect("handlers");
            println!("\nready");
            token.cancelled().await;
            println!("\ncancelled");
            std::future::pending::<()>().await;
        });
    }
}
