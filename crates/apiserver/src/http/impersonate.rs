//! Requests on behalf of another user (`kubectl --as`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::query::percent_decode;
use crate::access::Access;
use crate::auth::rbac::Action;
use crate::auth::{AUTHENTICATED, Identity, MASTERS};
use crate::error::{ApiResult, Status};
use crate::registry::names;

const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of users and groups is the core group; that of the rest is this one.
const AUTHENTICATION: &str = "authentication.k8s.io";
const EXTRA: &str = "impersonate-extra-";
const NODES: &str = "system:nodes";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// With so many groups or extras a right to all of them is looked for first.
const MANY: usize = 4;

/// Who the headers of a request ask for.
struct Wanted {
    user: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// How a user may impersonate another. The constrained ways come first; each needs a right to the user, and
/// another one to do what is asked for in that way (`impersonate-on:MODE:VERB`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The node of the sender's own pod.
    AssociatedNode,
    /// Any node.
    ArbitraryNode,
    ServiceAccount,
    /// Other users, with all that is known of them.
    UserInfo,
    /// Any user, for any request.
    Legacy,
}

impl Mode {
    const ALL: [Self; 5] = [
        Self::AssociatedNode,
        Self::ArbitraryNode,
        Self::ServiceAccount,
        Self::UserInfo,
        Self::Legacy,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::AssociatedNode => "associated-node",
            Self::ArbitraryNode => "arbitrary-node",
            Self::ServiceAccount => "serviceaccount",
            Self::UserInfo => "user-info",
            Self::Legacy => "",
        }
    }

    /// Whether this is a way to become that user.
    fn fits(self, sender: &Identity, wanted: &Wanted) -> bool {
        let bare = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        match self {
            Self::AssociatedNode => {
                let own = sender.extra.get(NODE_NAME).and_then(|values| values.first());
                let own = own.filter(|_| account(&sender.user).is_some());
                bare && own.is_some() && node(&wanted.user) == own.map(String::as_str)
            }
            Self::ArbitraryNode => bare && node(&wanted.user).is_some(),
            Self::ServiceAccount => bare && account(&wanted.user).is_some(),
            Self::UserInfo => node(&wanted.user).is_none() && account(&wanted.user).is_none(),
            Self::Legacy => true,
        }
    }

    fn is_constrained(self) -> bool {
        self != Self::Legacy
    }
}

/// The identity that a request is judged by: that of its sender, or the one it impersonates for
/// `action`.
///
/// # Errors
/// 400 when no user is named, 403 when the sender may not impersonate that user.
pub(super) fn impersonate<'a>(
    access: &Access,
    sender: Cow<'a, Identity>,
    headers: &HeaderMap,
    action: impl FnOnce() -> Action,
) -> ApiResult<Cow<'a, Identity>> {
    let Some(wanted) = read(headers)? else { return Ok(sender) };
    let action = action();
    let mut refusal = None;
    for mode in Mode::ALL.into_iter().filter(|mode| mode.fits(&sender, &wanted)) {
        let attempt = Attempt { access, sender: &sender, wanted: &wanted, mode };
        match attempt.check(&action) {
            Ok(()) => return Ok(Cow::Owned(attempt.identity())),
            Err(status) => drop(refusal.get_or_insert(status)),
        }
    }
    Err(refusal.unwrap_or_else(Status::unauthorized))
}

/// One way to impersonate one user.
struct Attempt<'a> {
    access: &'a Access,
    sender: &'a Identity,
    wanted: &'a Wanted,
    mode: Mode,
}

impl Attempt<'_> {
    /// Whether every part of the wanted user may be impersonated in this way.
    fn check(&self, action: &Action) -> ApiResult<()> {
        let Self { wanted, mode, .. } = self;
        if mode.is_constrained() {
            let on = |verb: &str| format!("impersonate-on:{}:{verb}", mode.name());
            let mut action = action.clone();
            match &mut action {
                Action::Object { verb, .. } | Action::Path { verb, .. } => *verb = on(verb),
            }
            self.access.check(self.sender, &action)?;
        }
        self.check_user()?;
        if !wanted.uid.is_empty() {
            self.may(AUTHENTICATION, "uids", "", &wanted.uid)?;
        }
        self.check_groups()?;
        self.check_extra()
    }

    fn may(&self, group: &str, resource: &str, namespace: &str, name: &str) -> ApiResult<()> {
        let verb = match self.mode.name() {
            "" => "impersonate".to_owned(),
            mode => format!("impersonate:{mode}"),
        };
        let action = Action::Object {
            verb,
            group: group.into(),
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        self.access.check(self.sender, &action)
    }

    /// The group of users, groups and accounts is the core group where nothing is constrained.
    fn home(&self) -> &'static str {
        if self.mode.is_constrained() { AUTHENTICATION } else { "" }
    }

    fn check_user(&self) -> ApiResult<()> {
        let user = &self.wanted.user;
        match (account(user), node(user).filter(|_| self.mode.is_constrained())) {
            (Some((namespace, name)), _) => {
                self.may(self.home(), "serviceaccounts", namespace, name)
            }
            // The own node is whichever the pod happens to be on.
            (None, Some(_)) if self.mode == Mode::AssociatedNode => {
                self.may(self.home(), "nodes", "", "*")
            }
            (None, Some(name)) => self.may(self.home(), "nodes", "", name),
            (None, None) => self.may(self.home(), "users", "", user),
        }
    }

    fn check_groups(&self) -> ApiResult<()> {
        let groups = &self.wanted.groups;
        if self.mode.is_constrained() {
            if let Some(bad) = groups.iter().find(|g| g.is_empty() || g.as_str() == MASTERS) {
                let why = "impersonating this group is not allowed";
                return Err(Status::forbidden_named(AUTHENTICATION, "groups", bad, why));
            }
            if groups.len() >= MANY && self.may(self.home(), "groups", "", "*").is_ok() {
                return Ok(());
            }
        }
        groups.iter().try_for_each(|group| self.may(self.home(), "groups", "", group))
    }

    fn check_extra(&self) -> ApiResult<()> {
        let extra = &self.wanted.extra;
        if self.mode.is_constrained() {
            let bad = extra.iter().find(|(key, values)| {
                !is_extra_key(key) || values.is_empty() || values.iter().any(String::is_empty)
            });
            if let Some((key, _)) = bad {
                let why = format!("impersonating the key {key:?} in extra is not allowed");
                return Err(Status::forbidden_named(AUTHENTICATION, "userextras", "", &why));
            }
            let count: usize = extra.values().map(Vec::len).sum();
            if count >= MANY && self.may(AUTHENTICATION, "userextras/*", "", "*").is_ok() {
                return Ok(());
            }
        }
        for (key, values) in extra {
            for value in values {
                self.may(AUTHENTICATION, &format!("userextras/{key}"), "", value)?;
            }
        }
        Ok(())
    }

    /// The user, with the groups that follow from the name.
    fn identity(&self) -> Identity {
        let Wanted { user, uid, groups, extra } = self.wanted;
        let mut identity = match (account(user), node(user)) {
            (Some((namespace, name)), _) if groups.is_empty() => Identity::account(namespace, name),
            (_, Some(_)) if self.mode.is_constrained() => Identity::new(user.as_str(), [NODES]),
            _ => Identity::new(user.as_str(), groups.clone()),
        };
        (identity.uid, identity.extra) = (uid.clone(), extra.clone());
        let implied = if identity.user == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
        if !identity.groups.iter().any(|group| group == implied || group == UNAUTHENTICATED) {
            identity.groups.push(implied.into());
        }
        identity
    }
}

/// Reads the headers; `None` when they name no user.
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

/// The node that a user name stands for.
fn node(user: &str) -> Option<&str> {
    user.strip_prefix("system:node:").filter(|name| names::subdomain(name).is_empty())
}

/// Whether a key has a domain and a path, in lower case.
fn is_extra_key(key: &str) -> bool {
    let Some((domain, path)) = key.split_once('/') else { return false };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    names::subdomain(domain).is_empty()
        && !path.is_empty()
        && path.bytes().all(fits)
        && key == key.to_lowercase()
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
    fn each_way_is_for_some_users() {
        let sender = Identity::account("n", "a");
        let mut on_node = sender.clone();
        on_node.extra.insert(NODE_NAME.into(), vec!["x".into()]);
        let wanted = |user: &str, groups: &[&str]| Wanted {
            user: user.into(),
            uid: String::new(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            extra: BTreeMap::new(),
        };
        let fits = |sender: &Identity, wanted: Wanted| -> Vec<&str> {
            let modes = Mode::ALL.into_iter().filter(|mode| mode.fits(sender, &wanted));
            modes.map(Mode::name).collect()
        };
        assert_eq!(fits(&sender, wanted("bob", &["g"])), ["user-info", ""]);
        assert_eq!(fits(&sender, wanted("system:serviceaccount:n:b", &[])), ["serviceaccount", ""]);
        assert_eq!(fits(&sender, wanted("system:serviceaccount:n:b", &["g"])), [""]);
        assert_eq!(fits(&sender, wanted("system:node:x", &[])), ["arbitrary-node", ""]);
        let both = ["associated-node", "arbitrary-node", ""];
        assert_eq!(fits(&on_node, wanted("system:node:x", &[])), both);
        assert_eq!(fits(&on_node, wanted("system:node:y", &[])), ["arbitrary-node", ""]);
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
