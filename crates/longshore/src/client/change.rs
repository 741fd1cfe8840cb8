//! What commands that change objects have in common.

use http::Method;
use serde_json::Value;

use super::discovery::Resource;
use super::session::{Ask, JSON, Session, encode};
use super::show::{Output, Shown};
use super::table::Printer;
use super::{ClientError, Screen};

/// Whether a change is only tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DryRun {
    #[default]
    None,
    /// Nothing is sent.
    Client,
    /// The server checks everything and keeps nothing.
    Server,
}

impl DryRun {
    /// What the results end with.
    pub(super) fn remark(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }

    /// The parameter for the server.
    fn query(self) -> &'static str {
        match self {
            Self::Server => "&dryRun=All",
            Self::None | Self::Client => "",
        }
    }
}

/// How changes are sent, and how their results are shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Manner {
    pub dry_run: DryRun,
    /// None means a sentence for each object.
    pub output: Option<Output>,
    /// In whose name fields are changed; none means the command's own.
    pub field_manager: Option<String>,
}

impl Manner {
    /// The parameters of a change.
    pub(super) fn query(&self, manager: &str) -> String {
        let manager = self.field_manager.as_deref().unwrap_or(manager);
        format!("?fieldManager={}{}", encode(manager), self.dry_run.query())
    }

    /// Shows the outcome for one object.
    pub(super) fn show(
        &self,
        screen: &mut Screen<'_>,
        (resource, object): (&Resource, Value),
        (shown, verdict): (&str, &str),
    ) -> Result<(), ClientError> {
        let Some(output) = &self.output else {
            writeln!(screen.out, "{shown} {verdict}{}", self.dry_run.remark())?;
            return Ok(screen.out.flush()?);
        };
        let objects = [(resource, object)];
        Shown { objects: &objects, single: true, output, headers: true }
            .write(&mut Printer::default(), screen)
    }
}

/// Sends a patch for one object.
pub(super) async fn patch(
    session: &Session,
    object: &str,
    path: String,
    body: (&'static str, Value),
) -> Result<Value, ClientError> {
    let ask =
        Ask { verb: "change", object, method: Method::PATCH, path, accept: JSON, body: Some(body) };
    session.json(ask).await
}
