//! The known name that looks most like a mistyped one.

/// The candidate closest to `word`, if it is close enough to be what was meant.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let budget = (word.chars().count() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(edits, candidate)| {
            *edits <= budget || (word.len() >= 4 && candidate.starts_with(word))
        })
        .min_by_key(|(edits, candidate)| (*edits, candidate.len()))
        .map(|(_, candidate)| candidate)
}

/// Edits between two words: insertions, deletions, replacements and swaps of neighbours.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.to_lowercase().chars().collect();
    let right: Vec<char> = right.to_lowercase().chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for i in 1..=left.len() {
        let mut row = vec![i; right.len() + 1];
        for j in 1..=right.len() {
            let replaced = last[j - 1] + usize::from(left[i - 1] != right[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            let swapped =
                i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1];
            if swapped {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_meant() {
        let flags = ["timeout", "leader-election", "leader-election-namespace", "csi-address", "v"];
        for (typed, meant) in [
            ("timout", Some("timeout")),
            ("tiemout", Some("timeout")),
            ("leader-electoin", Some("leader-election")),
            ("leader-election-name", Some("leader-election-namespace")),
            ("csi-adress", Some("csi-address")),
            ("csi-endpoint", None),
            ("zzz", None),
        ] {
            assert_eq!(nearest(typed, flags), meant, "{typed}");
        }
    }

    #[test]
    fn counts_edits() {
        for (left, right, edits) in [
            ("", "", 0),
            ("", "ab", 2),
            ("abc", "abc", 0),
            ("abc", "acb", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(left, right), edits, "{left} {right}");
            assert_eq!(distance(right, left), edits, "{right} {left}");
        }
    }
}
