//! Query parameters.

use std::time::Duration;

use crate::error::{ApiResult, Cause, Causes, Status};
use crate::field_manager;
use crate::ops::{FieldValidation, ListOptions, VersionMatch, WriteOptions, invalid_options};
use crate::registry::Resource;
use crate::selector::{Fields, Labels};
use crate::watch::{Start, WatchOptions};

use super::negotiate::Include;

/// However long a client wants to watch, it is asked to come again after this.
const LONGEST_WATCH: Duration = Duration::from_secs(24 * 3600);

/// Decoded parameters in the order they came.
#[derive(Debug, Clone, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(text: Option<&str>) -> Self {
        let decode = |part: &str| percent_decode(&part.replace('+', " "));
        let pairs = text
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(key, value)| (decode(key), decode(value)))
            .collect();
        Self(pairs)
    }

    /// Takes over another query, restricted to one name.
    pub fn restrict(&mut self, other: &Self, name: &str) {
        self.0.clone_from(&other.0);
        let selector = format!("metadata.name={name}");
        match self.0.iter_mut().find(|(key, _)| key == "fieldSelector") {
            Some((_, value)) => *value = format!("{value},{selector}"),
            None => self.0.push(("fieldSelector".into(), selector)),
        }
    }

    /// The first value of a parameter, unless it is empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(key, _)| key == name)?;
        Some(found.1.as_str()).filter(|value| !value.is_empty())
    }

    /// All values of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A flag: present and not `false` or `0`.
    pub fn flag(&self, name: &str) -> bool {
        self.0.iter().any(|(key, value)| key == name && !matches!(value.as_str(), "false" | "0"))
    }

    /// A number.
    ///
    /// # Errors
    /// 400 when it is none.
    pub fn number(&self, name: &str) -> ApiResult<Option<i64>> {
        let parse = |text: &str| {
            text.parse().map_err(|_| {
                Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
            })
        };
        self.get(name).map(parse).transpose()
    }

    /// A resource version.
    ///
    /// # Errors
    /// 400 when it is no number.
    pub fn version(&self) -> ApiResult<Option<u64>> {
        let parse = |text: &str| {
            text.parse().map_err(|_| {
                Status::bad_request(format!(
                    "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
                ))
            })
        };
        self.get("resourceVersion").map(parse).transpose()
    }

    /// What table rows carry.
    ///
    /// # Errors
    /// 400 for an unknown value.
    pub fn include(&self) -> ApiResult<Include> {
        match self.get("includeObject") {
            None | Some("Metadata") => Ok(Include::Metadata),
            Some("None") => Ok(Include::None),
            Some("Object") => Ok(Include::Object),
            Some(other) => {
                Err(Status::bad_request(format!("unrecognized includeObject value: {other:?}")))
            }
        }
    }

    /// Options of a write; `kind` names them in errors, e.g. `CreateOptions`.
    ///
    /// # Errors
    /// 422 for unknown values.
    pub fn write_options(&self, kind: &str) -> ApiResult<WriteOptions<'static>> {
        let mut causes = Causes::new();
        let mut options = WriteOptions::default();
        let dry: Vec<&str> = self.all("dryRun").filter(|v| !v.is_empty()).collect();
        options.dry_run = !dry.is_empty();
        if dry.iter().any(|value| *value != "All") {
            causes.push(Cause::not_one_of("dryRun", &dry.into(), &["All".into()]));
        }
        options.validation = match self.get("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let known = ["", "Ignore", "Strict", "Warn"];
                causes.push(Cause::not_supported("fieldValidation", other, &known));
                FieldValidation::Warn
            }
        };
        if let Some(manager) = self.get("fieldManager") {
            field_manager::validate(&mut causes, "fieldManager", manager);
        }
        if causes.is_empty() {
            return Ok(options);
        }
        Err(Status::invalid_kind("meta.k8s.io", kind, "", causes))
    }

    /// Options of a list.
    ///
    /// # Errors
    /// 400 for what cannot be read, 422 for what does not go together.
    pub fn list_options(&self, resource: &Resource) -> ApiResult<ListOptions> {
        self.number("timeoutSeconds")?;
        let options = self.selection(resource)?;
        let field = "resourceVersionMatch";
        let mut causes = Causes::new();
        if options.version_match.is_some() && self.get("resourceVersion").is_none() {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            causes.push(Cause::forbidden(field, why));
        }
        if self.get("sendInitialEvents").is_some() {
            let why = "sendInitialEvents is forbidden for list";
            causes.push(Cause::forbidden("sendInitialEvents", why));
        }
        if !causes.is_empty() {
            return Err(invalid_options(causes));
        }
        if options.version_match.is_some() && options.continue_token.is_some() {
            let why = "resourceVersionMatch is forbidden when continue is provided";
            return Err(invalid_options(vec![Cause::forbidden(field, why)]));
        }
        if options.version_match == Some(VersionMatch::Exact) && options.version == Some(0) {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            return Err(invalid_options(vec![Cause::forbidden(field, why)]));
        }
        if options.continue_token.is_some() && options.version.is_some_and(|v| v > 0) {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        Ok(options)
    }

    fn selection(&self, resource: &Resource) -> ApiResult<ListOptions> {
        let version_match = match self.get("resourceVersionMatch") {
            None => None,
            Some("Exact") => Some(VersionMatch::Exact),
            Some("NotOlderThan") => Some(VersionMatch::NotOlderThan),
            Some(other) => {
                let known = ["Exact", "NotOlderThan", ""];
                let cause = Cause::not_supported("resourceVersionMatch", other, &known);
                return Err(invalid_options(vec![cause]));
            }
        };
        Ok(ListOptions {
            labels: Labels::parse(self.get("labelSelector").unwrap_or_default())?,
            fields: Fields::parse(self.get("fieldSelector").unwrap_or_default(), resource)?,
            limit: usize::try_from(self.number("limit")?.unwrap_or(0)).unwrap_or(0),
            continue_token: self.get("continue").map(str::to_owned),
            version: self.version()?,
            version_match,
        })
    }

    /// Options of a watch.
    ///
    /// # Errors
    /// 400 for what cannot be read, 422 for what does not go together.
    pub fn watch_options(&self, resource: &Resource, default: Duration) -> ApiResult<WatchOptions> {
        let select = self.selection(resource)?;
        let bookmarks = self.flag("allowWatchBookmarks");
        let streaming = self.get("sendInitialEvents").map(|value| value != "false");
        let not_older = select.version_match == Some(VersionMatch::NotOlderThan);
        if streaming.is_some() && !not_older {
            let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            return Err(invalid_options(vec![Cause::forbidden("resourceVersionMatch", why)]));
        }
        if streaming.is_none() && select.version_match.is_some() {
            let why =
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            return Err(invalid_options(vec![Cause::forbidden("resourceVersionMatch", why)]));
        }
        let start = match (streaming, select.version) {
            (Some(true), _) => Start::Initial { mark_end: true },
            (Some(false), None | Some(0)) => Start::Now,
            (None, None | Some(0)) => Start::Initial { mark_end: bookmarks },
            (_, Some(version)) => Start::After(version),
        };
        let timeout = match self.number("timeoutSeconds")? {
            Some(seconds) if seconds > 0 => {
                Duration::from_secs(seconds.unsigned_abs()).min(LONGEST_WATCH)
            }
            _ => default,
        };
        Ok(WatchOptions { select, start, bookmarks, timeout })
    }
}

/// Decodes `%xx`; what is not valid stays as it is.
pub fn percent_decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_percent_decoded() {
        let query = Query::parse(Some("labelSelector=a%3Db%2Cc+in+(d)&watch=1&x=&dryRun=All"));
        assert_eq!(query.get("labelSelector"), Some("a=b,c in (d)"));
        assert!(query.flag("watch"));
        assert_eq!(query.get("x"), None);
        assert_eq!(percent_decode("%zz%4"), "%zz%4");
    }
}
