//! Programs that only this binary starts.

use std::ffi::OsString;
use std::process::ExitCode;

use super::up::{self, NodeConfig};
use crate::cli::{Action, Start, Threads, block_on};
use crate::flags::{Logging, UsageError};
use crate::process;

/// Keeps one pod's processes; the node agent starts it.
pub(crate) const POD_SHIM: &str = "pod-shim";

/// Holds a filesystem frozen; a driver starts it.
pub(crate) const FREEZE_HOLDER: &str = "freeze-holder";

/// Is one node of several; `longshore up --nodes N` starts it with a file as its argument.
pub(crate) const UP_NODE: &str = "up-node";

/// Starts before any runtime or thread exists, because the shim makes namespaces and forks.
pub(crate) fn pod_shim(args: &[OsString]) -> Result<Action, UsageError> {
    let args = args.to_vec();
    Ok(Action::Run(Start::new(POD_SHIM, || {
        let text = |arg: OsString| {
            arg.into_string().map_err(|arg| anyhow::anyhow!("{arg:?} is not readable as text"))
        };
        let args = args.into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
        Ok(longshore_node::shim::main(&args))
    })))
}

pub(crate) fn freeze_holder(_args: &[OsString]) -> Result<Action, UsageError> {
    Ok(Action::Run(Start::new(FREEZE_HOLDER, || Ok(longshore_driver::freeze::holder::main()))))
}

pub(crate) fn up_node(args: &[OsString]) -> Result<Action, UsageError> {
    let [file] = args else {
        return Err(UsageError::Other("up-node is started by `longshore up --nodes N`".into()));
    };
    let bad =
        |error: &dyn std::fmt::Display| UsageError::bad_value("up-node", file.display(), error);
    let text = std::fs::read_to_string(file).map_err(|error| bad(&error))?;
    let config: NodeConfig = serde_json::from_str(&text).map_err(|error| bad(&error))?;
    Ok(Action::Run(Start::new(UP_NODE, || {
        process::prepare(&Logging::default())?;
        block_on(Threads::Many, up::run_node(config)).map(|()| ExitCode::SUCCESS)
    })))
}
