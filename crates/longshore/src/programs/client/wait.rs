//! `longshore delete` and `longshore wait`.

use std::time::Duration;

use super::select::{FilterFlags, ObjectFlags};
use super::{AccessFlags, ClientFlags};
use crate::client::{self, Cascade, Command, Condition, DryRun};
use crate::flags::{UsageError, values};

/// What a negative time to wait means, as for kubectl.
const A_WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// Flags of `longshore delete`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DeleteFlags {
    #[command(flatten)]
    objects: ObjectFlags,
    #[command(flatten)]
    filter: FilterFlags,
    /// Return only when the objects are gone.
    #[arg(long, default_value_t = true)]
    wait: bool,
    /// Longest wait; 0 is no limit.
    #[arg(long, default_value = "0s", value_parser = values::duration)]
    timeout: Duration,
    /// Seconds that a pod gets to end; negative means its own setting.
    #[arg(long, value_name = "SECONDS", default_value = "-1", value_parser = values::int32, allow_hyphen_values = true)]
    grace_period: i32,
    /// Give pods one second to end.
    #[arg(long)]
    now: bool,
    /// Forget pods at once, whether they have ended or not.
    #[arg(long)]
    force: bool,
    /// Say nothing about objects that are not there.
    #[arg(long)]
    ignore_not_found: bool,
    /// What happens to objects that these own.
    #[arg(long, value_enum, default_value_t = Cascade::Background, num_args = 0..=1, require_equals = true, default_missing_value = "background")]
    cascade: Cascade,
    /// Only try it: here, or on the server, which keeps nothing.
    #[arg(long, value_enum, default_value_t = DryRun::None)]
    dry_run: DryRun,
    /// Print only KIND/NAME.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<DeleteOutput>,
    #[command(flatten)]
    access: AccessFlags,
}

/// A format of `longshore delete`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DeleteOutput {
    Name,
}

impl TryFrom<DeleteFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: DeleteFlags) -> Result<Self, UsageError> {
        let DeleteFlags {
            objects,
            filter,
            wait,
            timeout,
            grace_period,
            now,
            force,
            ignore_not_found,
            cascade,
            dry_run,
            output,
            access,
        } = flags;
        let given = u32::try_from(grace_period).ok();
        let grace_period = match (given, now, force) {
            (Some(_), true, _) => {
                let why = "--now and --grace-period cannot be used together";
                return Err(UsageError::Together(why.into()));
            }
            (Some(seconds), false, true) if seconds > 0 => {
                let why = "--force and --grace-period greater than 0 cannot be used together";
                return Err(UsageError::Together(why.into()));
            }
            (None, true, _) => Some(1),
            (given, false, _) => given,
        };
        let request = client::Delete {
            selection: objects.filtered(filter)?,
            wait,
            timeout: Some(timeout).filter(|limit| !limit.is_zero()),
            grace_period,
            force,
            ignore_not_found,
            cascade,
            dry_run,
            only_names: output == Some(DeleteOutput::Name),
        };
        Ok(Self { access: access.into(), request: request.into() })
    }
}

/// Flags of `longshore wait`.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WaitFlags {
    #[command(flatten)]
    objects: ObjectFlags,
    #[command(flatten)]
    filter: FilterFlags,
    /// What to wait for: condition=NAME[=VALUE], create, delete or jsonpath='{.PATH}'[=VALUE].
    #[arg(long, value_name = "CONDITION", required = true, value_parser = Condition::parse)]
    r#for: Condition,
    /// Longest wait; 0 looks once, negative is a week.
    #[arg(long, default_value = "30s", value_parser = timeout, allow_hyphen_values = true)]
    timeout: Duration,
    #[command(flatten)]
    access: AccessFlags,
}

fn timeout(text: &str) -> Result<Duration, String> {
    match text.strip_prefix('-') {
        Some(text) => values::duration(text).map(|_| A_WEEK),
        None => values::duration(text),
    }
}

impl TryFrom<WaitFlags> for Command {
    type Error = UsageError;

    fn try_from(flags: WaitFlags) -> Result<Self, UsageError> {
        let WaitFlags { objects, filter, r#for, timeout, access } = flags;
        let selection = objects.filtered(filter)?;
        let request = client::Wait { selection, condition: r#for, timeout };
        Ok(Self { access: access.into(), request: request.into() })
    }
}

impl ClientFlags for DeleteFlags {
    const NAME: &'static str = "delete";
    const SUMMARY: &'static str = "Delete objects by name, by labels or from files";
    const EXAMPLES: &'static str = "longshore delete pod web\n  longshore delete pods,pvc -l app=web\n  longshore delete -f claim.yaml --wait=false";
}

impl ClientFlags for WaitFlags {
    const NAME: &'static str = "wait";
    const SUMMARY: &'static str = "Wait until objects are as wanted";
    const EXAMPLES: &'static str = "longshore wait --for=condition=Ready pod/web --timeout=60s\n  longshore wait --for=jsonpath='{.status.phase}'=Bound pvc/data\n  longshore wait --for=delete pod/web";
}
