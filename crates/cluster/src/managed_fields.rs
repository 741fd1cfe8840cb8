//! Reads objects without `metadata.managedFields`.
//!
//! The managed fields are often longer than the object. Nothing here reads them, and a server keeps its own when
//! an object is written without them.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

/// An object that is read without `metadata.managedFields`.
pub(crate) struct WithoutManagedFields(pub(crate) Value);

impl<'de> Deserialize<'de> for WithoutManagedFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Level::Object).map(Self)
    }
}

#[derive(Clone, Copy)]
enum Level {
    Object,
    Metadata,
}

impl<'de> DeserializeSeed<'de> for Level {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            match (self, name.as_str()) {
                (Self::Metadata, "managedFields") => drop(map.next_value::<IgnoredAny>()?),
                (Self::Object, "metadata") => {
                    out.insert(name, map.next_value_seed(Self::Metadata)?);
                }
                _ => drop(out.insert(name, map.next_value()?)),
            }
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_managed_fields_of_the_object_are_left_out() {
        let mut object = json!({
            "kind": "A", "metadata": {"name": "a", "managedFields": [{"manager": "m"}], "labels": {"x": "y"}},
            "spec": {"managedFields": [1], "metadata": {"managedFields": [2]}}, "list": [null, {"metadata": 1}],
        });
        let WithoutManagedFields(read) =
            serde_json::from_str(&object.to_string()).expect("an object");
        object["metadata"].as_object_mut().expect("a map").remove("managedFields");
        assert_eq!(read, object);
        assert!(serde_json::from_str::<WithoutManagedFields>("[]").is_err());
    }
}
