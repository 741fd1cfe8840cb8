//! Images without a registry: the static busybox of this machine, with every applet as a link.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Seek as _, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::tar::Tar;

/// An image and the names it shall have.
#[derive(Debug, Clone)]
pub struct Image {
    /// Names, with a tag.
    pub names: Vec<String>,
    /// What runs before the arguments of a container.
    pub entrypoint: Vec<String>,
    /// The arguments when a container has none.
    pub command: Vec<String>,
    /// Programs at the root of the image, beside busybox in `/bin`.
    pub programs: Vec<(String, PathBuf)>,
}

impl Image {
    /// Busybox alone.
    #[must_use]
    pub fn busybox(names: &[&str]) -> Self {
        Self::new(names, &[], &["sh"], &[])
    }

    /// An image that does nothing for ever.
    #[must_use]
    pub fn pause(names: &[&str]) -> Self {
        Self::new(names, &[], &["sleep", "2147483647"], &[])
    }

    /// Busybox and one program at the root, which is also what runs.
    #[must_use]
    pub fn program(names: &[&str], name: &str, file: &Path, command: &[&str]) -> Self {
        Self::new(names, &[&format!("/{name}")], command, &[(name, file)])
    }

    fn new(
        names: &[&str],
        entrypoint: &[&str],
        command: &[&str],
        programs: &[(&str, &Path)],
    ) -> Self {
        let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let programs = programs.iter().map(|(name, file)| ((*name).to_owned(), file.to_path_buf()));
        Self {
            names: own(names),
            entrypoint: own(entrypoint),
            command: own(command),
            programs: programs.collect(),
        }
    }
}

/// Writes an archive in Docker's form with these images.
///
/// # Errors
/// When there is no static busybox, or a file cannot be read or written.
pub(super) fn archive(images: &[Image], busybox: &Path, file: &Path) -> Result<()> {
    let scratch = file.with_extension("layer");
    let written = write_archive(images, busybox, file, &scratch);
    let _ = fs::remove_file(&scratch);
    written.with_context(|| format!("cannot write the images to {}", file.display()))
}

fn write_archive(images: &[Image], busybox: &Path, file: &Path, scratch: &Path) -> Result<()> {
    let mut tar = Tar::new(BufWriter::new(File::create(file)?));
    let base = add_layer(&mut tar, scratch, |layer| base_layer(layer, busybox))?;
    let mut manifest = Vec::new();
    for image in images {
        let mut layers = vec![base.clone()];
        for (name, program) in &image.programs {
            layers.push(add_layer(&mut tar, scratch, |layer| add_program(layer, name, program))?);
        }
        let config = config(image, &layers)?;
        let name = format!("{}.json", hex::encode(Sha256::digest(&config)));
        tar.file(&name, 0o644, &config)?;
        let layers: Vec<String> = layers.iter().map(|digest| format!("{digest}.tar")).collect();
        manifest.push(json!({ "Config": name, "RepoTags": image.names, "Layers": layers }));
    }
    tar.file("manifest.json", 0o644, &serde_json::to_vec(&manifest)?)?;
    tar.finish()?;
    Ok(())
}

fn config(image: &Image, layers: &[String]) -> Result<Vec<u8>> {
    let layers: Vec<String> = layers.iter().map(|digest| format!("sha256:{digest}")).collect();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Env": ["PATH=/bin"],
            "Entrypoint": image.entrypoint,
            "Cmd": image.command,
        },
        "rootfs": { "type": "layers", "diff_ids": layers },
    });
    Ok(serde_json::to_vec(&config)?)
}

/// Writes a layer beside the archive first, because its name is its digest. Returns the digest.
fn add_layer<W: Write>(
    archive: &mut Tar<W>,
    scratch: &Path,
    fill: impl FnOnce(&mut Tar<Hashing>) -> Result<()>,
) -> Result<String> {
    let out = File::options().read(true).write(true).create(true).truncate(true).open(scratch)?;
    let mut layer = Tar::new(Hashing { out: BufWriter::new(out), sum: Sha256::new() });
    fill(&mut layer)?;
    let Hashing { out, sum } = layer.finish()?;
    let digest = hex::encode(sum.finalize());
    let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    let size = file.stream_position()?;
    file.rewind()?;
    archive.stream(&format!("{digest}.tar"), 0o644, size, BufReader::new(file))?;
    Ok(digest)
}

fn base_layer(layer: &mut Tar<Hashing>, busybox: &Path) -> Result<()> {
    for name in ["bin", "dev", "etc", "proc", "root", "sys", "usr", "var"] {
        layer.directory(name, 0o755)?;
    }
    layer.directory("tmp", 0o1777)?;
    layer.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n")?;
    layer.file("etc/group", 0o644, b"root:x:0:\n")?;
    layer.file("bin/busybox", 0o755, &fs::read(busybox)?)?;
    for applet in applets(busybox)? {
        layer.link(&format!("bin/{applet}"), "busybox")?;
    }
    Ok(())
}

fn add_program(layer: &mut Tar<Hashing>, name: &str, program: &Path) -> Result<()> {
    let file = File::open(program).with_context(|| format!("cannot read {}", program.display()))?;
    let size = file.metadata()?.len();
    Ok(layer.stream(name, 0o755, size, file)?)
}

fn applets(busybox: &Path) -> Result<Vec<String>> {
    let output = Command::new(busybox).arg("--list").output();
    let output = output.with_context(|| format!("cannot run {}", busybox.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found: Vec<String> =
        text.split_whitespace().filter(|one| *one != "busybox").map(str::to_owned).collect();
    if found.is_empty() {
        bail!("{} --list names no applet", busybox.display());
    }
    Ok(found)
}

/// Writes on and keeps the digest of what went through.
struct Hashing {
    out: BufWriter<File>,
    sum: Sha256,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
