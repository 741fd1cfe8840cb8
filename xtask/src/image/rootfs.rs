//! What is in the image, as a tree of files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::{
    LINKS, elf,
    packages::{Pin, Unpacked},
};

/// Programs that the driver runs, and those with which people look at a broken volume.
const TOOLS: [&str; 13] = [
    "btrfs",
    "btrfstune",
    "dumpe2fs",
    "e2fsck",
    "mke2fs",
    "mkfs.btrfs",
    "mkfs.ext4",
    "mkfs.xfs",
    "resize2fs",
    "tune2fs",
    "xfs_db",
    "xfs_growfs",
    "xfs_repair",
];
/// Other files that they read.
const FILES: [&str; 2] = ["etc/mke2fs.conf", "etc/os-release"];
/// Where the binary is.
const BINARY: &str = "usr/bin/longshore";

/// One entry of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Directory { mode: u32 },
    File { from: Content, mode: u32 },
    Link { to: String },
}

/// Where the bytes of a file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Disk(PathBuf),
    Text(String),
}

/// Entries by path, without a slash at the start. Parents sort before what is in them.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub entries: BTreeMap<String, Entry>,
}

impl Tree {
    fn add(&mut self, path: &str, entry: Entry) {
        let mut parent = path;
        while let Some((above, _)) = parent.rsplit_once('/') {
            let directory = Entry::Directory { mode: 0o755 };
            self.entries.entry(above.to_owned()).or_insert(directory);
            parent = above;
        }
        self.entries.insert(path.to_owned(), entry);
    }

    fn text(&mut self, path: &str, text: &str) {
        let from = Content::Text(text.to_owned());
        self.add(path, Entry::File { from, mode: 0o644 });
    }

    fn link(&mut self, path: &str, to: &str) {
        self.add(path, Entry::Link { to: to.to_owned() });
    }

    fn disk(&mut self, path: &str, file: &Path) -> Result<()> {
        let mode = fs::metadata(file).with_context(|| file.display().to_string())?;
        let mode = mode.permissions().mode() & 0o755;
        self.add(path, Entry::File { from: Content::Disk(file.to_owned()), mode });
        Ok(())
    }
}

/// The layer of the filesystem tools, and the packages that it has files of.
pub fn tools(packages: &[Unpacked]) -> Result<(Tree, Vec<Pin>)> {
    let mut tree = base();
    let mut found = Found { packages, libraries: BTreeSet::new(), used: BTreeSet::new() };
    for name in TOOLS {
        found.program(name, &mut tree)?;
    }
    for path in FILES {
        let (at, file) = found.file(&[path.to_owned()]).with_context(|| format!("no {path}"))?;
        tree.disk(path, &resolve(&packages[at].dir, &file)?)?;
    }
    // The binary's own, whatever it needs beyond the tools.
    for library in ["libc.so.6", "libm.so.6", "libgcc_s.so.1"] {
        found.library(library, &mut tree)?;
    }
    let used: Vec<&Unpacked> = found.used.iter().map(|at| &packages[*at]).collect();
    for package in &used {
        let name = &package.pin.name;
        // Scanners of images look for packages here where there is no package manager.
        let control = fs::read_to_string(package.dir.join(".control"))?;
        tree.text(&format!("var/lib/dpkg/status.d/{name}"), &control);
        let notice = format!("usr/share/doc/{name}/copyright");
        let file = package.dir.join(&notice);
        if file.is_file() {
            tree.disk(&notice, &file)?;
        }
    }
    let used = used.into_iter().map(|package| package.pin.clone()).collect();
    Ok((tree, used))
}

/// The layer of the binary. Its libraries must be in the layer below.
pub fn program(binary: &Path, below: &Tree) -> Result<Tree> {
    let needs = elf::needs(binary)?;
    if needs == elf::Needs::default() {
        bail!("{} is no program; build it, or name another with --binary", binary.display());
    }
    let have: BTreeSet<&str> =
        below.entries.keys().filter_map(|path| path.rsplit('/').next()).collect();
    for library in &needs.libraries {
        if !have.contains(library.as_str()) {
            bail!("{} needs {library}, which no package of the image has", binary.display());
        }
    }
    let mut tree = Tree::default();
    tree.disk(BINARY, binary)?;
    for name in LINKS {
        tree.link(name, &format!("/{BINARY}"));
    }
    tree.link("longshore", &format!("/{BINARY}"));
    Ok(tree)
}

/// Directories, links and accounts that programs expect.
fn base() -> Tree {
    let mut tree = Tree::default();
    for name in ["dev", "etc", "proc", "root", "run", "sys", "usr/bin", "usr/lib", "usr/sbin"] {
        tree.add(name, Entry::Directory { mode: 0o755 });
    }
    tree.add("var", Entry::Directory { mode: 0o755 });
    tree.add("tmp", Entry::Directory { mode: 0o1777 });
    for name in ["bin", "lib", "lib64", "sbin"] {
        tree.link(name, &format!("usr/{name}"));
    }
    tree.add("usr/lib64", Entry::Directory { mode: 0o755 });
    tree.text(
        "etc/passwd",
        "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n\
         nonroot:x:65532:65532:nonroot:/:/sbin/nologin\n",
    );
    tree.text("etc/group", "root:x:0:\nnogroup:x:65534:\nnonroot:x:65532:\n");
    tree.text("etc/nsswitch.conf", "hosts: files dns\n");
    tree
}

/// Looks for files in packages, and remembers which packages were used.
struct Found<'a> {
    packages: &'a [Unpacked],
    libraries: BTreeSet<String>,
    used: BTreeSet<usize>,
}

impl Found<'_> {
    /// A package that has a file at one of these paths.
    fn file(&mut self, paths: &[String]) -> Option<(usize, String)> {
        for (at, package) in self.packages.iter().enumerate() {
            for path in paths {
                if package.dir.join(path).symlink_metadata().is_ok() {
                    self.used.insert(at);
                    return Some((at, path.clone()));
                }
            }
        }
        None
    }

    fn program(&mut self, name: &str, tree: &mut Tree) -> Result<()> {
        let dirs = ["sbin", "usr/sbin", "bin", "usr/bin"];
        let paths = dirs.map(|dir| format!("{dir}/{name}"));
        let (at, path) =
            self.file(&paths).with_context(|| format!("no package has a program {name}"))?;
        let file = resolve(&self.packages[at].dir, &path)?;
        tree.disk(&format!("usr/sbin/{name}"), &file)?;
        self.needed(&file, tree)
    }

    fn needed(&mut self, file: &Path, tree: &mut Tree) -> Result<()> {
        let needs = elf::needs(file)?;
        if let Some(loader) = &needs.loader {
            self.loader(loader, tree)?;
        }
        for library in needs.libraries {
            self.library(&library, tree)?;
        }
        Ok(())
    }

    fn library(&mut self, name: &str, tree: &mut Tree) -> Result<()> {
        if !self.libraries.insert(name.to_owned()) {
            return Ok(());
        }
        let mut paths = Vec::new();
        for triplet in ["x86_64-linux-gnu", "aarch64-linux-gnu"] {
            paths.extend(["lib", "usr/lib"].map(|dir| format!("{dir}/{triplet}/{name}")));
        }
        let (at, path) =
            self.file(&paths).with_context(|| format!("no package has the library {name}"))?;
        let file = resolve(&self.packages[at].dir, &path)?;
        tree.disk(&merged(&path), &file)?;
        self.needed(&file, tree)
    }

    fn loader(&mut self, path: &str, tree: &mut Tree) -> Result<()> {
        let inside = path.trim_start_matches('/').to_owned();
        let (at, found) =
            self.file(&[inside]).with_context(|| format!("no package has the loader {path}"))?;
        tree.disk(&merged(&found), &resolve(&self.packages[at].dir, &found)?)
    }
}

/// Below `usr`, where `/lib` and its like lead in the image.
fn merged(path: &str) -> String {
    let first = path.split('/').next().unwrap_or_default();
    if ["bin", "lib", "lib64", "sbin"].contains(&first) {
        format!("usr/{path}")
    } else {
        path.to_owned()
    }
}

/// Follows links inside a package; absolute ones start at its top.
fn resolve(dir: &Path, path: &str) -> Result<PathBuf> {
    let mut file = dir.join(path);
    for _ in 0..8 {
        let seen = file.symlink_metadata().with_context(|| file.display().to_string())?;
        if !seen.is_symlink() {
            return Ok(file);
        }
        let to = fs::read_link(&file)?;
        file = match to.strip_prefix("/") {
            Ok(inside) => dir.join(inside),
            Err(_) => file.parent().unwrap_or(dir).join(to),
        };
        // Merged directories are links in the image only.
        if file.symlink_metadata().is_err()
            && let Ok(inside) = file.strip_prefix(dir)
            && let Ok(plain) = inside.strip_prefix("usr")
            && dir.join(plain).symlink_metadata().is_ok()
        {
            file = dir.join(plain);
        }
    }
    bail!("{path} is a chain of links without an end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_before_what_is_in_them() {
        let mut tree = Tree::default();
        tree.text("a/b/c", "x");
        tree.link("a/b-link", "b");
        let paths: Vec<&str> = tree.entries.keys().map(String::as_str).collect();
        assert_eq!(paths, ["a", "a/b", "a/b-link", "a/b/c"]);
    }

    #[test]
    fn directories_are_those_of_a_merged_system() {
        for (path, want) in [
            ("lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
            ("lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
            ("usr/lib/x86_64-linux-gnu/libm.so.6", "usr/lib/x86_64-linux-gnu/libm.so.6"),
            ("etc/os-release", "etc/os-release"),
        ] {
            assert_eq!(merged(path), want);
        }
    }

    #[test]
    fn links_are_followed_inside_the_package_only() {
        let dir = tempfile::Builder::new().prefix("longshore-image-").tempdir().unwrap();
        fs::create_dir_all(dir.path().join("usr/lib")).unwrap();
        fs::write(dir.path().join("usr/lib/real"), "x").unwrap();
        std::os::unix::fs::symlink("/usr/lib/real", dir.path().join("absolute")).unwrap();
        std::os::unix::fs::symlink("round", dir.path().join("round")).unwrap();
        let found = resolve(dir.path(), "absolute").unwrap();
        assert_eq!(found, dir.path().join("usr/lib/real"));
        assert!(resolve(dir.path(), "round").unwrap_err().to_string().contains("without an end"));
    }
}
