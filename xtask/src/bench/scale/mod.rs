//! `cargo xtask bench scale`: each sidecar and controller among few and among very many objects, on the
//! embedded API server and on a real one.
//!
//! Nothing happens to nearly all of the objects: they are bound and attached already. What is measured is
//! what they cost: at start, in memory, for each event, and after the API server was away.

mod objects;
mod report;
mod subject;

use std::{path::PathBuf, process::Command, sync::atomic::Ordering, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use longshore_real_kube::{
    Lifetime, Program,
    tools::{self, Tool},
};
use serde::Serialize;

use self::{
    objects::{Range, ZONES, fill, node_name},
    subject::{Figures, SUBJECTS, measure},
};
use super::{api::side::Side, attach::mock_driver, process::Memory, release_binary};

/// What was asked for.
struct Args {
    few: usize,
    volumes: usize,
    events: usize,
    embedded: bool,
    real: bool,
    only: Vec<String>,
    json: Option<PathBuf>,
}

/// An API server with so many volumes in it.
#[derive(Debug, Clone, Serialize)]
struct Place {
    server: &'static str,
    volumes: usize,
    /// Bytes of all objects as they were written.
    bytes: usize,
    /// All its processes, with all objects in it.
    memory: Memory,
    /// From the start of its processes until a list of one is answered.
    start_seconds: f64,
    subjects: Vec<Figures>,
}

/// Runs the measurement.
pub fn bench(args: &[String]) -> Result<()> {
    let args = Args::read(args)?;
    if args.real {
        let missing: Vec<Tool> = [Tool::Etcd, Tool::KubeApiserver]
            .into_iter()
            .filter(|tool| tools::path(*tool).is_err())
            .collect();
        tools::build(&missing, &|line: &str| eprintln!("{line}"))?;
    }
    let (ours, mock) = (release_binary()?, mock_driver()?);
    let mut places = Vec::new();
    for real in [false, true] {
        if (real && !args.real) || (!real && !args.embedded) {
            continue;
        }
        let mut side = if real { Side::theirs()? } else { Side::ours(&ours)? };
        let driver = start_driver(&mock, &side)?;
        let mut bytes = 0;
        let mut from = 0;
        for volumes in [args.few, args.volumes] {
            bytes += fill(&side, Range { from, to: volumes })?;
            from = volumes;
            let start_seconds = side.restart()?;
            let memory = side.memory()?;
            let mut place = Place {
                server: side.label,
                volumes,
                bytes,
                memory: Memory { rss_kib: memory.rss_kib, pss_kib: memory.anonymous_kib },
                start_seconds,
                subjects: Vec::new(),
            };
            for subject in SUBJECTS.iter().filter(|one| args.takes(one.name)) {
                ensure!(!crate::interrupt::flag()?.load(Ordering::Relaxed), "interrupted");
                let seen = measure(subject, &ours, &mut side, volumes, args.events)?;
                eprintln!("{} with {volumes} volumes: {}", side.label, report::line(&seen));
                place.subjects.push(seen);
            }
            places.push(place);
        }
        driver.stop()?;
        side.stop()?;
    }
    println!("{}", report::tables(&places, args.few, args.volumes));
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec_pretty(&places)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

impl Args {
    fn read(args: &[String]) -> Result<Self> {
        let mut read = Self {
            few: 1_000,
            volumes: 100_000,
            events: 2_000,
            embedded: true,
            real: true,
            only: Vec::new(),
            json: None,
        };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().with_context(|| format!("{flag} needs a value"))?;
            let number = || value.parse().with_context(|| format!("{flag} {value}: not a number"));
            match flag.as_str() {
                "--few" => read.few = number()?,
                "--volumes" => read.volumes = number()?,
                "--events" => read.events = number()?,
                "--on" => {
                    let on = |name: &str| value.split(',').any(|one| one == name);
                    (read.embedded, read.real) = (on("embedded"), on("real"));
                    ensure!(read.embedded || read.real, "--on takes embedded, real, or both");
                }
                "--only" => read.only = value.split(',').map(str::to_owned).collect(),
                "--json" => read.json = Some(value.into()),
                _ => bail!(
                    "bench scale has no flag {flag}; it takes --few, --volumes, --events, --on, --only, --json"
                ),
            }
        }
        ensure!(
            100 <= read.few && read.few < read.volumes && read.events > 0,
            "--few is at least 100, --volumes is more, and --events is at least 1"
        );
        let known: Vec<&str> = SUBJECTS.iter().map(|one| one.name).collect();
        for name in &read.only {
            ensure!(
                known.contains(&name.as_str()),
                "--only {name}: there are {}",
                known.join(", ")
            );
        }
        Ok(read)
    }

    fn takes(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|one| one == name)
    }
}

/// The driver of all volumes; it answers at once.
fn start_driver(mock: &std::path::Path, side: &Side) -> Result<Program> {
    let socket = side.dir().join("mock.sock");
    let log = side.dir().join("mock.log");
    let mut command = Command::new(mock);
    command.arg(&socket).args([objects::DRIVER, &node_name(0), "0", &ZONES.to_string()]);
    let mut program = Program::start("the fake driver", command, &log, Lifetime::Owner)?;
    let ready = || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready"));
    program.wait_until(Duration::from_secs(60), None, ready)?;
    Ok(program)
}
