//! From one command line to those of several sidecars.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use super::Config;
use super::choice::choose;
use super::flags::Flags;
use super::members::{arguments, switches};
use super::merge::merge;
use super::table::{INCLUDABLE, Member};
use crate::cli::{Program, config_of};
use crate::flags::{Throttle, UsageError};
use crate::programs::{
    attacher, liveness_probe, node_registrar, provisioner, resizer, snapshotter,
};

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn config(line: &str) -> Result<Config, UsageError> {
    config_of(&merge(&words(line))?)
}

fn refusal(line: &str) -> (u8, String) {
    match config(line) {
        Ok(_) => panic!("{line} is not refused"),
        Err(error) => (error.exit_code(), error.to_string()),
    }
}

fn names(line: &str) -> Vec<&'static str> {
    config(line).unwrap().members.iter().map(|(name, _)| *name).collect()
}

/// The command line of each sidecar, without flags of the process.
fn of_each(line: &str) -> BTreeMap<&'static str, Vec<String>> {
    let flags = read(line);
    let chosen = choose(&flags.globals.controllers).unwrap();
    let switches = switches(&flags.globals.feature_gates).unwrap();
    let of = |place: usize| (INCLUDABLE[place].name, arguments(&flags, place, &switches));
    chosen.into_iter().map(of).collect()
}

fn read(line: &str) -> Flags {
    use clap::{Args as _, FromArgMatches as _};
    let command = crate::flags::goify(Flags::augment_args(clap::Command::new("test")));
    let args = merge(&words(line)).unwrap();
    let matches = command.no_binary_name(true).try_get_matches_from(args).unwrap();
    Flags::from_arg_matches(&matches).unwrap()
}

/// Deadlines of the calls of those that run.
fn timeouts(line: &str) -> Vec<(&'static str, u64)> {
    let members = config(line).unwrap().members;
    let timeout = |member: &Member| match member {
        Member::Controller(controller) => controller.timeout(),
        Member::Registrar(asked) => asked.timeout,
        Member::Liveness(asked) => asked.probe_timeout,
    };
    members.iter().map(|(name, member)| (*name, timeout(member).as_secs())).collect()
}

const USUAL: [&str; 5] = ["attacher", "provisioner", "resizer", "snapshotter", "health-monitor"];
const PATHS: &str = "--kubelet-registration-path=/p";

#[test]
fn names_choose_who_runs() {
    // case: sidecars/A1
    for (line, want) in [
        ("", &USUAL[..]),
        ("--controllers=*", &USUAL),
        ("--controllers=attacher,provisioner", &["attacher", "provisioner"]),
        ("--controllers=*,-resizer", &["attacher", "provisioner", "snapshotter", "health-monitor"]),
        ("--controllers -resizer,*", &["attacher", "provisioner", "snapshotter", "health-monitor"]),
        ("--controllers=*,-health-monitor", &USUAL[..4]),
        ("--controllers=csi-external-health-monitor-controller", &["health-monitor"]),
        ("--controllers=csi-attacher,external-resizer", &["attacher", "resizer"]),
        ("--controllers=attacher,csi-attacher", &["attacher"]),
        ("--controllers=livenessprobe,resizer", &["resizer", "livenessprobe"]),
        ("--controllers=attacher --controllers=resizer", &["resizer"]),
    ] {
        assert_eq!(names(line), want, "{line}");
    }
    let node = format!("--controllers=registrar,liveness-probe {PATHS}");
    assert_eq!(names(&node), ["node-driver-registrar", "livenessprobe"]);
    // case: sidecars/A2
    for (line, part) in [
        ("--controllers=atacher", "did you mean attacher? there are attacher, provisioner, "),
        ("--controllers=*,-nobody", "there is no such controller"),
        ("--controllers=*,csi-snapshot-metadata", "not part of this version yet"),
        ("--controllers=attacher,-attacher", "leaves no controller"),
        ("--controllers=", "leaves no controller"),
    ] {
        let (code, sentence) = refusal(line);
        assert!(code == 2 && sentence.contains(part), "{line}: {code} {sentence}");
    }
}

#[test]
fn shared_defaults_and_flags_with_a_name_before_them() {
    for (line, want) in [
        // case: sidecars/A4
        ("", [15, 10, 10, 60, 15]),
        // case: sidecars/A3
        ("--timeout=30s", [30; 5]),
        ("--timeout=30s --attacher-timeout=5s", [5, 30, 30, 30, 30]),
        ("--attacher-timeout=5s -timeout 30s", [5, 30, 30, 30, 30]),
        ("--csi-attacher-timeout=5s", [5, 10, 10, 60, 15]),
        ("--timeout=30s --timeout=40s", [40; 5]),
    ] {
        let got: Vec<u64> = timeouts(line).into_iter().map(|(_, timeout)| timeout).collect();
        assert_eq!(got, want, "{line}");
    }
    let node = format!("--controllers=attacher,registrar,livenessprobe {PATHS} --timeout=9s");
    assert_eq!(
        timeouts(&node),
        [("attacher", 9), ("node-driver-registrar", 9), ("livenessprobe", 3)]
    );
}

#[test]
fn each_flag_reaches_whom_it_is_for() {
    const ATTACHER: usize = 0;
    const PROVISIONER: usize = 1;
    const RESIZER: usize = 2;
    const SNAPSHOTTER: usize = 3;
    const HEALTH: usize = 4;
    // Who gets what; the others get nothing.
    for (line, want) in [
        // case: sidecars/A5
        ("--attacher-worker-thread=7", &[(ATTACHER, &["--worker-threads=7"][..])][..]),
        ("--attacher-worker-threads=7", &[(ATTACHER, &["--worker-threads=7"])]),
        (
            "--attacher-worker-thread=7 --attacher-worker-threads=7",
            &[(ATTACHER, &["--worker-threads=7"])],
        ),
        (
            "--worker-thread=7",
            &[
                (ATTACHER, &["--worker-threads=7"]),
                (PROVISIONER, &["--worker-threads=7"]),
                (SNAPSHOTTER, &["--worker-threads=7"]),
                (HEALTH, &["--worker-threads=7"]),
            ],
        ),
        // case: sidecars/A6
        ("--resync=1m", &[(ATTACHER, &["--resync=1m"]), (HEALTH, &["--resync=1m"])]),
        ("--workers=3", &[(RESIZER, &["--workers=3"])]),
        (
            "--resync-period=1m",
            &[(RESIZER, &["--resync-period=1m"]), (SNAPSHOTTER, &["--resync-period=1m"])],
        ),
        // case: sidecars/A7
        ("--resizer-workers=3", &[(RESIZER, &["--workers=3"])]),
        ("--csi-resizer-workers=3", &[(RESIZER, &["--workers=3"])]),
        ("--external-resizer-workers 3", &[(RESIZER, &["--workers=3"])]),
        // case: sidecars/A8
        ("--snapshot-name-prefix=x", &[(SNAPSHOTTER, &["--snapshot-name-prefix=x"])]),
        ("--strict-topology", &[(PROVISIONER, &["--strict-topology=true"])]),
        ("--provisioner-enable-capacity=false", &[(PROVISIONER, &["--enable-capacity=false"])]),
        ("--enable-node-watcher", &[(HEALTH, &["--enable-node-watcher=true"])]),
        ("--volume-health-monitor-timeout=2s", &[(HEALTH, &["--timeout=2s"])]),
        (
            "--extra-create-metadata --snapshotter-extra-create-metadata=false",
            &[
                (PROVISIONER, &["--extra-create-metadata=true"]),
                (SNAPSHOTTER, &["--extra-create-metadata=false"]),
            ],
        ),
        (
            "--kube-api-qps=20 --resizer-kube-api-qps=1",
            &[
                (ATTACHER, &["--kube-api-qps=20"]),
                (PROVISIONER, &["--kube-api-qps=20"]),
                (RESIZER, &["--kube-api-qps=20", "--kube-api-qps=1"]),
                (SNAPSHOTTER, &["--kube-api-qps=20"]),
                (HEALTH, &["--kube-api-qps=20"]),
            ],
        ),
    ] {
        let got = of_each(line);
        let got = USUAL.map(|name| got[name].iter().map(String::as_str).collect::<Vec<_>>());
        let mut all: [Vec<&str>; USUAL.len()] = Default::default();
        for (place, flags) in want {
            all[*place] = flags.to_vec();
        }
        assert_eq!(got, all, "{line}");
    }
    let members = config("--kube-api-qps=20 --resizer-kube-api-qps=1").unwrap().members;
    let throttles: Vec<Throttle> = members
        .iter()
        .filter_map(|(_, member)| match member {
            Member::Controller(controller) => Some(controller.throttle()),
            _ => None,
        })
        .collect();
    let at = |qps| Throttle::Fixed { qps, burst: 10 };
    assert_eq!(throttles, [at(20.0), at(20.0), at(1.0), at(20.0), at(20.0)]);
}

#[test]
fn flags_of_those_that_do_not_run_are_noted() {
    let notes = |line: &str| config(line).unwrap().process.logging.notes;
    // case: sidecars/A9
    assert_eq!(
        notes("--controllers=attacher --resizer-workers=3 --resizer-timeout=1s"),
        [
            "--resizer-timeout, --resizer-workers have no effect: the resizer is not among --controllers"
        ]
    );
    assert_eq!(
        notes("--controllers=*,-health-monitor --health-monitor-monitor-interval=1m"),
        [
            "--health-monitor-monitor-interval has no effect: the health-monitor is not among --controllers"
        ]
    );
    assert_eq!(notes("--controllers=attacher --enable-node-watcher").len(), 1);
    assert_eq!(notes("--enable-node-watcher"), [""; 0]);
    assert_eq!(notes("--timeout=30s"), [""; 0]);
    assert_eq!(notes("--mode=x").len(), 1);
}

#[test]
fn gates_are_for_whoever_has_them() {
    // case: sidecars/A10
    let line = "--feature-gates=CSIVolumeGroupSnapshot=false,AnnotateFsResize=false --feature-gates=Topology=false \
                --provisioner-feature-gates=Topology=true";
    let got = of_each(line);
    assert_eq!(got["snapshotter"], ["--feature-gates=CSIVolumeGroupSnapshot=false"]);
    assert_eq!(got["resizer"], ["--feature-gates=AnnotateFsResize=false"]);
    assert_eq!(
        got["provisioner"],
        ["--feature-gates=Topology=false", "--feature-gates=Topology=true"]
    );
    assert_eq!(got["attacher"], [""; 0]);
    assert!(config(line).is_ok());
    assert!(config("--controllers=attacher --feature-gates=Topology=true").is_ok());
    let (code, sentence) = refusal("--feature-gates=Foo=true");
    assert!(code == 1 && sentence.contains("no controller has a feature gate `Foo`"), "{sentence}");
    let (code, sentence) = refusal("--feature-gates=Topolgy=true");
    assert!(code == 1 && sentence.contains("did you mean Topology?"), "{sentence}");
}

#[test]
fn leases_are_given_back_unless_a_gate_says_otherwise() {
    let releases = |line: &str| config(line).unwrap().process.release_lease_on_exit;
    assert!(releases("") && releases("--feature-gates=ReleaseLeaderElectionOnExit=true"));
    assert!(!releases("--feature-gates=ReleaseLeaderElectionOnExit=false"));
}

#[test]
fn wrong_flags_are_refused_with_the_reason() {
    for (line, code, part) in [
        // case: sidecars/A5
        (
            "--attacher-worker-thread=7 --attacher-worker-threads=8",
            2,
            "--attacher-worker-thread=7 and --attacher-worker-threads=8 are one flag with two values",
        ),
        ("--csi-resizer-workers=1 --workers=2", 2, "--csi-resizer-workers=1 and --workers=2"),
        ("--worker-thread=1 --worker-threads=2", 2, "one flag with two values"),
        // case: sidecars/A11
        (
            "--attacher-leader-election",
            2,
            "--attacher-leader-election cannot be set for one controller: write --leader-election",
        ),
        ("--csi-resizer-http-endpoint=:1", 2, "write --http-endpoint"),
        ("--provisioner-csi-address=/x", 2, "write --csi-address"),
        // case: sidecars/A12
        ("--leader-election --provisioner-node-deployment", 1, "cannot be used together"),
        ("--leader-election --node-deployment", 1, "cannot be used together"),
        ("--atacher-timeout=1s", 2, "did you mean --attacher-timeout?"),
        ("--attacher-timout=1s", 2, "did you mean --attacher-timeout?"),
        ("--nonsense", 2, "unknown flag --nonsense"),
        ("--attacher-timeout=abc", 2, "--attacher-timeout cannot be `abc`"),
        ("--attacher-worker-threads=0", 1, "--worker-threads must be greater than zero"),
        ("--retry-interval-start=10m", 2, "attacher: --retry-interval-start may not be longer"),
        ("--leader-election-type=leases", 2, "was removed from the official program"),
        ("--provisioner-connection-timeout=1m", 2, "was removed from the official program"),
        ("--http-endpoint=:1 --metrics-address=:2", 1, "cannot be used together"),
        (
            "--controllers=registrar",
            1,
            "node-driver-registrar: --kubelet-registration-path is required",
        ),
        ("--attacher-timeout", 2, "--attacher-timeout needs a value"),
        ("extra", 2, "unexpected argument `extra`"),
    ] {
        let (got, sentence) = refusal(line);
        assert!(got == code && sentence.contains(part), "{line}: {got} {sentence}");
    }
}

// case: sidecars/A13
#[test]
fn the_arguments_of_the_kep_run_unchanged() {
    let controller = "--csi-address=unix:/csi/csi.sock --controllers=attacher,provisioner,resizer,snapshotter \
        --feature-gates=Topology=true --leader-election --leader-election-namespace=kube-system --timeout=30s \
        --attacher-timeout=30s --attacher-worker-thread=100 --provisioner-timeout=30s";
    let config_of_controller = config(controller).unwrap();
    assert_eq!(config_of_controller.process.socket.to_str(), Some("/csi/csi.sock"));
    assert_eq!(
        timeouts(controller),
        [USUAL[0], USUAL[1], USUAL[2], USUAL[3]].map(|name| (name, 30))
    );
    let election = config_of_controller.process.election.unwrap();
    assert_eq!(election.namespace.as_deref(), Some("kube-system"));
    let node = "--csi-address=unix:/csi/csi.sock --controllers=node-driver-registrar \
        --kubelet-registration-path=/var/lib/kubelet/plugins/<csi-driver>/csi.sock";
    let members = config(node).unwrap().members;
    let [(_, Member::Registrar(asked))] = &members[..] else { panic!("one registrar") };
    assert_eq!(asked.endpoint.to_str(), Some("/var/lib/kubelet/plugins/<csi-driver>/csi.sock"));
    assert_eq!(asked.timeout, Duration::from_secs(1));
}

fn alike<P: Program + Debug>(name: &str, alone: &str, merged: &[String]) {
    let alone: P = config_of(&words(alone)).unwrap();
    let merged: P = config_of(merged).unwrap();
    assert_eq!(format!("{merged:?}"), format!("{alone:?}"), "{name}");
}

/// The arguments of five containers beside one driver, in the manner of a chart for a cloud's disks.
// case: sidecars/A14
#[test]
fn the_arguments_of_five_containers_have_the_same_effect_in_one() {
    let common = "--csi-address=/csi/csi.sock --v=2 --leader-election=true --kube-api-qps=20 --kube-api-burst=100";
    let provisioner = "--timeout=60s --feature-gates=Topology=true --extra-create-metadata=true --default-fstype=ext4 \
        --worker-threads=100 --retry-interval-max=30m";
    let attacher = "--timeout=6m --worker-threads=100 --retry-interval-max=30m";
    let snapshotter = "--extra-create-metadata=true --worker-threads=100 --retry-interval-max=30m";
    let resizer =
        "--timeout=60s --handle-volume-inuse-error=false --workers=100 --retry-interval-max=30m";
    let merged = format!(
        "{common} --controllers=*,livenessprobe --timeout=60s --attacher-timeout=6m --snapshotter-timeout=1m \
         --feature-gates=Topology=true --extra-create-metadata --default-fstype=ext4 --attacher-default-fstype= \
         --worker-threads=100 --workers=100 --resizer-handle-volume-inuse-error=false --retry-interval-max=30m"
    );
    let got = of_each(&merged);
    let alone = |own: &str| format!("{common} {own}");
    alike::<provisioner::Config>("provisioner", &alone(provisioner), &got["provisioner"]);
    alike::<attacher::Config>("attacher", &alone(attacher), &got["attacher"]);
    alike::<snapshotter::Config>("snapshotter", &alone(snapshotter), &got["snapshotter"]);
    alike::<resizer::Config>("resizer", &alone(resizer), &got["resizer"]);
    let probe = "--csi-address=/csi/csi.sock --v=2";
    alike::<liveness_probe::Config>("livenessprobe", probe, &got["livenessprobe"]);
    assert!(config(&merged).is_ok());
}

#[test]
fn every_flag_of_every_sidecar_can_stand_behind_each_of_its_names() {
    let known = super::known::Known::new();
    let mut seen = 0;
    for (place, one) in INCLUDABLE.iter().enumerate() {
        for arg in known.own(place) {
            let flag = arg.get_long().unwrap();
            for name in one.names() {
                let typed = format!("--{name}-{flag}=x");
                let got = merge(std::slice::from_ref(&typed)).unwrap();
                assert_eq!(got, [format!("--{}-{flag}=x", one.name)], "{typed}");
                seen += 1;
            }
        }
    }
    assert!(seen > 150, "{seen} spellings");
}

#[test]
fn no_name_of_a_sidecar_is_the_beginning_of_a_flag_of_the_process() {
    let known = super::known::Known::new();
    for flag in known.process.get_arguments().filter_map(clap::Arg::get_long) {
        for one in INCLUDABLE {
            for name in one.names() {
                assert!(!flag.starts_with(&format!("{name}-")), "--{flag} and {name}");
            }
        }
    }
}

#[test]
fn registrar_as_old_probe_is_no_part_of_a_process() {
    let line = format!("--controllers=registrar {PATHS} --mode=kubelet-registration-probe");
    let (code, sentence) = refusal(&line);
    assert!(code == 2 && sentence.contains("a program of its own"), "{sentence}");
    let alone = "--kubelet-registration-path=/p --mode=kubelet-registration-probe";
    assert!(config_of::<node_registrar::Config>(&words(alone)).is_ok());
}
