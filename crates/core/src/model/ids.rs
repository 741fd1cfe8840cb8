//! Identities that are texts and must not be mistaken for each other.

use super::text_types;

text_types! {
    /// UID of an API object: tells it from an earlier one of the same name.
    Uid;
    /// Name of a `Node`.
    NodeName;
    /// Name of a `PersistentVolume`.
    VolumeName;
    /// Name of a CSI driver, as it registers and as classes and volumes name it.
    DriverName;
    /// A driver's own id for a volume.
    VolumeHandle;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn an_identity_is_its_text_in_json_in_maps_and_in_print() {
        let uid: Uid = serde_json::from_value(serde_json::json!("u1")).unwrap();
        assert_eq!(serde_json::to_value(&uid).unwrap(), "u1");
        assert_eq!(BTreeMap::from([(uid.clone(), 1)]).get("u1"), Some(&1));
        assert_eq!((uid.to_string(), format!("{uid:?}")), ("u1".into(), "\"u1\"".into()));
    }
}
