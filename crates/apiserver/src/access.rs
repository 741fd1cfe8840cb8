//! Who may do what, and who a token stands for: the rules in the store, ready to be asked.

use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;

use crate::auth::Identity;
use crate::auth::rbac::{Action, Policy, Rule, missing};
use crate::auth::tokens::{Claims, ISSUER, Signer};
use crate::error::{ApiResult, Status};
use crate::ops::Core;
use crate::store::Store;

const GROUP: &str = "rbac.authorization.k8s.io";
const ROLES: [&str; 2] =
    ["rbac.authorization.k8s.io/clusterroles", "rbac.authorization.k8s.io/roles"];
const BINDINGS: [&str; 2] =
    ["rbac.authorization.k8s.io/clusterrolebindings", "rbac.authorization.k8s.io/rolebindings"];

/// The policy, read again when a role or a binding has changed.
pub(crate) struct Access {
    store: Store,
    changes: Vec<watch::Receiver<u64>>,
    known: RwLock<(Vec<u64>, Arc<Policy>)>,
}

impl Access {
    pub(crate) fn new(store: &Store) -> Self {
        let changes = ROLES.iter().chain(&BINDINGS).map(|name| store.subscribe(name)).collect();
        Self { store: store.clone(), changes, known: RwLock::new((Vec::new(), Arc::default())) }
    }

    /// The rules as they are now.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        let now: Vec<u64> = self.changes.iter().map(|change| *change.borrow()).collect();
        {
            let known = self.known.read();
            if known.0 == now {
                return Arc::clone(&known.1);
            }
        }
        let mut policy = Policy::default();
        for name in ROLES {
            self.store.list(name, None).objects.iter().for_each(|role| policy.add(&role.value()));
        }
        for name in BINDINGS {
            self.store.list(name, None).objects.iter().for_each(|b| policy.bind(&b.value()));
        }
        let policy = Arc::new(policy);
        *self.known.write() = (now, Arc::clone(&policy));
        policy
    }

    /// # Errors
    /// 403 when the rules do not allow it.
    pub(crate) fn check(&self, who: &Identity, action: &Action) -> ApiResult<()> {
        if who.is_master() || self.policy().allows(who, action).is_some() {
            return Ok(());
        }
        Err(refusal(who, action))
    }

    /// Nobody makes roles or bindings that reach further than their own rights.
    ///
    /// # Errors
    /// 403 naming what is missing.
    pub(crate) fn check_grant(
        &self,
        who: &Identity,
        plural: &str,
        object: &Value,
    ) -> ApiResult<()> {
        if who.is_master() {
            return Ok(());
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let namespace = text(&object["metadata"]["namespace"]);
        let name = text(&object["metadata"]["name"]);
        let policy = self.policy();
        let may = |verb: &str, resource: &str, name: &str| {
            let action = Action::Object {
                verb: verb.into(),
                group: GROUP.into(),
                resource: resource.into(),
                namespace: namespace.clone(),
                name: name.into(),
            };
            policy.allows(who, &action).is_some()
        };
        let wanted = match plural {
            "roles" | "clusterroles" if may("escalate", plural, &name) => return Ok(()),
            "roles" | "clusterroles" => Rule::all(object),
            _ => {
                let (kind, role) =
                    (text(&object["roleRef"]["kind"]), text(&object["roleRef"]["name"]));
                let resource = if kind == "ClusterRole" { "clusterroles" } else { "roles" };
                if may("bind", resource, &role) {
                    return Ok(());
                }
                policy.rules_of(&namespace, &kind, &role)
            }
        };
        let lacking = missing(&policy.rules_for(who, &namespace), &wanted);
        if lacking.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = lacking.iter().map(Value::to_string).collect();
        let why = format!(
            "user {:?} (groups={:?}) is attempting to grant RBAC permissions not currently held:\n{}",
            who.user,
            who.groups,
            list.join("\n")
        );
        Err(Status::forbidden_named(GROUP, plural, &name, &why))
    }
}

/// 403 in the words that scripts know.
fn refusal(who: &Identity, action: &Action) -> Status {
    match action {
        Action::Path { verb, path } => Status::forbidden_path(&who.user, verb, path),
        Action::Object { verb, group, resource, namespace, name } => {
            let scope = match namespace.as_str() {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace {namespace:?}"),
            };
            let why = format!(
                "User {:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}",
                who.user
            );
            let plural = resource.split('/').next().unwrap_or_default();
            Status::forbidden_named(group, plural, name, &why)
        }
    }
}

/// Who a service account's token stands for, and for whom it was made. The account, and what the
/// token is bound to, must still be there.
pub(crate) fn identify(
    core: &Core,
    signer: &Signer,
    token: &str,
    audiences: &[String],
) -> Option<(Identity, Vec<String>)> {
    let claims = signer.check(token, core.env.now().as_second())?;
    let fits = |audience: &&String| match audiences {
        [] => audience.as_str() == ISSUER,
        wanted => wanted.contains(audience),
    };
    let meant: Vec<String> = claims.audiences.iter().filter(fits).cloned().collect();
    if meant.is_empty() || !is_alive(core, &claims) {
        return None;
    }
    let mut identity = Identity::account(&claims.namespace, &claims.account);
    identity.uid = claims.uid.clone();
    let mut extra = |name: &str, value: &str| {
        let key = format!("authentication.kubernetes.io/{name}");
        identity.extra.insert(key, vec![value.to_owned()]);
    };
    extra("credential-id", &format!("JTI={}", claims.id));
    if let Some(bound) = claims.bound.as_ref().filter(|bound| bound.kind != "secret") {
        extra(&format!("{}-name", bound.kind), &bound.name);
        extra(&format!("{}-uid", bound.kind), &bound.uid);
        if let Some(node) = &bound.node {
            extra("node-name", &node.name);
            if let Some(uid) = &node.uid {
                extra("node-uid", uid);
            }
        }
    }
    Some((identity, meant))
}

fn is_alive(core: &Core, claims: &Claims) -> bool {
    let registry = core.registry();
    let there = |plural: &str, namespace: &str, name: &str, uid: &str| {
        let found = core.store.get(&registry.core(plural).key(namespace, name));
        found.is_some_and(|object| object.uid == uid)
    };
    let bound = claims.bound.as_ref().is_none_or(|bound| {
        let namespace = if bound.kind == "node" { "" } else { claims.namespace.as_str() };
        there(&format!("{}s", bound.kind), namespace, &bound.name, &bound.uid)
    });
    bound && there("serviceaccounts", &claims.namespace, &claims.account, &claims.uid)
}
