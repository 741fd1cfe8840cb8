//! Objects in files.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::discovery::{Resource, array};
use super::{ClientError, Session};

/// How the files of a directory end that hold objects.
const ENDINGS: [&str; 3] = ["json", "yaml", "yml"];

/// One object of a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Manifest {
    file: PathBuf,
    pub(super) api_version: String,
    pub(super) kind: String,
    /// None when the server shall choose the name.
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) object: Value,
}

impl Manifest {
    /// The kind on the server.
    pub(super) async fn resource<'a>(
        &self,
        session: &'a Session,
    ) -> Result<&'a Resource, ClientError> {
        session.discovery().await?.of_manifest(&self.api_version, &self.kind)
    }

    /// Its name, which everything but `create` needs.
    pub(super) fn required_name(&self) -> Result<&str, ClientError> {
        self.name.as_deref().ok_or_else(|| ClientError::Malformed {
            file: self.file.clone(),
            why: format!("a {} lacks its metadata.name", self.kind),
        })
    }

    /// Its namespace: its own, which must agree with the flag, then the flag, then the context's.
    pub(super) fn place(
        &self,
        session: &Session,
        resource: &Resource,
        flag: Option<&str>,
    ) -> Result<String, ClientError> {
        match (&self.namespace, flag) {
            (Some(own), Some(flag)) if own != flag && resource.namespaced => {
                Err(ClientError::Unsupported(format!(
                    "{}/{} is in namespace {own}, not in {flag}",
                    resource.display(),
                    self.name.as_deref().unwrap_or_default()
                )))
            }
            (Some(own), _) => Ok(own.clone()),
            (None, Some(flag)) => Ok(flag.to_owned()),
            (None, None) => Ok(session.namespace().to_owned()),
        }
    }
}

/// The objects of all files, in order; lists are taken apart. Everything is read before anything is used.
pub(super) fn read_all(files: &[PathBuf], recursive: bool) -> Result<Vec<Manifest>, ClientError> {
    let mut manifests = Vec::new();
    for path in files {
        let below = files_of(path, recursive).map_err(|source| unreadable(path, source))?;
        for file in below {
            let text = read(&file).map_err(|source| unreadable(&file, source))?;
            manifests.extend(parse(&file, &text)?);
        }
    }
    Ok(manifests)
}

fn unreadable(file: &Path, source: std::io::Error) -> ClientError {
    ClientError::Unreadable { file: file.to_owned(), source }
}

/// The file itself, or the files of a directory that hold objects, by name.
fn files_of(path: &Path, recursive: bool) -> std::io::Result<Vec<PathBuf>> {
    if path.as_os_str() == "-" || !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut entries = entries.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort();
    let mut files = Vec::new();
    for entry in entries {
        if entry.is_dir() {
            if recursive {
                files.extend(files_of(&entry, true)?);
            }
        } else if entry
            .extension()
            .is_some_and(|ending| ENDINGS.iter().any(|known| ending == *known))
        {
            files.push(entry);
        }
    }
    match files.is_empty() && !recursive {
        true => {
            let why = "the directory holds no .yaml, .yml or .json file; -R reads those below it";
            Err(std::io::Error::other(why))
        }
        false => Ok(files),
    }
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
                    manifests.push(manifest(file, item.clone()).map_err(unaddressed)?);
                }
            }
            false => manifests.push(manifest(file, document).map_err(unaddressed)?),
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

fn manifest(file: &Path, object: Value) -> Result<Manifest, ManifestError> {
    let field = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let kind = field("/kind").ok_or(ManifestError::Lacks("kind"))?;
    let api_version = field("/apiVersion").ok_or(ManifestError::Lacks("apiVersion"))?;
    let name = field("/metadata/name");
    if name.is_none() && field("/metadata/generateName").is_none() {
        return Err(ManifestError::Nameless { kind });
    }
    let namespace = field("/metadata/namespace");
    Ok(Manifest { file: file.to_owned(), api_version, kind, name, namespace, object })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, String> {
        parse(Path::new("x.yaml"), text)
            .map(|all| {
                all.into_iter()
                    .map(|one| format!("{}/{}", one.kind, one.name.unwrap_or_default()))
                    .collect()
            })
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
    fn directories_are_read_by_name_and_deeper_only_if_asked() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        write("z.json", r#"{"kind":"A","apiVersion":"v1","metadata":{"name":"z"}}"#);
        write("b.yaml", "kind: A\napiVersion: v1\nmetadata: {name: b}");
        write("sub/m.yml", "kind: A\napiVersion: v1\nmetadata: {generateName: m}");
        write("readme.txt", "no object");
        let read = |recursive| read_all(&[dir.path().to_owned()], recursive).unwrap();
        let names = |all: Vec<Manifest>| all.into_iter().map(|one| one.name).collect::<Vec<_>>();
        assert_eq!(names(read(false)), [Some("b".into()), Some("z".into())]);
        assert_eq!(names(read(true)), [Some("b".into()), None, Some("z".into())]);
        assert!(
            read(true)[1].required_name().unwrap_err().to_string().contains("m.yml: a A lacks")
        );
        std::fs::remove_file(dir.path().join("sub/m.yml")).unwrap();
        let empty = read_all(&[dir.path().join("sub")], false).unwrap_err().to_string();
        assert!(empty.contains("holds no .yaml"), "{empty}");
    }

    #[test]
    fn refusals_name_the_file() {
        for (text, part) in [
            ("", "x.yaml: no object in it"),
            ("kind: Pod\nmetadata: {name: a}", "lacks its apiVersion"),
            ("apiVersion: v1\nmetadata: {name: a}", "lacks its kind"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {}", "a Pod lacks its metadata.name"),
            ("a: [1", "x.yaml: "),
        ] {
            let sentence = names(text).expect_err(text);
            assert!(sentence.contains(part), "{text}: {sentence}");
            assert!(!sentence.contains('\n'), "{sentence}");
        }
    }
}
