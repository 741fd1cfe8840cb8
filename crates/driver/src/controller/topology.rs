//! Whether a request may be served here. Pure.

use longshore_csi::v1::{Topology, TopologyRequirement};

use crate::config::{DriverConfig, DriverKind};
use crate::refusal::Refusal;

/// Where volumes and this node are: the node itself for `local`, with whatever else is known about
/// its node, and nowhere in particular for `shared`.
#[must_use]
pub(crate) fn here(config: &DriverConfig) -> Option<Topology> {
    match config.kind {
        DriverKind::Local => {
            let mut segments = config.topology.clone();
            segments.insert(config.topology_key(), config.node_id.clone());
            Some(Topology { segments })
        }
        DriverKind::Shared => None,
    }
}

/// Whether one topology includes this node. A key this driver does not use excludes it.
#[must_use]
pub(crate) fn includes_here(config: &DriverConfig, topology: &Topology) -> bool {
    let here = here(config).unwrap_or_default().segments;
    let ours = |name: &str| here.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
    topology.segments.iter().all(|(name, value)| ours(name).is_some_and(|(_, own)| own == value))
}

/// What a requirement is about.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Made {
    Volume,
    /// A new snapshot. Callers may ask for its topology only of drivers that advertise it, which this one does not yet.
    Snapshot,
}

/// Refuses a volume or a snapshot that would have to be on another node. Without a requirement this node will do.
pub(crate) fn check(
    config: &DriverConfig,
    requirement: Option<&TopologyRequirement>,
    made: Made,
) -> Result<(), Refusal> {
    let Some(requirement) = requirement else { return Ok(()) };
    if config.kind == DriverKind::Shared {
        let text = "accessibility_requirements are not supported by a shared driver";
        return Err(Refusal::Invalid(text.to_owned()));
    }
    let (requisite, preferred) = (&requirement.requisite, &requirement.preferred);
    if requisite.is_empty() && preferred.is_empty() {
        let text = "accessibility_requirements name neither requisite nor preferred topologies";
        return Err(Refusal::Invalid(text.to_owned()));
    }
    // Preferences alone forbid nothing: without a requisite any node will do.
    if requisite.is_empty() || requisite.iter().any(|topology| includes_here(config, topology)) {
        return Ok(());
    }
    let made = match made {
        Made::Volume => "volumes",
        Made::Snapshot => "snapshots",
    };
    Err(Refusal::Exhausted(format!(
        "no requisite topology includes node {}, and this driver makes {made} nowhere else; wanted: {}",
        config.node_id,
        requisite.iter().map(text).collect::<Vec<_>>().join(" or ")
    )))
}

fn text(topology: &Topology) -> String {
    let segments = topology.segments.iter().map(|(key, value)| format!("{key}={value}"));
    segments.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn requirements() {
        let key = "topology.local.csi.longshore.dev/node";
        let at = |key: &str, node: &str| Topology {
            segments: [(key.to_owned(), node.to_owned())].into(),
        };
        let (n1, n2) = (at(key, "n1"), at(key, "n2"));
        let local = DriverConfig::new(DriverKind::Local, "n1");
        let shared = DriverConfig::new(DriverKind::Shared, "n1");
        let need = |requisite: &[&Topology], preferred: &[&Topology]| TopologyRequirement {
            requisite: requisite.iter().copied().cloned().collect(),
            preferred: preferred.iter().copied().cloned().collect(),
        };
        let cases = [
            ("here", &local, need(&[&n1], &[]), None),
            ("here among others", &local, need(&[&n2, &n1], &[&n2]), None),
            ("elsewhere", &local, need(&[&n2], &[]), Some(Code::ResourceExhausted)),
            ("prefers elsewhere", &local, need(&[], &[&n2]), None),
            ("neither", &local, need(&[], &[]), Some(Code::InvalidArgument)),
            ("foreign key", &local, need(&[&at("zone", "n1")], &[]), Some(Code::ResourceExhausted)),
            ("shared has none", &shared, need(&[&n1], &[]), Some(Code::InvalidArgument)),
        ];
        for (name, config, requirement, want) in cases {
            let got =
                check(config, Some(&requirement), Made::Volume).err().map(|refusal| refusal.code());
            assert_eq!(got, want, "{name}");
        }
        let mut zoned = local.clone();
        zoned.topology.insert("example.com/zone".to_owned(), "z1".to_owned());
        let mut both = n1.clone();
        both.segments.extend(zoned.topology.clone());
        let mut wrong = n1.clone();
        wrong.segments.insert("example.com/zone".to_owned(), "z2".to_owned());
        let cases = [
            ("the whole place", &both, true),
            ("its node", &n1, true),
            ("its zone", &at("Example.com/Zone", "z1"), true),
            ("its node in another zone", &wrong, false),
            ("another node of its zone", &n2, false),
        ];
        for (name, topology, want) in cases {
            assert_eq!(includes_here(&zoned, topology), want, "{name}");
        }
        assert_eq!(here(&zoned), Some(both));
        check(&local, None, Made::Volume).unwrap();
        let refusal = check(&local, Some(&need(&[&n2], &[])), Made::Snapshot).unwrap_err();
        let text = tonic::Status::from(refusal).message().to_owned();
        assert!(text.contains("node n1") && text.contains("makes snapshots"), "{text}");
        assert!(text.contains("dev/node=n2"), "{text}");
        assert_eq!(here(&local), Some(n1));
        assert_eq!(here(&shared), None);
    }
}
