//! Flags that say which objects a command is about.

use std::path::PathBuf;

use crate::client::{Scope, Selection, Source, Word};
use crate::flags::UsageError;

/// Objects by name or from files.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub(super) struct ObjectFlags {
    /// Kind of the objects (pvc, pv, sc, po, …), several with commas; or KIND/NAME.
    #[arg(value_name = "KIND")]
    kind: Option<String>,
    /// Names of the objects, or further KIND/NAME.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// File or directory with the objects; `-` reads stdin. May be repeated.
    #[arg(short, long, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// Read directories with all that is below them.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Namespace to look in.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
}

/// Which of all objects are meant.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub(super) struct FilterFlags {
    /// All objects of the kind.
    #[arg(long)]
    all: bool,
    /// Labels that objects must have.
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Fields that objects must have, as metadata.name=web.
    #[arg(long, value_name = "FIELDS")]
    field_selector: Option<String>,
    /// Look in all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
}

impl ObjectFlags {
    /// The objects that were named.
    pub(super) fn selection(self) -> Result<Selection, UsageError> {
        let Self { kind, names, filename, recursive, namespace } = self;
        let words = kind.map(|kind| words(&kind, names)).transpose()?.unwrap_or_default();
        match (words.is_empty(), filename.is_empty()) {
            (false, false) => {
                return Err(UsageError::Together("give either a kind and names, or -f".into()));
            }
            (true, true) => {
                return Err(UsageError::Other("say which object: KIND NAME or -f FILE".into()));
            }
            _ => {}
        }
        let scope = scope(namespace, false)?;
        Ok(Selection { words, files: filename, recursive, scope, ..Selection::default() })
    }

    /// Takes `KEY=VALUE` and `KEY-` away from the names; they come last.
    pub(super) fn split_changes(&mut self) -> Result<Vec<(String, Option<String>)>, UsageError> {
        // With files there is no kind, and the first change stands in its place.
        let mut arguments: Vec<String> = self.kind.take().into_iter().collect();
        arguments.append(&mut self.names);
        let is_change = |text: &String| text.contains('=') || text.ends_with('-');
        let first = arguments.iter().position(is_change).unwrap_or(arguments.len());
        let changes = arguments.split_off(first);
        let mut arguments = arguments.into_iter();
        self.kind = arguments.next();
        self.names = arguments.collect();
        changes
            .into_iter()
            .map(|text| match (text.split_once('='), text.strip_suffix('-')) {
                (Some((key, value)), _) if !key.is_empty() => {
                    Ok((key.to_owned(), Some(value.to_owned())))
                }
                (None, Some(key)) if !key.is_empty() => Ok((key.to_owned(), None)),
                _ => Err(UsageError::UnexpectedArgument {
                    argument: text,
                    advice: Some("KEY=VALUE sets, KEY- removes".into()),
                }),
            })
            .collect()
    }

    /// The objects that were named, each by its name.
    pub(super) fn named(self) -> Result<Selection, UsageError> {
        let selection = self.selection()?;
        match selection.words.iter().find(|word| word.name.is_none()) {
            Some(word) => Err(nameless(word, "")),
            None => Ok(selection),
        }
    }

    /// The objects that were named, or those that match.
    pub(super) fn filtered(self, filter: FilterFlags) -> Result<Selection, UsageError> {
        let FilterFlags { all, selector, field_selector, all_namespaces } = filter;
        let scope = scope(self.namespace.clone(), all_namespaces)?;
        let selection = Selection { labels: selector, fields: field_selector, ..self.selection()? };
        let filters = all || selection.labels.is_some() || selection.fields.is_some();
        let named = selection.words.iter().any(|word| word.name.is_some());
        if named && (filters || all_namespaces) {
            let why = "--all, --selector, --field-selector and --all-namespaces cannot be used \
                       together with a name";
            return Err(UsageError::Together(why.into()));
        }
        if all && selection.labels.is_some() {
            let why = "--all and --selector cannot be used together";
            return Err(UsageError::Together(why.into()));
        }
        match selection.words.iter().find(|word| word.name.is_none()) {
            Some(word) if !filters => Err(nameless(word, ", or all with --all")),
            _ => Ok(Selection { scope, ..selection }),
        }
    }
}

fn nameless(word: &Word, more: &str) -> UsageError {
    let kind = &word.kind;
    UsageError::Other(format!("say which {kind} by its name: {kind}/NAME{more}"))
}

/// Files with objects.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub(super) struct SourceFlags {
    /// File or directory with objects as YAML or JSON; `-` reads stdin. May be repeated.
    #[arg(short, long, value_name = "FILE", required = true)]
    filename: Vec<PathBuf>,
    /// Read directories with all that is below them.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Namespace of objects that name none.
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
}

impl From<SourceFlags> for Source {
    fn from(flags: SourceFlags) -> Self {
        let SourceFlags { filename, recursive, namespace } = flags;
        Self { files: filename, recursive, namespace }
    }
}

/// Takes `pvc,pv`, `pvc NAME…` and `pvc/NAME pod/NAME` apart.
pub(super) fn words(kind: &str, names: Vec<String>) -> Result<Vec<Word>, UsageError> {
    if kind.contains('/') {
        return std::iter::once(kind.to_owned()).chain(names).map(|pair| word(&pair)).collect();
    }
    if let Some(name) = names.iter().find(|name| name.contains('/')) {
        return Err(UsageError::UnexpectedArgument {
            argument: name.clone(),
            advice: Some("give one KIND and its names, or only KIND/NAME".into()),
        });
    }
    let kinds: Vec<&str> = kind.split(',').filter(|kind| !kind.is_empty()).collect();
    if kinds.is_empty() {
        return Err(UsageError::Other("the kind is missing".into()));
    }
    let of_kind = |kind: &&str| {
        let kind = (*kind).to_owned();
        match names.is_empty() {
            true => vec![Word { kind, name: None }],
            false => names
                .iter()
                .map(|name| Word { kind: kind.clone(), name: Some(name.clone()) })
                .collect(),
        }
    };
    Ok(kinds.iter().flat_map(of_kind).collect())
}

/// Takes `KIND/NAME` apart.
pub(super) fn word(pair: &str) -> Result<Word, UsageError> {
    match pair.split_once('/') {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() => {
            Ok(Word { kind: kind.to_owned(), name: Some(name.to_owned()) })
        }
        Some(_) => Err(UsageError::Other(format!("the name is missing in `{pair}`"))),
        None => Err(UsageError::UnexpectedArgument {
            argument: pair.to_owned(),
            advice: Some("after KIND/NAME only further KIND/NAME can follow".into()),
        }),
    }
}

pub(super) fn scope(namespace: Option<String>, all: bool) -> Result<Scope, UsageError> {
    match (namespace, all) {
        (Some(_), true) => Err(UsageError::Together(
            "--namespace and --all-namespaces cannot be used together".into(),
        )),
        (Some(name), false) => Ok(Scope::Namespace(name)),
        (None, true) => Ok(Scope::All),
        (None, false) => Ok(Scope::Current),
    }
}
