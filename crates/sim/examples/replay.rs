//! Plays one run again and shows every call.
//!
//! `cargo run -p longshore-sim --example replay -- <scenario> [seed=N] [hasty] [gives-up] [slow] [apart] [<number>:<fault> ...]`

use longshore_sim::{Run, Scenario};

fn parse(arguments: &[String]) -> Result<Run, String> {
    let (scenario, rest) = arguments.split_first().ok_or("name a scenario")?;
    let mut run = Run::calm(scenario.parse::<Scenario>()?);
    for argument in rest {
        if let Some(seed) = argument.strip_prefix("seed=") {
            run.seed = seed.parse().map_err(|_| format!("{seed:?} is not a seed"))?;
        } else if argument == "hasty" {
            run.hasty = true;
        } else if argument == "gives-up" {
            run.gives_up = true;
        } else if argument == "slow" {
            run.slow = true;
        } else if argument == "apart" {
            run.apart = true;
        } else {
            let (number, fault) = argument.split_once(':').ok_or("a fault is <number>:<fault>")?;
            let number = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
            run.faults.push((number, fault.parse()?));
        }
    }
    Ok(run)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let run = parse(&arguments).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(2);
    });
    let started = std::time::Instant::now();
    let report = run.play();
    for line in &report.lines {
        println!("{line}");
    }
    println!("{report}");
    println!("in {:?} of real time", started.elapsed());
    if report.failure.is_some() {
        std::process::exit(1);
    }
}
