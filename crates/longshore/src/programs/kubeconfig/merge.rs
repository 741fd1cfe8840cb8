//! `longshore kubeconfig merge`.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::edit::Document;

/// Marks a cluster that came from an instance of ours, and says from which.
const EXTENSION: &str = "longshore.dev";

/// Where to, and under which name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Merge {
    pub(super) into: PathBuf,
    pub(super) name: String,
    pub(super) set_current: bool,
}

impl Merge {
    /// Puts the instance's configuration into the file and returns what was done, in words.
    pub(super) fn run(&self, instance: &str, data_dir: &Path) -> Result<String> {
        // A link stays a link.
        let file = fs::canonicalize(&self.into).unwrap_or_else(|_| self.into.clone());
        let shown = file.display();
        make_parent(&file).with_context(|| format!("cannot make the directory of {shown}"))?;
        let _lock = Lock::take(&file)?;
        let old = match fs::read_to_string(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            other => other.with_context(|| format!("cannot read {shown}"))?,
        };
        let new = self.merged(&old, instance, data_dir);
        let new = new.with_context(|| format!("{shown} stays as it is"))?;
        if new.text() != old {
            replace(&file, new.text()).with_context(|| format!("cannot write {shown}"))?;
        }
        let current = if new.current() == self.name {
            "it is the current one".to_owned()
        } else {
            format!("use it with `kubectl --context {}`", self.name)
        };
        Ok(format!("{shown} has the context {:?}; {current}", self.name))
    }

    fn merged(&self, old: &str, instance: &str, data_dir: &Path) -> Result<Document> {
        let name = self.name.as_str();
        let mut document = Document::read(old)?;
        self.refuse_foreign(&document, data_dir)?;
        let instance: Value = serde_saphyr::from_str(instance)
            .context("the kubeconfig of the instance is not YAML")?;
        let mut cluster = instance["clusters"][0]["cluster"].clone();
        cluster["extensions"] = json!([{"name": EXTENSION, "extension": {"dataDir": data_dir}}]);
        let user = &instance["users"][0]["user"];
        // What the user has set there, a namespace for example, stays.
        let mut context =
            document.entry("contexts", name).map_or(json!({}), |old| old["context"].clone());
        (context["cluster"], context["user"]) = (json!(name), json!(name));
        document.set_entry("clusters", &json!({"name": name, "cluster": cluster}))?;
        document.set_entry("users", &json!({"name": name, "user": user}))?;
        document.set_entry("contexts", &json!({"name": name, "context": context}))?;
        if self.set_current || document.current().is_empty() {
            document.set_current(name)?;
        }
        Ok(document)
    }

    /// Names that are there already must be those that an earlier merge from this data directory made.
    fn refuse_foreign(&self, document: &Document, data_dir: &Path) -> Result<()> {
        let name = self.name.as_str();
        let cluster = document.entry("clusters", name);
        let extensions = cluster.map(|entry| &entry["cluster"]["extensions"]);
        let ours =
            extensions.and_then(Value::as_array).into_iter().flatten().any(|one| {
                one["name"] == EXTENSION && one["extension"]["dataDir"] == json!(data_dir)
            });
        if ours {
            return Ok(());
        }
        for (list, kind) in [("clusters", "cluster"), ("users", "user"), ("contexts", "context")] {
            if document.entry(list, name).is_some() {
                bail!(
                    "it has a {kind} {name:?} that is not from {}; choose another name with --context",
                    data_dir.display()
                );
            }
        }
        Ok(())
    }
}

/// A directory for the file, of the owner of what is above it.
fn make_parent(file: &Path) -> std::io::Result<()> {
    let Some(dir) = file.parent().filter(|dir| !dir.exists()) else { return Ok(()) };
    fs::create_dir_all(dir)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o750))?;
    match dir.parent().map(fs::metadata) {
        Some(Ok(above)) => chown(dir, Some(above.uid()), Some(above.gid())),
        _ => Ok(()),
    }
}

/// Replaces the file at one moment. It belongs to whom it belonged before, also when root replaces it.
fn replace(file: &Path, text: &str) -> Result<()> {
    let dir = file.parent().unwrap_or(Path::new("/"));
    let owner = fs::metadata(file).or_else(|_| fs::metadata(dir))?;
    let mut new = tempfile::NamedTempFile::new_in(dir)?;
    new.write_all(text.as_bytes())?;
    new.as_file().set_permissions(fs::Permissions::from_mode(0o600))?;
    std::os::unix::fs::fchown(new.as_file(), Some(owner.uid()), Some(owner.gid()))?;
    new.as_file().sync_all()?;
    new.persist(file)?;
    Ok(())
}

/// The lock that kubectl takes, too.
struct Lock {
    path: PathBuf,
}

impl Lock {
    fn take(file: &Path) -> Result<Self> {
        let mut name = file.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(_) => Ok(Self { path }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
                "another program is changing {}; try again, or remove {} if there is none",
                file.display(),
                path.display()
            ),
            Err(error) => Err(error).with_context(|| format!("cannot lock {}", file.display())),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSTANCE: &str = "clusters:\n- name: longshore\n  cluster: {server: 'https://127.0.0.1:1', \
        certificate-authority-data: QQ==}\nusers:\n- name: admin\n  user: {client-key-data: Qg==}\n";

    fn merge(into: &Path) -> Merge {
        Merge { into: into.to_owned(), name: "longshore".into(), set_current: false }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_new_file_is_private_and_a_second_merge_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(".kube/config");
        let said = merge(&file).run(INSTANCE, Path::new("/d")).unwrap();
        assert!(said.ends_with("it is the current one"), "{said}");
        assert_eq!(mode(&file), 0o600);
        let first = fs::read_to_string(&file).unwrap();
        merge(&file).run(INSTANCE, Path::new("/d")).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), first);
        let moved = INSTANCE.replace(":1'", ":2'");
        merge(&file).run(&moved, Path::new("/d")).unwrap();
        assert!(fs::read_to_string(&file).unwrap().contains("127.0.0.1:2"));
    }

    #[test]
    fn foreign_names_and_the_current_context_stay() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let other = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &other).unwrap();
        for list in ["clusters", "users", "contexts"] {
            let old = format!("# mine\n{list}:\n- name: longshore\ncurrent-context: x\n");
            fs::write(&file, &old).unwrap();
            let error = format!("{:#}", merge(&file).run(INSTANCE, Path::new("/d")).unwrap_err());
            assert!(error.contains("choose another name with --context"), "{error}");
            assert_eq!(fs::read_to_string(&file).unwrap(), old);
        }
        let set = Merge { name: "mine".into(), set_current: true, ..merge(&other) };
        Merge { set_current: false, ..set.clone() }.run(INSTANCE, Path::new("/d")).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("# mine\n") && text.contains("current-context: x\n"), "{text}");
        set.run(INSTANCE, Path::new("/d")).unwrap();
        assert!(fs::read_to_string(&file).unwrap().contains("current-context: mine\n"));
        assert!(fs::symlink_metadata(&other).unwrap().is_symlink());
        let error = set.run(INSTANCE, Path::new("/other")).unwrap_err();
        assert!(format!("{error:#}").contains("not from /other"), "{error:#}");
    }

    #[test]
    fn a_locked_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        fs::write(dir.path().join("config.lock"), "").unwrap();
        let error = merge(&file).run(INSTANCE, Path::new("/d")).unwrap_err().to_string();
        assert!(error.contains("another program is changing"), "{error}");
        assert!(!file.exists() && dir.path().join("config.lock").exists());
    }
}
