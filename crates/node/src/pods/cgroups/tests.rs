use std::process::{Command, Output};

use longshore_testing::{Need, need, report};

use super::*;
use crate::shim::protocol::Bind;

fn cgroups(mount: &Path) -> (Cgroups, Hierarchy) {
    let hierarchy = Hierarchy { mount: mount.to_owned(), controllers: String::new() };
    let instance = format!("test-{}", std::process::id());
    (Cgroups { instance, ..Cgroups::default() }, hierarchy)
}

#[test]
fn the_unified_hierarchy_counts_processes_on_every_level_above_the_pod() {
    let mount = tempfile::tempdir().unwrap();
    let (mut cgroups, hierarchy) = cgroups(mount.path());
    cgroups.instance = "instance".into();
    cgroups.pids = Some((hierarchy, 7));
    let made = cgroups.make("uid", "main", &Devices::All).unwrap();
    let dir = mount.path().join("longshore/instance/uid");
    assert_eq!(
        made,
        [Cgroup { dir: dir.clone(), controllers: String::new(), judges_devices: false }]
    );
    for above in ["", "longshore", "longshore/instance"] {
        let file = mount.path().join(above).join("cgroup.subtree_control");
        assert_eq!(fs::read_to_string(file).unwrap(), "+pids", "{above:?}");
    }
    assert_eq!(fs::read_to_string(dir.join("pids.max")).unwrap(), "7");
    cgroups.make("uid", "main", &Devices::All).unwrap();
}

#[test]
fn a_hierarchy_that_counts_and_judges_is_joined_once_in_the_containers_cgroup() {
    let mount = tempfile::tempdir().unwrap();
    let (mut cgroups, hierarchy) = cgroups(mount.path());
    cgroups.pids = Some((hierarchy.clone(), 7));
    cgroups.devices = Some(hierarchy);
    assert_eq!(cgroups.bases().count(), 1);
    let made = cgroups.make("uid", "tasks", &Devices::All).unwrap();
    assert_eq!(made.len(), 1);
    assert!(made[0].judges_devices && made[0].dir.ends_with("uid/container-tasks"), "{made:?}");
}

/// Runs a script in a cgroup.
fn run_in(cgroup: &Path, script: &str) -> Output {
    let script = format!("echo $$ > {}/cgroup.procs && {script}", cgroup.display());
    Command::new("sh").args(["-c", &script]).output().unwrap()
}

/// The hierarchies of this machine: of the old kind, and the unified one.
fn of_this_machine() -> Vec<Hierarchy> {
    let table = MountTable::read().unwrap();
    let mut unified = table.clone();
    unified.mounts.retain(|mount| mount.fstype == "cgroup2");
    let both = [&table, &unified].into_iter();
    let mut found: Vec<Hierarchy> = both.filter_map(Hierarchy::that_judges_devices).collect();
    found.dedup();
    found
}

#[test]
fn a_container_opens_the_usual_devices_and_its_own_and_no_others_also_when_it_starts_again() {
    let name =
        "a_container_opens_the_usual_devices_and_its_own_and_no_others_also_when_it_starts_again";
    if !need(name, &[Need::Root]) {
        return;
    }
    let nodes = tempfile::tempdir_in("/var/tmp").unwrap();
    for (name, kind, numbers) in
        [("own", "b", ["7", "0"]), ("other", "b", ["7", "1"]), ("memory", "c", ["1", "1"])]
    {
        let made =
            Command::new("mknod").arg(nodes.path().join(name)).arg(kind).args(numbers).status();
        assert!(made.unwrap().success());
    }
    let own = |read_only| {
        let source = nodes.path().join("own");
        Devices::with_volumes(&[Bind { source, device: true, read_only, ..Bind::default() }])
            .unwrap()
    };
    let script = format!(
        "cd {} && head -c 1 /dev/zero > /dev/null && echo usual; mknod made c 1 1 && echo made; rm -f made; \
         for f in own other memory; do (: < $f) && echo read $f; (: >> $f) && echo write $f; done; true",
        nodes.path().display()
    );
    for hierarchy in of_this_machine() {
        report(&format!("devices are judged by {}", hierarchy.mount.display()));
        let (mut cgroups, _) = cgroups(&hierarchy.mount);
        cgroups.devices = Some(hierarchy.clone());
        for (devices, expected) in [
            (own(false), "usual\nmade\nread own\nwrite own\n"),
            (own(true), "usual\nmade\nread own\n"),
            (Devices::with_volumes(&[]).unwrap(), "usual\nmade\n"),
        ] {
            let made = cgroups.make("uid", "main", &devices).unwrap();
            let done = run_in(&made[0].dir, &script);
            let errors = String::from_utf8_lossy(&done.stderr).into_owned();
            let said = String::from_utf8_lossy(&done.stdout);
            assert_eq!(said, expected, "{hierarchy:?}: {errors}");
            assert!(errors.contains("memory: Operation not permitted"), "{errors}");
        }
        let made = cgroups.make("uid", "privileged", &Devices::All).unwrap();
        let done = run_in(&made[0].dir, &script);
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(said.contains("read other\nwrite other\n"), "{hierarchy:?}: {said}");
        remove(&hierarchy.base(&cgroups.instance).join("uid")).unwrap();
        cgroups.tidy();
        assert!(!hierarchy.base(&cgroups.instance).exists());
    }
}
