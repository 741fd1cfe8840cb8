//! Logs on stderr in klog's manner: text lines or JSON, verbosity as a number.

use std::fmt::{self, Write as _};
use std::path::Path;

use longshore_core::redact::scrub_tokens;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{EnvFilter, LevelFilter, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// Logs an information line from verbosity 2 on: what became of one claim, volume or pod.
///
/// ```
/// longshore_cluster::log_result!(claim = "default/data", volume = "pvc-1", "provisioned");
/// ```
#[macro_export]
macro_rules! log_result {
    ($($line:tt)*) => { $crate::tracing::info!(target: "longshore::v2", $($line)*) };
}

/// Logs an information line from verbosity 3 on: leases, registrations, and other news of the process itself.
#[macro_export]
macro_rules! log_process {
    ($($line:tt)*) => { $crate::tracing::info!(target: "longshore::v3", $($line)*) };
}

/// Targets of information lines that are shown only from a verbosity on.
const INFO_FROM: [(&str, u8); 2] = [("longshore::v2", 2), ("longshore::v3", 3)];

/// The verbosity from which an information line is shown.
fn info_from(metadata: &Metadata<'_>) -> u8 {
    let row = INFO_FROM.iter().find(|(target, _)| *target == metadata.target());
    row.map_or(0, |(_, verbosity)| *verbosity)
}

/// From this verbosity on, debug lines are shown.
const DEBUG_FROM: u8 = 4;
/// From this verbosity on, trace lines are shown.
const TRACE_FROM: u8 = 6;
/// From this verbosity on, the libraries' own debug lines are shown too.
const LIBRARIES_FROM: u8 = 8;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// `I1115 22:05:23.123456    1234 queue.rs:12] message key="value"`
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("unknown log format {other:?}; use text or json")),
        }
    }
}

/// What is logged, and how.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// `-v`: 0 shows what an operator must see, 2 the result of each claim, volume and pod, 3 leases and
    /// registrations, 4 debug lines, 6 trace lines, 8 those of libraries.
    pub verbosity: u8,
    /// `--logging-format`.
    pub format: LogFormat,
    /// `--vmodule`: verbosity for source files whose name (without `.rs`; the directory's for `mod.rs`)
    /// matches the pattern, where `*` and `?` are wild.
    pub modules: Vec<(String, u8)>,
}

impl LogOptions {
    /// Reads `--vmodule`: `pattern=N,…`.
    ///
    /// # Errors
    /// Names the item that is not of that form.
    pub fn parse_modules(text: &str) -> Result<Vec<(String, u8)>, String> {
        let items = text.split(',').filter(|item| !item.is_empty());
        items
            .map(|item| {
                item.split_once('=')
                    .and_then(|(pattern, level)| Some((pattern.to_owned(), level.parse().ok()?)))
                    .ok_or_else(|| format!("{item:?} is not of the form pattern=N"))
            })
            .collect()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let name = metadata.file().map(file_name).unwrap_or_default();
        let own = metadata.target().starts_with("longshore");
        let named = self.modules.iter().find(|(pattern, _)| matches(pattern, name));
        let verbosity = named.map_or(self.verbosity, |(_, verbosity)| *verbosity);
        // Every failed request is an error line of the client library; the caller logs it with its object.
        let repeated = metadata.target().starts_with("kube_client") && verbosity < LIBRARIES_FROM;
        !repeated
            && verbosity >= info_from(metadata)
            && level(verbosity, own || named.is_some()) >= *metadata.level()
    }

    fn most_verbose(&self) -> LevelFilter {
        let own = self.modules.iter().map(|(_, verbosity)| level(*verbosity, true));
        own.fold(level(self.verbosity, true), LevelFilter::max)
    }
}

fn level(verbosity: u8, own: bool) -> LevelFilter {
    match verbosity {
        LIBRARIES_FROM.. => {
            if own {
                LevelFilter::TRACE
            } else {
                LevelFilter::DEBUG
            }
        }
        _ if !own => LevelFilter::WARN,
        TRACE_FROM.. => LevelFilter::TRACE,
        DEBUG_FROM.. => LevelFilter::DEBUG,
        _ => LevelFilter::INFO,
    }
}

/// Matches `*` (any text) and `?` (any character).
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*') => {
            let rest = &pattern[1..];
            let ends = text.char_indices().map(|(at, _)| at).chain([text.len()]);
            ends.into_iter().any(|at| matches(rest, &text[at..]))
        }
        Some(wanted) => text.chars().next().is_some_and(|found| {
            (wanted == '?' || wanted == found)
                && matches(&pattern[wanted.len_utf8()..], &text[found.len_utf8()..])
        }),
    }
}

/// Starts logging to stderr. `RUST_LOG`, where set, takes the place of the verbosity.
///
/// # Errors
/// Fails if logging was started before.
pub fn init_logging(options: &LogOptions) -> Result<(), TryInitError> {
    let registry = tracing_subscriber::registry();
    match EnvFilter::try_from_default_env() {
        Ok(environment) if std::env::var_os("RUST_LOG").is_some() => {
            registry.with(lines(options, std::io::stderr).with_filter(environment)).try_init()
        }
        _ => registry.with(log_layer(options, std::io::stderr)).try_init(),
    }
}

/// Log lines of the wanted verbosity, to any writer.
pub fn log_layer<S, W>(options: &LogOptions, writer: W) -> impl Layer<S> + use<S, W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (own, hint) = (options.clone(), options.most_verbose());
    let filter = filter_fn(move |metadata| own.enabled(metadata)).with_max_level_hint(hint);
    lines(options, writer).with_filter(filter)
}

fn lines<S, W>(options: &LogOptions, writer: W) -> impl Layer<S> + use<S, W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .fmt_fields(KlogFields { format: options.format })
        .event_format(Klog { format: options.format, pid: std::process::id() })
}

/// Writes one line per event.
struct Klog {
    format: LogFormat,
    pid: u32,
}

impl<S, N> FormatEvent<S, N> for Klog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut spans = Vec::new();
        for span in context.event_scope().into_iter().flat_map(|scope| scope.from_root()) {
            if let Some(kept) = span.extensions().get::<FormattedFields<N>>() {
                spans.push(kept.fields.clone());
            }
        }
        match self.format {
            LogFormat::Json => {
                let line = fields.json(event.metadata(), now_millis());
                writeln!(writer, "{}", with_spans(line, &spans))
            }
            LogFormat::Text => {
                header(&mut writer, event.metadata(), self.pid, &jiff::Zoned::now())?;
                writer.write_str(&fields.message)?;
                writer.write_str(&fields.text())?;
                spans.iter().try_for_each(|span| writer.write_str(span))?;
                writeln!(writer)
            }
        }
    }
}

/// Adds the fields of the spans, which are JSON members each with a comma before it. A line's own
/// field, or that of an inner span, wins.
fn with_spans(line: Value, spans: &[String]) -> Value {
    let Value::Object(mut object) = line else { return line };
    for span in spans.iter().rev() {
        let members = format!("{{{}}}", span.trim_start_matches([',', ' ']));
        let Ok(members) = serde_json::from_str::<Map<String, Value>>(&members) else { continue };
        for (name, value) in members {
            object.entry(name).or_insert(value);
        }
    }
    Value::Object(object)
}

fn header(
    writer: &mut impl fmt::Write,
    metadata: &Metadata<'_>,
    pid: u32,
    at: &jiff::Zoned,
) -> fmt::Result {
    let letter = match *metadata.level() {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        _ => 'I',
    };
    let time = at.strftime("%m%d %H:%M:%S.%6f");
    write!(writer, "{letter}{time} {pid:>7} {}] ", caller(metadata))
}

/// The module and the line: many files are called `mod.rs`.
fn caller(metadata: &Metadata<'_>) -> String {
    let module = metadata.module_path().unwrap_or("???");
    let module = module.strip_prefix("longshore_").unwrap_or(module);
    format!("{module}:{}", metadata.line().unwrap_or(1))
}

/// The name of a source file without `.rs`; that of its directory for `mod.rs`.
fn file_name(file: &str) -> &str {
    let path = Path::new(file);
    let path = if path.ends_with("mod.rs") { path.parent().unwrap_or(path) } else { path };
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}

fn now_millis() -> f64 {
    // Microseconds fit a double exactly for the next two centuries.
    jiff::Timestamp::now().as_microsecond() as f64 / 1000.0
}

/// Formats the fields of spans like those of events.
struct KlogFields {
    format: LogFormat,
}

impl<'writer> FormatFields<'writer> for KlogFields {
    fn format_fields<R: tracing_subscriber::field::RecordFields>(
        &self,
        mut writer: Writer<'writer>,
        record: R,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        record.record(&mut fields);
        match self.format {
            LogFormat::Text => writer.write_str(&fields.text()),
            LogFormat::Json => writer.write_str(&fields.members()),
        }
    }
    /// Fields that are recorded later need no separator: each brings its own.
    fn add_fields(
        &self,
        current: &'writer mut FormattedFields<Self>,
        fields: &tracing::span::Record<'_>,
    ) -> fmt::Result {
        self.format_fields(current.as_writer(), fields)
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: Vec<(&'static str, Value)>,
}

impl Fields {
    /// ` key="value" number=1`
    fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.rest {
            let name = if *name == "error" { "err" } else { name };
            let _ = match value {
                Value::String(value) => write!(text, " {name}={value:?}"),
                value => write!(text, " {name}={value}"),
            };
        }
        text
    }

    /// `,"key":"value","number":1`
    fn members(&self) -> String {
        let members = self.rest.iter().map(|(name, value)| {
            let name = if *name == "error" { "err" } else { name };
            format!(",{}:{value}", Value::from(name))
        });
        members.collect()
    }

    fn json(self, metadata: &Metadata<'_>, millis: f64) -> Value {
        let mut object = Map::new();
        object.insert("ts".into(), millis.into());
        object.insert("caller".into(), caller(metadata).into());
        object.insert("msg".into(), self.message.into());
        let level = *metadata.level();
        match level {
            Level::ERROR | Level::WARN => {
                object.insert("level".into(), level.as_str().to_ascii_lowercase().into());
            }
            Level::INFO => drop(object.insert("v".into(), info_from(metadata).into())),
            Level::DEBUG => drop(object.insert("v".into(), DEBUG_FROM.into())),
            Level::TRACE => drop(object.insert("v".into(), TRACE_FROM.into())),
        }
        for (name, value) in self.rest {
            let name = if name == "error" { "err" } else { name };
            object.insert(name.to_owned(), value);
        }
        Value::Object(object)
    }

    fn add(&mut self, field: &Field, value: Value) {
        // The last line of defence: whatever is logged by whom, a bearer token is not.
        let value = match value {
            Value::String(text) => Value::String(scrub_tokens(&text).into_owned()),
            other => other,
        };
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            (name, value) => self.rest.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use longshore_testing::Captured;

    use super::*;

    fn logged(options: &LogOptions, act: impl FnOnce()) -> String {
        let sink = Captured::default();
        let writer = sink.clone();
        let own = options.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(move || writer.clone())
            .fmt_fields(KlogFields { format: options.format })
            .event_format(Klog { format: options.format, pid: 1234 })
            .with_filter(filter_fn(move |metadata| own.enabled(metadata)));
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, act);
        sink.text()
    }

    #[test]
    fn text_lines_look_like_klog() {
        let line = logged(&LogOptions::default(), || {
            tracing::warn!(claim = "default/data", tries = 3, error = %"no \"disk\"", "not bound");
        });
        let (head, rest) = line.split_once("] ").expect("a header");
        assert_eq!(rest, "not bound claim=\"default/data\" tries=3 err=\"no \\\"disk\\\"\"\n");
        let mut words = head.split_whitespace();
        let date = words.next().expect("date");
        assert!(date.starts_with('W') && date.len() == 5, "{head}");
        let time = words.next().expect("time");
        assert_eq!((time.len(), &time[8..9]), (15, "."), "{head}");
        assert_eq!(words.next(), Some("1234"));
        assert!(head.contains("    1234 cluster::telemetry::log::tests:"), "{head}");
    }

    #[test]
    fn results_are_shown_from_two_and_news_of_the_process_from_three() {
        let act = || {
            crate::log_result!(claim = "default/data", "provisioned");
            crate::log_process!(lease = "l", "became leader");
        };
        for (verbosity, lines) in [(0, 0), (1, 0), (2, 1), (3, 2)] {
            let options = LogOptions { verbosity, ..LogOptions::default() };
            assert_eq!(logged(&options, act).lines().count(), lines, "-v={verbosity}");
        }
        let options = LogOptions { verbosity: 2, format: LogFormat::Json, ..LogOptions::default() };
        assert!(logged(&options, act).contains(r#""v":2"#));
    }

    #[test]
    fn source_files_are_named_by_their_directory_where_all_have_one_name() {
        for (file, name) in [
            ("crates/controllers/src/bind/mod.rs", "bind"),
            ("crates/controllers/src/bind/act.rs", "act"),
            ("mod.rs", ""),
        ] {
            assert_eq!(file_name(file), name, "{file}");
        }
    }

    #[test]
    fn fields_of_spans_follow() {
        let line = logged(&LogOptions::default(), || {
            let span = tracing::info_span!("bind", claim = "default/data");
            span.in_scope(|| tracing::info!(n = 1, "m"));
        });
        assert!(line.ends_with("] m n=1 claim=\"default/data\"\n"), "{line}");
    }

    #[test]
    fn bearer_tokens_are_stripped_from_messages_fields_and_spans() {
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl";
        for format in [LogFormat::Text, LogFormat::Json] {
            let options = LogOptions { format, verbosity: 10, ..LogOptions::default() };
            let line = logged(&options, || {
                let span = tracing::info_span!("publish", context = token);
                span.in_scope(
                    || tracing::trace!(token, error = %token, all = ?[token], "got {token}"),
                );
            });
            assert!(!line.is_empty() && !line.contains("eyJ"), "{line}");
        }
    }

    #[test]
    fn json_lines_hold_the_fields_as_values() {
        let options = LogOptions { format: LogFormat::Json, ..LogOptions::default() };
        let line = logged(&options, || tracing::info!(claim = "a", tries = 3, "not bound"));
        let line: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&line["msg"], &line["v"]), (&"not bound".into(), &0.into()));
        assert_eq!((&line["claim"], &line["tries"]), (&"a".into(), &3.into()));
        assert!(line["ts"].as_f64().expect("a time") > 1e12);
    }

    #[test]
    fn verbosity_and_modules_decide_what_is_shown() {
        let shown = |options: &LogOptions| {
            let text = logged(options, || {
                tracing::info!("info");
                tracing::debug!("debug");
                tracing::trace!("trace");
                tracing::info!(target: "hyper", "library info");
                tracing::warn!(target: "hyper", "library warning");
            });
            text.lines().filter_map(|l| Some(l.split_once("] ")?.1.to_owned())).collect::<Vec<_>>()
        };
        let at = |verbosity| LogOptions { verbosity, ..LogOptions::default() };
        assert_eq!(shown(&at(0)), ["info", "library warning"]);
        assert_eq!(shown(&at(4)), ["info", "debug", "library warning"]);
        assert_eq!(shown(&at(6)), ["info", "debug", "trace", "library warning"]);
        assert_eq!(shown(&at(8)), ["info", "debug", "trace", "library info", "library warning"]);
        let modules = LogOptions::parse_modules("other=9,l?*=4").expect("valid");
        let some = LogOptions { modules, ..at(0) };
        assert_eq!(shown(&some), ["info", "debug", "library info", "library warning"]);
        assert!(LogOptions::parse_modules("log").is_err());
    }
}
