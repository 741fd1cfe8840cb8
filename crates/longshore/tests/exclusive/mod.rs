//! Looks all the time which nodes have the shared volume, and notes when there are two.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// How often to look. A volume takes far longer from one node to the next.
const PERIOD: Duration = Duration::from_millis(1);

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Seen {
    pub looks: usize,
    pub nodes: BTreeSet<String>,
    pub at_once: Vec<BTreeSet<String>>,
}

pub struct Watcher {
    stop: Arc<AtomicBool>,
    task: Option<JoinHandle<Seen>>,
}

impl Watcher {
    /// Watches the nodes of the instance in `data_dir`.
    pub fn start(data_dir: &Path) -> Self {
        let (stop, nodes) = (Arc::new(AtomicBool::new(false)), data_dir.join("nodes"));
        let flag = stop.clone();
        let task = std::thread::spawn(move || {
            let mut seen = Seen::default();
            while !flag.load(Ordering::Relaxed) {
                look(&nodes, &mut seen);
                std::thread::sleep(PERIOD);
            }
            seen
        });
        Self { stop, task: Some(task) }
    }

    /// No two nodes had it at once, and all of these had it at some time.
    pub fn finish(mut self, expected: &[&str]) {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.task.take().unwrap().join().unwrap();
        assert!(seen.at_once.is_empty(), "two nodes had the volume at once: {seen:?}");
        let expected: BTreeSet<String> = expected.iter().map(|&one| one.to_owned()).collect();
        assert_eq!(seen.nodes, expected, "in {} looks", seen.looks);
        println!("{} looks, never two nodes at once", seen.looks);
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn look(nodes: &Path, seen: &mut Seen) {
    seen.looks += 1;
    let holders = writers(nodes);
    seen.nodes.extend(holders.iter().cloned());
    if holders.len() < 2 {
        return;
    }
    // The kernel hands the table out in pieces: one node's line may be older than the other's. Two
    // that are there in a second look too were there at once.
    let both: BTreeSet<String> = writers(nodes).intersection(&holders).cloned().collect();
    if both.len() > 1 {
        seen.at_once.push(both);
    }
}

/// The nodes below whose root a volume of the shared driver is mounted for writing.
fn writers(nodes: &Path) -> BTreeSet<String> {
    let table = longshore_files::mounts::MountTable::read().unwrap();
    let mut found = BTreeSet::new();
    for mount in table.below(nodes) {
        let below = mount.path.strip_prefix(nodes).unwrap();
        let staged = below.to_string_lossy().contains("shared.csi.longshore.dev");
        if staged && !mount.read_only && !mount.filesystem_read_only {
            let node = below.components().next().unwrap();
            found.insert(node.as_os_str().to_string_lossy().into_owned());
        }
    }
    found
}
