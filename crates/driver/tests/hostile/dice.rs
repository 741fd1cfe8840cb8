//! A small generator of hostile content: the same seed, the same requests.

use std::collections::BTreeMap;

use longshore_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use longshore_csi::v1::{CapacityRange, Topology, TopologyRequirement, VolumeCapability};

use crate::common::World;

pub struct Dice<'a> {
    state: u64,
    world: &'a World,
}

impl<'a> Dice<'a> {
    pub fn new(seed: u64, world: &'a World) -> Self {
        Self { state: seed | 1, world }
    }

    pub fn roll(&mut self, sides: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state % sides as u64).expect("small")
    }

    /// One of these, or hostile text.
    pub fn text_or(&mut self, known: &[&str]) -> String {
        match self.roll(known.len() + 1) {
            0 => self.text(),
            n => known[n - 1].to_owned(),
        }
    }

    pub fn text(&mut self) -> String {
        let world = self.world;
        let inside = |name: &str| world.at(name);
        match self.roll(16) {
            0 => String::new(),
            1 => "..".into(),
            2 => "../../etc/passwd".into(),
            3 => "vol-../../../../etc/shadow0000000000".into(),
            4 => "vol-00000000000000000000000000000000".into(),
            5 => "snap-00000000000000000000000000000000".into(),
            6 => "a\u{0}b".into(),
            7 => "x".repeat(self.roll(9000)),
            8 => "/".into(),
            9 => inside("link/deep"),
            10 => inside("link"),
            11 => inside("pool"),
            12 => inside("pool/inner"),
            13 => format!("{}/../outside", inside("staging")),
            14 => "\u{202e}\u{1}\u{7f}🚢".into(),
            _ => "relative/path".into(),
        }
    }

    pub fn number(&mut self) -> i64 {
        [0, 1, -1, i64::MIN, i64::MAX, 4096, 1 << 62][self.roll(7)]
    }

    /// Never a key that means something.
    pub fn map(&mut self) -> BTreeMap<String, String> {
        (0..self.roll(3)).map(|_| (format!("?{}", self.text()), self.text())).collect()
    }

    pub fn range(&mut self) -> Option<CapacityRange> {
        (self.roll(3) > 0)
            .then(|| CapacityRange { required_bytes: self.number(), limit_bytes: self.number() })
    }

    pub fn topology(&mut self) -> Option<TopologyRequirement> {
        let mut some = || (0..self.roll(3)).map(|_| Topology { segments: self.map() }).collect();
        let (requisite, preferred) = (some(), some());
        (self.roll(3) == 0).then_some(TopologyRequirement { requisite, preferred })
    }

    /// Never one that could be granted.
    pub fn capability(&mut self) -> Option<VolumeCapability> {
        let mount = |fs_type: String, mount_flags: Vec<String>, volume_mount_group: String| {
            Some(AccessType::Mount(MountVolume { fs_type, mount_flags, volume_mount_group }))
        };
        let access_type = match self.roll(4) {
            0 => None,
            1 => mount(format!("?{}", self.text()), vec![], String::new()),
            2 => mount(String::new(), vec![format!("bind={}", self.text())], String::new()),
            _ => mount(String::new(), vec![], "5".into()),
        };
        let mode = Some(AccessMode { mode: [0, 1, 5, 99, -1][self.roll(5)] });
        (self.roll(5) > 0).then_some(VolumeCapability { access_mode: mode, access_type })
    }

    /// What may or may not be a message.
    pub fn bytes(&mut self, of: &[u8]) -> Vec<u8> {
        let mut bytes = match self.roll(2) {
            0 => of.to_vec(),
            _ => (0..self.roll(200)).map(|_| self.roll(256) as u8).collect(),
        };
        bytes.truncate(self.roll(bytes.len() + 1));
        for _ in 0..self.roll(4) {
            if !bytes.is_empty() {
                let at = self.roll(bytes.len());
                bytes[at] = self.roll(256) as u8;
            }
        }
        bytes
    }
}
