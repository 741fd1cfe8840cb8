//! `longshore get`, `describe`, `events` and `status`: commands that change nothing.

use super::select::{scope, word, words};
use super::{AccessFlags, ClientFlags};
use crate::client::jsonpath::Template;
use crate::client::{self, Command, Follow, Output, Selection};
use crate::flags::UsageError;

/// Flags of `longshore get`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GetFlags {
    /// Kind of the objects (pvc, pv, sc, po, …), several with commas; or KIND/NAME.
    #[arg(value_name = "KIND")]
    kind: String,
    /// Names, or further KIND/NAME; all objects when none is given.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Namespace to look in.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Look in all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// How to show them: yaml, json, name, wide, jsonpath=TEMPLATE, custom-columns=HEADER:PATH,…, and -file forms.
    #[arg(short, long, value_name = "FORMAT", value_parser = Output::parse)]
    output: Option<Output>,
    /// Labels that objects must have.
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Fields that objects must have, as metadata.name=web.
    #[arg(long, value_name = "FIELDS")]
    field_selector: Option<String>,
    /// A column for each of these labels.
    #[arg(short = 'L', long, value_name = "LABELS", value_delimiter = ',')]
    label_columns: Vec<String>,
    /// A column with all labels.
    #[arg(long)]
    show_labels: bool,
    /// Order by what this path finds, as .metadata.name.
    #[arg(long, value_name = "PATH", value_parser = path)]
    sort_by: Option<Template>,
    /// Leave the header out.
    #[arg(long)]
    no_headers: bool,
    /// Say nothing about objects that are not there.
    #[arg(long)]
    ignore_not_found: bool,
    /// Go on and show changes as they happen.
    #[arg(short, long)]
    watch: bool,
    /// Show only changes.
    #[arg(long)]
    watch_only: bool,
    #[command(flatten)]
    access: AccessFlags,
}

fn path(text: &str) -> Result<Template, String> {
    Template::relaxed(text).map_err(|error| error.to_string())
}

impl TryFrom<GetFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: GetFlags) -> Result<Self, UsageError> {
        let GetFlags {
            kind,
            names,
            namespace,
            all_namespaces,
            output,
            selector,
            field_selector,
            label_columns,
            show_labels,
            sort_by,
            no_headers,
            ignore_not_found,
            watch,
            watch_only,
            access,
        } = flags;
        let words = words(&kind, names)?;
        let follow = match (watch, watch_only) {
            (_, true) => Follow::WatchOnly,
            (true, false) => Follow::Watch,
            (false, false) => Follow::No,
        };
        let kinds = words.iter().any(|word| word.kind != words[0].kind);
        if follow != Follow::No && kinds {
            return Err(UsageError::Together("--watch takes one kind at a time".into()));
        }
        let selection = Selection {
            words,
            labels: selector,
            fields: field_selector,
            scope: scope(namespace, all_namespaces)?,
            ..Selection::default()
        };
        without_names(&selection, all_namespaces)?;
        let request = client::Get {
            selection,
            output: output.unwrap_or_default(),
            follow,
            sort_by,
            label_columns,
            show_labels,
            no_headers,
            ignore_not_found,
        };
        Ok(Self { access: access.into(), request: request.into() })
    }
}

/// Names leave nothing to select.
fn without_names(selection: &Selection, all_namespaces: bool) -> Result<(), UsageError> {
    if selection.words.iter().all(|word| word.name.is_none()) {
        return Ok(());
    }
    let given = [
        (all_namespaces, "--all-namespaces"),
        (selection.labels.is_some(), "--selector"),
        (selection.fields.is_some(), "--field-selector"),
    ];
    match given.into_iter().find(|(given, _)| *given) {
        Some((_, flag)) => {
            Err(UsageError::Together(format!("{flag} cannot be used together with a name")))
        }
        None => Ok(()),
    }
}

/// Flags of `longshore describe`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DescribeFlags {
    /// Kind of the objects, or KIND/NAME.
    #[arg(value_name = "KIND")]
    kind: String,
    /// Names, or further KIND/NAME; all objects of the namespace when none is given.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Namespace to look in.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Look in all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Labels that objects must have.
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Show the objects' events, too.
    #[arg(long, default_value_t = true)]
    show_events: bool,
    #[command(flatten)]
    access: AccessFlags,
}

impl TryFrom<DescribeFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: DescribeFlags) -> Result<Self, UsageError> {
        let DescribeFlags { kind, names, namespace, all_namespaces, selector, show_events, access } =
            flags;
        let selection = Selection {
            words: words(&kind, names)?,
            labels: selector,
            scope: scope(namespace, all_namespaces)?,
            ..Selection::default()
        };
        without_names(&selection, all_namespaces)?;
        let request = client::Describe { selection, events: show_events };
        Ok(Self { access: access.into(), request: request.into() })
    }
}

/// Flags of `longshore events`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct EventsFlags {
    /// Only events of this object.
    #[arg(long, value_name = "KIND/NAME")]
    r#for: Option<String>,
    /// Only events of these types: Normal, Warning.
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    types: Vec<String>,
    /// Namespace to look in.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Look in all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// How to show them: yaml, json, name, jsonpath=TEMPLATE.
    #[arg(short, long, value_name = "FORMAT", value_parser = Output::parse_without_tables)]
    output: Option<Output>,
    /// Leave the header out.
    #[arg(long)]
    no_headers: bool,
    /// Go on and show events as they happen.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    access: AccessFlags,
}

impl TryFrom<EventsFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: EventsFlags) -> Result<Self, UsageError> {
        let EventsFlags {
            r#for,
            types,
            namespace,
            all_namespaces,
            output,
            no_headers,
            watch,
            access,
        } = flags;
        let known = ["normal", "warning"];
        if let Some(bad) = types.iter().find(|one| !known.contains(&one.to_lowercase().as_str())) {
            return Err(UsageError::bad_value("--types", bad, "it is one of Normal, Warning"));
        }
        let request = client::Events {
            scope: scope(namespace, all_namespaces)?,
            about: r#for.as_deref().map(word).transpose()?,
            types,
            output,
            watch,
            no_headers,
        };
        Ok(Self { access: access.into(), request: request.into() })
    }
}

/// Flags of `longshore status`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct StatusFlags {
    /// How to show it; a page for people when unset.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<StatusOutput>,
    #[command(flatten)]
    access: AccessFlags,
}

/// A format of `longshore status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StatusOutput {
    Json,
}

impl From<StatusFlags> for Command {
    fn from(flags: StatusFlags) -> Self {
        let StatusFlags { output, access } = flags;
        let request = client::Status { json: output == Some(StatusOutput::Json) };
        Self { access: access.into(), request: request.into() }
    }
}

impl ClientFlags for GetFlags {
    const NAME: &'static str = "get";
    const SUMMARY: &'static str = "Show objects";
    const EXAMPLES: &'static str = "longshore get pvc\n  longshore get pod web -o yaml\n  longshore get pvc,pv -A\n  longshore get pvc -w\n  longshore get pods -o jsonpath='{range .items[*]}{.metadata.name}{\"\\n\"}{end}'";
}

impl ClientFlags for DescribeFlags {
    const NAME: &'static str = "describe";
    const SUMMARY: &'static str = "Show one object in detail, with its events";
    const EXAMPLES: &'static str = "longshore describe pvc data";
}

impl ClientFlags for EventsFlags {
    const NAME: &'static str = "events";
    const SUMMARY: &'static str = "Show events, oldest first";
    const EXAMPLES: &'static str =
        "longshore events --for pvc/data\n  longshore events -A --types=Warning -w";
}

impl ClientFlags for StatusFlags {
    const NAME: &'static str = "status";
    const SUMMARY: &'static str = "Show nodes, drivers, room in pools, and what waits and why";
    const EXAMPLES: &'static str = "longshore status\n  longshore status -o json";
}
