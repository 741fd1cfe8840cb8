//! Which kinds are served, and their rules.

mod builtin;
pub(crate) mod codec;
pub(crate) mod facts;
pub(crate) mod go_values;
pub(crate) mod kinds;
pub(crate) mod meta;
pub(crate) mod names;
pub(crate) mod rules;
pub(crate) mod strategy;
pub(crate) mod table;
mod unified;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock};

use parking_lot::Mutex;
use schemars::SchemaGenerator;
use serde_json::{Map, Value};

use builtin::BuiltinKind;
use codec::{Codec, Typed};
use strategy::{Strategy, Traits};

use crate::apply::Shape;
use crate::crd::Custom;
use crate::go_errors;
use crate::http::openapi::Documents;
use crate::store::Key;

pub(crate) use kinds::namespace::is_terminating;

/// A path below an object, e.g. `status`.
#[derive(Debug, Clone)]
pub struct Subresource {
    /// Last part of the path.
    pub name: &'static str,
    /// Group, version and kind of the body; empty group and version mean "as the resource".
    pub kind: (Cow<'static, str>, Cow<'static, str>, Cow<'static, str>),
    /// Verbs it takes.
    pub verbs: &'static [&'static str],
}

/// Converts objects between the storage version of a kind and another served one.
#[derive(Debug, Clone, Copy)]
pub struct Conversion {
    pub to_version: fn(Value) -> Value,
    pub to_storage: fn(Value) -> Value,
}

pub struct Resource {
    /// API group, empty for core.
    pub group: String,
    pub version: String,
    /// Kind, e.g. `PersistentVolumeClaim`.
    pub kind: String,
    pub list_kind: String,
    /// Name in paths, e.g. `persistentvolumeclaims`.
    pub plural: String,
    /// The name for one, usually the lower-case kind.
    pub singular: String,
    /// Names that kubectl accepts instead.
    pub short_names: Vec<String>,
    /// Groups of resources that kubectl knows, e.g. `all`.
    pub categories: Vec<String>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Verbs, sorted.
    pub verbs: Vec<&'static str>,
    /// Paths below an object.
    pub subresources: Vec<Subresource>,
    /// Labels of field selectors beside name and namespace.
    pub fields: Vec<String>,
    /// Where objects are stored; two versions of one kind share it.
    pub storage: Arc<str>,
    /// Checks types and drops unknown fields.
    pub codec: Codec,
    pub traits: Traits,
    pub strategy: Arc<dyn Strategy>,
    /// Whether objects are returned at once and never stored, as reviews are.
    pub transient: bool,
    /// How objects are converted from and to the storage version, when this is another.
    pub conversion: Option<Conversion>,
    /// Whether another entry stands for the stored objects: this is a further version of it.
    pub alias: bool,
    /// What a definition says, for custom resources.
    pub custom: Option<Arc<Custom>>,
    /// The declaration and the Rust type, for built-in kinds.
    pub builtin: Option<(&'static BuiltinKind, Typed)>,
    /// How fields are divided among managers, worked out when first needed.
    pub shape: OnceLock<Arc<Shape>>,
}

impl Resource {
    /// `v1` or `group/version`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The name used in messages: `plural` or `plural.group`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Where an object is stored.
    pub fn key(&self, namespace: &str, name: &str) -> Key {
        Key { resource: Arc::clone(&self.storage), namespace: namespace.into(), name: name.into() }
    }

    /// How the fields of objects are divided among managers.
    pub fn shape(&self) -> &Shape {
        self.shape.get_or_init(|| match (&self.custom, &self.builtin) {
            (Some(custom), _) => Arc::new(Shape::of_custom(&custom.schema)),
            (None, Some((_, typed))) => builtin_shape(typed),
            (None, None) => Arc::new(Shape::Free),
        })
    }

    /// What is wrong with an object that could not be decoded, as Go would say it.
    pub fn explain(&self, fault: codec::Undecodable) -> String {
        let found =
            fault.input.as_ref().zip(self.builtin.as_ref()).and_then(|(input, (_, typed))| {
                go_errors::type_fault(&builtin_schemas(typed), &typed.name, input)
            });
        found.unwrap_or(fault.why)
    }

    /// The subresource of that name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// The object as this version shows it.
    pub fn to_version(&self, mut object: Value) -> Value {
        if let Some(custom) = self.custom.as_ref().filter(|custom| custom.fills_in()) {
            custom.fill_in(&mut object);
        }
        match &self.conversion {
            Some(conversion) => (conversion.to_version)(object),
            None => object,
        }
    }

    /// Whether objects are shown otherwise than they are stored.
    pub fn has_conversion(&self) -> bool {
        self.conversion.is_some() || self.custom.as_ref().is_some_and(|custom| custom.fills_in())
    }

    /// Whether the managers of its objects can be kept apart while they are changed.
    pub fn keeps_managers_apart(&self) -> bool {
        self.custom.is_none() && !self.has_conversion()
    }

    /// The object as it is stored.
    pub fn to_storage(&self, object: Value) -> Value {
        match &self.conversion {
            Some(conversion) => (conversion.to_storage)(object),
            None => object,
        }
    }
}

/// The shape of a built-in type. It is a fact about the type, so all servers of a process share it.
fn builtin_shape(typed: &Typed) -> Arc<Shape> {
    static KNOWN: LazyLock<Mutex<HashMap<String, Arc<Shape>>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock();
    let shape = known.entry(typed.name.clone()).or_insert_with(|| {
        let mut generator = SchemaGenerator::default();
        (typed.describe)(&mut generator);
        Arc::new(Shape::of_type(&typed.name, &generator.take_definitions(true)))
    });
    Arc::clone(shape)
}

/// Decodes a body of a kind that is not served by itself.
/// The error says what is wrong when a field has the wrong type as Go would say it.
pub(crate) fn decode_as(typed: &Typed, body: Value) -> Result<Value, codec::Undecodable> {
    let decoded = codec::decode(&Codec::Typed { check: typed.codec, quantities: &[] }, body, true);
    decoded.map(|decoded| decoded.object).map_err(|fault| {
        let schemas = builtin_schemas(typed);
        let input = fault.input.as_ref();
        match input.and_then(|input| go_errors::type_fault(&schemas, &typed.name, input)) {
            Some(why) => codec::Undecodable { why, ..fault },
            None => fault,
        }
    })
}

/// The schemas of a built-in type and of all it refers to.
fn builtin_schemas(typed: &Typed) -> Arc<Map<String, Value>> {
    type Known = LazyLock<Mutex<HashMap<String, Arc<Map<String, Value>>>>>;
    static KNOWN: Known = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock();
    let schemas = known.entry(typed.name.clone()).or_insert_with(|| {
        let mut generator = SchemaGenerator::default();
        (typed.describe)(&mut generator);
        Arc::new(generator.take_definitions(true))
    });
    Arc::clone(schemas)
}

/// Whether a kind is part of the program, by the version and the name that objects carry.
pub(crate) fn is_builtin_kind(api_version: &str, kind: &str) -> bool {
    kinds::KINDS.iter().any(|builtin| builtin.is(api_version, kind))
}

/// All served kinds. A registry never changes; a new definition leads to a new registry.
pub struct Registry {
    resources: Vec<Arc<Resource>>,
    by_path: HashMap<(String, String, String), Arc<Resource>>,
    /// Published documents, of built-in kinds and of definitions.
    documents: (Documents, Documents),
}

impl Registry {
    /// The kinds that are part of the program.
    pub fn builtin() -> Self {
        Self::of(builtin::resources().into_iter().map(Arc::new).collect())
    }

    fn of(resources: Vec<Arc<Resource>>) -> Self {
        let by_path = resources
            .iter()
            .map(|r| ((r.group.clone(), r.version.clone(), r.plural.clone()), Arc::clone(r)))
            .collect();
        Self { resources, by_path, documents: Default::default() }
    }

    /// The built-in kinds of this registry and these custom ones.
    pub fn with_custom(&self, custom: Vec<Arc<Resource>>) -> Self {
        let builtin = self.resources.iter().filter(|r| r.custom.is_none()).cloned();
        // A definition stored before such names were refused must not take a built-in kind over.
        let custom = custom.into_iter().filter(|r| !self.is_builtin(&r.group, &r.plural));
        let mut registry = Self::of(builtin.chain(custom).collect());
        registry.documents.0 = self.documents.0.clone();
        registry
    }

    /// Published documents, of built-in kinds and of definitions.
    pub fn documents(&self) -> (&Documents, &Documents) {
        (&self.documents.0, &self.documents.1)
    }

    /// All kinds, in the order of discovery.
    pub fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// The kind at a path.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.by_path.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// The kind by name, as in owner references.
    pub fn find_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.resources.iter().find(|r| r.kind == kind && r.group == group && r.version == version)
    }

    /// Whether the group is part of the program.
    pub fn is_builtin_group(&self, group: &str) -> bool {
        self.resources.iter().any(|r| r.group == group && r.custom.is_none())
    }

    /// Whether the resource is part of the program, in whatever version.
    pub fn is_builtin(&self, group: &str, plural: &str) -> bool {
        let mut builtin = self.resources.iter().filter(|r| r.custom.is_none());
        builtin.any(|r| r.group == group && r.plural == plural)
    }

    /// A core kind; all of them are always there.
    pub fn core(&self, plural: &str) -> &Arc<Resource> {
        self.find("", "v1", plural).expect("core kinds are built in")
    }

    /// Groups and versions, in the order of discovery.
    pub fn group_versions(&self) -> Vec<(&str, &str)> {
        let mut seen = Vec::new();
        for resource in &self.resources {
            let pair = (resource.group.as_str(), resource.version.as_str());
            if !seen.contains(&pair) {
                seen.push(pair);
            }
        }
        seen
    }

    /// One kind per stored resource: the views of one store are not repeated.
    pub fn stored(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter().filter(|r| !r.alias && !r.transient)
    }
}
