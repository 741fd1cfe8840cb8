//! Sizes that cannot be had.

use super::{common::*, volume::Volume, volume::conditions};

#[test]
fn less_is_refused_and_too_much_is_recovered_from() {
    if !can_kubectl("refused") {
        return;
    }
    let home = Home::new("refused");
    let up = Instance::up(&home, "data");
    for kind in ["local", "shared"] {
        let mut volume = Volume::new(kind, "", 16);
        volume.make(&up);
        volume.start(&up);
        volume.find(&up);
        let before = volume.seen();
        let patch = r#"{"spec":{"resources":{"requests":{"storage":"8Mi"}}}}"#;
        let done = up.kubectl(&["patch", "pvc", &volume.name, "-p", patch]);
        assert!(!done.status.success());
        assert!(text(&done).contains("field can not be less than"), "{}", text(&done));

        // Far more than any pool: the claim says what would fit.
        up.grow(&volume.name, "900Ti");
        let (stage, condition) = match kind {
            "local" => ("NodeResizeInfeasible", "NodeResizeError"),
            _ => ("ControllerResizeInfeasible", "ControllerResizeError"),
        };
        up.wait("pvc", &volume.name, "is told what fits", |claim| {
            let all = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let told = all.iter().find(|one| one["type"] == condition);
            told.is_some_and(|told| {
                told["message"].as_str().unwrap().contains("or less, or make room")
            })
        });
        let mut stages = std::collections::BTreeSet::new();
        eventually("the size is called infeasible", || {
            let claim = up.json("pvc", &volume.name);
            claim["status"]["allocatedResourceStatuses"]["storage"] == stage
        });
        for _ in 0..20 {
            stages.insert(up.json("pvc", &volume.name)["metadata"]["resourceVersion"].to_string());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert!(
            stages.len() < 12,
            "it is asked for over and over: {} writes in a second",
            stages.len()
        );
        assert_eq!(volume.seen(), before);
        up.grow(&volume.name, "48Mi");
        volume.grows(&up, before, 32);
        assert_eq!(conditions(&up.json("pvc", &volume.name)), Vec::<String>::new());
        volume.is_whole(&up);
    }
    assert_eq!(up.stop(), Some(0));
}
