//! One version of a custom resource: its codec and its rules.

use std::sync::{Arc, OnceLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::columns::{Column, Path};
use super::rules::{Rules, RulesError};
use super::schema::{self, Schema};
use super::validate::validate;
use crate::error::{ApiResult, Cause, Causes, Status};
use crate::field_path::FieldPath;
use crate::registry::codec::{Codec, Decoded, Undecodable, dropped, typed};
use crate::registry::strategy::{Context, Generation, Strategy, Traits};
use crate::registry::{Resource, Subresource};

/// In the order in which discovery has always shown them for custom resources.
const ALL: &[&str] =
    &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
const PART: &[&str] = &["get", "patch", "update"];

/// Where a custom resource keeps what `scale` shows.
#[derive(Debug, Clone)]
pub struct ScalePaths {
    /// Wanted replicas, as a JSON pointer.
    pub spec: String,
    /// Replicas there are, as a JSON pointer.
    pub status: String,
    /// Text form of the selector, as a JSON pointer.
    pub selector: Option<String>,
}

/// What a definition says about one version.
pub struct Custom {
    group: String,
    plural: String,
    /// The schema as it stands in the definition.
    pub source: Value,
    pub schema: Schema,
    /// Columns after the name.
    pub columns: Vec<Column>,
    /// The warning that clients of a deprecated version get.
    pub deprecated: Option<String>,
    /// Where `scale` reads and writes.
    pub scale: Option<ScalePaths>,
    /// Ends with the definition.
    pub end: CancellationToken,
    /// Compiled when an object is first judged: a stored definition can never keep the server from starting.
    rules: OnceLock<Result<Option<Rules>, RulesError>>,
    status: bool,
    terminating: bool,
    fills_in: bool,
    heavy: bool,
}

impl Custom {
    /// Cleans an object: metadata by its type, the rest by the schema.
    ///
    /// # Errors
    /// When metadata has fields of the wrong type, or defaults would make the object too large.
    pub fn decode(&self, mut input: Value, defaults: bool) -> Result<Decoded, Undecodable> {
        let mut unknown = Vec::new();
        let meta = input.as_object_mut().and_then(|map| map.remove("metadata"));
        schema::prune(&self.schema, &mut input, FieldPath::Top(""), &mut unknown);
        if defaults && schema::default(&self.schema, &mut input).is_err() {
            let name = format!("{}.{}", self.plural, self.group);
            let why = format!("the defaults of {name} would make the object too large");
            return Err(Undecodable { why, input: None, too_large: true });
        }
        if let Some(meta) = meta.filter(|meta| !meta.is_null()) {
            let clean = typed::<ObjectMeta>(&meta)?;
            dropped(&meta, &clean, FieldPath::Top("metadata"), &mut unknown);
            input["metadata"] = clean;
        }
        unknown.sort();
        Ok(Decoded { object: input, unknown })
    }

    /// Whether judging an object can be much work for its size.
    pub fn is_heavy(&self) -> bool {
        self.heavy
    }

    /// Whether the schema has defaults.
    pub fn fills_in(&self) -> bool {
        self.fills_in
    }

    /// Fills in defaults that the definition has got since an object was written.
    pub fn fill_in(&self, object: &mut Value) {
        let meta = object.as_object_mut().and_then(|map| map.remove("metadata"));
        // An object of an older definition is shown with what there is room for.
        let _ = schema::default(&self.schema, object);
        if let Some(meta) = meta {
            object["metadata"] = meta;
        }
    }

    fn judge(&self, new: &Value, old: Option<&Value>) -> Causes {
        const BLOCKING: &[&str] = &[
            "FieldValueRequired",
            "FieldValueTooLong",
            "FieldValueTooMany",
            "FieldValueTypeInvalid",
            "FieldValueNotSupported",
        ];
        let mut causes = validate(&self.schema, new, old, "");
        let rules = match self.rules.get_or_init(|| Rules::parse(&self.source)) {
            Ok(None) => return causes,
            Ok(Some(rules)) => rules,
            Err(why) => {
                let name = format!("{}.{}", self.plural, self.group);
                let why = format!(
                    "the rules of the definition {name} cannot be used: {why}; change the definition"
                );
                causes.push(Cause::forbidden("<nil>", &why));
                return causes;
            }
        };
        if causes.iter().any(|cause| BLOCKING.contains(&cause.reason)) {
            let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            causes.push(Cause::invalid("<nil>", &Value::Null, why));
        } else {
            causes.extend(rules.check(new, old));
        }
        causes
    }

    /// What counts for the generation: everything but metadata, and the status if it is apart.
    fn counted(&self, object: &Value) -> Map<String, Value> {
        let mut map = object.as_object().cloned().unwrap_or_default();
        map.remove("metadata");
        if self.status {
            map.remove("status");
        }
        map
    }
}

/// The rules of a custom resource.
struct CustomRules(Arc<Custom>);

impl Strategy for CustomRules {
    fn admit_create(&self, object: &mut Value, _cx: &Context<'_>) -> ApiResult<()> {
        if self.0.terminating {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let why = "create not allowed while custom resource definition is terminating";
            return Err(Status::forbidden_named(&self.0.group, &self.0.plural, name, why));
        }
        Ok(())
    }

    fn validate_create(&self, object: &Value) -> Causes {
        self.0.judge(object, None)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Causes {
        self.0.judge(new, Some(old))
    }

    fn validate_status(&self, new: &Value, old: &Value) -> Causes {
        let mut causes = self.0.judge(new, Some(old));
        // What is written through `/status` is called by its name inside of it.
        for cause in &mut causes {
            if let Some(inner) = cause.field.strip_prefix("status.") {
                let whole = format!("{} in body", cause.field);
                cause.message = cause.message.replace(&whole, &format!("{inner} in body"));
            }
        }
        causes
    }

    fn is_new_generation(&self, new: &Value, old: &Value) -> bool {
        self.0.counted(new) != self.0.counted(old)
    }
}

/// The served versions of a definition; `end` ends with the definition.
pub(crate) fn resources(definition: &Value, end: &CancellationToken) -> Vec<Arc<Resource>> {
    let versions = definition["spec"]["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let served: Vec<&Value> = versions.iter().filter(|v| v["served"] == true).collect();
    // Objects are looked after through one version: the stored one, if it can be asked for.
    let lead = served.iter().position(|v| v["storage"] == true).unwrap_or(0);
    let make = |(i, version): (usize, &&Value)| {
        let mut resource = resource(definition, version, &served, end);
        resource.alias = i != lead;
        Arc::new(resource)
    };
    served.iter().enumerate().map(make).collect()
}

/// The resource through which housekeeping reaches objects of a definition that is not served.
pub(crate) fn unserved(definition: &Value, end: &CancellationToken) -> Option<Arc<Resource>> {
    let versions = definition["spec"]["versions"].as_array()?;
    let version = versions.iter().find(|v| v["storage"] == true).or(versions.first())?;
    Some(Arc::new(resource(definition, version, &[], end)))
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

fn resource(
    definition: &Value,
    version: &Value,
    served: &[&Value],
    end: &CancellationToken,
) -> Resource {
    let spec = &definition["spec"];
    let names = &spec["names"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, plural, kind) =
        (text(&spec["group"]), text(&names["plural"]), text(&names["kind"]));
    let custom = Arc::new(custom(definition, version, served, end));
    let own = ("".into(), "".into(), kind.clone().into());
    let mut subresources = Vec::new();
    if custom.status {
        subresources.push(Subresource { name: "status", kind: own, verbs: PART });
    }
    if custom.scale.is_some() {
        let kind = ("autoscaling".into(), "v1".into(), "Scale".into());
        subresources.push(Subresource { name: "scale", kind, verbs: PART });
    }
    let fields = version["selectableFields"].as_array().into_iter().flatten();
    let fields = fields.map(|f| text(&f["jsonPath"]).trim_start_matches('.').to_owned());
    Resource {
        storage: Arc::from(format!("{group}/{plural}")),
        version: text(&version["name"]),
        list_kind: text(&names["listKind"]),
        singular: text(&names["singular"]),
        short_names: texts(&names["shortNames"]),
        categories: texts(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        verbs: ALL.to_vec(),
        subresources,
        fields: fields.collect(),
        codec: Codec::Custom(Arc::clone(&custom)),
        traits: Traits {
            status: custom.status,
            unconditional_update: false,
            generation: Generation::FromOne,
            ..Traits::PLAIN
        },
        strategy: Arc::new(CustomRules(Arc::clone(&custom))),
        transient: false,
        conversion: super::group_contents::conversion(definition, version),
        alias: false,
        custom: Some(custom),
        builtin: None,
        shape: OnceLock::new(),
        group,
        kind,
        plural,
    }
}

fn custom(
    definition: &Value,
    version: &Value,
    served: &[&Value],
    end: &CancellationToken,
) -> Custom {
    let spec = &definition["spec"];
    let source = version["schema"]["openAPIV3Schema"].clone();
    let mut schema = Schema::parse(&source);
    // Kind, apiVersion and metadata belong to every object, whatever the schema says.
    schema.embedded = true;
    let columns = version["additionalPrinterColumns"].as_array();
    let columns = match columns.filter(|list| !list.is_empty()) {
        Some(list) => list.iter().filter_map(Column::parse).collect(),
        None => vec![Column::age()],
    };
    let pointer = |path: &Value| -> Option<String> {
        let path = Path::parse(path.as_str().filter(|p| !p.is_empty())?)?;
        Some(path.fields().iter().map(|f| format!("/{f}")).collect())
    };
    let scale = &version["subresources"]["scale"];
    let scale = pointer(&scale["specReplicasPath"]).zip(pointer(&scale["statusReplicasPath"])).map(
        |(spec, status)| ScalePaths {
            spec,
            status,
            selector: pointer(&scale["labelSelectorPath"]),
        },
    );
    Custom {
        group: spec["group"].as_str().unwrap_or_default().into(),
        plural: spec["names"]["plural"].as_str().unwrap_or_default().into(),
        rules: OnceLock::new(),
        fills_in: schema.has_defaults(),
        heavy: is_heavy(&source),
        source,
        schema,
        columns,
        deprecated: deprecation(definition, version, served),
        scale,
        end: end.clone(),
        status: version["subresources"]["status"].is_object(),
        terminating: !definition["metadata"]["deletionTimestamp"].is_null(),
    }
}

/// Whether a schema has rules, patterns, combinations or defaults.
fn is_heavy(schema: &Value) -> bool {
    const KEYS: &[&str] =
        &["x-kubernetes-validations", "pattern", "allOf", "anyOf", "oneOf", "not", "default"];
    match schema {
        Value::Object(map) => {
            map.iter().any(|(key, below)| KEYS.contains(&key.as_str()) || is_heavy(below))
        }
        Value::Array(list) => list.iter().any(is_heavy),
        _ => false,
    }
}

/// The warning that clients of a deprecated version get.
fn deprecation(definition: &Value, version: &Value, served: &[&Value]) -> Option<String> {
    if version["deprecated"] != true {
        return None;
    }
    if let Some(text) = version["deprecationWarning"].as_str() {
        return Some(text.to_owned());
    }
    let spec = &definition["spec"];
    let name = |version: &Value| {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let (group, version) = (text(&spec["group"]), text(&version["name"]));
        format!("{group}/{version} {}", text(&spec["names"]["kind"]))
    };
    let better = served
        .iter()
        .filter(|v| v["deprecated"] != true)
        .min_by_key(|v| super::naming::version_rank(v["name"].as_str().unwrap_or_default()));
    Some(match better {
        Some(better) => format!("{} is deprecated; use {}", name(version), name(better)),
        None => format!("{} is deprecated", name(version)),
    })
}

/// An object of the scale subresource.
pub(crate) fn scale_of(custom: &Custom, object: &Value) -> Option<Value> {
    let paths = custom.scale.as_ref()?;
    let number = |path: &str| object.pointer(path).and_then(Value::as_i64);
    let mut meta = Map::new();
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            meta.insert(field.into(), value.clone());
        }
    }
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta,
        "spec": {}, "status": {"replicas": number(&paths.status).unwrap_or(0)},
    });
    if let Some(wanted) = number(&paths.spec) {
        scale["spec"]["replicas"] = json!(wanted);
    }
    let selector = paths.selector.as_deref().and_then(|path| object.pointer(path));
    if let Some(selector) = selector {
        scale["status"]["selector"] = selector.clone();
    }
    Some(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Value {
        json!({"metadata": {"name": "ws.example.com"}, "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "ws", "singular": "w", "kind": "W", "listKind": "WList"},
            "versions": [
                {"name": "v1beta1", "served": true, "storage": false, "deprecated": true,
                    "schema": {"openAPIV3Schema": {"type": "object"}}},
                {"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                        "spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}}},
                    "subresources": {"scale": {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"}}},
                {"name": "v2", "served": false, "storage": false},
            ],
        }})
    }

    #[test]
    fn each_served_version_is_an_entry_and_one_leads() {
        let all = resources(&definition(), &CancellationToken::new());
        let found: Vec<(&str, bool)> = all.iter().map(|r| (r.version.as_str(), r.alias)).collect();
        assert_eq!(found, [("v1beta1", true), ("v1", false)]);
        assert_eq!(all[0].storage, all[1].storage);
        let reported = all[0].custom.as_ref().unwrap().deprecated.clone();
        assert_eq!(
            reported.as_deref(),
            Some("example.com/v1beta1 W is deprecated; use example.com/v1 W")
        );
    }

    #[test]
    fn unknown_fields_of_custom_objects_are_pruned() {
        let all = resources(&definition(), &CancellationToken::new());
        let custom = all[1].custom.as_ref().unwrap();
        let body = json!({"metadata": {"name": "a", "junk": 1}, "spec": {"n": 1, "x": 2}});
        let decoded = custom.decode(body, true).unwrap();
        assert_eq!(decoded.object, json!({"metadata": {"name": "a"}, "spec": {"n": 1}}));
        assert_eq!(decoded.unknown, ["metadata.junk", "spec.x"]);
        assert!(custom.decode(json!({"metadata": {"labels": 1}}), true).is_err());
        let scale = scale_of(custom, &json!({"metadata": {}, "spec": {"n": 3}})).unwrap();
        assert_eq!(
            (&scale["spec"]["replicas"], &scale["status"]["replicas"]),
            (&json!(3), &json!(0))
        );
    }
}
