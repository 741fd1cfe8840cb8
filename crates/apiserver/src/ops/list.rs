//! Reading: one object, or many.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use super::{Core, Target};
use crate::error::{ApiResult, Causes, Status};
use crate::go_errors;
use crate::registry::Resource;
use crate::selector::{Fields, Labels};
use crate::store::{Page, Stored, Trimmed};

/// How long a read waits for a version that is not there yet.
const FUTURE_WAIT: Duration = Duration::from_secs(3);
const FUTURE_POLL: Duration = Duration::from_millis(50);

/// How `resourceVersion` is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionMatch {
    /// Exactly that version.
    Exact,
    /// That version or a newer one.
    NotOlderThan,
}

#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    pub labels: Labels,
    pub fields: Fields,
    /// At most so many objects; zero means all.
    pub limit: usize,
    /// Goes on where an earlier page ended.
    pub continue_token: Option<String>,
    /// The version to read at.
    pub version: Option<u64>,
    /// How it is meant.
    pub version_match: Option<VersionMatch>,
}

impl ListOptions {
    /// Whether the object is selected.
    pub fn selects(&self, object: &Stored, resource: &Resource) -> bool {
        self.labels.matches(&object.labels) && self.fields.matches(object, resource)
    }
}

pub struct Listed {
    /// The version the page is from.
    pub revision: u64,
    pub objects: Vec<Arc<Stored>>,
    /// Where the next page starts.
    pub continue_token: Option<String>,
    /// How many objects follow; unknown with selectors.
    pub remaining: Option<usize>,
}

/// Where a page starts, and at which version.
#[derive(Debug, Serialize, Deserialize)]
struct Token {
    /// Version of the first page; zero for the one that is current when the token is used.
    rv: u64,
    /// Namespace and name of the last object seen.
    after: (String, String),
}

impl Token {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("a token is plain data"))
    }

    fn decode(text: &str) -> ApiResult<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| {
            let at = go_errors::base64_fault_at(text, false).unwrap_or(0);
            invalid_token(&format!("illegal base64 data at input byte {at}"))
        })?;
        serde_json::from_slice(&bytes).map_err(|_| match go_errors::json_fault(&bytes) {
            Some(why) => invalid_token(&why),
            None => invalid_token("server does not recognize this encoded version "),
        })
    }
}

fn invalid_token(why: &str) -> Status {
    Status::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
}

/// The rest of an old list can be had at the current version, if the client accepts that the pages then
/// do not show one and the same moment.
fn expired(trimmed: Trimmed, token: &Token) -> Status {
    let mut status = Status::expired(format!(
        "The provided continue parameter is too old: version {}, oldest kept {}. Start the list over, or \
         use the token in this answer: it goes on from the same place at the current version, so objects \
         that were changed meanwhile may be missing or come twice",
        token.rv, trimmed.oldest
    ));
    status.continue_token = Some(Token { rv: 0, after: token.after.clone() }.encode());
    status
}

impl Core {
    /// Reads one object, at least as new as `version`.
    ///
    /// # Errors
    /// 404 when it is not there.
    pub(crate) async fn get(
        &self,
        target: &Target,
        version: Option<u64>,
    ) -> ApiResult<Arc<Stored>> {
        self.wait_for(version).await?;
        self.store.get(&target.key()).ok_or_else(|| target.not_found())
    }

    /// Reads many objects.
    ///
    /// # Errors
    /// 410 when the asked version is no longer kept, 504 when it is not there yet.
    pub(crate) async fn list(&self, target: &Target, options: &ListOptions) -> ApiResult<Listed> {
        let resource = &target.resource;
        let namespace = Some(target.namespace.as_str()).filter(|ns| !ns.is_empty());
        let (page, after) = match &options.continue_token {
            Some(token) => {
                let token = Token::decode(token)?;
                (self.next_page(resource, namespace, &token)?, Some(token.after))
            }
            None => (self.first_page(resource, namespace, options).await?, None),
        };
        Ok(cut(page, after, resource, options))
    }

    async fn first_page(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> ApiResult<Page> {
        let exact = match options.version_match {
            Some(wanted) => wanted == VersionMatch::Exact,
            None => options.limit > 0,
        };
        match options.version {
            Some(version) if version > 0 => {
                self.wait_for(Some(version)).await?;
                if !exact {
                    return Ok(self.store.list(&resource.storage, namespace));
                }
                self.store.list_at(&resource.storage, namespace, version).map_err(|trimmed| {
                    Status::expired(format!(
                        "The resourceVersion for the provided list is too old: {version}, oldest kept: {}",
                        trimmed.oldest
                    ))
                })
            }
            _ => Ok(self.store.list(&resource.storage, namespace)),
        }
    }

    /// The list that a token goes on with.
    fn next_page(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        token: &Token,
    ) -> ApiResult<Page> {
        if token.rv == 0 {
            return Ok(self.store.list(&resource.storage, namespace));
        }
        if token.rv > self.store.revision() {
            // No page was ever made at that version.
            return Err(invalid_token(
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ));
        }
        self.store
            .list_at(&resource.storage, namespace, token.rv)
            .map_err(|trimmed| expired(trimmed, token))
    }

    /// Waits a moment for a version from the future.
    async fn wait_for(&self, version: Option<u64>) -> ApiResult<()> {
        let Some(version) = version else { return Ok(()) };
        let deadline = tokio::time::Instant::now() + FUTURE_WAIT;
        while self.store.revision() < version {
            if tokio::time::Instant::now() >= deadline {
                return Err(Status::too_large_version(version, self.store.revision()));
            }
            tokio::time::sleep(FUTURE_POLL).await;
        }
        Ok(())
    }
}

/// Cuts the page out of the list and selects.
fn cut(
    page: Page,
    after: Option<(String, String)>,
    resource: &Resource,
    options: &ListOptions,
) -> Listed {
    // Version 0 asks for the cache, which upstream never pages.
    let limit = if options.version == Some(0) { 0 } else { options.limit };
    let start = after.map_or(0, |after| {
        page.objects.partition_point(|o| (&o.namespace, &o.name) <= (&after.0, &after.1))
    });
    let mut rest = page.objects.into_iter().skip(start);
    let selected = options.labels.is_empty() && options.fields.is_empty();
    let mut objects = Vec::new();
    while limit == 0 || objects.len() < limit {
        match rest.next() {
            Some(object) if options.selects(&object, resource) => objects.push(object),
            Some(_) => {}
            None => break,
        }
    }
    let remaining = rest.filter(|o| selected || options.selects(o, resource)).count();
    let continue_token = objects.last().filter(|_| remaining > 0).map(|last| {
        Token { rv: page.revision, after: (last.namespace.clone(), last.name.clone()) }.encode()
    });
    Listed {
        revision: page.revision,
        objects,
        continue_token,
        remaining: (remaining > 0 && selected).then_some(remaining),
    }
}

/// Judges list options that exclude each other.
pub(crate) fn invalid_options(causes: impl Into<Causes>) -> Status {
    Status::invalid_kind("meta.k8s.io", "ListOptions", "", causes)
}
