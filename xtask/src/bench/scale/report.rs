//! Figures to tables.

use super::{Place, subject::Figures};
use crate::bench::report::markdown;

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

/// One program's figures in a line.
pub fn line(one: &Figures) -> String {
    format!(
        "{}: first work {:.2} s, {:.2} s CPU, {:.1} MiB received, {:.0} MiB (peak {:.0}), \
         {:.0} µs and {:.0} bytes an event, back {:.2} s after the API",
        one.name,
        one.first_work_seconds,
        one.start_cpu_seconds,
        one.start_bytes as f64 / (1024.0 * 1024.0),
        mib(one.idle_kib),
        mib(one.peak_kib),
        one.event_cpu_micros,
        one.event_bytes,
        one.recovery_seconds
    )
}

/// A table of each server's programs, and one of the servers.
pub fn tables(places: &[Place], few: usize, many: usize) -> String {
    let mut text = String::new();
    for place in places.iter().filter(|place| place.volumes == many) {
        let small = places.iter().find(|one| one.server == place.server && one.volumes == few);
        text.push_str(&format!("{}, {many} volumes (in brackets: {few}):\n\n", place.server));
        let mut lines = vec![
            [
                "",
                "first work, s",
                "CPU of the start, s",
                "received, MiB",
                "memory, MiB",
                "peak, MiB",
                "CPU per event, µs",
                "× few",
                "bytes per event",
                "back after the API, s",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        for one in &place.subjects {
            let before =
                small.and_then(|small| small.subjects.iter().find(|two| two.name == one.name));
            let with = |value: f64, digits: usize, of: fn(&Figures) -> f64| match before {
                Some(before) => format!("{value:.digits$} ({:.digits$})", of(before)),
                None => format!("{value:.digits$}"),
            };
            let ratio = before.map(|before| one.event_cpu_micros / before.event_cpu_micros);
            lines.push(vec![
                one.name.to_owned(),
                with(one.first_work_seconds, 2, |one| one.first_work_seconds),
                with(one.start_cpu_seconds, 2, |one| one.start_cpu_seconds),
                format!("{:.1}", one.start_bytes as f64 / (1024.0 * 1024.0)),
                with(mib(one.idle_kib), 0, |one| mib(one.idle_kib)),
                format!("{:.0}", mib(one.peak_kib)),
                with(one.event_cpu_micros, 0, |one| one.event_cpu_micros),
                ratio.map(|ratio| format!("{ratio:.1}")).unwrap_or_default(),
                format!("{:.0}", one.event_bytes),
                format!("{:.2}", one.recovery_seconds),
            ]);
        }
        text.push_str(&markdown(&lines));
        text.push('\n');
    }
    text.push_str(&servers(places));
    text
}

fn servers(places: &[Place]) -> String {
    let head = ["", "volumes", "objects, MiB", "memory, MiB", "× objects", "start, s"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    for place in places {
        let bytes = place.bytes as f64 / (1024.0 * 1024.0);
        let memory = mib(place.memory.rss_kib);
        lines.push(vec![
            place.server.to_owned(),
            place.volumes.to_string(),
            format!("{bytes:.1}"),
            format!("{memory:.0}"),
            format!("{:.1}", memory / bytes),
            format!("{:.2}", place.start_seconds),
        ]);
    }
    markdown(&lines)
}

#[cfg(test)]
mod tests {
    use super::super::super::process::Memory;
    use super::*;

    #[test]
    fn each_program_is_compared_with_itself_among_few() {
        let figures = |micros: f64| Figures {
            name: "binder",
            first_work_seconds: 1.0,
            start_cpu_seconds: 0.5,
            start_bytes: 1024 * 1024,
            peak_kib: 4096,
            idle_kib: 2048,
            event_cpu_micros: micros,
            event_bytes: 100.0,
            recovery_seconds: 0.25,
        };
        let place = |volumes: usize, micros: f64| Place {
            server: "s",
            volumes,
            bytes: 1024 * 1024,
            memory: Memory { rss_kib: 2048, pss_kib: 1024 },
            start_seconds: 0.5,
            subjects: vec![figures(micros)],
        };
        let text = tables(&[place(1, 10.0), place(2, 15.0)], 1, 2);
        let row = text.lines().find(|line| line.contains("binder")).expect("a row");
        assert!(row.contains("15 (10)") && row.contains(" 1.5 |"), "{row}");
        let row = text.lines().find(|line| line.starts_with("| s ")).expect("a row");
        assert!(row.contains("2.0"), "{row}");
    }
}
