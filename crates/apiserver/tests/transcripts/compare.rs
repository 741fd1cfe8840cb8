//! Compares what a command printed with the recording, places that differ from run to run aside.

use std::process::Output;

use regex::Regex;

use super::script::Step;

/// What differs, in words; nothing when all is as recorded.
pub fn differences(step: &Step, output: &Output) -> Vec<String> {
    let mut found = Vec::new();
    let code = output.status.code().unwrap_or(-1);
    if code != step.exit {
        found.push(format!("exit code: want {}, got {code}", step.exit));
    }
    for (name, want, got) in
        [("stdout", &step.stdout, &output.stdout), ("stderr", &step.stderr, &output.stderr)]
    {
        let got = String::from_utf8_lossy(got);
        if !same(want, &got) {
            found.push(format!("--- {name}, recorded:\n{want}--- {name}, now:\n{got}"));
        }
    }
    found
}

fn same(want: &str, got: &str) -> bool {
    // The recording left out the random part of these names, and the spaces of empty lines.
    let got = Regex::new(r"/(LIVE|MERGED)-\d+/").unwrap().replace_all(got, "/$1/");
    let empty = Regex::new(r"(?m)^ +$").unwrap();
    let got = if want.contains("⟨description⟩") { empty.replace_all(&got, "") } else { got };
    // The recording ends every block with a line end; some outputs have none.
    let (want, got) = (want.trim_end_matches('\n'), got.trim_end_matches('\n'));
    if let (Some(want), Some(got)) = (table(want), table(got)) {
        return want.len() == got.len()
            && want.iter().zip(&got).all(|(want, got)| {
                want.len() == got.len() && want.iter().zip(got).all(|(w, g)| fits(w, g))
            });
    }
    fits(want, got) || (is_row(want) && fits(&squeezed(want), &squeezed(got)))
}

/// A row without headings, whose columns are as wide as its widest cells.
fn is_row(want: &str) -> bool {
    !want.contains('\n') && want.contains("   ")
}

fn squeezed(line: &str) -> String {
    Regex::new(" {2,}").unwrap().replace_all(line.trim_end(), "  ").into_owned()
}

/// The cells of a table; `None` when the text is none.
fn table(text: &str) -> Option<Vec<Vec<String>>> {
    let mut lines = text.lines();
    let head = lines.next()?;
    let heading = Regex::new(r"^[A-Z][A-Z \-]*$").unwrap();
    if !heading.is_match(head) || !head.contains("   ") {
        return None;
    }
    let starts: Vec<usize> =
        Regex::new(r"\S+( \S+)*").unwrap().find_iter(head).map(|found| found.start()).collect();
    let mut rows = vec![cells(head, &starts)];
    for line in lines {
        rows.push(cells(&aligned(line, &starts), &starts));
    }
    Some(rows)
}

/// The recording replaced ages by a word of another length. The length that puts the cells below
/// their headings is the one the age had.
fn aligned(line: &str, starts: &[usize]) -> String {
    const AGE: &str = "⟨age⟩";
    if !line.contains(AGE) {
        return line.to_owned();
    }
    let below = |line: &str| {
        let chars: Vec<char> = line.chars().collect();
        starts.iter().skip(1).all(|&at| {
            chars
                .get(at.saturating_sub(2)..at.min(chars.len()))
                .is_none_or(|gap| gap.iter().all(|c| *c == ' '))
                && chars.get(at).is_none_or(|_| true)
        })
    };
    // A private character per column of the age keeps offsets right; it is put back in `cells`.
    (2..=6)
        .map(|width| line.replace(AGE, &"\u{e000}".repeat(width)))
        .find(|line| below(line))
        .unwrap_or_else(|| panic!("no length of the ages fits: {line}"))
}

fn cells(line: &str, starts: &[usize]) -> Vec<String> {
    let chars: Vec<char> = line.chars().collect();
    let ends = starts.iter().skip(1).copied().chain([usize::MAX]);
    let ages = Regex::new("\u{e000}+").unwrap();
    starts
        .iter()
        .zip(ends)
        .map(|(&start, end)| {
            let end = end.min(chars.len());
            let cell: String = chars.get(start..end).unwrap_or_default().iter().collect();
            ages.replace_all(cell.trim(), "⟨age⟩").into_owned()
        })
        .collect()
}

/// Whether a text is as recorded.
fn fits(want: &str, got: &str) -> bool {
    let mut pattern = String::from("^");
    let mut rest = want;
    let place = Regex::new("⟨[^⟩]*⟩").unwrap();
    while let Some(found) = place.find(rest) {
        pattern.push_str(&regex::escape(&rest[..found.start()]));
        pattern.push_str(&placeholder(found.as_str()));
        rest = &rest[found.end()..];
    }
    pattern.push_str(&regex::escape(rest));
    pattern.push('$');
    Regex::new(&pattern).unwrap().is_match(got)
}

fn placeholder(word: &str) -> String {
    let word = word.trim_matches(['⟨', '⟩']);
    match word {
        "age" => r"(\d+[smhdy]){1,2}".into(),
        "uid" => "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}".into(),
        "rv" => r"[1-9]\d*".into(),
        "time" => r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ".into(),
        "date" => r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ [+-]\d{4}".into(),
        "tmp" => r"/\S+".into(),
        "server" => r"https://\S+".into(),
        // Paragraphs; what stands below ends them.
        "description" => r"\S[^\n]*(\n[^\n]*)*?".into(),
        _ => {
            let count = word.strip_prefix("… ").and_then(|w| w.strip_suffix(" more lines"));
            let count: usize = count.and_then(|n| n.parse().ok()).expect("a known placeholder");
            format!(r"[^\n]*(\n[^\n]*){{{}}}", count - 1)
        }
    }
}

#[test]
fn tables_are_compared_by_cell() {
    let want = "NAME   STATUS   AGE   MODE\ndata   Bound    ⟨age⟩    Fs";
    assert!(same(want, "NAME   STATUS   AGE    MODE\ndata   Bound    120s   Fs\n"));
    assert!(!same(want, "NAME   STATUS   AGE   MODE\ndata            2s    Fs\n"));
    assert!(!same(
        want,
        "NAME   STATUS   AGE   MODE\ndata   Bound    2s    Fs\nmore   Bound    2s    Fs\n"
    ));
}

#[test]
fn places_fit_only_what_they_stand_for() {
    assert!(fits("uid: ⟨uid⟩", "uid: 0b6f7a3e-1111-2222-3333-444455556666"));
    assert!(!fits("uid: ⟨uid⟩", "uid: x"));
    assert!(fits("a\n⟨… 2 more lines⟩", "a\nb\nc"));
    assert!(!fits("a\n⟨… 2 more lines⟩", "a\nb\nc\nd"));
}
