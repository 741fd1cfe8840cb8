//! How a program logs.

use std::time::Duration;

use longshore_cluster::telemetry::LogOptions;

use super::{UsageError, values};

/// Flags of every program.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CommonFlags {
    /// How much to log: 0 is quiet, 2 has a line for each claim, volume and pod, 3 leases, 5 every call.
    #[arg(long = "v", short = 'v', value_name = "LEVEL", default_value = "0", value_parser = values::integer, allow_hyphen_values = true, help_heading = "Logging")]
    pub v: i64,
    /// Log as text or as one JSON object per line; both go to stderr.
    #[arg(long, value_enum, default_value = "text", help_heading = "Logging")]
    pub logging_format: LogFormat,
    /// Print the version and exit.
    #[arg(long)]
    pub version: bool,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// klog's text form.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Log levels of source files: a pattern for the file's name, and the level.
type ModuleLevels = Vec<(String, u8)>;

/// How to log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Logging {
    /// klog's `-v`.
    pub verbosity: u8,
    /// Text or JSON.
    pub format: LogFormat,
    /// klog's `--vmodule`: levels of source files whose names match.
    pub modules: ModuleLevels,
    /// Lines to log once at start: flags that were accepted without having an effect here.
    pub notes: Vec<String>,
}

impl TryFrom<CommonFlags> for Logging {
    type Error = UsageError;

    fn try_from(flags: CommonFlags) -> Result<Self, UsageError> {
        // `--version` is answered by the dispatcher.
        let CommonFlags { v, logging_format, version: _ } = flags;
        let level = i32::try_from(v)
            .map_err(|_| UsageError::bad_value("-v", v, "the level is too large"))?;
        // Nothing logs above the largest level or below zero, so the ends stand for what is beyond.
        let verbosity = u8::try_from(level.clamp(0, 255)).unwrap_or(u8::MAX);
        Ok(Self { verbosity, format: logging_format, ..Self::default() })
    }
}

impl Logging {
    /// The same with klog's flags taken into account.
    ///
    /// # Errors
    /// On flags that would have to change what is logged and cannot.
    pub(crate) fn with(self, klog: KlogFlags) -> Result<Self, UsageError> {
        let (modules, notes) = klog.check()?;
        Ok(Self { modules, notes, ..self })
    }
}

/// Flags of the Go runtime and of klog that the official sidecars have.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Logging and runtime flags of the Go programs")]
pub(crate) struct KlogFlags {
    /// Log levels of source files: pattern=N,pattern=N.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "LEVELS")]
    pub vmodule: String,
    /// Accepted: log lines are never held back here.
    #[arg(long, default_value = "5s", value_parser = values::duration)]
    pub log_flush_frequency: Duration,
    /// Split text logs between stdout and stderr (not part of this version).
    #[arg(long)]
    pub log_text_split_stream: bool,
    /// Accepted: log lines are never held back here.
    #[arg(long, default_value = "0", value_name = "SIZE")]
    pub log_text_info_buffer_size: String,
    /// Split JSON logs between stdout and stderr (not part of this version).
    #[arg(long)]
    pub log_json_split_stream: bool,
    /// Accepted: log lines are never held back here.
    #[arg(long, default_value = "0", value_name = "SIZE")]
    pub log_json_info_buffer_size: String,
    /// Accepted: tuning of the Go runtime has no meaning here.
    #[arg(long)]
    pub automaxprocs: bool,
    #[command(flatten)]
    pub old: OldKlogFlags,
}

/// Flags that klog had until the sidecars dropped them; manifests still have them. All lines go to stderr with
/// their headers, whatever these say.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct OldKlogFlags {
    #[arg(long = "logtostderr", hide = true)]
    to_stderr: Option<bool>,
    #[arg(long = "alsologtostderr", hide = true)]
    also_to_stderr: Option<bool>,
    #[arg(long = "stderrthreshold", hide = true)]
    stderr_threshold: Option<String>,
    #[arg(long = "add_dir_header", hide = true)]
    add_dir_header: Option<bool>,
    #[arg(long = "skip_headers", hide = true)]
    skip_headers: Option<bool>,
    #[arg(long = "skip_log_headers", hide = true)]
    skip_log_headers: Option<bool>,
    #[arg(long = "one_output", hide = true)]
    one_output: Option<bool>,
    #[arg(long = "log_dir", hide = true)]
    log_dir: Option<String>,
    #[arg(long = "log_file", hide = true)]
    log_file: Option<String>,
    #[arg(long = "log_file_max_size", hide = true)]
    log_file_max_size: Option<String>,
    #[arg(long = "log_backtrace_at", hide = true)]
    log_backtrace_at: Option<String>,
}

impl OldKlogFlags {
    /// The names of those that were given.
    fn given(self) -> Vec<&'static str> {
        let Self {
            to_stderr,
            also_to_stderr,
            stderr_threshold,
            add_dir_header,
            skip_headers,
            skip_log_headers,
            one_output,
            log_dir,
            log_file,
            log_file_max_size,
            log_backtrace_at,
        } = self;
        let rows = [
            (to_stderr.is_some(), "--logtostderr"),
            (also_to_stderr.is_some(), "--alsologtostderr"),
            (stderr_threshold.is_some(), "--stderrthreshold"),
            (add_dir_header.is_some(), "--add_dir_header"),
            (skip_headers.is_some(), "--skip_headers"),
            (skip_log_headers.is_some(), "--skip_log_headers"),
            (one_output.is_some(), "--one_output"),
            (log_dir.is_some(), "--log_dir"),
            (log_file.is_some(), "--log_file"),
            (log_file_max_size.is_some(), "--log_file_max_size"),
            (log_backtrace_at.is_some(), "--log_backtrace_at"),
        ];
        rows.into_iter().filter(|(given, _)| *given).map(|(_, name)| name).collect()
    }
}

impl KlogFlags {
    /// Levels of source files, and notes for flags that are accepted without an effect.
    fn check(self) -> Result<(ModuleLevels, Vec<String>), UsageError> {
        let Self {
            vmodule,
            log_flush_frequency,
            log_text_split_stream,
            log_text_info_buffer_size,
            log_json_split_stream,
            log_json_info_buffer_size,
            automaxprocs,
            old,
        } = self;
        let not_yet = |flag: &str, what| Err(UsageError::FlagNotYet { flag: flag.into(), what });
        let modules = LogOptions::parse_modules(&vmodule)
            .map_err(|why| UsageError::bad_value("--vmodule", &vmodule, why))?;
        let one_stream = "all log lines go to stderr";
        if log_text_split_stream {
            return not_yet("--log-text-split-stream", one_stream);
        }
        if log_json_split_stream {
            return not_yet("--log-json-split-stream", one_stream);
        }
        let mut notes = Vec::new();
        let mut note = |changed: bool, flag: &str, why: &str| {
            if changed {
                notes.push(format!("{flag} has no effect: {why}"));
            }
        };
        let unbuffered = "every log line is written at once";
        note(log_flush_frequency != Duration::from_secs(5), "--log-flush-frequency", unbuffered);
        note(log_text_info_buffer_size != "0", "--log-text-info-buffer-size", unbuffered);
        note(log_json_info_buffer_size != "0", "--log-json-info-buffer-size", unbuffered);
        note(automaxprocs, "--automaxprocs", "it tunes the Go runtime");
        for flag in old.given() {
            note(true, flag, "every log line goes to stderr with its header");
        }
        Ok((modules, notes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn klog_flags_are_noted_or_refused() {
        let plain = KlogFlags {
            vmodule: String::new(),
            log_flush_frequency: Duration::from_secs(5),
            log_text_split_stream: false,
            log_text_info_buffer_size: "0".into(),
            log_json_split_stream: false,
            log_json_info_buffer_size: "0".into(),
            automaxprocs: false,
            old: OldKlogFlags::default(),
        };
        assert_eq!(plain.clone().check(), Ok((vec![], vec![])));
        let (_, notes) = KlogFlags { automaxprocs: true, ..plain.clone() }.check().unwrap();
        assert_eq!(notes, ["--automaxprocs has no effect: it tunes the Go runtime"]);
        let old = OldKlogFlags { to_stderr: Some(true), ..OldKlogFlags::default() };
        let (_, notes) = KlogFlags { old, ..plain.clone() }.check().unwrap();
        let note = "--logtostderr has no effect: every log line goes to stderr with its header";
        assert_eq!(notes, [note]);
        let (modules, _) = KlogFlags { vmodule: "que*=5".into(), ..plain.clone() }.check().unwrap();
        assert_eq!(modules, [("que*".to_owned(), 5)]);
        assert!(KlogFlags { vmodule: "queue".into(), ..plain.clone() }.check().is_err());
        assert!(KlogFlags { log_json_split_stream: true, ..plain }.check().is_err());
    }
}
