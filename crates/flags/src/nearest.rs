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
    strsim::osa_distance(&left.to_lowercase(), &right.to_lowercase())
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
