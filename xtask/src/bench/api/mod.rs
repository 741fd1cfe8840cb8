//! `cargo xtask bench api`: etcd with kube-apiserver, and `longshore apiserver`, in one run.
//!
//! Both run side by side on the same disk; whoever is not being measured is idle. Each kind of work is
//! done by one and then by the other, and they change places from round to round.

mod report;
pub mod side;
pub mod work;

use std::{path::PathBuf, sync::atomic::Ordering, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use longshore_real_kube::tools::{self, Tool};
use serde::Serialize;
use serde_json::json;

use self::side::Side;

/// Writers at the same time.
const WRITERS: [usize; 3] = [1, 16, 64];
/// Objects at which lists and watches are measured.
const SOME: usize = 10_000;
/// Lists that are timed.
const LISTS: usize = 5;
const WATCHERS: usize = 200;
/// Changes that every watcher sees.
const CHANGES: usize = 100;
/// Memory is read after this rest.
const REST: Duration = Duration::from_secs(5);

/// What was asked for.
struct Args {
    seconds: u64,
    rounds: usize,
    objects: usize,
    json: Option<PathBuf>,
}

impl Args {
    fn read(args: &[String]) -> Result<Self> {
        let mut read = Self { seconds: 5, rounds: 3, objects: 100_000, json: None };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().with_context(|| format!("{flag} needs a value"))?;
            let number =
                || value.parse::<usize>().with_context(|| format!("{flag} {value}: not a number"));
            match flag.as_str() {
                "--seconds" => read.seconds = number()? as u64,
                "--rounds" => read.rounds = number()?,
                "--objects" => read.objects = number()?,
                "--json" => read.json = Some(value.into()),
                _ => bail!(
                    "bench api has no flag {flag}; it takes --seconds, --rounds, --objects, --json"
                ),
            }
        }
        ensure!(read.seconds > 0 && read.rounds > 0, "--seconds and --rounds are at least 1");
        ensure!(read.objects >= 2 * SOME, "--objects is at least {}", 2 * SOME);
        Ok(read)
    }
}

/// What one side reached; rates and times have one figure per round.
#[derive(Debug, Default, Serialize)]
pub struct Figures {
    idle: work::Memory,
    /// Durable creates per second, by writers.
    creates: [Vec<f64>; WRITERS.len()],
    list_seconds: Vec<f64>,
    list_bytes: usize,
    /// Events delivered per second to all watchers together.
    events: Vec<f64>,
    /// From a change's request until the last watcher had it.
    event_seconds: Vec<f64>,
    memory_some: work::Memory,
    memory_all: work::Memory,
    /// From the start of the processes until a list of one answers.
    start_seconds: f64,
}

/// Runs the comparison.
pub fn bench(args: &[String]) -> Result<()> {
    let args = Args::read(args)?;
    let missing: Vec<Tool> = [Tool::Etcd, Tool::KubeApiserver]
        .into_iter()
        .filter(|tool| tools::path(*tool).is_err())
        .collect();
    tools::build(&missing, &|line: &str| eprintln!("{line}"))?;
    let ours = super::release_binary()?;
    let mut figures = [Figures::default(), Figures::default()];
    // Rates leave many objects behind, so everything else starts afresh.
    let sides = [Side::theirs()?, Side::ours(&ours)?];
    rates(&args, &sides, &mut figures)?;
    for side in sides {
        side.stop()?;
    }
    let mut sides = [Side::theirs()?, Side::ours(&ours)?];
    std::thread::sleep(REST);
    for (side, figures) in sides.iter().zip(&mut figures) {
        figures.idle = side.memory()?;
    }
    at_some(&args, &sides, &mut figures)?;
    for (side, figures) in sides.iter_mut().zip(&mut figures) {
        go_on()?;
        eprintln!("{}: {} objects", side.label, args.objects);
        work::fill(side, args.objects)?;
        std::thread::sleep(REST);
        figures.memory_all = side.memory()?;
        figures.start_seconds = side.restart()?;
        work::check_count(side, args.objects)?;
        eprintln!("{}: started again in {:.2} s", side.label, figures.start_seconds);
    }
    for side in sides {
        side.stop()?;
    }
    show(&args, &figures)
}

fn go_on() -> Result<()> {
    ensure!(!crate::interrupt::flag()?.load(Ordering::Relaxed), "interrupted");
    Ok(())
}

/// Both sides, the other one first every second time.
fn turns(round: usize) -> [usize; 2] {
    if round.is_multiple_of(2) { [0, 1] } else { [1, 0] }
}

fn rates(args: &Args, sides: &[Side; 2], figures: &mut [Figures; 2]) -> Result<()> {
    let time = Duration::from_secs(args.seconds);
    for round in 0..args.rounds {
        for (at, writers) in WRITERS.into_iter().enumerate() {
            for turn in turns(round) {
                go_on()?;
                let rate = work::creates(&sides[turn], writers, time)?;
                eprintln!("{}: {writers} writers, {rate:.0} creates/s", sides[turn].label);
                figures[turn].creates[at].push(rate);
            }
        }
    }
    Ok(())
}

fn at_some(args: &Args, sides: &[Side; 2], figures: &mut [Figures; 2]) -> Result<()> {
    for (side, figures) in sides.iter().zip(figures.iter_mut()) {
        go_on()?;
        work::fill(side, SOME)?;
        std::thread::sleep(REST);
        figures.memory_some = side.memory()?;
    }
    for round in 0..args.rounds {
        for turn in turns(round) {
            go_on()?;
            let (side, figures) = (&sides[turn], &mut figures[turn]);
            let (seconds, bytes) = work::list(side, SOME, LISTS)?;
            figures.list_seconds.push(seconds);
            figures.list_bytes = bytes;
            let fan_out = work::fan_out(side, WATCHERS, CHANGES)?;
            figures.events.push(fan_out.events_per_second);
            figures.event_seconds.push(fan_out.median_seconds);
            eprintln!(
                "{}: list of {SOME} in {seconds:.3} s, {:.0} events/s to {WATCHERS} watchers",
                side.label, fan_out.events_per_second
            );
        }
    }
    Ok(())
}

fn show(args: &Args, figures: &[Figures; 2]) -> Result<()> {
    println!("\n{} rounds of {} s, medians\n", args.rounds, args.seconds);
    println!("{}", report::table(figures, args.objects));
    if let Some(file) = &args.json {
        let all = json!({"theirs": figures[0], "ours": figures[1], "objects": args.objects});
        std::fs::write(file, serde_json::to_vec_pretty(&all)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}
