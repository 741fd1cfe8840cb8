//! Requests per user, from the API server's audit log.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// A place in the log, from which requests are counted.
pub struct Mark {
    log: PathBuf,
    at: u64,
}

/// How many requests of each kind, for instance `create persistentvolumes`.
pub type Requests = BTreeMap<String, u64>;

impl Mark {
    /// The end of the log as it is now.
    pub fn now(log: PathBuf) -> Result<Self> {
        let length = std::fs::metadata(&log).map(|file| file.len());
        let at = length.with_context(|| format!("audit log {}", log.display()))?;
        Ok(Self { log, at })
    }

    /// The requests of a user that were answered since.
    pub fn requests_of(&self, user: &str) -> Result<Requests> {
        let at = || format!("audit log {}", self.log.display());
        let mut file = std::fs::File::open(&self.log).with_context(at)?;
        file.seek(SeekFrom::Start(self.at))?;
        let mut all = Requests::new();
        for line in BufReader::new(file).lines() {
            if let Some(kind) = request(&line.with_context(at)?, user) {
                *all.entry(kind).or_default() += 1;
            }
        }
        Ok(all)
    }
}

/// What a line says was asked, if that user asked it and it is the line of the answer. The last
/// line may be half written.
fn request(line: &str, user: &str) -> Option<String> {
    let event: Value = serde_json::from_str(line).ok()?;
    if event["stage"] != "ResponseComplete" || event["user"]["username"] != user {
        return None;
    }
    let verb = event["verb"].as_str()?;
    let Some(resource) = event["objectRef"]["resource"].as_str() else {
        return Some(format!("{verb} {}", event["requestURI"].as_str()?));
    };
    let part = event["objectRef"]["subresource"].as_str();
    Some(format!("{verb} {resource}{}", part.map(|part| format!("/{part}")).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_to_that_user_count() {
        let line = |stage: &str, user: &str, part: &str| {
            format!(
                r#"{{"stage":"{stage}","verb":"patch","user":{{"username":"{user}"}},"objectRef":{{"resource":"persistentvolumes"{part}}}}}"#
            )
        };
        let status = r#","subresource":"status""#;
        for (text, expected) in [
            (line("ResponseComplete", "u", ""), Some("patch persistentvolumes")),
            (line("ResponseComplete", "u", status), Some("patch persistentvolumes/status")),
            (line("ResponseStarted", "u", ""), None),
            (line("ResponseComplete", "other", ""), None),
            (line("ResponseComplete", "u", "")[..40].to_owned(), None),
        ] {
            assert_eq!(request(&text, "u").as_deref(), expected, "{text}");
        }
    }
}
