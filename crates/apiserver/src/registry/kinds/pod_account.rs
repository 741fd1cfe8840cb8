//! A pod's service account, and the volume with its token.
//!
//! As the admission plugin `ServiceAccount` of kube-apiserver has it: the account must be there, and unless pod or account
//! say no, every container sees a token, the CA's certificate and the name of the namespace.

use super::prelude::*;

/// What the volume's name begins with.
const VOLUME_PREFIX: &str = "kube-api-access-";
/// Where client libraries look for the token.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// As upstream: the odd number tells such tokens from those that somebody asked for.
const TOKEN_SECONDS: i64 = 3607;
const DEFAULT_ACCOUNT: &str = "default";

/// Gives a new pod its account, and its containers the account's token.
pub(super) fn admit(pod: &mut Value, cx: &Context<'_>) -> ApiResult<()> {
    let (name, namespace) = (text(pod, "/metadata/name"), text(pod, "/metadata/namespace"));
    let (name, namespace) = (name.to_owned(), namespace.to_owned());
    let spec = &mut pod["spec"];
    if text(spec, "/serviceAccountName").is_empty() {
        spec["serviceAccountName"] = json!(DEFAULT_ACCOUNT);
    }
    let wanted = text(spec, "/serviceAccountName").to_owned();
    let stored = cx.store.get(&cx.registry.core("serviceaccounts").key(&namespace, &wanted));
    let account = match stored {
        Some(account) => account.value(),
        // The housekeeping is about to make it.
        None if wanted == DEFAULT_ACCOUNT => json!({}),
        None => {
            let why = format!(
                "error looking up service account {namespace}/{wanted}: serviceaccount \"{wanted}\" not found"
            );
            return Err(Status::forbidden(cx.registry.core("pods"), &name, &why));
        }
    };
    let said = [&*spec, &account].map(|object| object["automountServiceAccountToken"].as_bool());
    let automount = said[0].or(said[1]).unwrap_or(true);
    if automount {
        mount_token(spec, || cx.env.name(VOLUME_PREFIX));
    }
    Ok(())
}

/// Mounts the token into every container that has nothing else at its place.
fn mount_token(spec: &mut Value, new_name: impl FnOnce() -> String) {
    let given = items(spec, "/volumes").iter().map(|volume| text(volume, "/name"));
    let given = given.into_iter().find(|name| name.starts_with(VOLUME_PREFIX)).map(str::to_owned);
    let has_volume = given.is_some();
    let volume = given.unwrap_or_else(new_name);
    let mut used = false;
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mounts = items(container, "/volumeMounts");
            if mounts.iter().any(|mount| text(mount, "/mountPath") == MOUNT_PATH) {
                continue;
            }
            let mount = json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH});
            push(container, "volumeMounts", mount);
            used = true;
        }
    }
    if used && !has_volume {
        push(spec, "volumes", json!({"name": volume, "projected": token_source()}));
    }
}

fn push(object: &mut Value, list: &str, item: Value) {
    match object[list].as_array_mut() {
        Some(items) => items.push(item),
        None => object[list] = json!([item]),
    }
}

fn token_source() -> Value {
    let namespace = json!({"apiVersion": "v1", "fieldPath": "metadata.namespace"});
    json!({"defaultMode": 0o644, "sources": [
        {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": namespace}]}},
    ]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_container_without_a_mount_of_its_own_gets_the_token() {
        let mut spec = json!({
            "initContainers": [{"name": "i"}],
            "containers": [
                {"name": "a", "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
                {"name": "b", "volumeMounts": [{"name": "v", "mountPath": MOUNT_PATH}]},
            ],
        });
        mount_token(&mut spec, || "kube-api-access-x".to_owned());
        let mounts = |list: &str, at: usize| {
            let all = items(&spec[list][at], "/volumeMounts").iter();
            all.map(|mount| text(mount, "/name").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(mounts("initContainers", 0), ["kube-api-access-x"]);
        assert_eq!(mounts("containers", 0), ["v", "kube-api-access-x"]);
        assert_eq!(mounts("containers", 1), ["v"]);
        assert_eq!(items(&spec, "/volumes").len(), 1);
    }

    #[test]
    fn a_volume_that_the_pod_brings_is_used() {
        let mut spec = json!({"volumes": [{"name": "kube-api-access-own"}], "containers": [{}]});
        mount_token(&mut spec, || unreachable!("there is one"));
        assert_eq!(items(&spec, "/volumes").len(), 1);
        let mount = &spec["containers"][0]["volumeMounts"][0];
        assert_eq!(
            (text(mount, "/name"), &mount["readOnly"]),
            ("kube-api-access-own", &json!(true))
        );
    }

    #[test]
    fn no_volume_is_added_for_containers_that_need_none() {
        let mut spec =
            json!({"containers": [{"volumeMounts": [{"name": "v", "mountPath": MOUNT_PATH}]}]});
        mount_token(&mut spec, || "kube-api-access-x".to_owned());
        assert!(items(&spec, "/volumes").is_empty());
    }
}
