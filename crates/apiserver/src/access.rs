//! Who may do what, and who a token stands for: the rules in the store, ready to be asked.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;

use crate::auth::Identity;
use crate::auth::covers::missing;
use crate::auth::rbac::{Action, Policy, Rule};
use crate::auth::tokens::{Claims, ISSUER, Signer, TokenError};
use crate::error::{ApiResult, Status};
use crate::ops::{Core, Target, copy_field};
use crate::registry::rules::same;
use crate::store::{Store, Subscription};

const GROUP: &str = "rbac.authorization.k8s.io";
const ROLES: [&str; 2] =
    ["rbac.authorization.k8s.io/clusterroles", "rbac.authorization.k8s.io/roles"];
const BINDINGS: [&str; 2] =
    ["rbac.authorization.k8s.io/clusterrolebindings", "rbac.authorization.k8s.io/rolebindings"];

/// The policy, read again when a role or a binding has changed.
pub(crate) struct Access {
    store: Store,
    changes: Vec<Subscription>,
    known: RwLock<(Vec<u64>, Arc<Policy>)>,
}

impl Access {
    pub(crate) fn new(store: &Store) -> Self {
        let changes = ROLES.iter().chain(&BINDINGS).map(|name| store.subscribe(name)).collect();
        Self { store: store.clone(), changes, known: RwLock::new((Vec::new(), Arc::default())) }
    }

    /// The rules as they are now.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        let now: Vec<u64> = self.changes.iter().map(Subscription::revision).collect();
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
}

/// The author of a write, and the rules by which rights beyond the verb of the request are judged.
#[derive(Clone, Copy)]
pub struct Author<'a> {
    pub(crate) access: &'a Access,
    pub(crate) who: &'a Identity,
}

impl fmt::Debug for Author<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.who.fmt(f)
    }
}

impl Author<'_> {
    /// An update or apply that turns out to create needs the right to create, too.
    ///
    /// # Errors
    /// 403.
    pub fn check_create(&self, target: &Target) -> ApiResult<()> {
        let resource = &target.resource;
        let action = Action::Object {
            verb: "create".into(),
            group: resource.group.clone(),
            resource: resource.plural.clone(),
            namespace: target.namespace.clone(),
            name: target.name.clone(),
        };
        self.access.check(self.who, &action)
    }

    /// Roles and bindings may not grant rights that their author does not hold. `old` is what was
    /// there before.
    ///
    /// # Errors
    /// 403 naming what is missing; 404 when a binding names a role that is not there.
    pub fn check_grant(&self, target: &Target, new: &Value, old: Option<&Value>) -> ApiResult<()> {
        if target.resource.group != GROUP
            || self.who.is_master()
            || old.is_some_and(|old| is_left_to_the_collector(new, old))
        {
            return Ok(());
        }
        let policy = self.access.policy();
        match target.resource.plural.as_str() {
            "roles" | "clusterroles" => self.check_role(&policy, target, new, old),
            "rolebindings" | "clusterrolebindings" => self.check_binding(&policy, target, new),
            _ => Ok(()),
        }
    }

    fn check_role(
        &self,
        policy: &Policy,
        target: &Target,
        new: &Value,
        old: Option<&Value>,
    ) -> ApiResult<()> {
        let plural = &target.resource.plural;
        // The name is that of the path, which a new object does not have.
        if self.may(policy, "escalate", plural, &target.namespace, &target.name) {
            return Ok(());
        }
        self.check_rules(policy, target, new, &Rule::all(new))?;
        // An aggregated role gathers whatever others are labelled with, now and later.
        if (is_aggregated(new) || old.is_some_and(is_aggregated))
            && !missing(&policy.rules_for(self.who, ""), &Rule::everything()).is_empty()
        {
            let why = "must have cluster-admin privileges to use the aggregationRule";
            return Err(Status::forbidden_named(GROUP, plural, name_of(new), why));
        }
        Ok(())
    }

    fn check_binding(&self, policy: &Policy, target: &Target, new: &Value) -> ApiResult<()> {
        let reference = |field: &str| new["roleRef"][field].as_str().unwrap_or_default();
        let (kind, role) = (reference("kind"), reference("name"));
        let resource = match kind {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            // The binding is invalid, and is refused for that.
            _ => return Ok(()),
        };
        let group = reference("apiGroup");
        if self.may_in(policy, "bind", (group, resource), &target.namespace, role) {
            return Ok(());
        }
        let rules = policy.rules_of(&target.namespace, kind, role);
        let rules = rules.ok_or_else(|| Status::not_found_named(GROUP, resource, role))?;
        self.check_rules(policy, target, new, rules)
    }

    fn check_rules(
        &self,
        policy: &Policy,
        target: &Target,
        new: &Value,
        wanted: &[Rule],
    ) -> ApiResult<()> {
        let lacking = missing(&policy.rules_for(self.who, &target.namespace), wanted);
        if lacking.is_empty() {
            return Ok(());
        }
        let groups: Vec<String> = self.who.groups.iter().map(|g| format!("{g:?}")).collect();
        let why = format!(
            "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}",
            self.who.user,
            groups.join(" "),
            lacking.join("\n")
        );
        Err(Status::forbidden_named(GROUP, &target.resource.plural, name_of(new), &why))
    }

    fn may(&self, policy: &Policy, verb: &str, plural: &str, namespace: &str, name: &str) -> bool {
        self.may_in(policy, verb, (GROUP, plural), namespace, name)
    }

    fn may_in(
        &self,
        policy: &Policy,
        verb: &str,
        (group, plural): (&str, &str),
        namespace: &str,
        name: &str,
    ) -> bool {
        let action = Action::Object {
            verb: verb.into(),
            group: group.into(),
            resource: plural.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        policy.allows(self.who, &action).is_some()
    }
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn is_aggregated(role: &Value) -> bool {
    let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array();
    selectors.is_some_and(|selectors| !selectors.is_empty())
}

/// Whether nothing changes but what the garbage collector needs to let the object go.
fn is_left_to_the_collector(new: &Value, old: &Value) -> bool {
    let stripped = |object: &Value| {
        let mut object = object.clone();
        for field in ["kind", "apiVersion"] {
            copy_field(&mut object, &Value::Null, field);
        }
        for field in ["ownerReferences", "finalizers", "selfLink", "managedFields"] {
            copy_field(&mut object["metadata"], &Value::Null, field);
        }
        object
    };
    same(&stripped(new), &stripped(old))
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
) -> Result<(Identity, Vec<String>), TokenError> {
    let claims = signer.check(token, core.env.now().as_second())?;
    let fits = |audience: &&String| match audiences {
        [] => audience.as_str() == ISSUER,
        wanted => wanted.contains(audience),
    };
    let meant: Vec<String> = claims.audiences.iter().filter(fits).cloned().collect();
    if meant.is_empty() {
        return Err(TokenError::Audience);
    }
    if !is_alive(core, &claims) {
        return Err(TokenError::Gone);
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
    Ok((identity, meant))
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
