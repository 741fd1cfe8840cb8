//! The plain provisioners: a directory per claim, on the library and nothing else.
//!
//! * [`hostpath`]: a directory of this node.
//! * [`nfs`]: a directory of an export that is mounted here.
//! * [`base`]: what both do with directories, below a handle that nothing leads out of.

pub(crate) mod base;
pub(crate) mod hostpath;
pub(crate) mod nfs;
mod pattern;

use longshore_provisioner::{ProvisionError, Request};

/// What neither provisioner can answer. The words of the first two are the tutorial's.
fn check(request: &Request) -> Result<(), ProvisionError> {
    let no = |text: &str| Err(ProvisionError::Infeasible(text.into()));
    if request.bytes <= 0 {
        return no(
            "requested storage size is zero; set spec.resources.requests.storage to more than 0",
        );
    }
    if request.claim.spec.access_modes.is_empty() {
        return no(
            "access mode is not specified; set spec.accessModes, for example [ReadWriteOnce]",
        );
    }
    if request.claim.spec.selector.is_some() {
        return no("spec.selector is not supported for volumes that are made on demand; remove it");
    }
    if let Some(source) = &request.claim.spec.data_source {
        return Err(ProvisionError::Infeasible(
            format!(
                "spec.dataSource names {} {:?}, but new directories are empty; remove it",
                source.kind, source.name
            )
            .into(),
        ));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod testing {
    use std::sync::Arc;

    use longshore_provisioner::Request;
    use serde_json::{Value, json};

    /// A request for 1 MiB with a change to the claim, and a class with these fields.
    pub(crate) fn request(claim: Value, class: Value) -> Request {
        let mut base = json!({
            "metadata": {"name": "data", "namespace": "team", "uid": "u1"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "class"},
        });
        merge(&mut base, claim);
        let mut named = json!({"metadata": {"name": "class", "uid": "c1"}, "provisioner": "p"});
        merge(&mut named, class);
        let class: longshore_provisioner::StorageClass = serde_json::from_value(named).unwrap();
        Request {
            claim: Arc::new(serde_json::from_value(base).unwrap()),
            class: Arc::new(class),
            volume: "pvc-u1".into(),
            bytes: 1 << 20,
            node: None,
        }
    }

    pub(crate) fn merge(into: &mut Value, from: Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{testing::request, *};

    #[test]
    fn what_cannot_be_answered_names_the_field() {
        assert!(check(&request(json!({}), json!({}))).is_ok());
        let source = json!({"spec": {"dataSource": {"kind": "VolumeSnapshot", "name": "cut"}}});
        for (claim, bytes, part) in [
            (json!({}), 0, "spec.resources.requests.storage"),
            (json!({"spec": {"accessModes": []}}), 1, "spec.accessModes"),
            (json!({"spec": {"selector": {}}}), 1, "spec.selector"),
            (source, 1, "spec.dataSource"),
        ] {
            let refused = check(&Request { bytes, ..request(claim, json!({})) }).unwrap_err();
            assert!(matches!(refused, ProvisionError::Infeasible(_)));
            assert!(refused.to_string().contains(part), "{part}: {refused}");
        }
    }
}
