//! Label selectors as they stand in query strings: `app=web,tier in (a,b),!old`.

use std::collections::{HashMap, HashSet};

use crate::error::{ApiResult, Status};
use crate::registry::names;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    Greater(String, i64),
    Less(String, i64),
}

/// What is asked of one label, all requirements on it taken together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Asked {
    must_be: bool,
    must_not_be: bool,
    one_of: Option<HashSet<String>>,
    none_of: HashSet<String>,
    greater: Option<i64>,
    less: Option<i64>,
}

impl Asked {
    fn add(&mut self, requirement: Requirement) {
        match requirement {
            Requirement::In(_, values) => {
                self.must_be = true;
                let values: HashSet<String> = values.into_iter().collect();
                self.one_of = Some(match self.one_of.take() {
                    Some(before) => before.into_iter().filter(|v| values.contains(v)).collect(),
                    None => values,
                });
            }
            Requirement::NotIn(_, values) => self.none_of.extend(values),
            Requirement::Exists(_) => self.must_be = true,
            Requirement::Absent(_) => self.must_not_be = true,
            Requirement::Greater(_, than) => {
                self.must_be = true;
                self.greater = Some(self.greater.map_or(than, |before| before.max(than)));
            }
            Requirement::Less(_, than) => {
                self.must_be = true;
                self.less = Some(self.less.map_or(than, |before| before.min(than)));
            }
        }
    }

    /// Whether a value that is there will do.
    fn takes(&self, value: &str) -> bool {
        let number = number(Some(value));
        !self.must_not_be
            && self.one_of.as_ref().is_none_or(|values| values.contains(value))
            && !self.none_of.contains(value)
            && self.greater.is_none_or(|than| number.is_some_and(|n| n > than))
            && self.less.is_none_or(|than| number.is_some_and(|n| n < than))
    }
}

/// A parsed `labelSelector`. It is held against every object, and can be as long as a request line: what
/// is asked is looked up by the labels that an object has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels {
    asked: HashMap<String, Asked>,
    /// How many labels must be there.
    needed: usize,
}

impl Labels {
    /// Parses the selector.
    ///
    /// # Errors
    /// 400 naming what could not be understood.
    pub fn parse(text: &str) -> ApiResult<Self> {
        let all = Parser { tokens: scan(text), at: 0 }.selector().map_err(Status::bad_request)?;
        let mut asked: HashMap<String, Asked> = HashMap::new();
        for requirement in all {
            asked.entry(requirement.key().to_owned()).or_default().add(requirement);
        }
        let needed = asked.values().filter(|asked| asked.must_be).count();
        Ok(Self { asked, needed })
    }

    /// Whether everything is selected.
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Whether these labels are selected.
    pub fn matches(&self, labels: &[(String, String)]) -> bool {
        let mut found = 0;
        for (key, value) in labels {
            if let Some(asked) = self.asked.get(key) {
                if !asked.takes(value) {
                    return false;
                }
                found += usize::from(asked.must_be);
            }
        }
        found == self.needed
    }
}

impl Requirement {
    fn key(&self) -> &str {
        match self {
            Self::In(key, _)
            | Self::NotIn(key, _)
            | Self::Exists(key)
            | Self::Absent(key)
            | Self::Greater(key, _)
            | Self::Less(key, _) => key,
        }
    }
}

fn number(text: Option<&str>) -> Option<i64> {
    text?.parse().ok()
}

const SIGNS: &str = "=!(),<>";

/// Words and signs; a sign is a text of its own.
fn scan(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let end = if rest.starts_with("==") || rest.starts_with("!=") {
            2
        } else if rest.starts_with(|c| SIGNS.contains(c)) {
            1
        } else {
            rest.find(|c: char| c.is_whitespace() || SIGNS.contains(c)).unwrap_or(rest.len())
        };
        let (token, tail) = rest.split_at(end);
        tokens.push(token);
        rest = tail.trim_start();
    }
    tokens
}

fn is_word(token: &str) -> bool {
    !token.is_empty() && !token.starts_with(|c| SIGNS.contains(c))
}

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Parser<'a> {
    /// The next token, empty at the end.
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or_default()
    }

    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut found = Vec::new();
        loop {
            match self.peek() {
                "" => return Ok(found),
                token if is_word(token) || token == "!" => {}
                token => {
                    return Err(format!(
                        "found '{token}', expected: !, identifier, or 'end of string'"
                    ));
                }
            }
            let one = self.requirement();
            found.push(one.map_err(|why| format!("unable to parse requirement: {why}"))?);
            match self.next() {
                "" => return Ok(found),
                "," => {
                    let after = self.peek();
                    if !is_word(after) && after != "!" {
                        return Err(format!("found '{after}', expected: identifier after ','"));
                    }
                }
                other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek() == "!";
        if absent {
            self.next();
        }
        let key = self.next();
        if !is_word(key) {
            return Err(format!("found '{key}', expected: identifier"));
        }
        let problems = names::qualified(key);
        if !problems.is_empty() {
            return Err(format!("<nil>: Invalid value: {key:?}: {}", problems.join("; ")));
        }
        let key = key.to_owned();
        if absent {
            return Ok(Requirement::Absent(key));
        }
        if matches!(self.peek(), "" | ",") {
            return Ok(Requirement::Exists(key));
        }
        match self.next() {
            "in" => Ok(Requirement::In(key.clone(), checked(&key, self.values()?)?)),
            "notin" => Ok(Requirement::NotIn(key.clone(), checked(&key, self.values()?)?)),
            "=" | "==" => Ok(Requirement::In(key.clone(), checked(&key, self.value()?)?)),
            "!=" => Ok(Requirement::NotIn(key.clone(), checked(&key, self.value()?)?)),
            sign @ (">" | "<") => {
                let bound = bound(&key, self.value()?)?;
                Ok(match sign {
                    ">" => Requirement::Greater(key, bound),
                    _ => Requirement::Less(key, bound),
                })
            }
            other => Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        }
    }

    /// What stands behind a sign; nothing is the empty value.
    fn value(&mut self) -> Result<Vec<String>, String> {
        if matches!(self.peek(), "" | ",") {
            return Ok(vec![String::new()]);
        }
        match self.next() {
            word if is_word(word) => Ok(vec![word.to_owned()]),
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }

    /// A list in brackets; where nothing stands between commas, the empty value is meant.
    fn values(&mut self) -> Result<Vec<String>, String> {
        match self.next() {
            "(" => {}
            other => return Err(format!("found '{other}' expected: '('")),
        }
        match self.peek() {
            ")" => {
                self.next();
                return Ok(vec![String::new()]);
            }
            token if is_word(token) || token == "," => {}
            other => return Err(format!("found '{other}', expected: ',', ')' or identifier")),
        }
        let mut values: Vec<String> = Vec::new();
        loop {
            match self.next() {
                word if is_word(word) => {
                    values.push(word.to_owned());
                    match self.peek() {
                        "," => {}
                        ")" => break,
                        other => return Err(format!("found '{other}', expected: ',' or ')'")),
                    }
                }
                "," => {
                    if values.is_empty() {
                        values.push(String::new());
                    }
                    match self.peek() {
                        ")" => {
                            values.push(String::new());
                            break;
                        }
                        "," => {
                            self.next();
                            values.push(String::new());
                        }
                        _ => {}
                    }
                }
                other => return Err(format!("found '{other}', expected: ',', or identifier")),
            }
        }
        self.next();
        values.sort();
        values.dedup();
        Ok(values)
    }
}

/// Several faults are listed in brackets.
fn told(faults: Vec<String>) -> Result<(), String> {
    match faults.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("[{}]", many.join(", "))),
    }
}

fn faults(key: &str, values: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for (i, value) in values.iter().enumerate() {
        let problems = names::label_value(value);
        if !problems.is_empty() {
            let why = problems.join("; ");
            found.push(format!("values[{i}][{key}]: Invalid value: {value:?}: {why}"));
        }
    }
    found
}

fn checked(key: &str, values: Vec<String>) -> Result<Vec<String>, String> {
    told(faults(key, &values))?;
    Ok(values)
}

fn bound(key: &str, values: Vec<String>) -> Result<i64, String> {
    let text = values.first().map(String::as_str).unwrap_or_default();
    let parsed = text.parse();
    let mut found = Vec::new();
    if parsed.is_err() {
        let why = "for 'Gt', 'Lt' operators, the value must be an integer";
        found.push(format!("values[0]: Invalid value: {text:?}: {why}"));
    }
    found.extend(faults(key, &values));
    told(found)?;
    parsed.map_err(|error: std::num::ParseIntError| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_selectors_name_what_was_found_and_what_was_expected() {
        let rows = [
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a=not ok", "found 'ok', expected: ',' or 'end of string'"),
            (
                "a b",
                "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt",
            ),
            ("a,", "found '', expected: identifier after ','"),
            (",a", "found ',', expected: !, identifier, or 'end of string'"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            (
                "a>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
        ];
        for (text, wanted) in rows {
            assert_eq!(Labels::parse(text).unwrap_err().message, wanted, "{text}");
        }
        let why = Labels::parse("-x=1").unwrap_err().message;
        assert!(
            why.starts_with("unable to parse requirement: <nil>: Invalid value: \"-x\": name part"),
            "{why}"
        );
    }

    #[test]
    fn empty_values_are_values() {
        let has = |pairs: &[(&str, &str)], text: &str| {
            let pairs: Vec<(String, String)> =
                pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
            Labels::parse(text).unwrap().matches(&pairs)
        };
        assert!(has(&[("a", "")], "a="));
        assert!(has(&[("a", "")], "a in ()"));
        assert!(has(&[("a", "")], "a in (x,)"));
        assert!(!has(&[("a", "y")], "a in (,x)"));
        assert!(has(&[("in", "notin")], "in=notin"));
    }
}
