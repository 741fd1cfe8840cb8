//! Measures a volume at the moment at which its claim first says that it has grown.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};

use super::{common::*, volume::Volume};

/// A watch on all claims, gone with the value.
pub struct Witness {
    watch: Child,
    /// By claim, the bytes that its user could see then.
    seen: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Witness {
    /// `volumes` are those to look at: mounted or mapped until they have grown, which they have not yet.
    pub fn start(up: &Instance, volumes: &[Volume], more_mib: u64) -> Self {
        let line = r#"-o=jsonpath={.metadata.name} {.status.capacity.storage}{"\n"}"#;
        let mut watch = Command::new(&up.kubectl)
            .arg("--kubeconfig")
            .arg(&up.kubeconfig)
            .args(["get", "pvc", "--watch", line])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map_while(Result::ok);
        // It watches when it has shown what there is.
        let mut unseen: BTreeSet<&str> = volumes.iter().map(|one| one.name.as_str()).collect();
        while !unseen.is_empty() {
            let line = lines.next().expect("a claim");
            unseen.remove(line.split(' ').next().unwrap_or_default());
        }
        let size = |volume: &Volume| format!("{} {}Mi", volume.name, volume.size_mib + more_mib);
        let mut wanted: BTreeMap<String, Volume> =
            volumes.iter().map(|volume| (size(volume), volume.clone())).collect();
        let seen: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
        let told = seen.clone();
        std::thread::spawn(move || {
            for line in lines {
                if let Some(volume) = wanted.remove(&line) {
                    told.lock().unwrap().insert(volume.name.clone(), volume.seen());
                }
            }
        });
        Self { watch, seen }
    }

    /// The bytes of a volume when its claim first said that it has grown.
    pub fn saw(&self, volume: &Volume) -> u64 {
        let seen = || self.seen.lock().unwrap().get(&volume.name).copied();
        eventually(&format!("{} says that it has grown", volume.name), || seen().is_some());
        seen().unwrap()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = self.watch.kill();
        let _ = self.watch.wait();
    }
}
