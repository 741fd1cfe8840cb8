//! Figures to a table.

use std::collections::BTreeMap;

use super::contender::{ALL, Contender, Figures, PAIRS};

/// The figures of all rounds, by contender.
pub type Rounds = BTreeMap<&'static str, Vec<Figures>>;

/// One line of the table.
struct Row {
    name: &'static str,
    of: fn(&Figures, f64) -> f64,
    digits: usize,
}

const ROWS: &[Row] = &[
    Row { name: "claims bound per second", of: |f, n| n / f.burst.bind_seconds, digits: 1 },
    Row { name: "claim to Bound, median, s", of: |f, _| quantile(f, 0.50), digits: 2 },
    Row { name: "claim to Bound, 99 %, s", of: |f, _| quantile(f, 0.99), digits: 2 },
    Row { name: "volumes deleted per second", of: |f, n| n / f.burst.delete_seconds, digits: 1 },
    Row { name: "API requests per claim", of: |f, n| requests(f) / n, digits: 2 },
    Row { name: "CPU per claim, ms", of: |f, n| f.cpu_seconds * 1000.0 / n, digits: 2 },
    Row {
        name: "API server's CPU per claim, ms",
        of: |f, n| f.server_cpu_seconds * 1000.0 / n,
        digits: 2,
    },
    Row {
        name: "received per claim, KiB",
        of: |f, n| f.received_bytes as f64 / 1024.0 / n,
        digits: 1,
    },
    Row { name: "memory idle, MiB", of: |f, _| mib(f.idle.rss_kib), digits: 1 },
    Row { name: "memory peak, MiB", of: |f, _| mib(f.peak_rss_kib), digits: 1 },
    Row { name: "memory after, MiB", of: |f, _| mib(f.after.rss_kib), digits: 1 },
    Row { name: "memory after (Pss), MiB", of: |f, _| mib(f.after.pss_kib), digits: 1 },
];

fn quantile(figures: &Figures, share: f64) -> f64 {
    let sorted = &figures.burst.latencies;
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or_default()
}

fn requests(figures: &Figures) -> f64 {
    figures.requests.values().sum::<u64>() as f64
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// The middle one, or the mean of the two in the middle.
pub fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    match (all.len(), all.len() / 2) {
        (0, _) => f64::NAN,
        (even, half) if even % 2 == 0 => (all[half - 1] + all[half]) / 2.0,
        (_, half) => all[half],
    }
}

fn value(row: &Row, rounds: &Rounds, id: &str, claims: usize) -> f64 {
    let all = rounds.get(id).map(Vec::as_slice).unwrap_or_default();
    median(all.iter().map(|figures| (row.of)(figures, claims as f64)).collect())
}

/// The table: medians over the rounds, and ours ÷ Go.
pub fn table(rounds: &Rounds, claims: usize) -> String {
    let shown: Vec<&Contender> = ALL.iter().filter(|one| rounds.contains_key(one.id)).collect();
    let both =
        |pair: &&(&str, &str, &str)| rounds.contains_key(pair.0) && rounds.contains_key(pair.1);
    let pairs: Vec<_> = PAIRS.iter().filter(both).collect();
    let mut head = vec![String::new()];
    head.extend(shown.iter().map(|one| one.label.to_owned()));
    head.extend(pairs.iter().map(|(_, _, heading)| (*heading).to_owned()));
    let mut lines = vec![head];
    for row in ROWS {
        let mut line = vec![row.name.to_owned()];
        let cell = |id: &str| value(row, rounds, id, claims);
        line.extend(shown.iter().map(|one| format!("{:.*}", row.digits, cell(one.id))));
        line.extend(pairs.iter().map(|(ours, go, _)| format!("{:.2}", cell(ours) / cell(go))));
        lines.push(line);
    }
    markdown(&lines)
}

/// What each contender asked the API for, per claim.
pub fn requests_table(rounds: &Rounds, claims: usize) -> String {
    let shown: Vec<&Contender> = ALL.iter().filter(|one| rounds.contains_key(one.id)).collect();
    let mut kinds: Vec<&String> =
        rounds.values().flatten().flat_map(|figures| figures.requests.keys()).collect();
    kinds.sort();
    kinds.dedup();
    let mut head = vec!["requests per claim".to_owned()];
    head.extend(shown.iter().map(|one| one.label.to_owned()));
    let mut lines = vec![head];
    for kind in kinds {
        let mut line = vec![kind.clone()];
        line.extend(shown.iter().map(|one| {
            let all = rounds[one.id].iter();
            let each = all.map(|figures| figures.requests.get(kind).copied().unwrap_or(0) as f64);
            format!("{:.2}", median(each.collect()) / claims as f64)
        }));
        lines.push(line);
    }
    markdown(&lines)
}

pub fn markdown(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(|at| width(at).max(3)).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (at, cell) in line.iter().enumerate() {
            let (pad, bar) = (widths[at] - cell.chars().count(), if at == 0 { "| " } else { " " });
            let pad = " ".repeat(pad);
            let cell = if at == 0 { format!("{cell}{pad}") } else { format!("{pad}{cell}") };
            text.push_str(&format!("{bar}{cell} |"));
        }
        text.push('\n');
        if number == 0 {
            let rule = |at: usize| match at {
                0 => format!("|{}|", "-".repeat(widths[0] + 2)),
                _ => format!("{}:|", "-".repeat(widths[at] + 1)),
            };
            text.push_str(&(0..columns).map(rule).collect::<String>());
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::{load::Burst, process::Memory};
    use super::*;

    fn figures(seconds: f64) -> Figures {
        let memory = Memory { rss_kib: 2048, pss_kib: 1024 };
        Figures {
            burst: Burst {
                bind_seconds: seconds,
                latencies: (1..=100).map(|one| f64::from(one) / 100.0).collect(),
                delete_seconds: 2.0 * seconds,
            },
            idle: memory,
            peak_rss_kib: 4096,
            after: memory,
            cpu_seconds: 0.5,
            server_cpu_seconds: 0.25,
            received_bytes: 102_400,
            requests: [("create persistentvolumes".to_owned(), 300)].into(),
        }
    }

    #[test]
    fn medians_and_ratios() {
        let rounds = Rounds::from([
            ("go", vec![figures(10.0), figures(30.0), figures(20.0)]),
            ("ours", vec![figures(5.0)]),
        ]);
        let table = table(&rounds, 100);
        let line = |name: &str| {
            let found = table.lines().find(|line| line.contains(name)).expect(name);
            let cells: Vec<&str> = found.split('|').map(str::trim).collect();
            cells[2..cells.len() - 1].join(" ")
        };
        assert_eq!(line("claims bound per second"), "5.0 20.0 4.00");
        assert_eq!(line("median, s"), "0.50 0.50 1.00");
        assert_eq!(line("99 %, s"), "0.99 0.99 1.00");
        assert_eq!(line("API requests per claim"), "3.00 3.00 1.00");
        assert_eq!(line("API server's CPU"), "2.50 2.50 1.00");
        assert_eq!(line("received per claim"), "1.0 1.0 1.00");
        assert_eq!(line("memory peak"), "4.0 4.0 1.00");
        assert!(requests_table(&rounds, 100).contains("create persistentvolumes |"));
    }
}
