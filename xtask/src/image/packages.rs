//! Debian packages: which, fetched and unpacked without being installed.
//!
//! apt runs on a directory of its own, with the sources of this machine and an empty list of what is
//! installed. So the machine is not changed, and packages of another processor can be had.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};
use longshore_real_kube::tools;
use sha2::{Digest as _, Sha256};

use super::{Arch, by_name};

/// Packages with the filesystem tools.
pub const TOOLS: [&str; 3] = ["btrfs-progs", "e2fsprogs", "xfsprogs"];
/// What every image needs beside them; other libraries come on their own.
const BASE: [&str; 3] = ["base-files", "libc6", "libgcc-s1"];

/// One package, exactly.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pin {
    pub name: String,
    pub version: String,
    pub arch: String,
    pub sha256: String,
}

/// A package whose files lie in a directory.
#[derive(Debug)]
pub struct Unpacked {
    pub pin: Pin,
    pub dir: PathBuf,
}

/// Reads a list: a line for each package, with name, version, processor and checksum.
pub fn read(file: &Path) -> Result<Vec<Pin>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| match line.split_whitespace().collect::<Vec<_>>()[..] {
            [name, version, arch, sha256] if sha256.len() == 64 => Ok(Pin {
                name: name.to_owned(),
                version: version.to_owned(),
                arch: arch.to_owned(),
                sha256: sha256.to_owned(),
            }),
            _ => bail!("{}: not `NAME VERSION ARCH SHA256`: {line}", file.display()),
        })
        .collect()
}

/// The list as text.
pub fn write(pins: &[Pin]) -> String {
    let mut text = "# Debian packages of the image: name, version, processor, SHA-256\n".to_owned();
    for Pin { name, version, arch, sha256 } in by_name(pins) {
        text.push_str(&format!("{name} {version} {arch} {sha256}\n"));
    }
    text
}

/// Fetches the packages and unpacks each into a directory of its own: those of the list, or the newest.
pub fn unpack(arch: Arch, pins: Option<&[Pin]>) -> Result<Vec<Unpacked>> {
    let apt = Apt::new(arch)?;
    let debs = match pins {
        Some(pins) => apt.fetch_pinned(pins)?,
        None => apt.fetch_newest()?,
    };
    debs.into_iter().map(|(pin, deb)| apt.unpack(pin, &deb)).collect()
}

/// apt with a state of its own.
struct Apt {
    arch: Arch,
    dir: PathBuf,
}

impl Apt {
    fn new(arch: Arch) -> Result<Self> {
        let dir = tools::cache_dir().join(format!("image-packages-{}", arch.name()));
        for part in ["lists/partial", "archives/partial", "debs", "unpacked"] {
            let part = dir.join(part);
            fs::create_dir_all(&part).with_context(|| part.display().to_string())?;
        }
        fs::write(dir.join("status"), "")?;
        Ok(Self { arch, dir })
    }

    fn run(&self, args: &[&str], within: &Path) -> Result<String> {
        let mut command = Command::new("apt-get");
        let dir = self.dir.display();
        let arch = self.arch.name();
        for option in [
            format!("Dir::State::Lists={dir}/lists"),
            format!("Dir::State::Status={dir}/status"),
            format!("Dir::Cache={dir}"),
            format!("Dir::Cache::Archives={dir}/archives"),
            format!("APT::Architecture={arch}"),
            format!("APT::Architectures={arch}"),
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command.arg("--quiet=2").args(args).current_dir(within);
        let output = command.output().context("cannot run apt-get")?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("apt-get {} failed ({}): {}", args.join(" "), output.status, why.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The newest version of each wanted package and of the libraries below them.
    fn fetch_newest(&self) -> Result<Vec<(Pin, PathBuf)>> {
        self.run(&["update"], &self.dir)?;
        let mut line = vec!["--simulate", "--no-install-recommends", "install"];
        line.extend(BASE.iter().chain(&TOOLS));
        let plan = self.run(&line, &self.dir)?;
        let mut debs = Vec::new();
        for (name, version) in planned(&plan).into_iter().filter(|(name, _)| useful(name)) {
            debs.push(self.fetch(&name, &version, None)?);
        }
        Ok(debs)
    }

    fn fetch_pinned(&self, pins: &[Pin]) -> Result<Vec<(Pin, PathBuf)>> {
        let kept = |pin: &Pin| self.dir.join("debs").join(file_name(pin)).is_file();
        if !pins.iter().all(kept) {
            self.run(&["update"], &self.dir)?;
        }
        by_name(pins)
            .into_iter()
            .map(|pin| self.fetch(&pin.name, &pin.version, Some(pin)))
            .collect()
    }

    /// The package's file: the kept one where its checksum is right, else a new one.
    fn fetch(&self, name: &str, version: &str, want: Option<&Pin>) -> Result<(Pin, PathBuf)> {
        if let Some(pin) = want {
            let file = self.dir.join("debs").join(file_name(pin));
            if file.is_file() && sha256(&file)? == pin.sha256 {
                return Ok((pin.clone(), file));
            }
        }
        let scratch = tempfile::Builder::new().prefix("fetch-").tempdir_in(&self.dir)?;
        let one = format!("{name}={version}");
        self.run(&["download", &one], scratch.path()).with_context(|| {
            format!(
                "{one} cannot be had; a list of packages holds as long as the mirror keeps them"
            )
        })?;
        let mut files = fs::read_dir(scratch.path())?.collect::<Result<Vec<_>, _>>()?;
        let file = files.pop().with_context(|| format!("apt-get download {one} left no file"))?;
        let arch = run_dpkg(&["--field"], &file.path(), &["Architecture"])?.trim().to_owned();
        let (name, version) = (name.to_owned(), version.to_owned());
        let pin = Pin { name, version, arch, sha256: sha256(&file.path())? };
        if let Some(want) = want {
            ensure!(
                pin.sha256 == want.sha256,
                "{one} has the checksum {} and not {}, as the list says",
                pin.sha256,
                want.sha256
            );
        }
        let kept = self.dir.join("debs").join(file_name(&pin));
        fs::rename(file.path(), &kept)?;
        Ok((pin, kept))
    }

    fn unpack(&self, pin: Pin, deb: &Path) -> Result<Unpacked> {
        let dir = self.dir.join("unpacked").join(&pin.sha256);
        if !dir.is_dir() {
            let scratch =
                tempfile::Builder::new().prefix("unpack-").tempdir_in(self.dir.join("unpacked"))?;
            run_dpkg(&["--extract"], deb, &[&scratch.path().display().to_string()])?;
            let control = scratch.path().join(".control");
            fs::write(&control, run_dpkg(&["--field"], deb, &[])?)?;
            // Somebody else may have been faster.
            let from = scratch.keep();
            if fs::rename(&from, &dir).is_err() {
                fs::remove_dir_all(&from)?;
            }
        }
        ensure!(dir.is_dir(), "{} was not unpacked", pin.name);
        Ok(Unpacked { pin, dir })
    }
}

fn run_dpkg(before: &[&str], deb: &Path, after: &[&str]) -> Result<String> {
    let output = Command::new("dpkg-deb").args(before).arg(deb).args(after).output();
    let output = output.context("cannot run dpkg-deb (package dpkg)")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("dpkg-deb {} {}: {}", before.join(" "), deb.display(), why.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn file_name(pin: &Pin) -> String {
    format!("{}.deb", pin.sha256)
}

fn sha256(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| file.display().to_string())?;
    Ok(Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The packages of a simulated installation, with their versions.
fn planned(plan: &str) -> BTreeMap<String, String> {
    plan.lines()
        .filter_map(|line| {
            let (name, rest) = line.strip_prefix("Inst ")?.split_once(" (")?;
            let version = rest.split_whitespace().next()?;
            Some((name.to_owned(), version.to_owned()))
        })
        .collect()
}

/// Only wanted packages and libraries hold files of the image. Python and ICU belong to scripts and to a
/// checker that are left out.
fn useful(name: &str) -> bool {
    let large = ["libpython", "libicu", "libssl", "libstdc++", "libsqlite"];
    BASE.contains(&name)
        || TOOLS.contains(&name)
        || (name.starts_with("lib") || name.starts_with("zlib"))
            && !large.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_installation_is_read() {
        let plan = "Inst libc6 (2.36-9 Debian:12 [amd64]) []\nInst tar (1.34 Debian:12 [amd64])\n\
                    Conf libc6 (2.36-9 Debian:12 [amd64])\n";
        let planned = planned(plan);
        assert_eq!(planned["libc6"], "2.36-9");
        assert_eq!(planned.keys().filter(|name| useful(name)).count(), 1);
    }

    #[test]
    fn a_list_that_is_written_is_read_again() {
        let pin = |name: &str| Pin {
            name: name.to_owned(),
            version: "1:2.3-4".to_owned(),
            arch: "amd64".to_owned(),
            sha256: "a".repeat(64),
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), write(&[pin("b"), pin("a"), pin("b")])).unwrap();
        assert_eq!(read(file.path()).unwrap(), [pin("a"), pin("b")]);
        fs::write(file.path(), "a 1 amd64 short\n").unwrap();
        assert!(read(file.path()).unwrap_err().to_string().contains("NAME VERSION ARCH SHA256"));
    }
}
