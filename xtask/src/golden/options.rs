//! Flags of `cargo xtask golden`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::{
    corpus::{Corpus, Scenario, commands, sample},
    server::Against,
};

/// How many scenarios the commit chooses beside the fixed ones.
const DRAWN: usize = 10;

/// What to run, and how.
#[derive(Debug, Clone)]
pub struct Options {
    pub against: Against,
    /// Suites; empty is all.
    pub components: Vec<String>,
    /// Part of a name.
    pub only: Option<String>,
    pub jobs: Option<usize>,
    pub junit: Option<PathBuf>,
    /// Compare prose too.
    pub strict: bool,
    /// The fixed choice and what this commit draws.
    pub sample: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            against: Against::Embedded,
            components: Vec::new(),
            only: None,
            jobs: None,
            junit: None,
            strict: false,
            sample: None,
        }
    }
}

impl Options {
    pub fn parse(args: &[String]) -> Result<Self> {
        let mut options = Self::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            if arg == "--strict" {
                options.strict = true;
                continue;
            }
            let (flag, value) = match arg.split_once('=') {
                Some((flag, value)) => (flag, Some(value.to_owned())),
                None => (arg.as_str(), None),
            };
            let mut value = || {
                value
                    .clone()
                    .or_else(|| rest.next().cloned())
                    .with_context(|| format!("{flag} needs a value"))
            };
            match flag {
                "--against" => options.against = Against::parse(&value()?)?,
                "--component" => options.components.push(value()?),
                "--only" => options.only = Some(value()?),
                "--jobs" => options.jobs = Some(value()?.parse().context("--jobs needs a number")?),
                "--junit" => options.junit = Some(value()?.into()),
                "--sample" => options.sample = Some(value()?),
                other => bail!("golden has no flag {other:?}"),
            }
        }
        Ok(options)
    }

    /// The scenarios to run.
    pub fn choose(
        &self,
        corpus: Corpus,
        all: Vec<Scenario>,
        known: &dyn Fn(&Scenario) -> bool,
    ) -> Result<Vec<Scenario>> {
        for component in &self.components {
            if !all.iter().any(|one| one.suite == *component) {
                bail!("no scenario belongs to {component:?}");
            }
        }
        let sampled = match &self.sample {
            Some(commit) => Some(drawn(corpus, &all, known, commit)?),
            None => None,
        };
        let chosen: Vec<Scenario> = all
            .into_iter()
            .filter(|one| self.components.is_empty() || self.components.contains(&one.suite))
            .filter(|one| self.only.as_ref().is_none_or(|text| one.name.contains(text.as_str())))
            .filter(|one| sampled.as_ref().is_none_or(|names| names.contains(&one.name)))
            .collect();
        if chosen.is_empty() {
            bail!("no scenario is chosen");
        }
        Ok(chosen)
    }
}

/// The fixed choice and ten others, none of which is known to fail.
fn drawn(
    corpus: Corpus,
    all: &[Scenario],
    known: &dyn Fn(&Scenario) -> bool,
    commit: &str,
) -> Result<BTreeSet<String>> {
    let file = corpus.dir().join("real-sample.txt");
    let fixed = names_in(&file)?;
    let ours = commands(&corpus.dir().join("longshore.yaml"))?;
    let can = |one: &&Scenario| {
        one.components.iter().all(|name| ours.iter().any(|(ours, _)| ours == name)) && !known(one)
    };
    let able: Vec<String> = all.iter().filter(can).map(|one| one.name.clone()).collect();
    if let Some(bad) = fixed.iter().find(|name| !able.contains(name)) {
        bail!("{} names {bad:?}, which is not expected to pass", file.display());
    }
    Ok(sample(&fixed, &able, DRAWN, commit))
}

/// The names in a file, one a line.
fn names_in(file: &Path) -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.filter(|line| !line.starts_with('#')).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&args)
    }

    #[test]
    fn flags_are_read_in_both_forms() {
        assert!(parse("--strict").unwrap().strict && !parse("").unwrap().strict);
        let options =
            parse("--against real --component=attacher --component b --jobs 2 --only x").unwrap();
        assert_eq!(options.against, Against::Real);
        assert_eq!(options.components, ["attacher", "b"]);
        assert_eq!((options.jobs, options.only.as_deref()), (Some(2), Some("x")));
        for wrong in ["--against other", "--jobs", "--jobs many", "--what", "stray"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_fixed_sample_is_of_scenarios_that_shall_pass() {
        let corpus = Corpus::Controllers;
        let all = corpus.scenarios().unwrap();
        let known =
            |one: &Scenario| corpus.known(&one.suite, "real", false).unwrap().has(&one.name);
        let options = parse("--sample 0123abc").unwrap();
        let chosen = options.choose(corpus, all, &known).unwrap();
        let fixed = names_in(&corpus.dir().join("real-sample.txt")).unwrap();
        assert_eq!(chosen.len(), fixed.len() + DRAWN);
        let parts = [
            "attacher",
            "health-monitor",
            "provisioner",
            "registrar",
            "resizer",
            "snapshot",
            "volume-controllers",
        ];
        for part in parts {
            assert!(fixed.iter().any(|name| name.starts_with(part)), "none of {part}");
        }
    }
}
