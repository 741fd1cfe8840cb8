//! Writing an image as a layout and as an archive of it.
//!
//! Formats: the OCI image specification 1.1. Equal trees, times and names give equal bytes.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    Arch, Source,
    rootfs::{Content, Entry, Tree},
};

/// A layer as it is stored.
pub struct Layer {
    why: String,
    /// Of the bytes before they were compressed.
    diff: String,
    blob: Blob,
}

/// Bytes that are known by their digest.
struct Blob {
    bytes: Vec<u8>,
    digest: String,
}

impl Blob {
    fn of(bytes: Vec<u8>) -> Self {
        let digest = digest(&bytes);
        Self { bytes, digest }
    }

    fn descriptor(&self, kind: &str) -> Value {
        json!({"mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": self.digest, "size": self.bytes.len()})
    }
}

fn digest(bytes: &[u8]) -> String {
    let sum = Sha256::digest(bytes);
    sum.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

impl Layer {
    /// Packs a tree; all files belong to root and have this time.
    pub fn of(why: &str, tree: &Tree, time: u64) -> Result<Self> {
        let mut archive = Archive::new(Hashing::new(), time);
        for (path, entry) in &tree.entries {
            match entry {
                Entry::Directory { mode } => archive.directory(path, *mode)?,
                Entry::Link { to } => archive.link(path, to)?,
                Entry::File { from: Content::Text(text), mode } => {
                    archive.file(path, *mode, text.as_bytes())?;
                }
                Entry::File { from: Content::Disk(file), mode } => {
                    let bytes = fs::read(file).with_context(|| file.display().to_string())?;
                    archive.file(path, *mode, &bytes)?;
                }
            }
        }
        let (diff, packed) = archive.finish()?.finish()?;
        Ok(Self { why: why.to_owned(), diff, blob: Blob::of(packed) })
    }
}

/// Images with the same layers before they are written.
pub struct Images<'a> {
    pub arch: Arch,
    /// The name of each, and the program that it starts.
    pub names: &'a [(String, String)],
    pub source: &'a Source,
    pub layers: &'a [Layer],
}

impl Images<'_> {
    /// Writes both forms and returns the digest of the first manifest.
    pub fn write(&self, layout: &Path, archive: &Path) -> Result<String> {
        let mut blobs: Vec<&Blob> = self.layers.iter().map(|layer| &layer.blob).collect();
        let configs = self.names.iter().map(|(_, program)| self.config(program));
        let configs = configs
            .map(|config| Ok(Blob::of(serde_json::to_vec(&config)?)))
            .collect::<Result<Vec<_>>>()?;
        let manifests = configs.iter().map(|config| self.manifest(config));
        let manifests = manifests.collect::<Result<Vec<Blob>>>()?;
        let entries = self.names.iter().zip(&manifests);
        let entries: Vec<Value> = entries.map(|((name, _), blob)| self.entry(name, blob)).collect();
        let index = serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": entries,
            "mediaType": "application/vnd.oci.image.index.v1+json"}))?;
        blobs.extend(configs.iter().chain(&manifests));
        let mut files = BTreeMap::from([
            ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.as_slice()),
            ("index.json".to_owned(), index.as_slice()),
        ]);
        for blob in blobs {
            files.insert(format!("blobs/{}", blob.digest.replace(':', "/")), &blob.bytes);
        }
        self.write_layout(layout, &files)?;
        self.write_archive(archive, &files)?;
        Ok(manifests.first().context("an image has a name")?.digest.clone())
    }

    fn manifest(&self, config: &Blob) -> Result<Blob> {
        let layers = self.layers.iter();
        let layers: Vec<Value> =
            layers.map(|layer| layer.blob.descriptor("layer.v1.tar+gzip")).collect();
        Ok(Blob::of(serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config.descriptor("config.v1+json"),
            "layers": layers,
            "annotations": self.labels(),
        }))?))
    }

    fn write_layout(&self, dir: &Path, files: &BTreeMap<String, &[u8]>) -> Result<()> {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot empty {}", dir.display()));
            }
            _ => {}
        }
        fs::create_dir_all(dir.join("blobs/sha256"))?;
        for (name, bytes) in files {
            let file = dir.join(name);
            fs::write(&file, bytes).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    fn write_archive(&self, file: &Path, files: &BTreeMap<String, &[u8]>) -> Result<()> {
        let out = File::create(file).with_context(|| file.display().to_string())?;
        let mut archive = Archive::new(io::BufWriter::new(out), self.source.time);
        for dir in ["blobs", "blobs/sha256"] {
            archive.directory(dir, 0o755)?;
        }
        for (name, bytes) in files {
            archive.file(name, 0o644, bytes)?;
        }
        archive.finish()?.flush()?;
        Ok(())
    }

    fn config(&self, program: &str) -> Value {
        let diffs: Vec<&str> = self.layers.iter().map(|layer| layer.diff.as_str()).collect();
        let history: Vec<Value> = self
            .layers
            .iter()
            .map(|layer| json!({"created": self.source.created, "comment": layer.why}))
            .collect();
        json!({
            "created": self.source.created,
            "architecture": self.arch.name(),
            "os": "linux",
            "config": {
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "Entrypoint": [format!("/{program}")],
                "WorkingDir": "/",
                "Labels": self.labels(),
            },
            "rootfs": {"type": "layers", "diff_ids": diffs},
            "history": history,
        })
    }

    fn labels(&self) -> Value {
        let mark = |name: &str| format!("org.opencontainers.image.{name}");
        json!({
            mark("title"): "longshore",
            mark("description"): "Kubernetes storage: CSI sidecars, snapshot controller and local CSI drivers",
            mark("version"): env!("CARGO_PKG_VERSION"),
            mark("revision"): self.source.revision,
            mark("created"): self.source.created,
            mark("licenses"): "Apache-2.0",
            mark("source"): env!("CARGO_PKG_REPOSITORY"),
            mark("vendor"): "Longshore",
        })
    }

    fn entry(&self, name: &str, manifest: &Blob) -> Value {
        let mut entry = manifest.descriptor("manifest.v1+json");
        let tag = name.rsplit(':').next().unwrap_or_default();
        entry["platform"] = json!({"architecture": self.arch.name(), "os": "linux"});
        entry["annotations"] = json!({
            "org.opencontainers.image.ref.name": tag,
            // The whole name; without it an importer has to be told.
            "io.containerd.image.name": name,
        });
        entry
    }
}

/// A tar archive in which everything belongs to root and has one time.
struct Archive<W: Write> {
    out: tar::Builder<W>,
    time: u64,
}

impl<W: Write> Archive<W> {
    fn new(out: W, time: u64) -> Self {
        Self { out: tar::Builder::new(out), time }
    }

    fn header(&self, kind: tar::EntryType, mode: u32, size: usize) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_mtime(self.time);
        header.set_uid(0);
        header.set_gid(0);
        header
    }

    fn directory(&mut self, path: &str, mode: u32) -> io::Result<()> {
        let mut header = self.header(tar::EntryType::Directory, mode, 0);
        self.out.append_data(&mut header, format!("{path}/"), io::empty())
    }

    fn link(&mut self, path: &str, to: &str) -> io::Result<()> {
        let mut header = self.header(tar::EntryType::Symlink, 0o777, 0);
        self.out.append_link(&mut header, path, to)
    }

    fn file(&mut self, path: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        let mut header = self.header(tar::EntryType::Regular, mode, bytes.len());
        self.out.append_data(&mut header, path, bytes)
    }

    fn finish(self) -> io::Result<W> {
        self.out.into_inner()
    }
}

/// Compresses, and keeps the digest of what comes in.
struct Hashing {
    sum: Sha256,
    out: GzEncoder<Vec<u8>>,
}

impl Hashing {
    fn new() -> Self {
        let out = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
        Self { sum: Sha256::new(), out }
    }

    fn finish(self) -> io::Result<(String, Vec<u8>)> {
        let sum = self.sum.finalize();
        let diff = sum.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"));
        Ok((diff, self.out.finish()?))
    }
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.out.write(bytes)?;
        self.sum.update(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn tree() -> Tree {
        let file = |text: &str, mode| Entry::File { from: Content::Text(text.to_owned()), mode };
        let long = format!("usr/share/{}/copyright", "long".repeat(30));
        let entries = [
            ("usr", Entry::Directory { mode: 0o755 }),
            ("usr/bin", Entry::Directory { mode: 0o755 }),
            ("usr/bin/longshore", file("program", 0o755)),
            ("longshore", Entry::Link { to: "/usr/bin/longshore".to_owned() }),
            (&long, file("text", 0o644)),
        ];
        Tree { entries: entries.map(|(path, entry)| (path.to_owned(), entry)).into() }
    }

    fn written(dir: &Path) -> (String, Vec<u8>) {
        let created = "2026-01-02T03:04:05Z".to_owned();
        let source = Source { revision: "abc".to_owned(), time: 1_767_323_045, created };
        let layers = [Layer::of("programs", &tree(), source.time).unwrap()];
        let names =
            ["longshore", "csi-resizer"].map(|name| (format!("test/{name}:1"), name.to_owned()));
        let image = Images { arch: Arch::Amd64, names: &names, source: &source, layers: &layers };
        let archive = dir.join("image.tar");
        let digest = image.write(&dir.join("layout"), &archive).unwrap();
        (digest, fs::read(archive).unwrap())
    }

    #[test]
    fn equal_trees_give_equal_bytes() {
        let dirs = [0, 1].map(|_| tempfile::Builder::new().prefix("longshore-oci-").tempdir());
        let [one, two] = dirs.map(|dir| written(dir.unwrap().path()));
        assert!(one == two);
    }

    #[test]
    fn the_layout_says_what_is_in_it_and_the_layer_is_a_tree() {
        let dir = tempfile::Builder::new().prefix("longshore-oci-").tempdir().unwrap();
        let (digest, _) = written(dir.path());
        let layout = dir.path().join("layout");
        let read = |digest: &Value| {
            let name = digest.as_str().unwrap().replace(':', "/");
            fs::read(layout.join("blobs").join(name)).unwrap()
        };
        let index: Value =
            serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
        assert_eq!(index["manifests"][0]["digest"], digest.as_str());
        let manifest: Value =
            serde_json::from_slice(&read(&index["manifests"][0]["digest"])).unwrap();
        let config: Value = serde_json::from_slice(&read(&manifest["config"]["digest"])).unwrap();
        assert_eq!(config["config"]["Entrypoint"], json!(["/longshore"]));
        let other = &index["manifests"][1];
        assert_eq!(other["annotations"]["io.containerd.image.name"], "test/csi-resizer:1");
        let other: Value = serde_json::from_slice(&read(&other["digest"])).unwrap();
        assert_eq!(other["layers"], manifest["layers"], "layers are stored once");
        let other: Value = serde_json::from_slice(&read(&other["config"]["digest"])).unwrap();
        assert_eq!(other["config"]["Entrypoint"], json!(["/csi-resizer"]));
        let layer = dir.path().join("layer.tar.gz");
        fs::write(&layer, read(&manifest["layers"][0]["digest"])).unwrap();
        let listed = Command::new("tar").arg("-tvzf").arg(&layer).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert!(listed.contains("longshore -> /usr/bin/longshore"), "{listed}");
        assert!(listed.contains(&"long".repeat(30)), "{listed}");
        assert!(listed.lines().all(|line| line.contains("0/0")), "{listed}");
    }
}
