//! From the text of a template to its parts.

use serde_json::{Value, json};

use super::{Filter, Part, PathError, Slice, Step};

/// Reads a whole template.
pub(super) fn template(source: &str) -> Result<Vec<Part>, PathError> {
    let mut parser = Parser { rest: source };
    // Ranges that are open, outermost first, each with what stood before it.
    let mut open: Vec<(Vec<Step>, Vec<Part>)> = Vec::new();
    let mut parts = Vec::new();
    while !parser.rest.is_empty() {
        if !parser.skip("{") {
            let end = parser.rest.find('{').unwrap_or(parser.rest.len());
            parts.push(Part::Text(parser.take(end).to_owned()));
            continue;
        }
        let steps = parser.steps(true)?;
        if steps.contains(&Step::Range) {
            let steps = steps.into_iter().filter(|step| *step != Step::Range).collect();
            open.push((steps, std::mem::take(&mut parts)));
        } else if steps.contains(&Step::End) {
            let Some((steps, before)) = open.pop() else {
                return Err(wrong("not in range, nothing to end"));
            };
            let body = std::mem::replace(&mut parts, before);
            parts.push(Part::Range(steps, body));
        } else {
            parts.push(Part::Action(steps));
        }
    }
    // A range without its end lasts to the end of the template.
    while let Some((steps, before)) = open.pop() {
        let body = std::mem::replace(&mut parts, before);
        parts.push(Part::Range(steps, body));
    }
    Ok(parts)
}

/// The steps of a path that stands alone, as inside a filter or a union.
fn path(text: &str) -> Result<Vec<Step>, PathError> {
    Parser { rest: text }.steps(false)
}

fn wrong(text: impl Into<String>) -> PathError {
    PathError(text.into())
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn skip(&mut self, prefix: &str) -> bool {
        let found = self.rest.strip_prefix(prefix);
        self.rest = found.unwrap_or(self.rest);
        found.is_some()
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    /// Reads steps up to the closing brace, or to the end of the text.
    fn steps(&mut self, in_braces: bool) -> Result<Vec<Step>, PathError> {
        let mut steps = Vec::new();
        loop {
            match self.rest.chars().next() {
                None if in_braces => return Err(wrong("unclosed action: a `}` is missing")),
                None => return Ok(steps),
                Some('}') if in_braces => {
                    self.skip("}");
                    return Ok(steps);
                }
                Some('\n' | '\r') => return Err(wrong("unclosed action: a line ends in it")),
                Some(next) => self.step(next, &mut steps)?,
            }
        }
    }

    fn step(&mut self, next: char, steps: &mut Vec<Step>) -> Result<(), PathError> {
        if self.skip("[?(") {
            steps.push(Step::Filter(self.filter()?));
        } else if self.skip("..") {
            steps.push(Step::Recursive);
            if self.rest.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
                steps.push(self.field());
            }
        } else if self.skip(".") {
            steps.push(self.field());
        } else if self.skip("[") {
            self.array(steps)?;
        } else if next == '"' || next == '\'' {
            self.take(1);
            steps.push(self.quoted(next)?);
        } else if next == '+' || next == '-' || next.is_ascii_digit() {
            steps.push(self.number()?);
        } else if next.is_alphanumeric() || next == '_' {
            steps.push(self.word()?);
        } else if matches!(next, ' ' | '@' | '$') {
            // The object at hand is what a path starts from anyway.
            self.take(1);
        } else {
            return Err(wrong(format!("unrecognized character `{next}` in action")));
        }
        Ok(())
    }

    /// The text up to the next mark that ends a field; a backslash takes the next character along.
    fn until_terminator(&mut self) -> &'a str {
        let mut escaped = false;
        let end = self.rest.char_indices().find(|(_, c)| {
            let ends = !escaped
                && (c.is_whitespace()
                    || matches!(c, '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}'));
            escaped = !escaped && *c == '\\';
            ends
        });
        let end = end.map_or(self.rest.len(), |(at, _)| at);
        self.take(end)
    }

    fn field(&mut self) -> Step {
        match self.until_terminator() {
            "*" => Step::Wildcard,
            name => Step::Field(name.replace('\\', "")),
        }
    }

    fn word(&mut self) -> Result<Step, PathError> {
        match self.until_terminator() {
            "range" => Ok(Step::Range),
            "end" => Ok(Step::End),
            "true" => Ok(Step::Literal(json!(true))),
            "false" => Ok(Step::Literal(json!(false))),
            other => Err(wrong(format!("unrecognized identifier {other}"))),
        }
    }

    fn number(&mut self) -> Result<Step, PathError> {
        let other = |c: char| !(c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E'));
        let end = self.rest.find(other).unwrap_or(self.rest.len());
        let text = self.take(end);
        let whole = text.parse::<i64>().ok().map(|number| json!(number));
        let number = whole.or_else(|| text.parse::<f64>().ok().map(|number| json!(number)));
        number.map(Step::Literal).ok_or_else(|| wrong(format!("cannot parse number {text}")))
    }

    fn quoted(&mut self, quote: char) -> Result<Step, PathError> {
        let mut text = String::new();
        let mut chars = self.rest.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                _ if c == quote => {
                    self.take(at + 1);
                    return Ok(Step::Literal(Value::String(text)));
                }
                '\\' => text.push(escape(&mut chars)?),
                _ => text.push(c),
            }
        }
        Err(wrong("unterminated quoted string"))
    }

    /// What follows `[`.
    fn array(&mut self, steps: &mut Vec<Step>) -> Result<(), PathError> {
        let end = self.rest.find(']').ok_or_else(|| wrong("unterminated array"))?;
        let text = self.take(end);
        self.skip("]");
        let text = if text == "*" { ":" } else { text };
        if text.contains(',') {
            let members = text.split(',').map(|member| path(&format!("[{}]", member.trim())));
            steps.push(Step::Union(members.collect::<Result<_, _>>()?));
            return Ok(());
        }
        let key = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
        match key.filter(|key| !key.contains('\'')) {
            Some(key) => steps.extend(path(&format!(".{key}"))?),
            None => steps.push(Step::Slice(slice(text)?)),
        }
        Ok(())
    }

    /// What follows `[?(`.
    fn filter(&mut self) -> Result<Filter, PathError> {
        let mut quote = None;
        let end = self.rest.char_indices().find(|(_, c)| match (quote, c) {
            (None, ')') => true,
            (None, '"' | '\'') => {
                quote = Some(*c);
                false
            }
            (Some(open), c) if open == *c => {
                quote = None;
                false
            }
            _ => false,
        });
        let (end, _) = end.ok_or_else(|| wrong("unterminated filter"))?;
        let text = self.take(end);
        if !self.skip(")]") {
            return Err(wrong("unclosed array: a `]` is missing after the filter"));
        }
        let is_operator = |c: char| matches!(c, '!' | '<' | '>' | '=');
        let Some(start) = text.find(is_operator).filter(|start| *start > 0) else {
            return Ok(Filter { left: path(text)?, comparison: None });
        };
        let (left, rest) = text.split_at(start);
        let right = rest.find(|c| !is_operator(c)).unwrap_or(rest.len());
        let (operator, right) = rest.split_at(right);
        Ok(Filter { left: path(left)?, comparison: Some((operator.to_owned(), path(right)?)) })
    }
}

/// The character that an escape stands for, as in Go's strings.
fn escape(chars: &mut std::str::CharIndices<'_>) -> Result<char, PathError> {
    let mut next = || chars.next().map(|(_, c)| c).ok_or_else(|| wrong("unterminated escape"));
    let digits = match next()? {
        'a' => return Ok('\u{7}'),
        'b' => return Ok('\u{8}'),
        'f' => return Ok('\u{c}'),
        'n' => return Ok('\n'),
        'r' => return Ok('\r'),
        't' => return Ok('\t'),
        'v' => return Ok('\u{b}'),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        same @ ('\\' | '\'' | '"') => return Ok(same),
        other => return Err(wrong(format!("unknown escape \\{other}"))),
    };
    let mut code = 0;
    for _ in 0..digits {
        let digit = next()?.to_digit(16).ok_or_else(|| wrong("an escape needs hex digits"))?;
        code = code * 16 + digit;
    }
    char::from_u32(code).ok_or_else(|| wrong("an escape is no character"))
}

/// Reads `3`, `1:3`, `-2:`, `::2`.
fn slice(text: &str) -> Result<Slice, PathError> {
    let invalid = || wrong(format!("invalid array index {text}"));
    let pieces: Vec<&str> = text.split(':').collect();
    let number = |piece: Option<&&str>| match piece {
        None | Some(&"") => Ok(None),
        Some(piece) => piece.parse::<i64>().map(Some).map_err(|_| invalid()),
    };
    if pieces.len() > 3 || text.contains('+') {
        return Err(invalid());
    }
    let from = number(pieces.first())?;
    let single = pieces.len() == 1;
    let to = if single { Some(from.unwrap_or(0) + 1) } else { number(pieces.get(1))? };
    Ok(Slice { from, to, single, step: number(pieces.get(2))? })
}
