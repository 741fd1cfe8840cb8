//! Claims that grow and change their class, by users who change their mind.
//!
//! A user asks for one size after the other and for one VolumeAttributesClass after the other, some of
//! which the driver refuses, and does not wait in between. At the end everything has what was asked for last,
//! and says nothing else. Meanwhile a claim never says more than its volume has and its node shows, and the
//! driver never gets a new class while the last one has no verdict.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use longshore_cluster::{Api, ApiError, ObjectKey, Patch};
use longshore_core::model::kinds::{Claim, Volume, VolumeAttributesClass};
use longshore_core::model::{Quantity, kinds::Pod};
use longshore_core::resize::conditions;
use longshore_csi::fake::{Config, Driver};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::DRIVER;
use crate::truth::Truth;
use crate::user::{CLAIM, User, UserError};

const GIB: i64 = 1 << 30;
/// The largest volume that the driver makes.
const MOST_GIB: i64 = 6;
/// What the driver does not know.
const ODD: &str = "odd";
/// The last one has a parameter that the driver refuses.
const CLASSES: [&str; 3] = ["a", "b", "c"];
const POD: &str = "first";

/// Sizes and parameters that the driver refuses; in every other run the node has a part in growing.
pub(crate) fn configure(driver: &mut Config, seed: u64) {
    driver.max_volume_size = Some(MOST_GIB * GIB);
    driver.refused_parameters = vec![ODD.to_owned()];
    driver.node_expansion_required = seed.is_multiple_of(2);
}

/// The classes.
pub(crate) async fn define(api: &Api) -> Result<(), ApiError> {
    for name in CLASSES {
        let mut class =
            json!({"metadata": {"name": name}, "driverName": DRIVER, "parameters": {"tier": name}});
        if name == CLASSES[2] {
            class["parameters"][ODD] = "1".into();
        }
        api.create::<VolumeAttributesClass>(&class).await?;
    }
    Ok(())
}

/// The user's life after the claim is bound.
pub(crate) async fn live(user: &User, seed: u64) -> Result<(), UserError> {
    user.bound_for_certain(CLAIM).await?;
    user.make_pod(POD, None).await?;
    user.running_for_certain(POD).await?;
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
    for _ in 0..rng.usize(2..=6) {
        let size = rng.bool().then(|| rng.i64(1..=MOST_GIB + 3));
        let class = (size.is_none() || rng.bool()).then(|| CLASSES[rng.usize(..CLASSES.len())]);
        ask(user, size, class).await?;
        sleep(Duration::from_millis(rng.u64(..9_000))).await;
    }
    // Something that can be had, and perhaps the class that the volume has.
    let has = user.truth.get::<Claim>(CLAIM).unwrap_or_default();
    let current = has["status"]["currentVolumeAttributesClassName"].as_str().unwrap_or_default();
    let back = CLASSES[..2].iter().find(|class| **class == current && rng.bool());
    let class = back.copied().unwrap_or(CLASSES[rng.usize(..2)]);
    // A claim that has the most and asks for more cannot go back to what it has: somebody makes room.
    user.truth.driver().configure(|driver| driver.max_volume_size = None);
    let mut size = rng.i64(1..=MOST_GIB);
    // The API refuses what is not more than the claim has.
    while !ask(user, Some(size), Some(class)).await? && size < MOST_GIB + 4 {
        size += 1;
    }
    user.settled("what was asked for last", || unsettled(&user.truth)).await?;
    user.delete::<Pod>(POD).await
}

/// Patches the claim; false when the API refuses a smaller size.
async fn ask(user: &User, size: Option<i64>, class: Option<&str>) -> Result<bool, UserError> {
    let mut patch = json!({"spec": {}});
    if let Some(size) = size {
        patch["spec"]["resources"] = json!({"requests": {"storage": format!("{size}Gi")}});
    }
    if let Some(class) = class {
        patch["spec"]["volumeAttributesClassName"] = class.into();
    }
    user.ledger.note(format!("the user asks for {size:?} GiB, class {class:?}"));
    let key = ObjectKey::new("default", CLAIM);
    match user.api.patch::<Claim>(&key, Patch::Merge(&patch)).await {
        Ok(_) => Ok(true),
        Err(error) if error.to_string().contains("less than") => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn bytes(value: &Value) -> i64 {
    value.as_str().and_then(|text| text.parse::<Quantity>().ok()).map_or(0, |size| size.bytes())
}

/// What is not as it should be in the end; empty when all is.
fn unsettled(truth: &Truth) -> String {
    let claim = truth.get::<Claim>(CLAIM).unwrap_or_default();
    let (spec, status) = (&claim["spec"], &claim["status"]);
    let volumes = truth.driver().volumes();
    let has = volumes
        .values()
        .find(|volume| Some(volume.id.as_str()) == handle(truth, &claim).as_deref());
    let Some(has) = has else { return "the volume is gone".to_owned() };
    let wanted = spec["volumeAttributesClassName"].as_str().unwrap_or_default();
    let size = bytes(&status["capacity"]["storage"]);
    let about = |one: &Value| {
        let kind = one["type"].as_str().unwrap_or_default();
        conditions::OF_RESIZE.contains(&kind)
            || [conditions::MODIFYING_VOLUME, conditions::MODIFY_VOLUME_ERROR].contains(&kind)
    };
    let left = status["conditions"].as_array().is_some_and(|all| all.iter().any(about));
    for (what, fine) in [
        (
            "the claim is smaller than it asks for",
            size >= bytes(&spec["resources"]["requests"]["storage"]),
        ),
        ("claim and driver disagree about the size", size == has.capacity),
        ("a stage of an expansion is left", status["allocatedResourceStatuses"].is_null()),
        ("a stage of a modification is left", status["modifyVolumeStatus"].is_null()),
        ("a condition is left", !left),
        ("the claim has another class", status["currentVolumeAttributesClassName"] == wanted),
        (
            "the volume has another class",
            has.mutable_parameters.get("tier").map(String::as_str) == Some(wanted),
        ),
    ] {
        if !fine {
            return format!("{what}: {spec} {status}");
        }
    }
    String::new()
}

fn handle(truth: &Truth, claim: &Value) -> Option<String> {
    let volume = truth.get::<Volume>(claim["spec"]["volumeName"].as_str()?)?;
    volume["spec"]["csi"]["volumeHandle"].as_str().map(str::to_owned)
}

/// What the checks remember of volumes that change.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    /// By volume, the bytes that its node shows.
    shown: Arc<Mutex<BTreeMap<String, i64>>>,
    /// By volume, the class that the driver was asked for without a verdict so far.
    open: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Memory {
    /// A node has staged or expanded a volume: what it shows is what the driver has now.
    pub(crate) fn shows(&self, driver: &Driver, handle: &str) {
        if let Some(volume) = driver.volumes().get(handle) {
            self.shown.lock().insert(handle.to_owned(), volume.capacity);
        }
    }

    /// Why a claim says too much, if it does.
    pub(crate) fn says_too_much(&self, truth: &Truth) -> Option<String> {
        let claim = truth.get::<Claim>(CLAIM)?;
        let handle = handle(truth, &claim)?;
        let driver = truth.driver().volumes().get(&handle).map(|volume| volume.capacity)?;
        let says = bytes(&claim["status"]["capacity"]["storage"]);
        let mut on_node = true;
        truth.driver().configure(|config| on_node = config.node_expansion_required);
        let shown = self.shown.lock().get(&handle).copied().filter(|_| on_node);
        let has = shown.unwrap_or(driver).min(driver);
        (says > has).then(|| {
            format!("success is said too early: the claim says {says}, there are {has} bytes")
        })
    }

    /// The driver is asked for a class. Why that is wrong, if it is.
    pub(crate) fn asked(&self, handle: &str, class: &str) -> Option<String> {
        let mut open = self.open.lock();
        let before = open.insert(handle.to_owned(), class.to_owned());
        let before = before.filter(|before| before != class)?;
        Some(format!("two classes at once: {class} is asked for, and {before} has no verdict"))
    }

    /// Whoever asked has heard a verdict.
    pub(crate) fn answered(&self, handle: &str) {
        self.open.lock().remove(handle);
    }
}
