//! The first screen of `longshore up`: what was started, where it is, and what to do next.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use kube::config::Kubeconfig;

use super::Config;
use crate::flags::LogFormat;

/// Says on stderr where everything is. Where the log is JSON, one line of the log says so.
pub(super) fn show(config: &Config, kubeconfig: &Path) -> Result<()> {
    let data_dir = &config.server.data_dir;
    let address = address(kubeconfig)?;
    match config.logging.format {
        LogFormat::Json => tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            data_dir = %data_dir.display(),
            address,
            kubeconfig = %kubeconfig.display(),
            "longshore up"
        ),
        LogFormat::Text => {
            let text = lines(data_dir, &address, kubeconfig).join("\n");
            // Nobody may read it; that is no reason to stop.
            let _ = writeln!(std::io::stderr().lock(), "{text}");
        }
    }
    Ok(())
}

/// The address that clients use.
fn address(kubeconfig: &Path) -> Result<String> {
    let wrong = || format!("cannot read {}", kubeconfig.display());
    let read = Kubeconfig::read_from(kubeconfig).with_context(wrong)?;
    let clusters = read.clusters.into_iter().filter_map(|named| named.cluster);
    clusters.filter_map(|cluster| cluster.server).next().with_context(wrong)
}

fn lines(data_dir: &Path, address: &str, kubeconfig: &Path) -> [String; 5] {
    [
        format!("longshore {}", env!("CARGO_PKG_VERSION")),
        format!("data dir    {}", data_dir.display()),
        format!("address     {address}"),
        format!("kubeconfig  {}", kubeconfig.display()),
        format!("next        export KUBECONFIG={}", for_shell(&kubeconfig.display().to_string())),
    ]
}

/// A word as a shell reads it.
fn for_shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_screen_has_five_lines() {
        let lines = lines(Path::new("/d"), "https://127.0.0.1:6443", Path::new("/my d/kubeconfig"));
        assert_eq!(lines[0], format!("longshore {}", env!("CARGO_PKG_VERSION")));
        assert_eq!(
            lines[1..],
            [
                "data dir    /d",
                "address     https://127.0.0.1:6443",
                "kubeconfig  /my d/kubeconfig",
                "next        export KUBECONFIG='/my d/kubeconfig'",
            ]
        );
        assert_eq!(for_shell("it's"), "'it'\\''s'");
    }
}
