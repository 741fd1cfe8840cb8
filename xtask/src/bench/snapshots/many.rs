//! Thousands, with a driver that answers at once.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result};
use longshore_real_kube::{Lifetime, Program};

use super::super::{
    attach::{DRIVER, Mock, mock_driver},
    burst, load, process, release_binary,
};
use super::{
    Args,
    objects::{CLASS, make_bound, make_class, numbered, storm},
    programs::{Pair, Side},
};

/// Claims, each of which gets its share of snapshots.
const CLAIMS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn turn(args: &Args) -> Result<Vec<(String, f64)>> {
    let (ours, mock) = (release_binary()?, mock_driver()?);
    let home = tempfile::Builder::new().prefix("longshore-many-").tempdir_in(&args.dir)?;
    let (data, log) = (home.path().join("data"), home.path().join("log"));
    let mut command = Command::new(&ours);
    command.args(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data);
    let mut api = Program::start("the embedded API", command, &log, Lifetime::Owner)?;
    let ready =
        || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready kubeconfig="));
    api.wait_until(PATIENCE, None, ready)?;
    let server = burst::server(&data)?;
    load::make_namespace(&server)?;
    make_class(&server, DRIVER)?;
    let mock = Mock::start(&mock, home.path(), CLAIMS)?;
    let claims = numbered("one", CLAIMS);
    make_bound(&server, DRIVER, &claims, &mock.handles)?;
    let side = Side { ours: Some(&ours), flags: &[] };
    let pair = Pair::start(&side, home.path(), &data.join("kubeconfig"), &mock.socket)?;
    pair.settle();
    let took = storm(&server, &numbered("snap", args.many), &claims, Some(CLASS));
    let took = took.with_context(|| format!("the logs end:\n{}", pair.tail()))?;
    let mib = |program: &Program| -> Result<f64> {
        Ok(process::memory(program.pid())?.rss_kib as f64 / 1024.0)
    };
    let label = |what: &str| format!("{} on the embedded API: {what}", args.many);
    let figures = vec![
        (label("ready, s"), took.ready),
        (label("gone, s"), took.gone),
        (label("controller afterwards, MiB"), mib(&pair.controller)?),
        (label("snapshotter afterwards, MiB"), mib(&pair.snapshotter)?),
    ];
    pair.stop()?;
    mock.program.stop()?;
    api.stop()?;
    Ok(figures)
}
