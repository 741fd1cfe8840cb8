//! What is kept of an object beside its text, read without building the whole tree.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// See [`super::Stored`] for the fields.
pub(super) struct Outline {
    pub uid: String,
    pub labels: Vec<(String, String)>,
    pub owners: Vec<String>,
    pub deleting: bool,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    metadata: Meta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    uid: String,
    labels: Option<BTreeMap<String, Value>>,
    owner_references: Option<Vec<Owner>>,
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Owner {
    #[serde(default)]
    uid: String,
}

impl Outline {
    /// Reads the text of an object.
    pub(super) fn read(body: &[u8]) -> Result<Self, serde_json::Error> {
        let Meta { uid, labels, owner_references, deletion_timestamp } =
            serde_json::from_slice::<Object>(body)?.metadata;
        let text = |value: Value| match value {
            Value::String(text) => text,
            _ => String::new(),
        };
        let labels = labels.into_iter().flatten().map(|(key, value)| (key, text(value))).collect();
        let owners = owner_references.into_iter().flatten().map(|owner| owner.uid).collect();
        Ok(Self { uid, labels, owners, deleting: deletion_timestamp.is_some() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outline_is_read() {
        let body =
            br#"{"metadata":{"labels":{"b":"2","a":"1"},"uid":"u","ownerReferences":[{"uid":"o"}],
            "deletionTimestamp":"2026-01-01T00:00:00Z","name":"x"},"spec":{"a":[1,{"b":null}]}}"#;
        let outline = Outline::read(body).unwrap();
        assert_eq!(outline.uid, "u");
        assert_eq!(outline.labels, [("a".into(), "1".into()), ("b".into(), "2".into())]);
        assert_eq!(outline.owners, ["o"]);
        assert!(outline.deleting);
        let bare = Outline::read(br#"{"metadata":{"name":"x","deletionTimestamp":null}}"#).unwrap();
        assert!(!bare.deleting && bare.labels.is_empty() && bare.owners.is_empty());
        assert!(Outline::read(b"{\"metadata\":{}").is_err());
    }
}
