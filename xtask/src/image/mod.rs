//! `cargo xtask image`: the image of Longshore, made without a container engine.
//!
//! Two layers: the filesystem tools that the driver runs, with the libraries they need, from Debian
//! packages; and the binary, with links of the official programs' names. No shell, no package manager, and no
//! maintainer script runs. Everything in the image has the time of the commit, so equal inputs make equal
//! bytes. One name for each official program comes with it: the same layers, but that program is what starts, so
//! that a manifest of an official sidecar needs another image and nothing else. Beside the image lie the list of packages, from which it can be made again, and a list of all that is
//! in it (CycloneDX).

mod elf;
mod oci;
mod packages;
mod rootfs;
mod sbom;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

pub use self::packages::TOOLS as TOOL_PACKAGES;
use self::{oci::Layer, packages::Pin};
use crate::run;

const USAGE: &str = "\
image [--arch amd64|arm64] [--binary FILE] [--dist] [--packages FILE] [--out DIR] [--name NAME:TAG]";

/// Names under which official manifests know the programs; links at the root of the image.
pub const LINKS: [&str; 9] = [
    "csi-attacher",
    "csi-external-health-monitor-controller",
    "csi-node-driver-registrar",
    "csi-provisioner",
    "csi-resizer",
    "csi-sidecars",
    "csi-snapshotter",
    "livenessprobe",
    "snapshot-controller",
];

/// A processor that images are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    Amd64,
    Arm64,
}

impl Arch {
    /// As Debian and image indexes say.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// As Rust says.
    pub const fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    fn host() -> Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => bail!("images are made for amd64 and arm64, not for {other}"),
        }
    }
}

/// What was asked for.
#[derive(Debug)]
struct Args {
    arch: Arch,
    binary: Option<PathBuf>,
    dist: bool,
    packages: Option<PathBuf>,
    out: PathBuf,
    name: String,
}

/// Where an image was put.
#[derive(Debug)]
pub struct Made {
    /// The archive that `ctr images import` and others take.
    pub archive: PathBuf,
}

/// `cargo xtask image`.
pub fn task(args: &[String]) -> Result<()> {
    make(&Args::read(args)?).map(drop)
}

/// The image under `name`, around a binary that is there already or around the release build.
pub fn make_as(binary: Option<&Path>, name: &str) -> Result<Made> {
    make(&Args { binary: binary.map(Path::to_owned), name: name.to_owned(), ..Args::read(&[])? })
}

fn make(args: &Args) -> Result<Made> {
    let binary = match &args.binary {
        Some(file) => file.clone(),
        None => build(args.arch, args.dist)?,
    };
    let source = Source::read()?;
    let pins = args.packages.as_deref().map(packages::read).transpose()?;
    let unpacked = packages::unpack(args.arch, pins.as_deref())?;
    let (tools, used) = rootfs::tools(&unpacked)?;
    let program = rootfs::program(&binary, &tools)?;
    fs::create_dir_all(&args.out).with_context(|| format!("cannot make {}", args.out.display()))?;
    let layers = [
        ("filesystem tools, from Debian packages", &tools),
        ("longshore, with links of the official names", &program),
    ];
    let layers = layers.map(|(why, tree)| Layer::of(why, tree, source.time));
    let layers = layers.into_iter().collect::<Result<Vec<Layer>>>()?;
    let names = names(&args.name);
    let image = oci::Images { arch: args.arch, names: &names, source: &source, layers: &layers };
    let archive = args.out.join(format!("longshore-{}.tar", args.arch.name()));
    let digest = image.write(&args.out.join(format!("oci-{}", args.arch.name())), &archive)?;
    let list = args.out.join(format!("longshore-{}.packages", args.arch.name()));
    fs::write(&list, packages::write(&used)).with_context(|| list.display().to_string())?;
    let parts = args.out.join(format!("longshore-{}.cdx.json", args.arch.name()));
    let components = sbom::components(args.arch, &used)?;
    fs::write(&parts, sbom::document(&components, &args.name, &digest, &source)?)
        .with_context(|| parts.display().to_string())?;
    let bytes = fs::metadata(&archive)?.len();
    println!("image     {} {digest}", args.name);
    for (name, _) in names.iter().skip(1) {
        println!("          {name}");
    }
    println!("archive   {} ({:.1} MiB)", archive.display(), bytes as f64 / f64::from(1 << 20));
    println!("packages  {} ({} Debian packages)", list.display(), used.len());
    println!("contents  {} ({} components)", parts.display(), components.len());
    Ok(Made { archive })
}

impl Args {
    fn read(args: &[String]) -> Result<Self> {
        let mut read = Self {
            arch: Arch::host()?,
            binary: None,
            dist: false,
            packages: None,
            out: run::target_dir()?.join("image"),
            name: format!("longshore:{}", env!("CARGO_PKG_VERSION")),
        };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            if flag == "--dist" {
                read.dist = true;
                continue;
            }
            let value = args.next().with_context(|| format!("{flag} needs a value; say\n{USAGE}"));
            match flag.as_str() {
                "--arch" => read.arch = arch(value?)?,
                "--binary" => read.binary = Some(value?.into()),
                "--packages" => read.packages = Some(value?.into()),
                "--out" => read.out = value?.into(),
                "--name" => read.name = name(value?)?,
                other => bail!("image has no flag {other:?}; say\n{USAGE}"),
            }
        }
        if read.binary.is_some() && read.dist {
            bail!("--binary brings a binary and --dist builds one; choose one of them");
        }
        Ok(read)
    }
}

fn arch(name: &str) -> Result<Arch> {
    match name {
        "amd64" => Ok(Arch::Amd64),
        "arm64" => Ok(Arch::Arm64),
        other => bail!("--arch is amd64 or arm64, not {other:?}"),
    }
}

/// The names of the image and, below it, of those that start an official program.
fn names(name: &str) -> Vec<(String, String)> {
    let (repository, tag) = name.rsplit_once(':').unwrap_or((name, "latest"));
    let own = (name.to_owned(), "longshore".to_owned());
    let others = LINKS.map(|link| (format!("{repository}/{link}:{tag}"), link.to_owned()));
    std::iter::once(own).chain(others).collect()
}

/// An image's name has a tag, or runtimes would call it `latest`.
fn name(text: &str) -> Result<String> {
    match text.rsplit_once(':') {
        Some((name, tag)) if !name.is_empty() && !tag.is_empty() && !tag.contains('/') => {
            Ok(text.to_owned())
        }
        _ => bail!("--name is NAME:TAG, for example longshore:0.1.0, not {text:?}"),
    }
}

/// Builds the binary; for another processor with Debian's compiler for that one.
fn build(arch: Arch, dist: bool) -> Result<PathBuf> {
    let profile = if dist { "dist" } else { "release" };
    let mut line = vec!["build", "--locked", "--package", "longshore", "--bin", "longshore"];
    line.extend(["--profile", profile]);
    let foreign = arch != Arch::host()?;
    if foreign {
        line.extend(["--target", arch.target()]);
    }
    let linker = [
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
        ("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc"),
    ];
    run::cargo(&line, if foreign { &linker } else { &[] })?;
    let mut file = run::target_dir()?;
    if foreign {
        file.push(arch.target());
    }
    Ok(file.join(profile).join("longshore"))
}

/// What the image is made of, as the repository says.
#[derive(Debug)]
pub struct Source {
    pub revision: String,
    /// Seconds since 1970: when the commit was made.
    pub time: u64,
    /// The same as text.
    pub created: String,
}

impl Source {
    fn read() -> Result<Self> {
        let show = |format: &str| run::output("git", &["log", "-1", &format!("--format={format}")]);
        let time = show("%ct")?.trim().parse().context("the time of the commit")?;
        let date = ["-u", "-d", &format!("@{time}"), "+%Y-%m-%dT%H:%M:%SZ"];
        let created = run::output("date", &date)?.trim().to_owned();
        Ok(Self { revision: show("%H")?.trim().to_owned(), time, created })
    }
}

/// Makes sure that a list names each package once.
fn by_name(pins: &[Pin]) -> Vec<&Pin> {
    let mut pins: Vec<&Pin> = pins.iter().collect();
    pins.sort_by(|a, b| a.name.cmp(&b.name));
    pins.dedup_by(|a, b| a.name == b.name);
    pins
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Args> {
        Args::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_are_read_and_wrong_ones_refused() {
        let args = read("--arch arm64 --dist --out o --name here/longshore:1").unwrap();
        assert!(args.arch == Arch::Arm64 && args.dist);
        assert_eq!((args.out, args.name.as_str()), ("o".into(), "here/longshore:1"));
        for wrong in [
            "--arch sparc",
            "--arch",
            "--name longshore",
            "--name a:5000/longshore",
            "--push x",
            "--binary f --dist",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
