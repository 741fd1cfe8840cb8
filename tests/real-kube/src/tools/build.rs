//! Building tools into the cache.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::table::{self, Kind, Source};
use super::{BROUGHT, Tool, ToolError, brought, cache_dir, cached, failed, go, module_dir};

/// Flags of every build; part of the cache key.
pub(super) const FLAGS: [&str; 3] = ["-trimpath", "-mod=readonly", "-buildvcs=false"];

/// Builds what is neither in `$LONGSHORE_TOOLS` nor in the cache. `log` gets one line per step that takes time.
///
/// Two builders do not collide: each program has a lock file, and appears in the cache only when
/// it is complete.
///
/// # Errors
/// When a tool cannot be built; see [`ToolError`].
pub fn build(tools: &[Tool], log: &dyn Fn(&str)) -> Result<(), ToolError> {
    let cache = cache_dir();
    let own = env::var_os(BROUGHT).map(PathBuf::from);
    for tool in tools {
        match brought(*tool, own.clone()) {
            Some(file) => log(&format!("{}: taking {}", tool.program(), file.display())),
            None => build_one(*tool, &cache, log)?,
        }
    }
    Ok(())
}

pub(super) fn build_one(tool: Tool, cache: &Path, log: &dyn Fn(&str)) -> Result<(), ToolError> {
    let (program, source) = table::entry(tool);
    let (Source::Module { module, package, kind, set }, Some(target)) =
        (source, cached(tool, cache)?)
    else {
        return Err(ToolError::Brought { program });
    };
    if target.is_file() {
        return Ok(());
    }
    let dir = target.parent().unwrap_or(cache);
    fs::create_dir_all(dir).map_err(failed("cannot make", dir))?;
    let lock = dir.join(format!("{program}.lock"));
    let held = File::create(&lock).map_err(failed("cannot make", &lock))?;
    held.lock().map_err(failed("cannot lock", &lock))?;
    // Another builder may have finished while this one waited.
    if target.is_file() {
        return Ok(());
    }
    let source = module_dir(module);
    let go = go_for(&source, cache, log)?;
    log(&format!("building {program} (once, up to a few minutes)"));
    let part = dir.join(format!("{program}.part"));
    let mut command = Command::new(&go);
    command.current_dir(&source).stdin(Stdio::null());
    command.env("GOTOOLCHAIN", "local").env("GOFLAGS", FLAGS.join(" ")).env_remove("GOWORK");
    if kind == Kind::Static {
        command.env("CGO_ENABLED", "0");
    }
    command.args(if kind == Kind::Test { &["test", "-c", "-vet=off"][..] } else { &["build"] });
    command.args(["-ldflags", &linker_flags(set), "-o"]).arg(&part).arg(package);
    let status = command.status().map_err(failed("cannot start", &go))?;
    if !status.success() {
        return Err(ToolError::Build { program, module, status });
    }
    fs::rename(&part, &target).map_err(failed("cannot rename", &part))
}

/// One builder at a time looks for Go, because it may have to install it.
fn go_for(module: &Path, cache: &Path, log: &dyn Fn(&str)) -> Result<PathBuf, ToolError> {
    let want = go::Version::of_module(module)?;
    let lock = cache.join("go.lock");
    let held = File::create(&lock).map_err(failed("cannot make", &lock))?;
    held.lock().map_err(failed("cannot lock", &lock))?;
    go::find(want, cache, log)
}

fn linker_flags(set: &[(&str, &str)]) -> String {
    let mut flags = "-s -w".to_owned();
    for (name, value) in set {
        flags.push_str(&format!(" -X {name}={value}"));
    }
    flags
}
