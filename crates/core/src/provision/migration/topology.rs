//! Zones and regions, between Kubernetes' own keys and those of drivers.

use std::collections::BTreeSet;

use super::TranslationError;
use crate::model::kinds::{NodeSelector, NodeSelectorTerm, Requirement, Volume};

pub(super) const ZONE: &str = "topology.kubernetes.io/zone";
pub(super) const REGION: &str = "topology.kubernetes.io/region";
pub(super) const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
pub(super) const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";

/// Between the zones in one label.
pub(super) const SEPARATOR: &str = "__";

/// Finds the region that all of these zones are in.
pub(super) type RegionOf = fn(&[String]) -> Result<String, TranslationError>;

pub(super) fn is_zone_key(key: &str) -> bool {
    key == ZONE || key == BETA_ZONE
}

fn terms(volume: &Volume) -> &[NodeSelectorTerm] {
    volume.spec.node_affinity.required.as_ref().map_or(&[], |all| &all.node_selector_terms)
}

fn expressions(volume: &mut Volume) -> impl Iterator<Item = &mut Requirement> {
    let required = volume.spec.node_affinity.required.iter_mut();
    required
        .flat_map(|all| &mut all.node_selector_terms)
        .flat_map(|term| &mut term.match_expressions)
}

/// The keys that this volume uses for zone and region: the current ones unless only the old ones
/// are there.
fn keys(volume: &Volume) -> (&'static str, &'static str) {
    let all = || terms(volume).iter().flat_map(|term| &term.match_expressions);
    let in_affinity = |key: &str| all().any(|one| one.key == key);
    let labels = &volume.metadata.labels;
    let old = match (in_affinity(ZONE), in_affinity(BETA_ZONE)) {
        (true, _) => false,
        (false, true) => true,
        (false, false) => !labels.contains_key(ZONE) && labels.contains_key(BETA_ZONE),
    };
    if old { (BETA_ZONE, BETA_REGION) } else { (ZONE, REGION) }
}

/// The values of a key in the affinity, sorted, each once.
fn values(volume: &Volume, key: &str) -> Vec<String> {
    let all = terms(volume).iter().flat_map(|term| &term.match_expressions);
    let found: BTreeSet<&String> =
        all.filter(|one| one.key == key).flat_map(|one| &one.values).collect();
    found.into_iter().cloned().collect()
}

fn rename(volume: &mut Volume, from: &str, to: &str) {
    for one in expressions(volume).filter(|one| one.key == from) {
        one.key = to.into();
    }
}

/// Adds a key to every term of the affinity, and makes one where there is none.
fn add<'a>(volume: &mut Volume, key: &str, values: impl Iterator<Item = &'a str>) {
    let values: BTreeSet<&str> = values.map(str::trim).filter(|one| !one.is_empty()).collect();
    if values.is_empty() {
        return;
    }
    let required = volume.spec.node_affinity.required.get_or_insert_with(NodeSelector::default);
    if required.node_selector_terms.is_empty() {
        required.node_selector_terms.push(NodeSelectorTerm::default());
    }
    for term in &mut required.node_selector_terms {
        term.match_expressions.push(Requirement {
            key: key.into(),
            operator: "In".into(),
            values: values.iter().map(|one| (*one).to_owned()).collect(),
        });
    }
}

/// Kubernetes' zones to the driver's. What the affinity says counts; labels only where it says
/// nothing.
pub(super) fn to_csi(volume: &mut Volume, driver_zone: &str) {
    let (zone, region) = keys(volume);
    if values(volume, zone).is_empty() {
        if let Some(label) = volume.metadata.labels.get(zone).cloned() {
            add(volume, driver_zone, label.split(SEPARATOR));
        }
    } else {
        rename(volume, zone, driver_zone);
    }
    // Newer nodes do not carry the old label any more.
    if region == BETA_REGION {
        rename(volume, BETA_REGION, REGION);
    }
}

/// The same with a driver that knows regions too.
pub(super) fn to_csi_with_region(volume: &mut Volume, driver_zone: &str, driver_region: &str) {
    let (zone, region) = keys(volume);
    for (ours, theirs) in [(zone, driver_zone), (region, driver_region)] {
        if !values(volume, ours).is_empty() {
            rename(volume, ours, theirs);
        } else if let Some(label) = volume.metadata.labels.get(ours).cloned() {
            add(volume, theirs, std::iter::once(label.as_str()));
        }
    }
}

/// The driver's zones to Kubernetes', in affinity and labels; with a way to find it, the region too.
pub(super) fn from_csi(
    volume: &mut Volume,
    driver_zone: &str,
    region_of: Option<RegionOf>,
) -> Result<(), TranslationError> {
    let (zone, _) = keys(volume);
    rename(volume, driver_zone, zone);
    if let Some(region_of) = region_of {
        add_regions(volume, region_of)?;
    }
    let zones = values(volume, zone);
    if !zones.is_empty() {
        label(volume, zone, zones.join(SEPARATOR));
    }
    Ok(())
}

/// The same for a driver that knows regions itself.
pub(super) fn from_csi_with_region(volume: &mut Volume, driver_zone: &str, driver_region: &str) {
    let (zone, region) = keys(volume);
    for (ours, theirs) in [(zone, driver_zone), (region, driver_region)] {
        rename(volume, theirs, ours);
        if let Some(first) = values(volume, ours).into_iter().next() {
            label(volume, ours, first);
        }
    }
}

fn label(volume: &mut Volume, key: &str, value: String) {
    volume.metadata.labels.entry(key.into()).or_insert(value);
}

fn add_regions(volume: &mut Volume, region_of: RegionOf) -> Result<(), TranslationError> {
    let (zone, region) = keys(volume);
    let Some(required) = &mut volume.spec.node_affinity.required else { return Ok(()) };
    for term in &mut required.node_selector_terms {
        let all = &term.match_expressions;
        if all.iter().any(|one| one.key == region) {
            continue;
        }
        let zones: Vec<String> =
            all.iter().filter(|one| one.key == zone).flat_map(|one| one.values.clone()).collect();
        let found = region_of(&zones)?;
        term.match_expressions.push(Requirement {
            key: region.into(),
            operator: "In".into(),
            values: vec![found],
        });
    }
    if let [only] = &values(volume, region)[..] {
        label(volume, region, only.clone());
    }
    Ok(())
}

/// Exactly one region, or an error.
fn one_region(zones: &[String], regions: BTreeSet<String>) -> Result<String, TranslationError> {
    let mut found = regions.into_iter();
    match (zones.is_empty(), found.next(), found.next()) {
        (true, ..) => Err(TranslationError::Zones("no zones specified".into())),
        (_, Some(only), None) => Ok(only),
        _ => Err(TranslationError::Zones(format!(
            "multiple or no regions gotten from zones, got: {zones:?}"
        ))),
    }
}

/// The region of Google zones: `us-central1-a` is in `us-central1`.
pub(super) fn gce_region(zones: &[String]) -> Result<String, TranslationError> {
    let region = |zone: &String| match zone.split('-').collect::<Vec<_>>()[..] {
        [locale, region, _] => Ok(format!("{locale}-{region}")),
        _ => Err(TranslationError::Zones(format!(
            "zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"
        ))),
    };
    let regions = zones.iter().map(region).collect::<Result<BTreeSet<_>, _>>()?;
    one_region(zones, regions)
}

/// The region of AWS zones: `us-west-2a`, `us-gov-east-1a`, `us-west-2-lax-1a` and
/// `us-east-1-wl1-bos-wlz-1` are the forms there are.
pub(super) fn aws_region(zones: &[String]) -> Result<String, TranslationError> {
    let region = |zone: &String| {
        let mut parts: Vec<&str> = zone.split('-').collect();
        let last = parts.last().copied().unwrap_or_default();
        match parts.len() {
            3 | 4 if last.len() == 2 && last.is_ascii() => {
                parts.pop();
                parts.push(&last[..1]);
                Ok(parts.join("-"))
            }
            5 | 7 => Ok(parts[..3].join("-")),
            _ => Err(TranslationError::Zones(format!(
                "Unexpected zone format: {zone} is not a valid AWS zone"
            ))),
        }
    };
    let regions = zones.iter().map(region).collect::<Result<BTreeSet<_>, _>>()?;
    one_region(zones, regions)
}
