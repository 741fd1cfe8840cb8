//! VolumeGroupSnapshotContent between its versions, as upstream's conversion webhook does it.
//!
//! v1beta1 lists members as pairs of handles, later versions with their time, size and readiness as well. What a
//! pair has no room for is kept in an annotation of the v1beta1 form, so that nothing is lost on the way back.
//! Upstream's webhook refuses v1; here it has the form of v1beta2, as its definition says.

use serde_json::{Value, json};

use crate::registry::Conversion;
use crate::registry::rules::items;

const GROUP: &str = "groupsnapshot.storage.k8s.io";
const PLURAL: &str = "volumegroupsnapshotcontents";
/// The version that lists pairs.
const PAIRED: &str = "v1beta1";

/// Where the v1beta1 form keeps what is known of members beside their handles.
const NOTE: &str = "groupsnapshot.storage.kubernetes.io/volume-snapshot-info-list";
const PAIRS: &str = "volumeSnapshotHandlePairList";
const INFOS: &str = "volumeSnapshotInfoList";
const HANDLES: [&str; 2] = ["volumeHandle", "snapshotHandle"];

/// How objects of this version are shown and stored, when the definition stores them otherwise or once did.
pub(super) fn conversion(definition: &Value, version: &Value) -> Option<Conversion> {
    let spec = &definition["spec"];
    if spec["group"] != GROUP || spec["names"]["plural"] != PLURAL {
        return None;
    }
    let stored = items(spec, "/versions").iter().find(|one| one["storage"] == true)?;
    let once_paired = items(definition, "/status/storedVersions").iter().any(|name| name == PAIRED);
    match (version["name"] == PAIRED, stored["name"] == PAIRED) {
        (true, false) => Some(Conversion { to_version: to_pairs, to_storage: to_infos }),
        (false, true) => Some(Conversion { to_version: to_infos, to_storage: to_pairs }),
        // Written while v1beta1 was stored, and not since.
        (false, false) if once_paired => {
            Some(Conversion { to_version: to_infos, to_storage: std::convert::identity })
        }
        (true, true) | (false, false) => None,
    }
}

/// The v1beta1 form; an object that has it already stays as it is.
fn to_pairs(mut object: Value) -> Value {
    let Some(infos @ Value::Array(_)) = take(&mut object, "/status", INFOS) else { return object };
    let pair = |info: &Value| {
        let [volume, snapshot] = HANDLES.map(|name| info[name].as_str().unwrap_or_default());
        json!({HANDLES[0]: volume, HANDLES[1]: snapshot})
    };
    let pairs: Vec<Value> = items(&infos, "").iter().map(pair).collect();
    object["status"][PAIRS] = pairs.into();
    object["metadata"]["annotations"][NOTE] = infos.to_string().into();
    object
}

/// The form of v1beta2 and v1; an object that has it already stays as it is.
///
/// The pairs say which members there are. A client of v1beta1 may have changed them, and not the note.
fn to_infos(mut object: Value) -> Value {
    let note = take(&mut object, "/metadata/annotations", NOTE);
    if note.is_some() && object["metadata"]["annotations"] == json!({}) {
        take(&mut object, "/metadata", "annotations");
    }
    let known: Vec<Value> = note
        .and_then(|note| serde_json::from_str(note.as_str().unwrap_or_default()).ok())
        .unwrap_or_default();
    let Some(Value::Array(pairs)) = take(&mut object, "/status", PAIRS) else { return object };
    let handle = |of: &Value, name: &str| of[name].as_str().unwrap_or_default().to_owned();
    let info = |pair: Value| {
        let same =
            |info: &&Value| HANDLES.iter().all(|name| handle(info, name) == handle(&pair, name));
        known.iter().find(same).cloned().unwrap_or(pair)
    };
    let infos: Vec<Value> = pairs.into_iter().map(info).collect();
    object["status"][INFOS] = infos.into();
    object
}

fn take(object: &mut Value, place: &str, field: &str) -> Option<Value> {
    object.pointer_mut(place)?.as_object_mut()?.remove(field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(status: Value) -> Value {
        json!({"metadata": {"name": "c", "annotations": {"a": "b"}}, "spec": {"driver": "d"}, "status": status})
    }

    fn infos() -> Value {
        let members = json!([
            {"volumeHandle": "v1", "snapshotHandle": "s1", "creationTime": 7, "readyToUse": true, "restoreSize": 1024},
            {"volumeHandle": "v2"},
        ]);
        content(json!({"readyToUse": true, "volumeGroupSnapshotHandle": "g", INFOS: members}))
    }

    /// case: snapshotter/61
    #[test]
    fn there_and_back_nothing_is_lost() {
        let paired = to_pairs(infos());
        assert_eq!(
            paired["status"][PAIRS],
            json!([{"volumeHandle": "v1", "snapshotHandle": "s1"}, {"volumeHandle": "v2", "snapshotHandle": ""}])
        );
        assert!(paired["status"].get(INFOS).is_none());
        assert_eq!(to_pairs(paired.clone()), paired);
        assert_eq!(to_infos(paired), infos());
        assert_eq!(to_infos(infos()), infos());
        for status in [json!({}), json!({"readyToUse": false}), json!({INFOS: []})] {
            let content = content(status);
            assert_eq!(to_infos(to_pairs(content.clone())), content);
        }
    }

    #[test]
    fn pairs_say_which_members_there_are() {
        let mut paired = to_pairs(infos());
        paired["status"][PAIRS][1] = json!({"volumeHandle": "v3", "snapshotHandle": "s3"});
        let members = to_infos(paired)["status"][INFOS].clone();
        assert_eq!(members[0]["restoreSize"], 1024);
        assert_eq!(members[1], json!({"volumeHandle": "v3", "snapshotHandle": "s3"}));
        let alone = content(json!({PAIRS: [{"volumeHandle": "v", "snapshotHandle": "s"}]}));
        let members = to_infos(alone)["status"][INFOS].clone();
        assert_eq!(members, json!([{"volumeHandle": "v", "snapshotHandle": "s"}]));
    }

    #[test]
    fn only_what_differs_is_converted() {
        let definition = |plural: &str, stored: &str, once: Value| {
            let version =
                |name: &str| json!({"name": name, "served": true, "storage": name == stored});
            json!({"spec": {"group": GROUP, "names": {"plural": plural},
                "versions": [version("v1"), version("v1beta1"), version("v1beta2")]},
                "status": {"storedVersions": once}})
        };
        let converts = |definition: &Value| {
            let versions = items(definition, "/spec/versions").iter();
            let all: Vec<bool> =
                versions.map(|version| conversion(definition, version).is_some()).collect();
            all
        };
        let now = json!(["v1beta2"]);
        assert_eq!(converts(&definition(PLURAL, "v1beta2", now.clone())), [false, true, false]);
        assert_eq!(converts(&definition(PLURAL, "v1", now.clone())), [false, true, false]);
        assert_eq!(converts(&definition(PLURAL, "v1beta1", now.clone())), [true, false, true]);
        let once = json!(["v1beta1", "v1beta2"]);
        assert_eq!(converts(&definition(PLURAL, "v1beta2", once)), [true, true, true]);
        assert_eq!(converts(&definition("others", "v1beta2", now)), [false, false, false]);
    }
}
