//! What a kind's objects look like, as far as ownership of fields goes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::crd::{Additional, ListKind, Schema, Type};
use crate::registry::facts;

/// A field of a known name.
#[derive(Debug, Clone)]
pub struct Field {
    pub shape: Arc<Shape>,
    /// Whether it is there from the start, so that the field itself has no manager, only what is in it.
    pub standing: bool,
}

/// What a value looks like.
#[derive(Debug, Clone)]
pub enum Shape {
    /// One value, owned as a whole.
    Leaf,
    /// An object with known fields.
    Struct(BTreeMap<String, Field>),
    /// An object with any keys.
    Map(Arc<Shape>),
    /// A list of scalars, each owned by itself.
    Set,
    /// A list of objects, told apart by some of their fields.
    Keyed {
        /// The fields, each with what it is when absent.
        keys: Vec<(String, Option<Value>)>,
        /// What the elements look like.
        item: Arc<Shape>,
    },
    /// Anything: objects are maps, lists are values.
    Free,
}

static FREE: Shape = Shape::Free;

impl Shape {
    /// The shape of a field, and whether its name is known.
    pub fn field(&self, name: &str) -> Option<(&Shape, bool)> {
        match self {
            Self::Struct(fields) => fields.get(name).map(|field| (&*field.shape, true)),
            Self::Map(item) => Some((item, false)),
            Self::Free => Some((&FREE, false)),
            _ => None,
        }
    }

    /// Whether the field is there from the start.
    pub fn is_standing(&self, name: &str) -> bool {
        matches!(self, Self::Struct(fields) if fields.get(name).is_some_and(|f| f.standing))
    }

    /// Where an element of a list stands in a set of fields.
    pub fn element(&self, item: &Value) -> Option<String> {
        match self {
            Self::Set => Some(format!("v:{item}")),
            Self::Keyed { keys, .. } => {
                let mut found = Map::new();
                for (key, default) in keys {
                    let value = item.get(key).filter(|v| !v.is_null()).or(default.as_ref());
                    if let Some(value) = value {
                        found.insert(key.clone(), value.clone());
                    }
                }
                (!found.is_empty()).then(|| format!("k:{}", Value::Object(found)))
            }
            _ => None,
        }
    }

    /// What the elements of a list look like.
    pub fn item(&self) -> &Shape {
        match self {
            Self::Keyed { item, .. } => item,
            _ => &Self::Leaf,
        }
    }

    /// The shape of a custom resource.
    pub fn of_custom(schema: &Schema) -> Self {
        let mut shape = custom(schema);
        if let Self::Struct(fields) = &mut shape {
            fields.insert("metadata".into(), Field { shape: metadata(), standing: true });
        }
        shape
    }

    /// The shape of a built-in kind, from its published schema.
    pub fn of_type(name: &str, definitions: &Map<String, Value>) -> Self {
        builtin(name, definitions)
    }
}

/// The shape of `metadata`.
fn metadata() -> Arc<Shape> {
    let leaf = || Arc::new(Shape::Leaf);
    let texts = || Arc::new(Shape::Map(leaf()));
    let owners = Shape::Keyed { keys: vec![("uid".into(), None)], item: leaf() };
    let fields = [
        ("labels", texts()),
        ("annotations", texts()),
        ("finalizers", Arc::new(Shape::Set)),
        ("ownerReferences", Arc::new(owners)),
        ("generateName", leaf()),
        ("name", leaf()),
        ("namespace", leaf()),
    ];
    let fields =
        fields.into_iter().map(|(name, shape)| (name.to_owned(), Field { shape, standing: false }));
    Arc::new(Shape::Struct(fields.collect()))
}

fn custom(schema: &Schema) -> Shape {
    if schema.atomic_map {
        return Shape::Leaf;
    }
    match schema.kind {
        Some(Type::Array) => match (&schema.list, &schema.items) {
            (ListKind::Set, _) => Shape::Set,
            (ListKind::Map(keys), Some(items)) => {
                let default = |key: &str| items.properties.get(key).and_then(|s| s.default.clone());
                Shape::Keyed {
                    keys: keys.iter().map(|key| (key.clone(), default(key))).collect(),
                    item: Arc::new(custom(items)),
                }
            }
            _ => Shape::Leaf,
        },
        Some(Type::Object) | None if schema.preserve && schema.properties.is_empty() => Shape::Free,
        Some(Type::Object) => match &schema.additional {
            Some(Additional::Schema(item)) => Shape::Map(Arc::new(custom(item))),
            Some(Additional::Any) => Shape::Free,
            None => {
                let fields = schema.properties.iter().map(|(name, schema)| {
                    (name.clone(), Field { shape: Arc::new(custom(schema)), standing: false })
                });
                Shape::Struct(fields.collect())
            }
        },
        _ => Shape::Leaf,
    }
}

/// The type a schema names, if it does.
fn reference(schema: &Value) -> Option<&str> {
    let at = |schema: &Value| -> Option<usize> {
        schema["$ref"].as_str().map(|text| text.rfind('/').map_or(0, |i| i + 1))
    };
    if let Some(start) = at(schema) {
        return schema["$ref"].as_str().map(|text| &text[start..]);
    }
    schema["allOf"].as_array()?.iter().find_map(reference)
}

fn builtin(name: &str, definitions: &Map<String, Value>) -> Shape {
    if facts::is_atomic(name) {
        return Shape::Leaf;
    }
    let Some(schema) = definitions.get(name) else { return Shape::Leaf };
    let Some(properties) = schema["properties"].as_object() else { return Shape::Leaf };
    let fields = properties.iter().map(|(field, schema)| {
        let standing = facts::is_standing(name, field);
        let shape = Arc::new(of_field(name, field, schema, definitions));
        (field.clone(), Field { shape, standing })
    });
    Shape::Struct(fields.collect())
}

fn of_field(owner: &str, field: &str, schema: &Value, definitions: &Map<String, Value>) -> Shape {
    let inner = |schema: &Value| match reference(schema) {
        Some(name) => builtin(name, definitions),
        None => Shape::Leaf,
    };
    match facts::list(owner, field) {
        Some([]) => return Shape::Set,
        Some(keys) => {
            let keys = keys.iter().map(|key| {
                let default = (*key == "protocol").then(|| json!("TCP"));
                ((*key).to_owned(), default)
            });
            let item = Arc::new(inner(&schema["items"]));
            return Shape::Keyed { keys: keys.collect(), item };
        }
        None => {}
    }
    if facts::is_atomic_field(owner, field) {
        return Shape::Leaf;
    }
    if schema["additionalProperties"].is_object() {
        return Shape::Map(Arc::new(inner(&schema["additionalProperties"])));
    }
    if facts::is_granular(owner, field)
        && let Some(name) = reference(schema)
        && let Some(properties) = definitions.get(name).and_then(|d| d["properties"].as_object())
    {
        let leaf =
            |name: &String| (name.clone(), Field { shape: Arc::new(Shape::Leaf), standing: false });
        return Shape::Struct(properties.keys().map(leaf).collect());
    }
    inner(schema)
}
