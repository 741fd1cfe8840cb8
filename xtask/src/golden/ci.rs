//! What a change must pass: both corpora and csi-sanity.

use std::{thread, time::Instant};

use anyhow::{Result, bail};
use longshore_real_kube::Interrupt;

use super::{
    Report,
    corpus::Corpus,
    options::Options,
    run,
    server::{self, Against},
};
use crate::{run::output, sanity, setup};

/// `cargo xtask golden ci`.
pub fn task(args: &[String]) -> Result<()> {
    if let Some(extra) = args.first() {
        bail!("golden ci takes no arguments, not {extra:?}");
    }
    let begin = Instant::now();
    crate::run::build_longshore()?;
    let stop = crate::interrupt::flag()?;
    let mut reports = embedded(&stop)?;
    reports.extend(real(&stop)?);
    for report in &reports {
        report.print();
    }
    println!();
    for report in &reports {
        println!("{}", report.summary());
    }
    println!("golden ci took {:.0} s", begin.elapsed().as_secs_f64());
    if !reports.iter().all(Report::good) {
        bail!("something is not what the lists of known failures say");
    }
    Ok(())
}

/// The whole of both corpora on our API server. The conversations mostly wait, so they run beside
/// the controllers.
fn embedded(stop: &Interrupt) -> Result<Vec<Report>> {
    let options = Options::default();
    thread::scope(|scope| {
        let talk = Options { jobs: Some(1), strict: true, ..options.clone() };
        let beside = scope.spawn(move || run(Corpus::Apiserver, &talk, stop));
        let controllers = run(Corpus::Controllers, &options, stop);
        let apiserver = joined(beside.join());
        Ok(vec![apiserver?, controllers?])
    })
}

/// A part of the scenarios on Kubernetes' own API server, and the drivers.
fn real(stop: &Interrupt) -> Result<Vec<Report>> {
    let commit = output("git", &["rev-parse", "HEAD"]).unwrap_or_else(|error| {
        eprintln!("no commit to draw scenarios by ({error:#}): always the same ones");
        String::new()
    });
    let options = Options {
        against: Against::Real,
        sample: Some(commit.trim().to_owned()),
        ..Options::default()
    };
    let server = server::build_tools(Against::Real, Corpus::Controllers);
    let server = present("scenarios on the real API server", server)?;
    let drivers = present("csi-sanity", sanity::prepare())?;
    thread::scope(|scope| {
        let beside = drivers.then(|| scope.spawn(|| sanity::run(&sanity::RUNS, stop)));
        let controllers = server.then(|| run(Corpus::Controllers, &options, stop));
        let drivers = beside.map(|beside| joined(beside.join()));
        let mut reports: Vec<Report> = controllers.transpose()?.into_iter().collect();
        reports.extend(drivers.transpose()?.into_iter().flatten());
        Ok(reports)
    })
}

/// Outside CI a part that cannot run here is left out, and one line says so.
fn present(part: &str, prepared: Result<()>) -> Result<bool> {
    match prepared {
        Ok(()) => Ok(true),
        Err(error) if setup::strict() => Err(error.context(part.to_owned())),
        Err(error) => {
            println!("SKIPPED {part}: {error:#}");
            Ok(false)
        }
    }
}

fn joined<T>(result: thread::Result<Result<T>>) -> Result<T> {
    result.unwrap_or_else(|_| bail!("a part broke; see above"))
}
