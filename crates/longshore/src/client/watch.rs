//! Changes of objects as they happen.

use std::ops::ControlFlow;

use futures::{AsyncBufReadExt, TryStreamExt};
use serde_json::Value;

use super::ClientError;
use super::discovery::{Resource, text};
use super::session::{Ask, Session, encode};

/// A watch on one kind.
pub(super) struct Watch<'a> {
    pub(super) session: &'a Session,
    pub(super) resource: &'a Resource,
    /// None means all.
    pub(super) namespace: Option<&'a str>,
    /// Further parameters, each after its `&`.
    pub(super) query: String,
    pub(super) accept: &'static str,
}

impl Watch<'_> {
    /// Hands every change after `version` to `see` until it says stop, or until the server ends the stream; returns
    /// whether `see` said stop, and the version to go on from.
    pub(super) async fn once(
        &self,
        version: String,
        mut see: impl FnMut(Value) -> Result<ControlFlow<()>, ClientError>,
    ) -> Result<(ControlFlow<()>, String), ClientError> {
        let mut version = version;
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={}{}",
            self.resource.collection(self.namespace),
            encode(&version),
            self.query
        );
        let plural = &self.resource.plural;
        let broken = |why: String| ClientError::Stream { object: plural.clone(), why };
        let ask = Ask { verb: "watch", accept: self.accept, ..Ask::get(plural, path) };
        let mut lines = self.session.stream(ask).await?.lines();
        while let Some(line) = lines.try_next().await.map_err(|error| broken(error.to_string()))? {
            let event: Value =
                serde_json::from_str(&line).map_err(|error| broken(error.to_string()))?;
            if event["type"] == "ERROR" {
                return Err(broken(text(&event["object"]["message"])));
            }
            if let Some(newer) = version_of(&event["object"]) {
                version = newer;
            }
            if event["type"] != "BOOKMARK" && see(event)?.is_break() {
                return Ok((ControlFlow::Break(()), version));
            }
        }
        Ok((ControlFlow::Continue(()), version))
    }

    /// As [`Self::once`], but goes on where it was whenever the server ends the stream.
    pub(super) async fn forever(
        &self,
        version: String,
        mut see: impl FnMut(Value) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        let mut version = version;
        loop {
            let (_, newer) =
                self.once(version, |event| see(event).map(|()| ControlFlow::Continue(()))).await?;
            version = newer;
        }
    }
}

/// The version of an object, or of the object in a Table's row.
fn version_of(object: &Value) -> Option<String> {
    let row = &object["rows"][0]["object"]["metadata"]["resourceVersion"];
    let own = &object["metadata"]["resourceVersion"];
    [row, own]
        .into_iter()
        .filter_map(Value::as_str)
        .find(|text| !text.is_empty())
        .map(str::to_owned)
}

/// A list is watched from its own version on, a single object from the object's.
pub(super) fn version_to_watch(answer: &Value) -> String {
    let own = text(&answer["metadata"]["resourceVersion"]);
    if own.is_empty() { version_of(answer).unwrap_or_default() } else { own }
}
