//! `Namespace`.

use serde_json::{Value, json};

use crate::registry::rules::text;
use crate::registry::strategy::{Context, Strategy, Traits};

/// The rules of namespaces.
pub struct Namespace;

const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Whether the namespace is on its way out.
pub fn is_terminating(namespace: &Value) -> bool {
    !namespace["metadata"]["deletionTimestamp"].is_null()
        || text(namespace, "/status/phase") == "Terminating"
}

fn keep_name_label(object: &mut Value) {
    let name = object["metadata"]["name"].clone();
    // A name that is made up later, or refused, gets no label here.
    if name.is_string() {
        object["metadata"]["labels"][NAME_LABEL] = name;
    }
}

impl Strategy for Namespace {
    fn traits(&self) -> Traits {
        Traits { label_names: true, ..Traits::WITH_STATUS }
    }

    fn prepare_create(&self, object: &mut Value, _cx: &Context<'_>) {
        object["status"] = json!({"phase": "Active"});
        let finalizers = &mut object["spec"]["finalizers"];
        match finalizers.as_array_mut() {
            Some(list) if list.iter().any(|f| f == "kubernetes") => {}
            Some(list) => list.push(json!("kubernetes")),
            None => *finalizers = json!(["kubernetes"]),
        }
        keep_name_label(object);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value, _cx: &Context<'_>) {
        new["spec"]["finalizers"] = old["spec"]["finalizers"].clone();
        keep_name_label(new);
    }

    fn prepare_status(&self, new: &mut Value, _old: &Value, _cx: &Context<'_>) {
        keep_name_label(new);
    }
}
