//! Requests on behalf of another user (`kubectl --as`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::query::percent_decode;
use crate::access::Access;
use crate::auth::rbac::Action;
use crate::auth::{AUTHENTICATED, Identity};
use crate::error::{ApiResult, Status};
use crate::registry::names;

const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of users and groups is the core group; that of the rest is this one.
const AUTHENTICATION: &str = "authentication.k8s.io";
const EXTRA: &str = "impersonate-extra-";

/// Who the headers of a request ask for.
struct Wanted {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// The identity that a request is judged by: that of its sender, or the one it impersonates.
///
/// # Errors
/// 400 when no user is named, 403 for each part that the sender may not impersonate.
pub fn impersonate<'a>(
    access: &Access,
    sender: Cow<'a, Identity>,
    headers: &HeaderMap,
) -> ApiResult<Cow<'a, Identity>> {
    let Some(wanted) = read(headers)? else { return Ok(sender) };
    let may = |group: &str, resource: &str, namespace: &str, name: &str| {
        let action = Action::Object {
            verb: "impersonate".into(),
            group: group.into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        access.check(&sender, &action)
    };
    let account = account(&wanted.user);
    match account {
        Some((namespace, name)) => may("", "serviceaccounts", namespace, name)?,
        None => may("", "users", "", &wanted.user)?,
    }
    if !wanted.uid.is_empty() {
        may(AUTHENTICATION, "uids", "", &wanted.uid)?;
    }
    for group in &wanted.groups {
        may("", "groups", "", group)?;
    }
    for (key, values) in &wanted.extra {
        for value in values {
            may(AUTHENTICATION, &format!("userextras/{key}"), "", value)?;
        }
    }
    let mut identity = match account {
        Some((namespace, name)) if wanted.groups.is_empty() => Identity::account(namespace, name),
        _ => Identity::new(wanted.user.as_str(), wanted.groups),
    };
    (identity.uid, identity.extra) = (wanted.uid, wanted.extra);
    let implied = if identity.user == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
    if !identity.groups.iter().any(|group| group == implied || group == UNAUTHENTICATED) {
        identity.groups.push(implied.into());
    }
    Ok(Cow::Owned(identity))
}

/// Reads the headers; `None` when they ask for nobody.
fn read(headers: &HeaderMap) -> ApiResult<Option<Wanted>> {
    let first = |name: &str| headers.get(name).map_or(Ok(String::new()), text);
    let mut wanted = Wanted {
        user: first("impersonate-user")?,
        uid: first("impersonate-uid")?,
        groups: headers.get_all("impersonate-group").iter().map(text).collect::<Result<_, _>>()?,
        extra: BTreeMap::new(),
    };
    for (name, value) in headers {
        if let Some(key) = extra_key(name) {
            wanted.extra.entry(key).or_default().push(text(value)?);
        }
    }
    if !wanted.user.is_empty() {
        return Ok(Some(wanted));
    }
    if wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty() {
        return Ok(None);
    }
    let why = "impersonation is asked for without impersonating a user name";
    Err(Status::bad_request(why))
}

/// A part that is left out could turn one user into another one, so all must be readable.
fn text(value: &HeaderValue) -> ApiResult<String> {
    String::from_utf8(value.as_bytes().to_vec())
        .map_err(|_| Status::bad_request("an impersonation header is not UTF-8"))
}

/// The key of an extra header, in lower case, with `%xx` decoded where all of it can be.
fn extra_key(name: &HeaderName) -> Option<String> {
    let raw = name.as_str().strip_prefix(EXTRA)?;
    let whole = raw
        .split('%')
        .skip(1)
        .all(|rest| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()));
    Some(if whole { percent_decode(raw) } else { raw.to_owned() })
}

/// Namespace and name of a service account; other users may look similar.
fn account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let valid = names::label(namespace).is_empty() && names::subdomain(name).is_empty();
    valid.then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_proper_names_are_service_accounts() {
        assert_eq!(account("system:serviceaccount:n:a.b"), Some(("n", "a.b")));
        for other in [
            "system:serviceaccount:n:a:b",
            "system:serviceaccount:n:",
            "system:serviceaccount::a",
            "system:serviceaccount:n",
            "system:serviceaccount:N:a",
            "n:a",
        ] {
            assert_eq!(account(other), None, "{other}");
        }
    }

    #[test]
    fn extra_keys_are_decoded_as_a_whole_or_not_at_all() {
        let key = |name: &'static str| extra_key(&HeaderName::from_static(name));
        assert_eq!(key("impersonate-extra-a%2fb").as_deref(), Some("a/b"));
        assert_eq!(key("impersonate-extra-a%2fb%zz").as_deref(), Some("a%2fb%zz"));
        assert_eq!(key("impersonate-extra-").as_deref(), Some(""));
        assert_eq!(key("impersonate-user"), None);
    }
}
