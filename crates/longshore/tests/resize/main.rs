//! Claims that ask for more, or for another VolumeAttributesClass, under running pods, with the real
//! kubectl. "Done" is never believed: the size is measured, the settings are read from the kernel.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod classes;
#[path = "../common/mod.rs"]
mod common;
mod grow;
mod killed;
mod per_node;
mod refused;
mod volume;
mod witness;

use common::*;

/// A VolumeAttributesClass with these parameters.
fn attributes(name: &str, driver: &str, parameters: &str) -> String {
    format!(
        "apiVersion: storage.k8s.io/v1\nkind: VolumeAttributesClass\nmetadata: {{name: {name}}}\n\
         driverName: {driver}\nparameters: {{{parameters}}}\n"
    )
}

impl Instance {
    /// `kubectl patch pvc`, which must succeed.
    fn patch(&self, claim: &str, patch: &str) {
        let done = self.kubectl(&["patch", "pvc", claim, "-p", patch]);
        assert!(done.status.success(), "{claim} {patch}: {}", text(&done));
    }

    fn grow(&self, claim: &str, size: &str) {
        let patch =
            format!("{{\"spec\":{{\"resources\":{{\"requests\":{{\"storage\":\"{size}\"}}}}}}}}");
        self.patch(claim, &patch);
    }

    fn want(&self, claim: &str, class: &str) {
        self.patch(claim, &format!("{{\"spec\":{{\"volumeAttributesClassName\":\"{class}\"}}}}"));
    }

    /// A command in a pod, and what it printed.
    fn run_in(&self, pod: &str, script: &str) -> String {
        let done = self.kubectl(&["exec", pod, "--", "/bin/sh", "-c", script]);
        assert!(done.status.success(), "{pod}: {script}: {}", text(&done));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    fn runs(&self, pod: &str) {
        self.wait("pod", pod, "ran", |pod| {
            let ready = &pod["status"]["containerStatuses"][0]["ready"];
            pod["status"]["phase"] == "Running" && *ready == true
        });
    }
}
