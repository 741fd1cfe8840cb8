//! `longshore apply`, `create`, `patch`, `edit`, `label` and `annotate`: commands that change objects.

use std::path::PathBuf;

use serde_json::Value;

use super::select::{FilterFlags, ObjectFlags, SourceFlags};
use super::{AccessFlags, ClientFlags};
use crate::client::{self, Command, DryRun, Manner, Marks, Output, PatchKind};
use crate::flags::UsageError;

/// How changes are sent and shown.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
struct MannerFlags {
    /// Only try it: here, or on the server, which keeps nothing.
    #[arg(long, value_enum, default_value_t = DryRun::None)]
    dry_run: DryRun,
    /// Show the objects instead of sentences: yaml, json, name, jsonpath=TEMPLATE.
    #[arg(short, long, value_name = "FORMAT", value_parser = Output::parse_without_tables)]
    output: Option<Output>,
    /// In whose name fields are changed.
    #[arg(long, value_name = "NAME")]
    field_manager: Option<String>,
}

impl From<MannerFlags> for Manner {
    fn from(flags: MannerFlags) -> Self {
        let MannerFlags { dry_run, output, field_manager } = flags;
        Self { dry_run, output, field_manager }
    }
}

/// Flags of `longshore apply`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ApplyFlags {
    #[command(flatten)]
    source: SourceFlags,
    /// Let the server merge, by who manages which field.
    #[arg(long)]
    server_side: bool,
    /// With --server-side: take over fields that others manage.
    #[arg(long)]
    force_conflicts: bool,
    #[command(flatten)]
    manner: MannerFlags,
    #[command(flatten)]
    access: AccessFlags,
}

impl TryFrom<ApplyFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: ApplyFlags) -> Result<Self, UsageError> {
        let ApplyFlags { source, server_side, force_conflicts, manner, access } = flags;
        if force_conflicts && !server_side {
            let why = "--force-conflicts only works with --server-side";
            return Err(UsageError::Together(why.into()));
        }
        if server_side && manner.dry_run == DryRun::Client {
            let why = "--dry-run=client cannot be used with --server-side; use --dry-run=server";
            return Err(UsageError::Together(why.into()));
        }
        let (source, manner) = (source.into(), manner.into());
        let request = client::Apply { source, server_side, force_conflicts, manner };
        Ok(Self { access: access.into(), request: request.into() })
    }
}

/// Flags of `longshore create`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct CreateFlags {
    #[command(flatten)]
    source: SourceFlags,
    /// Record what was created, for a later apply.
    #[arg(long)]
    save_config: bool,
    #[command(flatten)]
    manner: MannerFlags,
    #[command(flatten)]
    access: AccessFlags,
}

impl From<CreateFlags> for Command {
    fn from(flags: CreateFlags) -> Self {
        let CreateFlags { source, save_config, manner, access } = flags;
        let request = client::Create { source: source.into(), save_config, manner: manner.into() };
        Self { access: access.into(), request: request.into() }
    }
}

/// Flags of `longshore patch`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct PatchFlags {
    #[command(flatten)]
    objects: ObjectFlags,
    /// The patch, as JSON or YAML.
    #[arg(short, long, value_name = "PATCH", allow_hyphen_values = true)]
    patch: Option<String>,
    /// File with the patch.
    #[arg(long, value_name = "FILE")]
    patch_file: Option<PathBuf>,
    /// How the patch is read.
    #[arg(long, value_enum, default_value_t = PatchKind::Strategic)]
    r#type: PatchKind,
    /// Part of the object that is changed, as status.
    #[arg(long, value_name = "NAME")]
    subresource: Option<String>,
    #[command(flatten)]
    manner: MannerFlags,
    #[command(flatten)]
    access: AccessFlags,
}

impl TryFrom<PatchFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: PatchFlags) -> Result<Self, UsageError> {
        let PatchFlags { objects, patch, patch_file, r#type, subresource, manner, access } = flags;
        let text = match (patch, patch_file) {
            (Some(text), None) => text,
            (None, Some(file)) => std::fs::read_to_string(&file)
                .map_err(|error| UsageError::bad_value("--patch-file", file.display(), error))?,
            (Some(_), Some(_)) => {
                let why = "--patch and --patch-file cannot be used together";
                return Err(UsageError::Together(why.into()));
            }
            (None, None) => {
                let why = "say what to change: --patch or --patch-file";
                return Err(UsageError::Other(why.into()));
            }
        };
        let patch: Value = serde_saphyr::from_str(&text).map_err(|error| {
            let why = error.to_string().lines().next().unwrap_or_default().to_owned();
            UsageError::bad_value("--patch", &text, why)
        })?;
        let fits = if r#type == PatchKind::Json { patch.is_array() } else { patch.is_object() };
        if !fits {
            let form = if r#type == PatchKind::Json { "a list of operations" } else { "an object" };
            return Err(UsageError::bad_value("--patch", &text, format!("{form} is expected")));
        }
        let request = client::Patch {
            selection: objects.named()?,
            kind: r#type,
            patch,
            subresource,
            manner: manner.into(),
        };
        Ok(Self { access: access.into(), request: request.into() })
    }
}

/// Flags of `longshore edit`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct EditFlags {
    #[command(flatten)]
    objects: ObjectFlags,
    /// Format of the file that is edited.
    #[arg(short, long, value_enum, default_value_t = EditFormat::Yaml)]
    output: EditFormat,
    /// In whose name fields are changed.
    #[arg(long, value_name = "NAME")]
    field_manager: Option<String>,
    #[command(flatten)]
    access: AccessFlags,
}

/// A format that objects are edited in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum EditFormat {
    Yaml,
    Json,
}

impl TryFrom<EditFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: EditFlags) -> Result<Self, UsageError> {
        let EditFlags { objects, output, field_manager, access } = flags;
        let variable = |name| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
        let editor = variable("KUBE_EDITOR").or_else(|| variable("EDITOR"));
        let request = client::Edit {
            selection: objects.selection()?,
            editor: editor.unwrap_or_else(|| "vi".to_owned()),
            json: output == EditFormat::Json,
            manner: Manner { field_manager, ..Manner::default() },
        };
        Ok(Self { access: access.into(), request: request.into() })
    }
}

/// Flags of `longshore label` and `longshore annotate`.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
struct MarkFlags {
    #[command(flatten)]
    objects: ObjectFlags,
    #[command(flatten)]
    filter: FilterFlags,
    /// Change what is there already.
    #[arg(long)]
    overwrite: bool,
    /// Show what is there.
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    manner: MannerFlags,
    #[command(flatten)]
    access: AccessFlags,
}

impl MarkFlags {
    /// Names and changes (`KEY=VALUE`, `KEY-`) stand in one row of words.
    fn command(mut self, marks: Marks) -> Result<Command, UsageError> {
        let changes = self.objects.split_changes()?;
        let Self { objects, filter, overwrite, list, manner, access } = self;
        if changes.is_empty() && !list {
            let why = "say what to change: KEY=VALUE sets, KEY- removes";
            return Err(UsageError::Other(why.into()));
        }
        let selection = objects.filtered(filter)?;
        let manner = manner.into();
        let request = client::Mark { marks, selection, changes, overwrite, list, manner };
        Ok(Command { access: access.into(), request: request.into() })
    }
}

/// Flags of `longshore label`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct LabelFlags {
    #[command(flatten)]
    flags: MarkFlags,
}

impl TryFrom<LabelFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: LabelFlags) -> Result<Self, UsageError> {
        flags.flags.command(Marks::Labels)
    }
}

/// Flags of `longshore annotate`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct AnnotateFlags {
    #[command(flatten)]
    flags: MarkFlags,
}

impl TryFrom<AnnotateFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: AnnotateFlags) -> Result<Self, UsageError> {
        flags.flags.command(Marks::Annotations)
    }
}

impl ClientFlags for ApplyFlags {
    const NAME: &'static str = "apply";
    const SUMMARY: &'static str = "Create or change objects from files";
    const EXAMPLES: &'static str = "longshore apply -f claim.yaml\n  longshore apply -R -f manifests/\n  cat claim.yaml | longshore apply -n demo -f -";
}

impl ClientFlags for CreateFlags {
    const NAME: &'static str = "create";
    const SUMMARY: &'static str = "Create objects from files";
    const EXAMPLES: &'static str = "longshore create -f claim.yaml";
}

impl ClientFlags for PatchFlags {
    const NAME: &'static str = "patch";
    const SUMMARY: &'static str = "Change fields of objects";
    const EXAMPLES: &'static str = "longshore patch pvc data -p '{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"128Mi\"}}}}'\n  longshore patch node/vm --type=json -p '[{\"op\":\"remove\",\"path\":\"/spec/taints\"}]'";
}

impl ClientFlags for EditFlags {
    const NAME: &'static str = "edit";
    const SUMMARY: &'static str = "Change objects in an editor";
    const EXAMPLES: &'static str =
        "longshore edit pvc data\n  KUBE_EDITOR='code --wait' longshore edit pod/web";
}

impl ClientFlags for LabelFlags {
    const NAME: &'static str = "label";
    const SUMMARY: &'static str = "Set or remove labels";
    const EXAMPLES: &'static str =
        "longshore label pvc data app=web tier-\n  longshore label pods --all app=web --overwrite";
}

impl ClientFlags for AnnotateFlags {
    const NAME: &'static str = "annotate";
    const SUMMARY: &'static str = "Set or remove annotations";
    const EXAMPLES: &'static str = "longshore annotate pvc data example.com/note='keep me'";
}
