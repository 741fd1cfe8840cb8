//! Randomness with a taste for trouble.

use serde_json::{Value, json};

/// Pieces that mean something somewhere.
const WORDS: &[&str] = &[
    "",
    "a",
    "x",
    "metadata",
    "name",
    "namespace",
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "managedFields",
    "resourceVersion",
    "uid",
    "generateName",
    "spec",
    "status",
    "data",
    "stringData",
    "binaryData",
    "kind",
    "apiVersion",
    "v1",
    "default",
    "items",
    "containers",
    "volumes",
    "env",
    "conditions",
    "type",
    "key",
    "value",
    "$patch",
    "$retainKeys",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers",
    "delete",
    "replace",
    "merge",
    "accessModes",
    "ReadWriteOnce",
    "resources",
    "requests",
    "storage",
    "1Gi",
    "-1",
    "0",
    "1e999",
    "1.5Ki",
    "storageClassName",
    "volumeName",
    "csi",
    "driver",
    "volumeHandle",
    "replicas",
    "nodeName",
    "phase",
    "true",
    "false",
    "null",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "creationTimestamp",
    "2026-01-01T00:00:00Z",
    "2026-13-45T99:99:99Z",
    "f:metadata",
    "k:{\"a\":1}",
    ".",
    "..",
    "/",
    "~0",
    "~1",
    "-",
    "*",
    "%2F",
    "%00",
    "\u{0}",
    "\u{feff}",
    "é",
    "💥",
    "\u{202e}",
    "drivers",
    "taints",
    "rules",
    "roleRef",
    "subjects",
    "example.com/x",
    "kubernetes.io/pvc-protection",
];

const SELECTOR: &[&str] = &[
    "a",
    "b",
    "app",
    "x/y",
    "=",
    "==",
    "!=",
    "!",
    ",",
    "in",
    "notin",
    "(",
    ")",
    ">",
    "<",
    " ",
    "1",
    "-",
    "\\",
    "metadata.name",
    "metadata.namespace",
    "status.phase",
    "spec.nodeName",
    "type",
    "involvedObject.name",
    "é",
    "%",
    "\u{0}",
    "(((((((",
    "''",
    "\"",
    ".",
    "/",
    "99999999999999999999",
];

/// Numbers at the edges.
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "7",
    "255",
    "65536",
    "2147483647",
    "-2147483648",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "1e400",
    "0.1",
    "-0",
    "00",
    "0x10",
    "NaN",
    "",
    " 1",
    "1 ",
    "+1",
    "1_000",
];

/// A source of inputs; the seed decides all of them.
pub struct Soup(fastrand::Rng);

impl Soup {
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0.usize(0..end.max(1))
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Mostly one: what is wrong in many places is refused for the first of them.
    pub fn few(&mut self) -> usize {
        *self.pick(&[0, 1, 1, 1, 1, 1, 2, 4])
    }

    pub fn byte(&mut self) -> u8 {
        self.0.u8(..)
    }

    pub fn word(&mut self) -> String {
        match self.below(20) {
            0 => (0..self.below(6)).map(|_| *self.pick(WORDS)).collect(),
            1 => "x".repeat(self.below(400)),
            2 => (0..self.below(8)).map(|_| self.0.char(..)).collect(),
            3 => self.number().to_owned(),
            _ => (*self.pick(WORDS)).to_owned(),
        }
    }

    pub fn number(&mut self) -> &'static str {
        self.pick::<&'static str>(NUMBERS)
    }

    /// A selector, or something like it.
    pub fn selector(&mut self) -> String {
        if self.chance(30) {
            let terms = ["app=demo", "a in (b,c)", "!a", "a", "a!=b", "a>1", "metadata.name=x"];
            let count = 1 + self.below(3);
            return (0..count).map(|_| *self.pick(&terms)).collect::<Vec<_>>().join(",");
        }
        let count = self.below(12);
        (0..count).map(|_| *self.pick(SELECTOR)).collect()
    }

    /// Any JSON value, not too large.
    pub fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 6 } else { 10 }) {
            0 => Value::Null,
            1 => json!(self.chance(50)),
            2 => serde_json::from_str(self.number()).unwrap_or(json!(1)),
            3..=5 => json!(self.word()),
            6 | 7 => {
                let count = self.below(4);
                Value::Array((0..count).map(|_| self.value(depth - 1)).collect())
            }
            _ => {
                let count = self.below(5);
                let pairs = (0..count).map(|_| (self.word(), self.value(depth - 1)));
                Value::Object(pairs.collect())
            }
        }
    }

    /// The value with some of it changed, added or taken away.
    pub fn bend(&mut self, value: &mut Value) {
        match value {
            Value::Object(map) if !map.is_empty() && self.chance(85) => {
                let keys: Vec<String> = map.keys().cloned().collect();
                let key = self.pick(&keys).clone();
                match self.below(8) {
                    0 => drop(map.remove(&key)),
                    1 => drop(map.insert(self.word(), self.value(2))),
                    _ => self.bend(map.get_mut(&key).unwrap()),
                }
            }
            Value::Array(list) if !list.is_empty() && self.chance(85) => {
                let at = self.below(list.len());
                match self.below(6) {
                    0 => drop(list.remove(at)),
                    1 => list.push(list[at].clone()),
                    2 => list.insert(at, self.value(2)),
                    _ => self.bend(&mut list[at]),
                }
            }
            other => *other = self.value(3),
        }
    }

    /// Where in an object something could be.
    pub fn pointer(&mut self) -> String {
        let known = [
            "/metadata",
            "/metadata/labels",
            "/metadata/annotations/a",
            "/metadata/finalizers/-",
            "/metadata/finalizers/0",
            "/spec",
            "/data",
            "/data/a",
            "/spec/containers/0/env/-",
            "",
            "/metadata/managedFields",
            "/metadata/resourceVersion",
            "/status",
            "/kind",
            "/spec/a",
            "/metadata/ownerReferences/-",
            "/metadata/name",
            "/spec/capacity/storage",
            "/rules/0",
        ];
        if self.chance(70) {
            return (*self.pick(&known)).to_owned();
        }
        (0..self.below(5)).map(|_| format!("/{}", self.word())).collect()
    }

    /// Bytes with some of them changed.
    pub fn scramble(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len() + 1);
            match self.below(6) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = self.byte(),
                2 => bytes.truncate(at),
                3 => {
                    let end = (at + self.below(20)).min(bytes.len());
                    bytes.drain(at..end);
                }
                4 => {
                    let word = self.word();
                    bytes.splice(at..at, word.into_bytes());
                }
                _ => {
                    let end = (at + self.below(40)).min(bytes.len());
                    let piece = bytes[at..end].to_vec();
                    bytes.splice(at..at, piece);
                }
            }
        }
    }
}
