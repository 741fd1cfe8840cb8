//! Snapshots and group snapshots with their programs: a user who takes, restores and deletes them without waiting.
//!
//! A snapshot that somebody has is never deleted; one that is wanted is ready in the end, and the driver has it; and
//! when everything is deleted the driver has none.

use std::time::Duration;

use longshore_cluster::{ApiError, ObjectKey};
use longshore_core::model::Kind;
use longshore_core::model::kinds::{
    Claim, VolumeGroupSnapshot, VolumeGroupSnapshotClass, VolumeGroupSnapshotContent,
    VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
};
use longshore_csi::capabilities::{GroupCapability, PluginService};
use longshore_csi::fake::Config;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::truth::Truth;
use crate::user::{CLAIM, User, UserError, claim};
use crate::{DRIVER, snapshots};

const CLAIMS: [&str; 2] = [CLAIM, "more"];
const CLASS: &str = "sim";
/// A user without patience deletes what is this young.
const HASTE_MILLIS: u64 = 140;

/// A driver with groups, whose snapshots take a while to be ready in some runs.
pub(crate) fn configure(driver: &mut Config, seed: u64) {
    driver.plugin.services.insert(PluginService::GroupControllerService);
    driver.group = [GroupCapability::CreateDeleteGetVolumeGroupSnapshot].into();
    driver.snapshot_polls = [0, 0, 2][(seed % 3) as usize];
    driver.group_polls = [0, 1][(seed % 2) as usize];
}

/// What a user wants next.
enum Wish {
    Snapshot,
    Group,
    Restore,
    DeleteSnapshot,
    DeleteGroup,
    DeleteRestored,
}

/// The user's life after the claim is made.
pub(crate) async fn live(user: &User, seed: u64) -> Result<(), UserError> {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5a95);
    make_classes(user).await?;
    user.create_claim(&claim(CLAIMS[1])).await?;
    for name in CLAIMS {
        user.bound_for_certain(name).await?;
    }
    for number in 0..rng.usize(3..=8) {
        let wish = match rng.u8(..10) {
            0..=3 => Wish::Snapshot,
            4 => Wish::Group,
            5 | 6 => Wish::Restore,
            7 => Wish::DeleteSnapshot,
            8 => Wish::DeleteGroup,
            _ => Wish::DeleteRestored,
        };
        fulfil(user, &mut rng, wish, number).await?;
        let pause = if rng.bool() { HASTE_MILLIS } else { 8_000 };
        sleep(Duration::from_millis(rng.u64(..pause))).await;
    }
    // Half of the users go on at once, the others want to see what they have.
    if rng.bool() {
        user.settled("every snapshot is ready", || unsettled(&user.truth)).await?;
    }
    for name in names::<Claim>(&user.truth) {
        if name != CLAIM {
            user.delete::<Claim>(&name).await?;
        }
    }
    Ok(())
}

async fn make_classes(user: &User) -> Result<(), UserError> {
    let class = json!({"metadata": {"name": CLASS}, "driver": DRIVER, "deletionPolicy": "Delete"});
    user.api.create::<VolumeSnapshotClass>(&class).await?;
    user.api.create::<VolumeGroupSnapshotClass>(&class).await?;
    Ok(())
}

async fn fulfil(
    user: &User,
    rng: &mut fastrand::Rng,
    wish: Wish,
    number: usize,
) -> Result<(), UserError> {
    let mut one_of = |names: Vec<String>| match names.is_empty() {
        true => None,
        false => Some(names[rng.usize(..names.len())].clone()),
    };
    match wish {
        Wish::Snapshot => {
            let source = json!({"persistentVolumeClaimName": CLAIMS[number % CLAIMS.len()]});
            let spec = json!({"volumeSnapshotClassName": CLASS, "source": source});
            make::<VolumeSnapshot>(user, &format!("snap-{number}"), spec).await
        }
        Wish::Group => {
            // It has no labels to choose by: all claims of the namespace that are there by then.
            let source = json!({"selector": {"matchLabels": {"app": "sim"}}});
            label(user).await?;
            let spec = json!({"volumeGroupSnapshotClassName": CLASS, "source": source});
            make::<VolumeGroupSnapshot>(user, &format!("group-{number}"), spec).await
        }
        Wish::Restore => {
            let Some(from) = one_of(names::<VolumeSnapshot>(&user.truth)) else { return Ok(()) };
            let mut restored = claim(&format!("restored-{number}"));
            restored["spec"]["dataSource"] = snapshots::source(&from);
            user.ledger.note(format!("the user restores {from}"));
            user.create_claim(&restored).await
        }
        Wish::DeleteSnapshot => match one_of(names::<VolumeSnapshot>(&user.truth)) {
            Some(name) => user.delete::<VolumeSnapshot>(&name).await,
            None => Ok(()),
        },
        Wish::DeleteGroup => match one_of(names::<VolumeGroupSnapshot>(&user.truth)) {
            Some(name) => user.delete::<VolumeGroupSnapshot>(&name).await,
            None => Ok(()),
        },
        Wish::DeleteRestored => {
            let mut restored = names::<Claim>(&user.truth);
            restored.retain(|name| !CLAIMS.contains(&name.as_str()));
            match one_of(restored) {
                Some(name) => user.delete::<Claim>(&name).await,
                None => Ok(()),
            }
        }
    }
}

async fn make<T: Kind>(user: &User, name: &str, spec: Value) -> Result<(), UserError> {
    user.ledger.note(format!("the user makes {} {name}", T::KIND));
    let object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
    user.api.create::<T>(&object).await?;
    Ok(())
}

/// Puts the label on the claims by which groups choose.
async fn label(user: &User) -> Result<(), ApiError> {
    let patch = json!({"metadata": {"labels": {"app": "sim"}}});
    for name in CLAIMS {
        let key = ObjectKey::new("default", name);
        user.api.patch::<Claim>(&key, longshore_cluster::Patch::Merge(&patch)).await?;
    }
    Ok(())
}

/// Objects that nobody deletes yet.
fn names<T: Kind>(truth: &Truth) -> Vec<String> {
    let all = truth.list::<T>().into_iter().filter(is_wanted);
    let names =
        all.map(|object| object["metadata"]["name"].as_str().unwrap_or_default().to_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn is_wanted(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_null()
}

/// What is not as it should be; empty when all is.
fn unsettled(truth: &Truth) -> String {
    for group in truth.list::<VolumeGroupSnapshot>().iter().filter(|group| is_wanted(group)) {
        let (name, uid) = (&group["metadata"]["name"], &group["metadata"]["uid"]);
        let members = truth.list::<VolumeSnapshot>();
        let own = members.iter().filter(|one| one["metadata"]["ownerReferences"][0]["uid"] == *uid);
        if group["status"]["readyToUse"] != true || own.count() != CLAIMS.len() {
            return format!("group {name}: {}", group["status"]);
        }
    }
    let state = truth.driver().state();
    for snapshot in truth.list::<VolumeSnapshot>().iter().filter(|one| is_wanted(one)) {
        let (name, status) = (&snapshot["metadata"]["name"], &snapshot["status"]);
        if status["readyToUse"] != true {
            return format!("snapshot {name}: {status}");
        }
        let content = status["boundVolumeSnapshotContentName"].as_str().unwrap_or_default();
        let content = truth.get::<VolumeSnapshotContent>(content).unwrap_or_default();
        let handle = content["status"]["snapshotHandle"].as_str().unwrap_or_default();
        if !state.snapshots.contains_key(handle) {
            return format!("snapshot {name} is ready, and the driver has none: {content}");
        }
    }
    String::new()
}

/// The snapshot or group snapshot that stands for a handle and is not to be deleted.
pub(crate) fn holder(truth: &Truth, handle: &str) -> Option<String> {
    let singles = truth.list::<VolumeSnapshotContent>();
    let single = singles.iter().find(|content| content["status"]["snapshotHandle"] == handle);
    let groups = truth.list::<VolumeGroupSnapshotContent>();
    let group =
        groups.iter().find(|content| content["status"]["volumeGroupSnapshotHandle"] == handle);
    let wanted = |owner: &Value, reference: &Value| {
        is_wanted(owner) && owner["metadata"]["uid"] == reference["uid"]
    };
    let single = single.map(|content| &content["spec"]["volumeSnapshotRef"]);
    let group = group.map(|content| &content["spec"]["volumeGroupSnapshotRef"]);
    let snapshots = truth.list::<VolumeSnapshot>();
    let group_snapshots = truth.list::<VolumeGroupSnapshot>();
    let held = single.and_then(|of| snapshots.iter().find(|owner| wanted(owner, of)));
    let held = held.or(group.and_then(|of| group_snapshots.iter().find(|owner| wanted(owner, of))));
    held.map(|owner| owner["metadata"]["name"].to_string())
}
