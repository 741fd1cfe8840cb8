//! Termination messages of containers: the files they write, and what the status says of them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use longshore_core::model::kinds::{Container, Pod};
use longshore_core::stage::paths::NodePaths;
use longshore_core::stage::termination::{self, MAX_FILE_BYTES, Message, Policy, View};

use super::run_spec::log_file;
use super::shim_client::ShimView;
use super::worker::Worker;
use crate::shim::log::previous;
use crate::shim::protocol::{Bind, Outcome, RunState};

/// An end of a log that holds every line the fallback may show: 80 lines and their heads, the
/// longest of which has 16 KiB.
const LOG_END: u64 = 32 * 1024;

/// Directory with the message files of a container's runs.
fn dir(paths: &NodePaths, uid: &str, container: &str) -> PathBuf {
    paths.pod(uid).join("containers").join(container)
}

fn file(dir: &Path, attempt: u32) -> PathBuf {
    dir.join(attempt.to_string())
}

/// Makes the message file of one run and says where the container sees it.
fn make_file(
    paths: &NodePaths,
    uid: &str,
    container: &Container,
    attempt: u32,
) -> io::Result<Option<Bind>> {
    let Some(target) = termination::target(&container.termination_message_path) else {
        return Ok(None);
    };
    let dir = dir(paths, uid, &container.name);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
    remove_others(&dir, attempt)?;
    let source = file(&dir, attempt);
    make_empty(&source)?;
    Ok(Some(Bind { source, target: target.into(), ..Bind::default() }))
}

/// Makes a file that any user of the container may write, under any umask. One that is there is
/// emptied, not replaced: a container that an agent before this one started may have it mounted.
fn make_empty(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file: File = options.open(path)?;
    file.set_permissions(Permissions::from_mode(0o666))
}

/// Removes the files of runs that no status speaks of: all but this run's and the one before.
fn remove_others(dir: &Path, attempt: u32) -> io::Result<()> {
    let kept = [Some(attempt), attempt.checked_sub(1)];
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let number = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        if number.is_none() || !kept.contains(&number) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

impl Worker {
    /// Makes the message file of a run. A container runs without one rather than not at all, as
    /// with kubelet.
    pub(super) fn message_file(&self, container: &Container, attempt: u32) -> Option<Bind> {
        let uid = &self.pod.metadata.uid;
        make_file(&self.deps.paths, uid, container, attempt).unwrap_or_else(|error| {
            let (pod, container) = (self.pod.metadata.key(), &container.name);
            tracing::warn!(%pod, container, %error, "no file for the termination message");
            None
        })
    }
}

/// The messages of a pod's ended runs by container and attempt. Each is read once: after the last
/// process of a run nobody writes to its file.
#[derive(Debug, Default)]
pub(crate) struct Messages(BTreeMap<(String, u32), String>);

impl Messages {
    /// The message of a run, empty when there is none.
    pub(crate) fn of(&self, run: &RunState) -> &str {
        self.0.get(&(run.name.clone(), run.attempt)).map_or("", String::as_str)
    }

    /// Reads the messages of the runs that a status speaks of, and forgets the others.
    pub(crate) fn update(&mut self, paths: &NodePaths, pod: &Pod, view: &ShimView) {
        let mut before = std::mem::take(&mut self.0);
        let all = || pod.spec.init_containers.iter().chain(&pod.spec.containers);
        for container in all() {
            let newest = view.newest(&container.name);
            for run in newest.into_iter().chain(view.previous(&container.name)) {
                let Some(outcome) = &run.outcome else { continue };
                let key = (run.name.clone(), run.attempt);
                let message = before.remove(&key).unwrap_or_else(|| {
                    let is_newest = newest.is_some_and(|newest| newest.attempt == run.attempt);
                    let log = log_file(paths, &pod.metadata.uid, &container.name);
                    let log = if is_newest { log } else { previous(&log) };
                    let dir = dir(paths, &pod.metadata.uid, &container.name);
                    let message = read(container, outcome, &file(&dir, run.attempt), &log);
                    termination::share(&message, all().count()).to_owned()
                });
                self.0.insert(key, message);
            }
        }
    }
}

fn read(container: &Container, outcome: &Outcome, file: &Path, log: &Path) -> String {
    let content = match longshore_files::read_end(file, MAX_FILE_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        other => Some(other.map_err(|error| error.to_string())),
    };
    let view = View {
        policy: Policy::parse(&container.termination_message_policy),
        exit_code: outcome.exit_code,
        start_error: outcome.start_error.as_deref(),
        file: content.as_ref().map(|read| read.as_deref().map_err(String::as_str)),
    };
    match termination::decide(&view) {
        Message::Text(text) => text.into_owned(),
        Message::EndOfLog => end_of_log(log).unwrap_or_else(|error| {
            format!("Error on reading termination message from logs: {error}")
        }),
    }
}

fn end_of_log(log: &Path) -> io::Result<String> {
    let end = match longshore_files::read_end(log, LOG_END) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        other => other?,
    };
    // The first line of a full buffer has lost its head.
    let whole = match end.len() as u64 == LOG_END {
        true => end.iter().position(|byte| *byte == b'\n').map_or(&end[..0], |at| &end[at + 1..]),
        false => &end[..],
    };
    Ok(termination::end_of_log(whole).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(policy: &str) -> Container {
        Container {
            name: "main".into(),
            termination_message_path: "/dev/termination-log".into(),
            termination_message_policy: policy.into(),
            ..Container::default()
        }
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn each_run_has_an_empty_file_for_everybody_and_old_ones_go() {
        let home = tempfile::tempdir().unwrap();
        let paths = NodePaths::new(home.path());
        for attempt in 0..4 {
            let bind = make_file(&paths, "uid", &container(""), attempt).unwrap().unwrap();
            let found = fs::metadata(&bind.source).unwrap();
            assert_eq!((found.len(), found.permissions().mode() & 0o7777), (0, 0o666));
            assert_eq!(bind.target, Path::new("/dev/termination-log"));
            assert!(!bind.read_only && !bind.device && !bind.host);
            fs::write(&bind.source, "said").unwrap();
        }
        let dir = dir(&paths, "uid", "main");
        assert_eq!(names(&dir), ["2", "3"]);
        // The runs of an instance that was stopped are forgotten, and counted from 0 again.
        make_file(&paths, "uid", &container(""), 0).unwrap().unwrap();
        assert_eq!(names(&dir), ["0"]);
        let none = Container { termination_message_path: String::new(), ..container("") };
        assert_eq!(make_file(&paths, "uid", &none, 0).unwrap(), None);
    }

    #[test]
    fn the_log_stands_in_only_for_a_failure_without_words() {
        let home = tempfile::tempdir().unwrap();
        let (file, log) = (home.path().join("message"), home.path().join("main.log"));
        let ended =
            |exit_code| Outcome { exit_code, signal: 0, start_error: None, finished_at_ms: 1 };
        let fallback = container("FallbackToLogsOnError");
        assert_eq!(read(&fallback, &ended(1), &file, &log), "");
        let line = "2026-01-01T00:00:00Z stderr F no such disk\n";
        fs::write(&log, line).unwrap();
        assert_eq!(read(&fallback, &ended(1), &file, &log), "no such disk\n");
        assert_eq!(read(&fallback, &ended(0), &file, &log), "");
        assert_eq!(read(&container("File"), &ended(1), &file, &log), "");
        fs::write(&file, "own words").unwrap();
        assert_eq!(read(&fallback, &ended(1), &file, &log), "own words");
        // A log of many kilobytes is not read from its beginning.
        fs::write(&file, "").unwrap();
        fs::write(&log, line.repeat(10_000)).unwrap();
        assert_eq!(read(&fallback, &ended(1), &file, &log), "no such disk\n".repeat(80));
    }
}
