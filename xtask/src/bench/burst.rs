//! `cargo xtask bench burst`: many claims at once in the embedded mode, from the request until they
//! are Bound to volumes of the local driver, and until the volumes are gone again.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use longshore_real_kube::{Lifetime, Program};

use super::{
    http::{Connection, Server},
    kubeconfig::Kubeconfig,
    load::{self, Burst},
    process, release_binary, report,
};

/// The class of the claims: the local driver, without waiting for a pod.
const CLASS: &str = "longshore-local-immediate";
/// What one claim asks for.
const SIZE: &str = "4Mi";
const SIZE_BYTES: u64 = 4 << 20;
/// Claims before the measured ones.
const WARM_UP: usize = 10;
/// How long the instance may take to start and to stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was asked for.
struct Args {
    claims: Vec<usize>,
    rounds: usize,
    dir: PathBuf,
    json: Option<PathBuf>,
}

/// One burst.
#[derive(Debug, Clone, serde::Serialize)]
struct Figures {
    claims: usize,
    burst: Burst,
    /// Until all were bound, events included if they were written by then.
    api_writes: u64,
    cpu_seconds: f64,
    rss_kib: u64,
}

/// Runs the bursts.
pub fn bench(args: &[String]) -> Result<()> {
    let args = Args::read(args)?;
    let most = args.claims.iter().copied().max().unwrap_or_default();
    ensure_room(&args.dir, most)?;
    let binary = release_binary()?;
    let mut figures = Vec::new();
    for round in 1..=args.rounds {
        for claims in args.claims.iter().copied() {
            let one = turn(&binary, &args.dir, claims)?;
            eprintln!("round {round}: {}", line(&one));
            figures.push(one);
        }
    }
    println!("\n{} rounds, medians\n\n{}", args.rounds, table(&args.claims, &figures));
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec_pretty(&figures)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

impl Args {
    fn read(args: &[String]) -> Result<Self> {
        let mut read =
            Self { claims: vec![1_000, 10_000], rounds: 5, dir: std::env::temp_dir(), json: None };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().with_context(|| format!("{flag} needs a value"))?;
            let number =
                |text: &str| text.parse().with_context(|| format!("{flag} {value}: not a number"));
            match flag.as_str() {
                "--claims" => read.claims = value.split(',').map(number).collect::<Result<_>>()?,
                "--rounds" => read.rounds = number(value)?,
                "--dir" => read.dir = value.into(),
                "--json" => read.json = Some(value.into()),
                _ => bail!(
                    "bench burst has no flag {flag}; it takes --claims, --rounds, --dir, --json"
                ),
            }
        }
        ensure!(
            read.rounds > 0 && read.claims.iter().all(|claims| *claims > 0),
            "--claims and --rounds are at least 1"
        );
        Ok(read)
    }
}

/// Refuses when the pool could not hold the claims if they were filled.
fn ensure_room(dir: &Path, claims: usize) -> Result<()> {
    let out = Command::new("df").args(["--output=avail", "-B1"]).arg(dir).output();
    let out = out.context("cannot run df")?;
    let text = String::from_utf8_lossy(&out.stdout);
    let free: u64 = text
        .lines()
        .nth(1)
        .and_then(|line| line.trim().parse().ok())
        .with_context(|| format!("df does not say what is free in {}", dir.display()))?;
    let needed = claims as u64 * SIZE_BYTES;
    ensure!(
        needed <= free,
        "{claims} claims of {SIZE} need {} MiB, and {} has {} MiB free; \
         say --claims with fewer, or --dir with a larger place",
        needed >> 20,
        dir.display(),
        free >> 20
    );
    Ok(())
}

fn turn(binary: &Path, dir: &Path, claims: usize) -> Result<Figures> {
    with_instance(binary, dir, &[], |program, data| measure(program, data, claims))
}

/// Starts an instance with these flags in an empty directory, measures something there, and ends it.
pub fn with_instance<T>(
    binary: &Path,
    dir: &Path,
    flags: &[String],
    measure: impl FnOnce(&Program, &Path) -> Result<T>,
) -> Result<T> {
    let home = tempfile::Builder::new().prefix("longshore-burst-").tempdir_in(dir)?;
    let (data, log) = (place_apart(home.path()), home.path().join("log"));
    let mut command = Command::new(binary);
    command.args(["up", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&data).args(flags);
    let mut program = Program::start("longshore up", command, &log, Lifetime::Owner)?;
    let ready =
        || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("ready kubeconfig="));
    program.wait_until(PATIENCE, None, ready)?;
    let measured = measure(&program, &data);
    let figures = measured.with_context(|| format!("its log ends:\n{}", program.tail()))?;
    program.stop()?;
    home.close()?;
    Ok(figures)
}

/// A directory, yet to be made, that ext4 puts elsewhere on the disk in each round. Where it has no
/// journal it does not use the inodes of deleted files for minutes, and looks at each of them whenever a
/// file is made: a round would pay for the deletions of the one before. ext4 goes by the name, so that
/// is the random end of `home`'s; other filesystems know no such flag.
fn place_apart(home: &Path) -> PathBuf {
    let _ = Command::new("chattr").arg("+T").arg(home).output();
    let name = home.file_name().unwrap_or_default().to_string_lossy().into_owned();
    home.join(name.rsplit('-').next().unwrap_or("data"))
}

/// Requests so far that change something.
fn writes(connection: &mut Connection) -> Result<u64> {
    let text = connection.get("/metrics")?;
    let text = String::from_utf8_lossy(&text);
    let counters = text.lines().filter(|line| {
        line.starts_with("apiserver_request_total{")
            && ["POST", "PUT", "PATCH", "DELETE"]
                .iter()
                .any(|verb| line.contains(&format!("verb=\"{verb}\"")))
    });
    counters
        .map(|line| {
            let count = line.rsplit(' ').next().unwrap_or_default();
            count.parse::<u64>().with_context(|| format!("not a count: {line}"))
        })
        .sum()
}

fn measure(program: &Program, data: &Path, claims: usize) -> Result<Figures> {
    let server = server(data)?;
    let mut connection = server.connect()?;
    load::make_namespace(&server)?;
    load::burst(&server, "warm", WARM_UP, CLASS, SIZE)?.delete()?;
    let before = writes(&mut connection)?;
    let cpu = process::cpu_seconds(program.pid())?;
    let bound = load::burst(&server, "one", claims, CLASS, SIZE)?;
    let rss_kib = process::memory(program.pid())?.rss_kib;
    let api_writes = writes(&mut connection)? - before;
    let burst = bound.delete()?;
    let cpu_seconds = process::cpu_seconds(program.pid())? - cpu;
    Ok(Figures { claims, burst, api_writes, cpu_seconds, rss_kib })
}

/// The API of an instance.
pub fn server(data: &Path) -> Result<Server> {
    let file = data.join("kubeconfig");
    ensure!(file.exists(), "there is no {}", file.display());
    Server::new(&Kubeconfig::read(&file)?)
}

fn rate(figures: &Figures, seconds: f64) -> f64 {
    let claims = figures.claims as f64;
    claims / seconds
}

fn percentile(figures: &Figures, percent: usize) -> f64 {
    let sorted = &figures.burst.latencies;
    sorted.get(sorted.len() * percent / 100).or(sorted.last()).copied().unwrap_or_default() * 1e3
}

fn line(one: &Figures) -> String {
    format!(
        "{:>6} claims: {:6.0} bound/s, median {:7.1} ms, p99 {:7.1} ms, {:6.0} deleted/s",
        one.claims,
        rate(one, one.burst.bind_seconds),
        percentile(one, 50),
        percentile(one, 99),
        rate(one, one.burst.delete_seconds),
    )
}

fn table(claims: &[usize], figures: &[Figures]) -> String {
    let mut lines = vec![
        [
            "claims",
            "bound per second",
            "median, ms",
            "99 %, ms",
            "deleted per second",
            "API writes a claim until bound",
            "CPU a claim, ms",
            "memory when all are bound, MiB",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for count in claims.iter().copied() {
        let of = |value: &dyn Fn(&Figures) -> f64| {
            let all = figures.iter().filter(|one| one.claims == count);
            report::median(all.map(value).collect())
        };
        lines.push(vec![
            count.to_string(),
            format!("{:.0}", of(&|one| rate(one, one.burst.bind_seconds))),
            format!("{:.0}", of(&|one| percentile(one, 50))),
            format!("{:.0}", of(&|one| percentile(one, 99))),
            format!("{:.0}", of(&|one| rate(one, one.burst.delete_seconds))),
            format!("{:.1}", of(&|one| one.api_writes as f64 / one.claims as f64)),
            format!("{:.2}", of(&|one| 1e3 / rate(one, one.cpu_seconds))),
            format!("{:.0}", of(&|one| one.rss_kib as f64 / 1024.0)),
        ]);
    }
    report::markdown(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_is_too_small_is_refused_with_the_figures() {
        let dir = tempfile::tempdir().expect("a directory");
        ensure_room(dir.path(), 1).expect("room for one");
        let refused = ensure_room(dir.path(), usize::MAX >> 24).expect_err("not for so many");
        let text = refused.to_string();
        assert!(text.contains("MiB free; say --claims with fewer"), "{text}");
    }
}
