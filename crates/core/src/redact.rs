//! Takes secrets out of texts that people and logs get to see.

use std::borrow::Cow;

/// What stands where a secret was.
pub const STRIPPED: &str = "***stripped***";

/// How every JSON web token begins: the encoded start of a JSON object.
const TOKEN_START: &str = "eyJ";
/// Shorter parts are words, not parts of a token.
const SHORTEST_PART: usize = 4;
/// Shorter secrets would take ordinary words out of a text.
const SHORTEST_SECRET: usize = 4;

/// Replaces bearer tokens (JSON web tokens) wherever they stand in a text.
///
/// ```
/// use longshore_core::redact::scrub_tokens;
/// assert_eq!(scrub_tokens("got eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl."), "got ***stripped***.");
/// assert_eq!(scrub_tokens("nothing secret"), "nothing secret");
/// ```
#[must_use]
pub fn scrub_tokens(text: &str) -> Cow<'_, str> {
    let mut out: Option<String> = None;
    let mut rest = text;
    while let Some(at) = rest.find(TOKEN_START) {
        let length = token_length(&rest.as_bytes()[at..]);
        let end = at + length.unwrap_or(TOKEN_START.len());
        if length.is_some() || out.is_some() {
            let out = out.get_or_insert_with(|| text[..text.len() - rest.len()].to_owned());
            out.push_str(&rest[..at]);
            out.push_str(if length.is_some() { STRIPPED } else { TOKEN_START });
        }
        rest = &rest[end..];
    }
    match out {
        None => Cow::Borrowed(text),
        Some(mut out) => {
            out.push_str(rest);
            Cow::Owned(out)
        }
    }
}

/// How long the token at the start of a text is. The header and the payload are enough: whoever has
/// them and a log that cut the signature off knows too much already.
fn token_length(text: &[u8]) -> Option<usize> {
    let part = |from: usize| {
        let own = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'=');
        text.get(from..).map_or(0, |rest| rest.iter().take_while(|byte| own(byte)).count())
    };
    let header = part(0);
    if text.get(header) != Some(&b'.') {
        return None;
    }
    let payload = part(header + 1);
    if header < SHORTEST_PART || payload < SHORTEST_PART {
        return None;
    }
    let end = header + 1 + payload;
    match text.get(end) {
        Some(b'.') if part(end + 1) > 0 => Some(end + 1 + part(end + 1)),
        _ => Some(end),
    }
}

/// Replaces these secrets, and bearer tokens, wherever they stand in a text.
#[must_use]
pub fn scrub<'a>(text: &'a str, secrets: &[String]) -> Cow<'a, str> {
    let mut out = Cow::Borrowed(text);
    let mut secrets: Vec<&str> = secrets.iter().map(|one| one.trim()).collect();
    // A secret that is a part of another one must not cut it in two.
    secrets.sort_unstable_by_key(|one| std::cmp::Reverse(one.len()));
    for secret in secrets.into_iter().filter(|one| one.len() >= SHORTEST_SECRET) {
        if out.contains(secret) {
            out = Cow::Owned(out.replace(secret, STRIPPED));
        }
    }
    match scrub_tokens(&out) {
        Cow::Borrowed(_) => out,
        Cow::Owned(clean) => Cow::Owned(clean),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_go_and_everything_else_stays() {
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln-_bmF0";
        for (text, clean) in [
            (token.to_owned(), STRIPPED.to_owned()),
            (format!("a {token} b {token}"), format!("a {STRIPPED} b {STRIPPED}")),
            (format!("{{\"token\":\"{token}\"}}"), format!("{{\"token\":\"{STRIPPED}\"}}")),
            (format!("\\\"{token}\\\""), format!("\\\"{STRIPPED}\\\"")),
            ("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0".to_owned(), STRIPPED.to_owned()),
            ("eyJust a word. And eyJ.".to_owned(), "eyJust a word. And eyJ.".to_owned()),
            (format!("eyJ {token}"), format!("eyJ {STRIPPED}")),
            ("ä".repeat(3), "ä".repeat(3)),
        ] {
            assert_eq!(scrub_tokens(&text), clean);
        }
    }

    #[test]
    fn secrets_go_even_when_one_holds_another() {
        let secrets =
            ["hunter2".to_owned(), "hunter2-long".to_owned(), "ab".to_owned(), String::new()];
        assert_eq!(
            scrub("user ab used hunter2-long, not hunter2", &secrets),
            "user ab used ***stripped***, not ***stripped***"
        );
    }
}
