//! The suite of Kubernetes for external storage, on a real node.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod support;

use std::process::Command;
use std::time::Duration;
use std::{env, fs, thread};

use longshore_real_kube::node::{self, Image};
use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{Cluster, Controllers, Lifetime, Program, drivers};
use support::{TOOLS, Traces, options, step};

/// What one pod writes another reads; and a pod's group owns what is on its volume.
const SPECS: [&str; 2] = [
    "volumes should store data",
    "fsgroupchangepolicy (Always)[LinuxOnly], pod created with an initial fsgroup, new pod fsgroup applied to volume \
     contents",
];

/// The specs of [`SPECS`] as a pattern.
const FOCUS: &str = r"External.Storage.*Dynamic PV \(default fs\).*(volumes should store data|fsgroupchangepolicy \(Always\)\[LinuxOnly\], pod created with an initial fsgroup, new pod fsgroup applied)";

/// Gives the node the suite's images under the names that this version of the suite uses.
fn images(cluster: &Cluster) {
    let listed = Command::new(tools::path(Tool::E2eTest).unwrap()).arg("--list-images").output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let named = |part: &str| {
        let found: Vec<&str> = listed.lines().filter(|line| line.contains(part)).collect();
        assert!(!found.is_empty(), "the suite names no image {part}:\n{listed}");
        found
    };
    let agnhost = tools::path(Tool::Agnhost).unwrap();
    cluster
        .node()
        .unwrap()
        .import(&[
            Image::busybox(&named("/busybox:")),
            // Specs of volumes want only a shell of it.
            Image::busybox(&named("/nginx:")),
            Image::program(&named("/agnhost:"), "agnhost", &agnhost, &["pause"]),
        ])
        .unwrap();
}

/// What the suite has to know of the driver.
fn description(driver: &str) -> String {
    format!(
        "StorageClass: {{FromExistingClassName: {driver}}}\n\
         DriverInfo:\n  \
           Name: {driver}\n  \
           SupportedSizeRange: {{Min: 1Mi}}\n  \
           SupportedFsType: {{\"\": {{}}}}\n  \
           Capabilities: {{persistence: true, exec: true, multipods: true, fsGroup: true}}\n"
    )
}

/// Runs the specs that `focus` matches, and gives the report.
fn run(cluster: &Cluster, driver: &str, focus: &str) -> Report {
    let file = cluster.dir().join(format!("{driver}.yaml"));
    fs::write(&file, description(driver)).unwrap();
    let report = cluster.dir().join(format!("{driver}.xml"));
    let mut command = Command::new(tools::path(Tool::E2eTest).unwrap());
    command.args(["--provider=skeleton", "--num-nodes=1", "--ginkgo.no-color"]);
    command.args(["--ginkgo.timeout=3h", "--ginkgo.skip=Disruptive|Serial|Slow"]);
    command.arg(format!("--ginkgo.focus={focus}"));
    command.arg(format!("--ginkgo.junit-report={}", report.display()));
    command.arg(format!("--storage.testdriver={}", file.display()));
    command.arg(format!("--kubeconfig={}", cluster.kubeconfig().display()));
    command.arg(format!("--kubectl-path={}", tools::path(Tool::Kubectl).unwrap().display()));
    // It may leave files where it runs.
    command.current_dir(cluster.dir()).env("TMPDIR", cluster.dir());
    let log = cluster.dir().join(format!("{driver}.log"));
    // As a program of the owner's it cannot outlive a killed test.
    let mut suite = Program::start("e2e.test", command, &log, Lifetime::Owner).unwrap();
    while suite.runs() {
        thread::sleep(Duration::from_millis(100));
    }
    let output = fs::read_to_string(&log).unwrap();
    let junit = fs::read_to_string(&report).unwrap_or_else(|error| panic!("{error}: {output}"));
    Report { output, junit }
}

/// What a run of the suite says.
struct Report {
    output: String,
    junit: String,
}

impl Report {
    /// The specs that passed, and the others that ran.
    fn results(&self) -> (Vec<String>, Vec<String>) {
        let attribute = |case: &str, name: &str| {
            let (_, rest) = case.split_once(&format!(" {name}=\""))?;
            Some(rest.split_once('"')?.0.to_owned())
        };
        let cases = self.junit.split("<testcase ").skip(1).map(|case| format!(" {case}"));
        let (mut passed, mut others) = (Vec::new(), Vec::new());
        for case in cases {
            // Beside the specs, the preparation and the end of the suite are cases, too.
            let Some(name) = attribute(&case, "name") else { continue };
            match attribute(&case, "status").as_deref() {
                Some("passed") if name.starts_with("[It]") => passed.push(name),
                Some("passed" | "skipped") => {}
                other => others.push(format!("{}: {name}", other.unwrap_or("no status"))),
            }
        }
        (passed, others)
    }
}

/// The programs of the suite, beside those of the cluster.
const MORE: [Tool; 4] = [Tool::Hostpath, Tool::CsiProvisioner, Tool::E2eTest, Tool::Agnhost];

#[test]
fn volume_and_group_specs_pass_on_the_reference_driver_and_on_ours() {
    if !node::possible() || !tools::need(&TOOLS) {
        return;
    }
    if !tools::need(&MORE) {
        return;
    }
    let all = options(Controllers::All);
    let mut cluster = step("the cluster", || Cluster::start(&all)).unwrap();
    step("the images of the suite", || images(&cluster));
    let theirs = step("the reference driver", || drivers::hostpath(&mut cluster).unwrap());
    let ours = step("our driver", || drivers::ours(&mut cluster).unwrap());
    // Side by side, because a spec mostly waits.
    thread::scope(|scope| {
        for driver in [&theirs, &ours] {
            let cluster = &cluster;
            scope.spawn(move || {
                let report =
                    step(&format!("the specs on {driver}"), || run(cluster, driver, FOCUS));
                let (passed, others) = report.results();
                assert!(others.is_empty(), "{driver}: {others:?}: {}", report.output);
                assert_eq!(passed.len(), SPECS.len(), "{driver}: {passed:?}");
                for spec in SPECS {
                    let ran = passed.iter().any(|name| name.contains(spec));
                    assert!(ran, "{driver}: {spec} is not among {passed:?}");
                }
            });
        }
    });
    let traces = Traces::of(cluster.dir()).unwrap();
    traces.assert_there(&["process", "cgroup", "link"]);
    step("the end", || cluster.stop()).unwrap();
    traces.assert_gone();
}

/// As much of the suite as `LONGSHORE_SUITE_FOCUS` matches, on our driver: for example
/// `External.Storage.*subPath`. All of it takes long.
#[test]
#[ignore = "long; `cargo xtask full` runs it, CI runs one spec of it above"]
fn the_suite_on_our_driver() {
    if !node::possible() || !tools::need(&TOOLS) || !tools::need(&MORE) {
        return;
    }
    let focus = env::var("LONGSHORE_SUITE_FOCUS").unwrap_or_else(|_| "External.Storage".to_owned());
    let mut cluster = Cluster::start(&options(Controllers::All)).unwrap();
    images(&cluster);
    let driver = drivers::ours(&mut cluster).unwrap();
    let report = step("the specs", || run(&cluster, &driver, &focus));
    let (passed, others) = report.results();
    println!("{} passed, {} did not", passed.len(), others.len());
    cluster.stop().unwrap();
    assert!(!passed.is_empty() && others.is_empty(), "{}\n{}", report.output, others.join("\n"));
}
