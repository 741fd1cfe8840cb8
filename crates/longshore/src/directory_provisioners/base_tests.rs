//! Real directories, real links.

use std::os::unix::fs::symlink;

use super::*;

fn base() -> (tempfile::TempDir, Base) {
    let dir = tempfile::Builder::new().prefix("longshore-base-").tempdir().unwrap();
    let base = Base::make(&dir.path().join("root")).unwrap();
    (dir, base)
}

fn directory(path: &str) -> Directory {
    Directory::new(path).unwrap()
}

#[test]
fn paths_that_lead_elsewhere_are_refused() {
    for good in ["pvc-1", "team/data", "a/b/c/", "...", "ü", "archived-x"] {
        Directory::new(good).expect(good);
    }
    let long = "x".repeat(256);
    let bad = [
        "",
        "/",
        "/etc",
        "..",
        "a/../b",
        "a/..",
        "./a",
        "a/./b",
        "a//b",
        "a/\0",
        "a\n",
        TRASH,
        &long,
        "a/.longshore-trash/b",
    ];
    for bad in bad {
        let why = Directory::new(bad).expect_err(bad).to_string();
        assert!(why.starts_with("the directory "), "{why}");
    }
}

#[test]
fn directories_come_and_go() {
    let (dir, base) = base();
    for _ in 0..2 {
        base.create(&directory("team/data")).unwrap();
    }
    let inside = dir.path().join("root/team/data");
    assert!(inside.is_dir());
    std::fs::create_dir_all(inside.join("deep/deeper")).unwrap();
    std::fs::write(inside.join("deep/deeper/file"), "x").unwrap();
    std::fs::write(dir.path().join("outside"), "kept").unwrap();
    symlink(dir.path().join("outside"), inside.join("link")).unwrap();
    symlink("/", inside.join("root")).unwrap();
    base.remove(&directory("team/data")).unwrap();
    assert!(!inside.exists() && dir.path().join("root/team").exists());
    assert_eq!(std::fs::read_to_string(dir.path().join("outside")).unwrap(), "kept");
    assert_eq!(std::fs::read_dir(dir.path().join("root").join(TRASH)).unwrap().count(), 0);
    // Gone already is fine, also when the way to it is.
    base.remove(&directory("team/data")).unwrap();
    base.remove(&directory("nobody/data")).unwrap();
}

#[test]
fn links_are_not_followed() {
    let (dir, base) = base();
    let elsewhere = dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("file"), "kept").unwrap();
    symlink(&elsewhere, dir.path().join("root/link")).unwrap();
    for path in ["link", "link/below"] {
        let error = base.create(&directory(path)).unwrap_err().to_string();
        assert!(error.contains("symbolic links are not followed"), "{error}");
        let error = base.remove(&directory(path)).unwrap_err().to_string();
        assert!(error.contains(path), "{error}");
    }
    assert!(base.rename(&directory("link/file"), &directory("taken")).is_err());
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 1);
    assert!(dir.path().join("root/link").is_symlink());
}

#[test]
fn a_moved_base_stays_the_same_directory() {
    let (dir, base) = base();
    let (root, moved) = (dir.path().join("root"), dir.path().join("moved"));
    base.create(&directory("data")).unwrap();
    std::fs::rename(&root, &moved).unwrap();
    std::fs::create_dir_all(root.join("data")).unwrap();
    base.remove(&directory("data")).unwrap();
    assert!(root.join("data").exists(), "what took its place is somebody else's");
    assert!(!moved.join("data").exists());
}

#[test]
fn names_are_not_taken_from_others() {
    let (dir, base) = base();
    for name in ["one", "two"] {
        base.create(&directory(name)).unwrap();
    }
    assert!(base.rename(&directory("one"), &directory("two")).is_err());
    assert!(base.has(&directory("one")).unwrap());
    assert!(base.rename(&directory("one"), &directory("archived-one")).unwrap());
    assert!(!base.rename(&directory("one"), &directory("three")).unwrap(), "it is gone");
    assert!(dir.path().join("root/archived-one").is_dir());
    std::fs::write(dir.path().join("root/file"), "").unwrap();
    assert!(base.create(&directory("file")).is_err());
    assert!(base.remove(&directory("file")).is_err());
}

#[test]
fn neither_depth_nor_an_interruption_leaves_anything() {
    let (dir, base) = base();
    base.create(&directory("deep")).unwrap();
    // Deeper than there are handles, made level by level as one path would be too long.
    let mut at = fs::open(dir.path().join("root/deep"), DIR, Mode::empty()).unwrap();
    for _ in 0..3000 {
        fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = enter(&at, "d", WITHIN).unwrap();
    }
    base.remove(&directory("deep")).unwrap();
    // As a process leaves it that was killed half-way.
    let trash = dir.path().join("root").join(TRASH);
    std::fs::create_dir_all(trash.join("left/over")).unwrap();
    std::fs::write(trash.join("left/file"), "x").unwrap();
    std::fs::write(trash.join("file"), "x").unwrap();
    base.sweep().unwrap();
    assert_eq!(std::fs::read_dir(&trash).unwrap().count(), 0);
}

#[test]
fn what_is_mounted_inside_is_not_emptied() {
    use longshore_testing::{Need, need};
    if !need("mounted-inside", &[Need::Root, Need::Tool("mount")]) {
        return;
    }
    let (dir, base) = base();
    base.create(&directory("data/inner")).unwrap();
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("file"), "kept").unwrap();
    // In a mount namespace of its own, which goes with the process, a program removes the volume.
    let exe = std::env::current_exe().unwrap();
    let (_crate, module) = module_path!().split_once("::").unwrap();
    let script = format!(
        "mount --bind {} {} && exec {} --exact {module}::removes_for_another_test --nocapture",
        other.display(),
        dir.path().join("root/data/inner").display(),
        exe.display()
    );
    let done = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .env("LONGSHORE_TEST_BASE", dir.path().join("root"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(said.contains("something is mounted on or in it"), "{said}");
    assert_eq!(std::fs::read_to_string(other.join("file")).unwrap(), "kept");
}

/// The other half of the test above; alone it does nothing.
#[test]
fn removes_for_another_test() {
    let Some(root) = std::env::var_os("LONGSHORE_TEST_BASE") else { return };
    let base = Base::open(Path::new(&root)).unwrap();
    println!("{}", base.remove(&directory("data")).unwrap_err());
}
