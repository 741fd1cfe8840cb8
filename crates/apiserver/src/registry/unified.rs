//! The difference of two texts, in the common form with three lines around each change.

const CONTEXT: usize = 3;

/// A run of equal or changed lines: from, to in the old text, from, to in the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    equal: bool,
    old: (usize, usize),
    new: (usize, usize),
}

/// The difference; empty when there is none.
pub(super) fn diff(old: &str, new: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let mut out = String::new();
    for group in groups(&runs(&old, &new)) {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let old_range = range(first.old.0, last.old.1);
        let new_range = range(first.new.0, last.new.1);
        out.push_str(&format!("@@ -{old_range} +{new_range} @@\n"));
        for run in group {
            let mut put = |sign: char, lines: &[&str]| {
                lines.iter().for_each(|line| out.push_str(&format!("{sign}{line}\n")));
            };
            if run.equal {
                put(' ', &old[run.old.0..run.old.1]);
            } else {
                put('-', &old[run.old.0..run.old.1]);
                put('+', &new[run.new.0..run.new.1]);
            }
        }
    }
    out
}

fn range(start: usize, end: usize) -> String {
    match end - start {
        1 => format!("{}", start + 1),
        0 => format!("{start},0"),
        length => format!("{},{length}", start + 1),
    }
}

/// The longest stretch that both texts share, the first of equally long ones.
fn longest(old: &[&str], new: &[&str]) -> Option<(usize, usize, usize)> {
    let mut best: Option<(usize, usize, usize)> = None;
    let mut lengths = vec![0; new.len() + 1];
    for (i, line) in old.iter().enumerate() {
        let mut here = vec![0; new.len() + 1];
        for (j, other) in new.iter().enumerate() {
            if line != other {
                continue;
            }
            let length: usize = lengths[j] + 1;
            here[j + 1] = length;
            if best.is_none_or(|(_, _, most)| length > most) {
                best = Some((i + 1 - length, j + 1 - length, length));
            }
        }
        lengths = here;
    }
    best
}

/// The stretches that both texts share, in order: the longest one first, then those beside it.
fn matches(old: &[&str], new: &[&str], at: (usize, usize), found: &mut Vec<(usize, usize, usize)>) {
    let Some((i, j, length)) = longest(old, new) else { return };
    matches(&old[..i], &new[..j], at, found);
    found.push((at.0 + i, at.1 + j, length));
    let after = (at.0 + i + length, at.1 + j + length);
    matches(&old[i + length..], &new[j + length..], after, found);
}

fn runs(old: &[&str], new: &[&str]) -> Vec<Run> {
    let mut found = Vec::new();
    matches(old, new, (0, 0), &mut found);
    found.push((old.len(), new.len(), 0));
    let mut runs: Vec<Run> = Vec::new();
    let (mut i, mut j) = (0, 0);
    for (a, b, length) in found {
        if a > i || b > j {
            runs.push(Run { equal: false, old: (i, a), new: (j, b) });
        }
        if length > 0 {
            match runs.last_mut() {
                Some(last) if last.equal => (last.old.1, last.new.1) = (a + length, b + length),
                _ => runs.push(Run { equal: true, old: (a, a + length), new: (b, b + length) }),
            }
        }
        (i, j) = (a + length, b + length);
    }
    runs
}

/// Changes with their surroundings; far apart ones stand apart.
fn groups(runs: &[Run]) -> Vec<Vec<Run>> {
    if runs.iter().all(|run| run.equal) {
        return Vec::new();
    }
    let mut groups = vec![Vec::new()];
    for (index, run) in runs.iter().enumerate() {
        let mut run = *run;
        let length = run.old.1 - run.old.0;
        if run.equal {
            if index == 0 && length > CONTEXT {
                (run.old.0, run.new.0) = (run.old.1 - CONTEXT, run.new.1 - CONTEXT);
            } else if index + 1 == runs.len() && length > CONTEXT {
                (run.old.1, run.new.1) = (run.old.0 + CONTEXT, run.new.0 + CONTEXT);
            } else if index > 0 && length > 2 * CONTEXT {
                let mut end = run;
                (end.old.1, end.new.1) = (run.old.0 + CONTEXT, run.new.0 + CONTEXT);
                groups.last_mut().into_iter().for_each(|group| group.push(end));
                groups.push(Vec::new());
                (run.old.0, run.new.0) = (run.old.1 - CONTEXT, run.new.1 - CONTEXT);
            }
        }
        groups.last_mut().into_iter().for_each(|group| group.push(run));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_have_no_difference() {
        assert_eq!(diff("a\nb\n", "a\nb\n"), "");
    }

    #[test]
    fn diff_lines_have_ranges_and_signs() {
        assert_eq!(diff("a\nb\nc\n", "a\nx\nc\n"), "@@ -1,3 +1,3 @@\n a\n-b\n+x\n c\n");
        assert_eq!(diff("", "a\n"), "@@ -0,0 +1 @@\n+a\n");
        let many: String = (0..20).map(|n| format!("{n}\n")).collect();
        let changed = many.replace("\n5\n", "\nfive\n").replace("\n15\n", "\nfifteen\n");
        let text = diff(&many, &changed);
        assert_eq!(text.matches("@@ -").count(), 2, "{text}");
        assert!(text.starts_with("@@ -3,7 +3,7 @@\n 2\n"), "{text}");
    }
}
