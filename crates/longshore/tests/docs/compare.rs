//! Compares what a page says with what was printed.

use std::sync::LazyLock;

use regex::Regex;

/// What differs from run to run, and what stands for it.
const CHANGING: &[(&str, &str)] = &[
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
    (r"\b(csi|vol|snap)-[0-9a-f]{32,64}\b", "$1-HASH"),
    (
        r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun),? [A-Z0-9][a-z0-9 ]+ [A-Za-z0-9: ]*\d\d:\d\d:\d\d( [+A-Z0-9]+)?( \d{4})?",
        "TIME",
    ),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", "TIME"),
    (r"\b([IWEF])\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ ([a-z_:]+):\d+\]", "$1LOG $2]"),
    (r"/dev/loop\d+", "/dev/loopN"),
    (r"/tmp/longshore-(demo|e2e)-[A-Za-z0-9-]+", "/tmp/longshore-$1"),
    (r"\b(127\.0\.0\.1|localhost|\[::1\]):\d{2,5}\b", "$1:PORT"),
    (r"\b(process|pid|PID) \d+", "$1 N"),
    (r"\b(\d+[dhm])+\d+(\.\d+)?(ms|[hms])\b", "DURATION"),
    (r"\b\d+(\.\d+)?( ?(ns|µs|ms|s)|m|h|d)\b", "DURATION"),
    (r"={2,}", "="),
    (r"[ \t]+", " "),
];

static RULES: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    CHANGING.iter().map(|(rule, stands)| (Regex::new(rule).unwrap(), *stands)).collect()
});

/// A line without what differs from run to run.
fn normal(line: &str) -> String {
    let mut line = line.trim_end().to_owned();
    for (rule, stands) in RULES.iter() {
        line = rule.replace_all(&line, *stands).into_owned();
    }
    line.trim().to_owned()
}

fn normal_lines<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut lines: Vec<String> = lines.map(normal).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Whether `seen` is what the page says. A line `…` stands for any lines, and `…` in a line for any text.
pub fn same(said: &[String], seen: &str) -> bool {
    let said = normal_lines(said.iter().map(String::as_str));
    same_lines(&said, &normal_lines(seen.lines()))
}

fn same_lines(said: &[String], seen: &[String]) -> bool {
    match said {
        [] => seen.is_empty(),
        [any, rest @ ..] if any == "…" => {
            (0..=seen.len()).any(|skipped| same_lines(rest, &seen[skipped..]))
        }
        [line, rest @ ..] => match seen {
            [first, others @ ..] => same_line(line, first) && same_lines(rest, others),
            [] => false,
        },
    }
}

fn same_line(said: &str, seen: &str) -> bool {
    let mut parts = said.split('…');
    let Some(mut rest) = seen.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut open = false;
    for part in parts {
        open = part.is_empty();
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    // Text behind the last `…` must be the line's end, which may come later than its first occurrence.
    open || rest.is_empty() || said.rsplit_once('…').is_some_and(|(_, end)| rest.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn what_differs_from_run_to_run_does_not_count() {
        for (said, seen) in [
            ("pod/web   1/1   Running   0   0s", "pod/web 1/1 Running 0 1m12s"),
            (
                "pvc-d3d5b5d8-1143-46d8-b280-88e5ac831c8a 64Mi",
                "pvc-00000000-1143-46d8-b280-88e5ac831c8a  64Mi",
            ),
            ("/dev/loop0  55M", "/dev/loop17 55M"),
            ("Mon Nov 16 00:55:41 UTC 2026", "Wed Dec  2 10:03:33 UTC 2026"),
            ("ok start 116.8 ms  the API", "ok start 1.2 s the API"),
            ("Waiting for volume for 3s: it", "Waiting for volume for 4.2s: it"),
            (
                "I1118 05:26:57.628345    4069 driver::service:81] done",
                "I1119 05:26:57.128345 1 driver::service:9] done",
            ),
            ("in use by process 8649; stop", "in use by process 1; stop"),
            ("https://127.0.0.1:6443", "https://127.0.0.1:40001"),
            ("a\n…\nz", "a\nz\n"),
            ("a\n…\nz", "a\nb\nc\nz"),
            ("…\nz", "z"),
            ("a … c", "a b b c"),
            ("a … c", "a c c"),
            ("a …", "a b"),
            ("", "\n\n"),
        ] {
            assert!(
                same(&lines(said), seen),
                "{said:?} {seen:?}: {} {}",
                normal(said),
                normal(seen)
            );
        }
    }

    #[test]
    fn everything_else_counts() {
        for (said, seen) in [
            ("pod/web created", "pod/web unchanged"),
            ("64Mi", "65Mi"),
            ("a", "a\nb"),
            ("a\nb", "a"),
            ("", "error"),
            ("a … c", "a b"),
            ("a … c", "b a c"),
            ("a\n…\nz", "a\nb"),
            ("1/1 Running", "0/1 Running"),
            ("/dev/loop0 55M", "/dev/sda 55M"),
        ] {
            assert!(!same(&lines(said), seen), "{said:?} {seen:?}");
        }
    }
}
