//! Objects in files.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::ClientError;
use super::discovery::array;

/// One object of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Manifest {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) object: Value,
}

/// The objects of all files, in order; lists are taken apart.
pub(super) fn read_all(files: &[PathBuf]) -> Result<Vec<Manifest>, ClientError> {
    let mut manifests = Vec::new();
    for file in files {
        let text =
            read(file).map_err(|source| ClientError::Unreadable { file: file.clone(), source })?;
        manifests.extend(parse(file, &text)?);
    }
    Ok(manifests)
}

fn read(file: &Path) -> std::io::Result<String> {
    if file.as_os_str() != "-" {
        return std::fs::read_to_string(file);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// The objects of one file. JSON is read as YAML, which includes it.
pub(super) fn parse(file: &Path, text: &str) -> Result<Vec<Manifest>, ClientError> {
    let wrong = |why: String| ClientError::Malformed { file: file.to_owned(), why };
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| {
        let message = error.to_string();
        wrong(message.lines().next().unwrap_or("not YAML").trim().to_owned())
    })?;
    let unaddressed = |error: ManifestError| wrong(error.to_string());
    let mut manifests = Vec::new();
    for document in documents.into_iter().filter(|document| !document.is_null()) {
        let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"))
            && document["items"].is_array();
        match is_list {
            true => {
                for item in array(&document["items"]) {
                    manifests.push(manifest(item.clone()).map_err(unaddressed)?);
                }
            }
            false => manifests.push(manifest(document).map_err(unaddressed)?),
        }
    }
    if manifests.is_empty() {
        return Err(wrong("no object in it".into()));
    }
    Ok(manifests)
}

/// An object that cannot be addressed.
#[derive(Debug, thiserror::Error)]
enum ManifestError {
    #[error("an object lacks its {0}")]
    Lacks(&'static str),
    #[error("a {kind} lacks its metadata.name")]
    Nameless { kind: String },
}

fn manifest(object: Value) -> Result<Manifest, ManifestError> {
    let field = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let kind = field("/kind").ok_or(ManifestError::Lacks("kind"))?;
    let api_version = field("/apiVersion").ok_or(ManifestError::Lacks("apiVersion"))?;
    let name =
        field("/metadata/name").ok_or_else(|| ManifestError::Nameless { kind: kind.clone() })?;
    let namespace = field("/metadata/namespace");
    Ok(Manifest { api_version, kind, name, namespace, object })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, String> {
        parse(Path::new("x.yaml"), text)
            .map(|all| all.into_iter().map(|one| format!("{}/{}", one.kind, one.name)).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn several_documents_lists_and_json() {
        let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: a}\n";
        let pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: b\n";
        let both = ["PersistentVolumeClaim/a", "Pod/b"];
        assert_eq!(names(&format!("{claim}---\n{pod}")).unwrap(), both);
        assert_eq!(
            names(&format!("---\n{claim}---\n---\n# nothing\n---\n{pod}---\n")).unwrap(),
            both
        );
        let list = r#"{"kind":"List","apiVersion":"v1","items":[
            {"kind":"PersistentVolumeClaim","apiVersion":"v1","metadata":{"name":"a"}},
            {"kind":"Pod","apiVersion":"v1","metadata":{"name":"b"}}]}"#;
        assert_eq!(names(list).unwrap(), both);
    }

    #[test]
    fn values_keep_their_types() {
        let text = "apiVersion: v1\nkind: X\nmetadata: {name: a}\nspec: {on: true, n: 3, s: '3', q: 1Gi, nothing: null}\n";
        let spec = &parse(Path::new("x"), text).unwrap()[0].object["spec"];
        assert_eq!(
            *spec,
            serde_json::json!({"on": true, "n": 3, "s": "3", "q": "1Gi", "nothing": null})
        );
    }

    #[test]
    fn refusals_name_the_file() {
        for (text, part) in [
            ("", "x.yaml: no object in it"),
            ("kind: Pod\nmetadata: {name: a}", "lacks its apiVersion"),
            ("apiVersion: v1\nmetadata: {name: a}", "lacks its kind"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {generateName: a}",
                "a Pod lacks its metadata.name",
            ),
            ("a: [1", "x.yaml: "),
        ] {
            let sentence = names(text).expect_err(text);
            assert!(sentence.contains(part), "{text}: {sentence}");
            assert!(!sentence.contains('\n'), "{sentence}");
        }
    }
}
