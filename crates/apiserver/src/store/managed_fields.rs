//! An object and its managers, read apart.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The field of the metadata that names the managers.
pub const MANAGED_FIELDS: &str = "managedFields";

/// An object without its managers.
#[derive(Debug)]
pub struct SplitObject {
    pub object: Value,
    /// The text of its managers, if it has any.
    pub managers: Option<Box<RawValue>>,
}

impl<'de> Deserialize<'de> for SplitObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut managers = None;
        let object = deserializer.deserialize_map(Level::Object(&mut managers))?;
        Ok(Self { object, managers })
    }
}

/// A map, and what is taken out of it.
enum Level<'a> {
    Object(&'a mut Option<Box<RawValue>>),
    Metadata(&'a mut Option<Box<RawValue>>),
}

impl<'de> DeserializeSeed<'de> for Level<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Level<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        match self {
            Self::Object(managers) => {
                while let Some(name) = map.next_key::<String>()? {
                    let value = match name.as_str() {
                        "metadata" => map.next_value_seed(Level::Metadata(&mut *managers))?,
                        _ => map.next_value()?,
                    };
                    out.insert(name, value);
                }
            }
            Self::Metadata(managers) => {
                while let Some(name) = map.next_key::<String>()? {
                    if name == MANAGED_FIELDS {
                        *managers = Some(map.next_value()?);
                    } else {
                        out.insert(name, map.next_value()?);
                    }
                }
            }
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::{Key, Stored};

    /// Taken apart and put together again it is the same text.
    #[test]
    fn an_object_is_taken_apart_and_put_together() {
        let key = Key {
            resource: "persistentvolumeclaims".into(),
            namespace: "a".into(),
            name: "b".into(),
        };
        let with = json!({
            "metadata": {"name": "b", "labels": {"x": "y"}, "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"metadata": {"managedFields": "not these"}},
        });
        let mut without = with.clone();
        without["metadata"].as_object_mut().unwrap().remove(MANAGED_FIELDS);
        for object in [with, without] {
            let stored = Stored::new(&key, 7, object.clone());
            let SplitObject { object: tree, managers } = stored.split_managed_fields();
            assert_eq!(tree["metadata"].get(MANAGED_FIELDS), None);
            assert_eq!(tree["spec"], object["spec"]);
            assert_eq!(managers.is_some(), object["metadata"].get(MANAGED_FIELDS).is_some());
            let again =
                Stored::with_managers(&key, 7, tree, managers.as_deref().map(RawValue::get));
            assert_eq!(again.body, stored.body);
        }
    }
}
