//! The class parameter `pathPattern`: text with `${.PVC.…}` in it.

use longshore_provisioner::Claim;

/// A pattern that cannot be applied to a claim.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PatternError {
    #[error("{0:?} has no closing brace")]
    Unclosed(String),
    #[error(
        "${{{0}}} is not known; use .PVC.name, .PVC.namespace, .PVC.labels.KEY or .PVC.annotations.KEY"
    )]
    Unknown(String),
    #[error("claim {claim} has no {what} {key:?}; give it one, or change the pattern")]
    Missing { claim: String, what: &'static str, key: String },
}

/// Puts a claim's facts into a pattern.
///
/// # Errors
/// Says which part is not known, or not there.
pub(super) fn render(pattern: &str, claim: &Claim) -> Result<String, PatternError> {
    let mut text = String::new();
    let mut rest = pattern;
    while let Some(start) = rest.find("${") {
        let (plain, tail) = rest.split_at(start);
        let Some(end) = tail.find('}') else {
            return Err(PatternError::Unclosed(tail.to_owned()));
        };
        text += plain;
        text += value(&tail[2..end], claim)?;
        rest = &tail[end + 1..];
    }
    Ok(text + rest)
}

fn value<'a>(variable: &str, claim: &'a Claim) -> Result<&'a str, PatternError> {
    let meta = &claim.metadata;
    let unknown = || PatternError::Unknown(variable.to_owned());
    let missing = |what, key: &str| {
        let (claim, key) = (meta.key().to_string(), key.to_owned());
        PatternError::Missing { claim, what, key }
    };
    match variable.strip_prefix(".PVC.") {
        Some("name") => Ok(&meta.name),
        Some("namespace") => Ok(&meta.namespace),
        Some(part) => {
            let (what, map, key) = match part.split_once('.') {
                Some(("labels", key)) => ("label", &meta.labels, key),
                Some(("annotations", key)) => ("annotation", &meta.annotations, key),
                _ => return Err(unknown()),
            };
            map.get(key).map(String::as_str).ok_or_else(|| missing(what, key))
        }
        None => Err(unknown()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::testing::request, *};

    #[test]
    fn patterns() {
        let metadata =
            json!({"labels": {"app": "web"}, "annotations": {"nfs.io/storage-path": "x/y"}});
        let claim = request(json!({"metadata": metadata}), json!({})).claim;
        for (pattern, text) in [
            ("fixed", Ok("fixed")),
            ("${.PVC.namespace}/${.PVC.name}", Ok("team/data")),
            ("${.PVC.labels.app}-${.PVC.name}", Ok("web-data")),
            ("${.PVC.namespace}/${.PVC.annotations.nfs.io/storage-path}", Ok("team/x/y")),
            ("$x-{y}", Ok("$x-{y}")),
            ("${.PVC.labels.tier}", Err("no label \"tier\"")),
            ("${.PVC.annotations.tier}", Err("no annotation \"tier\"")),
            ("${.PVC.uid}", Err("is not known")),
            ("${.PV.name}", Err("is not known")),
            ("${.PVC.name", Err("no closing brace")),
        ] {
            match (render(pattern, &claim), text) {
                (Ok(got), Ok(want)) => assert_eq!(got, want),
                (Err(got), Err(want)) => {
                    assert!(got.to_string().contains(want), "{pattern}: {got}");
                }
                (got, want) => panic!("{pattern}: {got:?}, not {want:?}"),
            }
        }
    }
}
