//! `cargo xtask bench snapshots`: many snapshots at once, from the first request to the last one that is seen ready.
//!
//! * `storm`: volumes of `longshore up` that a pod has mounted, on a pool that shares blocks and on one that does not;
//! * `pair`: csi-driver-host-path with snapshot-controller and csi-snapshotter, with their defaults and tuned, and with ours;
//! * `many`: thousands with a driver that answers at once, on the embedded API;
//! * `existing`: the first new one on a real API server that has thousands already, and what each costs in memory.

mod existing;
mod many;
mod objects;
mod pair;
mod programs;
mod storm;

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::report;

const PARTS: [&str; 4] = ["storm", "pair", "many", "existing"];

/// What was asked for.
struct Args {
    /// Snapshots of the storm and beside the official pair.
    claims: usize,
    many: usize,
    existing: usize,
    rounds: usize,
    only: Vec<String>,
    dir: PathBuf,
    json: Option<PathBuf>,
}

/// Figures by what they are called in the table; each has one value for each round.
type Figures = BTreeMap<String, Vec<f64>>;

/// Runs what was asked for.
pub fn bench(args: &[String]) -> Result<()> {
    let args = Args::read(args)?;
    let mut figures = Figures::new();
    for round in 1..=args.rounds {
        for part in &args.only {
            let seen = match part.as_str() {
                "storm" => storm::turn(&args)?,
                "pair" => pair::turn(&args, round)?,
                "many" => many::turn(&args)?,
                _ => existing::turn(&args)?,
            };
            for (label, value) in seen {
                eprintln!("round {round}: {label}: {value:.2}");
                figures.entry(label).or_default().push(value);
            }
        }
    }
    println!("\n{} rounds, medians\n\n{}", args.rounds, table(&figures));
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec_pretty(&figures)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

impl Args {
    fn read(args: &[String]) -> Result<Self> {
        let mut read = Self {
            claims: 80,
            many: 10_000,
            existing: 18_000,
            rounds: 3,
            only: PARTS.map(str::to_owned).to_vec(),
            dir: std::env::temp_dir(),
            json: None,
        };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().with_context(|| format!("{flag} needs a value"))?;
            let number = || value.parse().with_context(|| format!("{flag} {value}: not a number"));
            match flag.as_str() {
                "--claims" => read.claims = number()?,
                "--many" => read.many = number()?,
                "--existing" => read.existing = number()?,
                "--rounds" => read.rounds = number()?,
                "--only" => read.only = value.split(',').map(str::to_owned).collect(),
                "--dir" => read.dir = value.into(),
                "--json" => read.json = Some(value.into()),
                _ => bail!(
                    "bench snapshots has no flag {flag}; it takes --claims, --many, --existing, --rounds, --only, --dir, --json"
                ),
            }
        }
        let least = read.claims.min(read.many).min(read.existing).min(read.rounds);
        ensure!(least > 0, "all numbers are at least 1");
        for part in &read.only {
            ensure!(
                PARTS.contains(&part.as_str()),
                "--only {part}: there are {}",
                PARTS.join(", ")
            );
        }
        Ok(read)
    }
}

fn table(figures: &Figures) -> String {
    let mut lines = vec![vec!["figure".to_owned(), "median".to_owned()]];
    for (label, all) in figures {
        lines.push(vec![label.clone(), format!("{:.2}", report::median(all.clone()))]);
    }
    report::markdown(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_shown_and_unknown_parts_are_refused() {
        let figures = Figures::from([("a, s".to_owned(), vec![3.0, 1.0, 2.0])]);
        assert!(table(&figures).contains("2.00"), "{}", table(&figures));
        let line = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let read = Args::read(&line("--only storm,many --claims 8")).expect("right");
        assert_eq!((read.only.len(), read.claims, read.rounds), (2, 8, 3));
        for wrong in ["--only storms", "--claims 0", "--claim 1", "--claims"] {
            assert!(Args::read(&line(wrong)).is_err(), "{wrong}");
        }
    }
}
