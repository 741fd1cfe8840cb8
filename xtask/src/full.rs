//! `cargo xtask full`: what takes too long for every change.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result, ensure};

use crate::{bench, golden, image, leftovers, real_kube, run, sanity, setup};

/// `cargo xtask full`.
pub fn task() -> Result<()> {
    setup::prepare()?;
    setup::real_tools()?;
    let before = leftovers::Snapshot::take()?;
    let long = [("LONGSHORE_TEST_STRICT", "1"), ("LONGSHORE_LONG", "1")];
    run::cargo(&["test", "--release", "--package", "longshore-sim", "--", "--nocapture"], &long)?;
    let path = setup::path_with_kubectl();
    let python = setup::python_client()?;
    let long = [long[0], long[1], ("PATH", &path), ("LONGSHORE_PYTHON", &python)];
    run::cargo(&["test", "--release", "--package", "longshore", "--", "--nocapture"], &long)?;
    for test in ["fuzz", "differential"] {
        let args =
            ["test", "--package", "longshore-apiserver", "--test", test, "--", "--nocapture"];
        run::cargo(&args, &long)?;
    }
    let bombs = ["test", "--release", "--package", "longshore-apiserver", "--test", "attack_bombs"];
    run::cargo(&bombs, &long)?;
    for corpus in ["apiserver", "controllers"] {
        golden::task(&[corpus, "--against", "real"].map(str::to_owned))?;
    }
    run::cargo(&["test", "--package", "longshore-apiserver", "--test", "crash"], &long)?;
    run::cargo(
        &["test", "--release", "--package", "longshore-driver", "--", "--nocapture"],
        &long,
    )?;
    sanity::task(&["--matrix".to_owned()])?;
    install()?;
    images()?;
    real_kube::suite(None, true)?;
    // Ignored elsewhere, because it takes long.
    let suite = ["test", "--package", "longshore-real-kube", "--test", "suite", "--", "--ignored"];
    run::cargo(&suite, &long)?;
    bench::bench(&["provision".to_owned()])?;
    bench::bench(&["api".to_owned()])?;
    bench::bench(&["bind".to_owned()])?;
    for name in ["driver", "burst", "attach", "node", "exec", "resize", "scale", "snapshots"] {
        bench::bench(&[name.to_owned()])?;
    }
    before.compare()
}

/// What building and starting the image of another processor needs, and the Debian packages of it.
const FOREIGN: [(&str, &str); 3] = [
    ("/usr/bin/aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"),
    ("/usr/aarch64-linux-gnu/lib/libc.so.6", "libc6-dev-arm64-cross"),
    ("/usr/bin/qemu-aarch64", "qemu-user"),
];

/// The image that is meant to be shipped, twice from one list of packages: the same bytes. And that of the other
/// processor, whose program starts.
fn images() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let at = |name: &str| dir.path().join(name).display().to_string();
    let make =
        |line: &[&str]| image::task(&line.iter().map(ToString::to_string).collect::<Vec<_>>());
    let (first, second, foreign) = (at("first"), at("second"), at("foreign"));
    make(&["--dist", "--out", &first])?;
    let once = files(Path::new(&first))?;
    let list = once.keys().find(|name| name.ends_with(".packages"));
    let list = format!("{first}/{}", list.context("the image has a list of packages")?);
    make(&["--dist", "--packages", &list, "--out", &second])?;
    let again = files(Path::new(&second))?;
    let other: Vec<&String> = once
        .iter()
        .filter(|(name, bytes)| again.get(*name) != Some(bytes))
        .map(|(name, _)| name)
        .collect();
    ensure!(other.is_empty() && once.len() == again.len(), "two images differ in {other:?}");
    eprintln!("two images of {} files are the same", once.len());
    if cfg!(target_arch = "aarch64") {
        return Ok(());
    }
    let missing = FOREIGN.iter().filter(|(file, _)| !Path::new(file).exists());
    let missing: Vec<&str> = missing.map(|(_, package)| *package).collect();
    if !missing.is_empty() {
        setup::install_or_say(&missing)?;
    }
    run::output("rustup", &["target", "add", image::Arch::Arm64.target()])?;
    make(&["--arch", "arm64", "--dist", "--out", &foreign])?;
    let program = run::target_dir()?.join(image::Arch::Arm64.target()).join("dist/longshore");
    let line = ["-L", "/usr/aarch64-linux-gnu", &program.display().to_string(), "version"];
    eprintln!("for arm64: {}", run::output("qemu-aarch64", &line)?.trim());
    Ok(())
}

/// All files below a directory, by their path in it.
fn files(dir: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(&next).with_context(|| next.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                todo.push(path);
                continue;
            }
            let name = path.strip_prefix(dir)?.display().to_string();
            found.insert(name, fs::read(&path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(found)
}

/// README's line that installs the program, with a directory of its own in place of `/usr/local`.
fn install() -> Result<()> {
    let readme = fs::read_to_string(run::root().join("README.md"))?;
    let line = readme.lines().find(|line| line.starts_with("cargo install "));
    let line = line.context("README does not say how to install")?;
    let dir = tempfile::tempdir()?;
    let root = dir.path().display().to_string();
    let line = line.replace("/usr/local", &root);
    ensure!(line.contains(&root), "README does not install into /usr/local: {line}");
    let args: Vec<&str> = line.split_whitespace().skip(1).collect();
    run::cargo(&args, &[])?;
    let program = dir.path().join("bin/longshore").display().to_string();
    eprintln!("installed {}", run::output(&program, &["version"])?.trim());
    Ok(())
}
