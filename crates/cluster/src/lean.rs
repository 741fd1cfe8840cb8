//! Objects without the list of their managers.
//!
//! That list is often longer than the object. Nothing here reads it, and a server keeps its own when
//! an object comes back without one.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};

/// An object that is read without `metadata.managedFields`.
pub(crate) struct Lean(pub(crate) Value);

impl<'de> Deserialize<'de> for Lean {
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
    fn only_the_managers_are_left_out() {
        let mut object = json!({
            "kind": "A", "metadata": {"name": "a", "managedFields": [{"manager": "m"}], "labels": {"x": "y"}},
            "spec": {"managedFields": [1], "metadata": {"managedFields": [2]}}, "list": [null, {"metadata": 1}],
        });
        let Lean(read) = serde_json::from_str(&object.to_string()).expect("an object");
        object["metadata"].as_object_mut().expect("a map").remove("managedFields");
        assert_eq!(read, object);
        assert!(serde_json::from_str::<Lean>("[]").is_err());
    }
}
