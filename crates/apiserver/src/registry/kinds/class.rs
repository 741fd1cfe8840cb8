//! `StorageClass` and `VolumeAttributesClass`.

use std::collections::HashSet;

use serde_json::{Value, json};

use longshore_core::model::keys::finalizers::VAC_PROTECTION;

use super::volume::add_finalizer;
use crate::error::{ApiResult, Cause, Causes};
use crate::registry::names;
use crate::registry::rules::{
    immutable, items, one_of, parameters, provisioner, same, set_default, text, without_empty,
};
use crate::registry::strategy::{Context, Strategy, Traits};

/// The rules of storage classes.
pub struct StorageClass;

impl Strategy for StorageClass {
    fn traits(&self) -> Traits {
        Traits { returns_deleted: true, ..Traits::PLAIN }
    }

    fn default(&self, object: &mut Value) {
        set_default(object, "reclaimPolicy", "Delete");
        set_default(object, "volumeBindingMode", "Immediate");
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        provisioner(&mut causes, "provisioner", text(object, "/provisioner"));
        parameters(&mut causes, &object["parameters"]);
        one_of(&mut causes, "reclaimPolicy", text(object, "/reclaimPolicy"), &["Delete", "Retain"]);
        let mode = text(object, "/volumeBindingMode");
        one_of(&mut causes, "volumeBindingMode", mode, &["Immediate", "WaitForFirstConsumer"]);
        validate_topologies(&mut causes, object);
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = self.validate_create(new);
        let fields = ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"];
        immutable(&mut causes, new, old, &fields);
        causes
    }
}

fn validate_topologies(causes: &mut Causes, object: &Value) {
    let mut terms = HashSet::new();
    for (t, term) in items(object, "/allowedTopologies").iter().enumerate() {
        let expressions = items(term, "/matchLabelExpressions");
        let mut keys = HashSet::new();
        for (e, expression) in expressions.iter().enumerate() {
            let field = format!("allowedTopologies[{t}].matchLabelExpressions[{e}]");
            let key = text(expression, "/key");
            causes.extend(Cause::each(&format!("{field}.key"), key, names::qualified(key)));
            let values = items(expression, "/values");
            if values.is_empty() {
                causes.push(Cause::required(format!("{field}.values"), ""));
            }
            let mut seen = HashSet::new();
            for (v, value) in values.iter().enumerate() {
                if !seen.insert(value) {
                    causes.push(Cause::duplicate(format!("{field}.values[{v}]"), value));
                }
            }
            if !keys.insert(&expression["key"]) {
                causes.push(Cause::duplicate(format!("{field}.key"), &expression["key"]));
            }
        }
        // A term without expressions is like every other that is not there.
        if !terms.insert(without_empty(term)) || expressions.is_empty() {
            let field = format!("allowedTopologies[{t}].matchLabelExpressions");
            causes.push(Cause::duplicate(field, &json!("")));
        }
    }
}

/// The rules of volume attributes classes.
pub struct AttributesClass;

impl Strategy for AttributesClass {
    fn traits(&self) -> Traits {
        Traits { returns_deleted: true, ..Traits::PLAIN }
    }

    fn admit_create(&self, object: &mut Value, _cx: &Context<'_>) -> ApiResult<()> {
        add_finalizer(object, VAC_PROTECTION);
        Ok(())
    }

    fn validate_create(&self, object: &Value) -> Causes {
        let mut causes = Causes::new();
        provisioner(&mut causes, "driverName", text(object, "/driverName"));
        if object["parameters"].as_object().is_none_or(serde_json::Map::is_empty) {
            causes.push(Cause::required("parameters", "must contain at least one key/value pair"));
        }
        parameters(&mut causes, &object["parameters"]);
        causes
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = self.validate_create(new);
        for field in ["driverName", "parameters"] {
            if !same(&new[field], &old[field]) {
                causes.push(Cause::forbidden(field, "updates are forbidden."));
            }
        }
        causes
    }
}
