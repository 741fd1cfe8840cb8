//! Figures to a table.

use super::{Figures, SOME, WATCHERS, WRITERS};
use crate::bench::report::{markdown, median};

/// Theirs, ours, and the ratio, in the direction in which more is better.
pub fn table(figures: &[Figures; 2], objects: usize) -> String {
    let mut lines =
        vec![["", "etcd + kube-apiserver", "longshore", "ratio"].map(str::to_owned).to_vec()];
    let mut row = |name: String, digits: usize, of: &dyn Fn(&Figures) -> f64, less: bool| {
        let (theirs, ours) = (of(&figures[0]), of(&figures[1]));
        let ratio = if less { theirs / ours } else { ours / theirs };
        let cell = |value: f64| format!("{value:.digits$}");
        lines.push(vec![name, cell(theirs), cell(ours), format!("{ratio:.1}×")]);
    };
    for (at, writers) in WRITERS.into_iter().enumerate() {
        let plural = if writers == 1 { "" } else { "s" };
        let name = format!("durable creates/s, {writers} writer{plural}");
        row(name, 0, &|f| median(f.creates[at].clone()), false);
    }
    row(format!("list of {SOME}, ms"), 1, &|f| median(f.list_seconds.clone()) * 1000.0, true);
    row(format!("events/s to {WATCHERS} watchers"), 0, &|f| median(f.events.clone()), false);
    let delay = format!("one change until {WATCHERS} watchers have it, ms");
    row(delay, 1, &|f| median(f.event_seconds.clone()) * 1000.0, true);
    let mib = |kib: u64| kib as f64 / 1024.0;
    row("memory idle, MiB".into(), 1, &|f| mib(f.idle.rss_kib), true);
    row(format!("memory at {SOME}, MiB"), 1, &|f| mib(f.memory_some.rss_kib), true);
    row(format!("memory at {objects}, MiB"), 1, &|f| mib(f.memory_all.rss_kib), true);
    row("the same without file pages, MiB".into(), 1, &|f| mib(f.memory_all.anonymous_kib), true);
    row(format!("start with {objects}, s"), 2, &|f| f.start_seconds, true);
    markdown(&lines)
}
