//! Which devices a container may open: the list of container runtimes and its own raw block volumes.
//!
//! A device node on a volume of strangers is judged by its numbers, so it stays shut wherever it lies.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::bpf;
use super::hierarchy::Hierarchy;
use crate::shim::protocol::Bind;

pub(super) const MAKE: u32 = 1;
pub(super) const READ: u32 = 2;
pub(super) const WRITE: u32 = 4;
pub(super) const ALL: u32 = MAKE | READ | WRITE;

/// Kind of a device, as the kernel shows it to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Block = 1,
    Char = 2,
}

/// Allows some access to devices. A number that is absent stands for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    pub kind: Kind,
    pub major: Option<u32>,
    pub minor: Option<u32>,
    pub access: u32,
}

const fn any(kind: Kind) -> Rule {
    Rule { kind, major: None, minor: None, access: MAKE }
}

const fn char_device(major: u32, minor: Option<u32>) -> Rule {
    Rule { kind: Kind::Char, major: Some(major), minor, access: ALL }
}

/// What runc allows every container: to make any device, which takes a capability, and to open those
/// that every container has. `/dev/net/tun` is not among them, because pods are in the host's network.
const USUAL: [Rule; 10] = [
    any(Kind::Char),
    any(Kind::Block),
    char_device(1, Some(3)),
    char_device(1, Some(5)),
    char_device(1, Some(7)),
    char_device(1, Some(8)),
    char_device(1, Some(9)),
    char_device(5, Some(0)),
    char_device(5, Some(2)),
    // Terminals of the container's own.
    char_device(136, None),
];

/// The devices of one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Devices {
    /// Those of a privileged container.
    All,
    Listed(Vec<Rule>),
}

impl Devices {
    /// The usual devices and those among the container's volumes.
    pub(crate) fn with_volumes(binds: &[Bind]) -> io::Result<Self> {
        let mut rules = USUAL.to_vec();
        for bind in binds.iter().filter(|bind| bind.device) {
            rules.extend(rule_of(bind)?);
        }
        Ok(Self::Listed(rules))
    }

    /// Makes a cgroup without processes judge devices.
    pub(super) fn apply(&self, hierarchy: &Hierarchy, dir: &Path) -> io::Result<()> {
        match self {
            Self::All if hierarchy.is_unified() => Ok(()),
            Self::All => fs::write(dir.join("devices.allow"), "a"),
            Self::Listed(rules) if hierarchy.is_unified() => bpf::attach(&bpf::program(rules), dir),
            Self::Listed(rules) => {
                fs::write(dir.join("devices.deny"), "a")?;
                rules.iter().try_for_each(|rule| fs::write(dir.join("devices.allow"), line(rule)))
            }
        }
    }
}

/// As kubelet has it: a volume that is read-only cannot be written through its device either.
fn rule_of(bind: &Bind) -> io::Result<Option<Rule>> {
    let found = fs::metadata(&bind.source)?;
    if !found.file_type().is_block_device() {
        return Ok(None);
    }
    let number = found.rdev();
    let access = if bind.read_only { READ } else { READ | WRITE };
    Ok(Some(Rule {
        kind: Kind::Block,
        major: Some(rustix::fs::major(number)),
        minor: Some(rustix::fs::minor(number)),
        access,
    }))
}

/// A rule as the old hierarchy reads it.
fn line(rule: &Rule) -> String {
    let kind = match rule.kind {
        Kind::Block => 'b',
        Kind::Char => 'c',
    };
    let number =
        |number: Option<u32>| number.map_or_else(|| "*".to_owned(), |number| number.to_string());
    let letters = [(READ, 'r'), (WRITE, 'w'), (MAKE, 'm')];
    let access: String = letters
        .iter()
        .filter(|(bit, _)| rule.access & bit != 0)
        .map(|(_, letter)| letter)
        .collect();
    format!("{kind} {}:{} {access}", number(rule.major), number(rule.minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_devices_are_those_of_container_runtimes() {
        let Devices::Listed(rules) = Devices::with_volumes(&[]).unwrap() else { panic!("a list") };
        let lines: Vec<String> = rules.iter().map(line).collect();
        let expected = [
            "c *:* m",
            "b *:* m",
            "c 1:3 rwm",
            "c 1:5 rwm",
            "c 1:7 rwm",
            "c 1:8 rwm",
            "c 1:9 rwm",
            "c 5:0 rwm",
            "c 5:2 rwm",
            "c 136:* rwm",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_volume_that_is_no_device_adds_none() {
        let bind = Bind { source: "/".into(), device: true, ..Bind::default() };
        assert_eq!(rule_of(&bind).unwrap(), None);
        let gone = Bind { source: "/no/such/device".into(), device: true, ..Bind::default() };
        assert!(Devices::with_volumes(&[gone]).is_err());
    }
}
