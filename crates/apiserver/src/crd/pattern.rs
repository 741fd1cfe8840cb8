//! Patterns of schemas and rules, read as Kubernetes reads them (RE2).
//!
//! `\\d`, `\\w` and `\\s` are ASCII there, and inside brackets `[`, `&&` and `~~` stand for themselves. A
//! pattern is compiled when it is first needed: a few letters can stand for a machine of many megabytes,
//! and a definition holds thousands of them. What was compiled is kept, up to a bound.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use regex::{Regex, RegexBuilder};
use serde_json::Value;

/// Sizes that a compiled pattern is tried with; the first that does is what it weighs.
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// What the patterns of one definition may weigh together.
pub(super) const MAX_TOGETHER: usize = 4 << 20;
/// What is kept of all definitions.
const MAX_KEPT: usize = 32 << 20;
/// What a search may remember of its way, per pattern and thread.
const SEARCH_BYTES: usize = 256 << 10;
/// Longest text of a pattern.
const MAX_SOURCE: usize = 16 << 10;

#[derive(Debug, Clone)]
pub struct Pattern(Arc<str>);

impl Pattern {
    /// The pattern of this text.
    pub fn new(source: &str) -> Self {
        Self(source.into())
    }

    pub fn source(&self) -> &str {
        &self.0
    }

    /// Whether the text has a match. A pattern that cannot be compiled matches everything: the
    /// definition's own validation refuses it, so it can only come from an older store.
    pub fn is_match(&self, text: &str) -> bool {
        compiled(&self.0).map_or(true, |pattern| pattern.is_match(text))
    }
}

/// What the pattern weighs.
///
/// # Errors
/// It cannot be used.
pub(super) fn weigh(source: &str) -> Result<usize, PatternError> {
    compile(source).map(|(_, weight)| weight)
}

/// What the patterns of a schema weigh together; it ends when that is too much.
pub(super) fn weigh_all(schema: &Value) -> usize {
    let mut sources = HashSet::new();
    gather(schema, &mut sources);
    let mut sum = 0;
    for source in sources {
        sum += match compile(source) {
            Ok((_, weight)) => weight,
            Err(PatternError::TooBig) => SIZES[SIZES.len() - 1],
            // The error is reported at its own field, and was found early.
            Err(PatternError::TooLong | PatternError::Invalid(_)) => 0,
        };
        if sum > MAX_TOGETHER {
            break;
        }
    }
    sum
}

fn gather<'a>(schema: &'a Value, sources: &mut HashSet<&'a str>) {
    sources.extend(schema["pattern"].as_str());
    let named = schema["properties"].as_object().into_iter().flat_map(|map| map.values());
    let listed = ["allOf", "anyOf", "oneOf"].into_iter();
    let listed = listed.flat_map(|name| schema[name].as_array().into_iter().flatten());
    let rest = ["items", "additionalProperties", "not"].into_iter().map(|name| &schema[name]);
    let parts = named.chain(listed).chain(rest).filter(|part| part.is_object());
    parts.for_each(|part| gather(part, sources));
}

/// The machine of a pattern, from those that are kept if it is there.
///
/// # Errors
/// It cannot be used.
pub(super) fn compiled(source: &str) -> Result<Regex, PatternError> {
    static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);
    if let Some(found) = KEPT.lock().find(source) {
        return Ok(found);
    }
    let (pattern, weight) = compile(source)?;
    KEPT.lock().keep(source, pattern.clone(), weight);
    Ok(pattern)
}

/// Compiled patterns; of too many those go that were not used for longest.
#[derive(Default)]
struct Kept {
    patterns: HashMap<Arc<str>, (Regex, usize, u64)>,
    weight: usize,
    clock: u64,
}

impl Kept {
    fn find(&mut self, source: &str) -> Option<Regex> {
        self.clock += 1;
        let (pattern, _, used) = self.patterns.get_mut(source)?;
        *used = self.clock;
        Some(pattern.clone())
    }

    fn keep(&mut self, source: &str, pattern: Regex, weight: usize) {
        self.clock += 1;
        while self.weight + weight > MAX_KEPT {
            let oldest = self.patterns.iter().min_by_key(|(_, (_, _, used))| *used);
            let Some(oldest) = oldest.map(|(source, _)| Arc::clone(source)) else { break };
            if let Some((_, gone, _)) = self.patterns.remove(&oldest) {
                self.weight -= gone;
            }
        }
        if let Some((_, before, _)) =
            self.patterns.insert(source.into(), (pattern, weight, self.clock))
        {
            self.weight -= before;
        }
        self.weight += weight;
    }
}

/// Why a pattern cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum PatternError {
    #[error("it is longer than {} bytes", MAX_SOURCE)]
    TooLong,
    #[error("compiled it is larger than {} bytes", SIZES[SIZES.len() - 1])]
    TooBig,
    #[error(transparent)]
    Invalid(regex::Error),
}

fn compile(source: &str) -> Result<(Regex, usize), PatternError> {
    if source.len() > MAX_SOURCE {
        return Err(PatternError::TooLong);
    }
    let translated = as_re2_reads(source);
    for size in SIZES {
        let built = RegexBuilder::new(&translated)
            .size_limit(size)
            .dfa_size_limit(SEARCH_BYTES)
            .nest_limit(100)
            .build();
        match built {
            Ok(pattern) => return Ok((pattern, size)),
            Err(regex::Error::CompiledTooBig(_)) => {}
            Err(error) => return Err(PatternError::Invalid(error)),
        }
    }
    Err(PatternError::TooBig)
}

/// The pattern in the dialect of the library.
fn as_re2_reads(source: &str) -> String {
    let mut out = String::with_capacity(source.len() + 16);
    let mut rest = source.chars().peekable();
    let mut inside = false;
    while let Some(c) = rest.next() {
        match c {
            '\\' => match rest.next() {
                Some('d') => out.push_str("[0-9]"),
                Some('D') => out.push_str("[^0-9]"),
                Some('w') => out.push_str("[0-9A-Za-z_]"),
                Some('W') => out.push_str("[^0-9A-Za-z_]"),
                Some('s') => out.push_str("[\\t\\n\\x0C\\r ]"),
                Some('S') => out.push_str("[^\\t\\n\\x0C\\r ]"),
                Some('b') if !inside => out.push_str("(?-u:\\b)"),
                Some(other) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
            '[' if inside && rest.peek() == Some(&':') => {
                // A class by name, to its end.
                out.push('[');
                while let Some(c) = rest.next() {
                    out.push(c);
                    if c == ':' && rest.peek() == Some(&']') {
                        out.extend(rest.next());
                        break;
                    }
                }
            }
            '[' if !inside => {
                inside = true;
                out.push('[');
                if rest.peek() == Some(&'^') {
                    out.extend(rest.next());
                }
                // The first bracket is an element.
                if rest.peek() == Some(&']') {
                    rest.next();
                    out.push_str("\\]");
                }
            }
            ']' if inside => {
                inside = false;
                out.push(']');
            }
            '[' | '&' | '~' if inside => out.extend(['\\', c]),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patterns_match_what_they_match_in_kubernetes() {
        let rows = [
            (r"^\d+$", "12", true),
            (r"^\d+$", "١٢", false),
            (r"^\w+$", "a_9", true),
            (r"^\w+$", "ä", false),
            (r"^\s$", "\u{a0}", false),
            (r"^.$", "ä", true),
            (r"^\D$", "ä", true),
            (r"^[\w.-]+$", "a.b-c", true),
            (r"^[^\s]+$", "ä b", false),
            (r"^[a[]+$", "a[", true),
            (r"^[a&&b]+$", "a&b", true),
            (r"^[]a]+$", "]a", true),
            (r"^[[:alpha:]_]+$", "ab_", true),
            (r"\bx\b", "a x b", true),
            (r"^(a|b){2}$", "ab", true),
            (r"^\.\[$", ".[", true),
        ];
        for (pattern, text, wanted) in rows {
            assert_eq!(Pattern::new(pattern).is_match(text), wanted, "{pattern} {text}");
        }
    }

    #[test]
    fn patterns_that_grow_are_refused_and_the_usual_ones_are_not() {
        for bomb in [r"(\pL{1000}){1000}", r"((a{1,100}){1,100}){1,100}", r"\pL{9999}"] {
            assert!(weigh(bomb).is_err(), "{bomb}");
        }
        let usual = [
            r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
            r"^([0-9]{1,3}\.){3}[0-9]{1,3}$",
            r"^(([0-9]+(\.[0-9]+)?)(ms|s|m|h))+$",
            r"^[A-Za-z0-9._~!$&'()*+,;=:@/?%-]{1,1024}$",
            r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        ];
        for pattern in usual {
            assert!(weigh(pattern).is_ok(), "{pattern}: {:?}", weigh(pattern));
        }
        let all = |times: usize| -> Value {
            let each = |i| json!({"pattern": format!(r"^\pL{{{times}}}{i}$")});
            json!({"allOf": (0..1000).map(each).collect::<Vec<_>>()})
        };
        assert!(weigh_all(&all(180)) > MAX_TOGETHER);
        assert!(weigh_all(&all(9)) > MAX_TOGETHER);
        let same = json!({"pattern": usual[0]});
        let same = json!({"allOf": vec![same; 10_000]});
        assert!(weigh_all(&same) <= SIZES[2], "{}", weigh_all(&same));
    }

    #[test]
    fn the_weight_of_kept_patterns_is_bounded() {
        let mut kept = Kept::default();
        for i in 0..1000 {
            let (pattern, _) = compile("a").unwrap();
            kept.keep(&i.to_string(), pattern, 1 << 20);
        }
        assert!(kept.weight <= MAX_KEPT && kept.patterns.len() <= 32);
        assert!(kept.find("999").is_some() && kept.find("0").is_none());
    }
}
