//! Argument lines of public charts: each is read, and each flag of it changes what the program runs on.

use std::collections::BTreeSet;
use std::fmt::Debug;

use super::{
    PROGRAMS, attacher, health_monitor, liveness_probe, node_registrar, provisioner, resizer,
    snapshot_controller, snapshotter,
};
use crate::cli::testing::flags;
use crate::cli::{Program, Syntax};
use crate::flags::Environment;

const LINES: &str = include_str!("real_manifests.txt");

/// Flags of these lines that say what would be so without them.
const DEFAULTS: &[(&str, &str)] = &[
    ("csi-provisioner", "--feature-gates=Topology=true"),
    ("csi-provisioner", "--worker-threads=100"),
    ("csi-provisioner", "--prevent-volume-mode-conversion=true"),
    ("csi-provisioner", "--retry-interval-max=300s"),
    ("csi-provisioner", "--timeout=10s"),
    ("csi-provisioner", "--v=0"),
    ("csi-provisioner", "--leader-election-lease-duration=15s"),
    ("csi-provisioner", "--leader-election-renew-deadline=10s"),
    ("csi-provisioner", "--leader-election-retry-period=5s"),
    ("csi-provisioner", "--enable-capacity=false"),
    // Each of the two brings the other's default.
    ("csi-provisioner", "--kube-api-qps=5"),
    ("csi-provisioner", "--kube-api-burst=10"),
    // Without --enable-capacity they have nothing to say.
    ("csi-provisioner", "--capacity-ownerref-level=2"),
    ("csi-provisioner", "--capacity-poll-interval=5m"),
    ("csi-external-health-monitor-controller", "--monitor-interval=60s"),
    ("csi-attacher", "--retry-interval-max=5m"),
    ("csi-attacher", "--retry-interval-max=300s"),
    ("csi-attacher", "--feature-gates=MutableCSINodeAllocatableCount=true"),
    ("csi-attacher", "--leader-election-lease-duration=15s"),
    ("csi-attacher", "--leader-election-renew-deadline=10s"),
    ("csi-attacher", "--leader-election-retry-period=5s"),
    ("csi-attacher", "--v=0"),
    ("csi-attacher", "--kube-api-qps=5"),
    ("csi-attacher", "--kube-api-burst=10"),
    ("csi-resizer", "--feature-gates=RecoverVolumeExpansionFailure=true"),
    ("csi-resizer", "--kube-api-burst=10"),
    ("csi-resizer", "--kube-api-qps=5"),
    ("csi-resizer", "--retry-interval-max=300s"),
    ("csi-resizer", "--v=0"),
    ("csi-snapshotter", "--retry-interval-max=300s"),
    ("csi-snapshotter", "--v=0"),
    ("csi-node-driver-registrar", "--v=0"),
    ("livenessprobe", "--probe-timeout=3s"),
];

/// One line of the table.
struct Line {
    chart: &'static str,
    program: &'static str,
    args: Vec<&'static str>,
}

fn lines() -> Vec<Line> {
    let mut chart = "";
    let mut lines = Vec::new();
    for text in LINES.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(heading) = text.strip_prefix("== ") {
            chart = heading;
            continue;
        }
        let mut words = text.split_whitespace();
        let program = words.next().expect("a program");
        lines.push(Line { chart, program, args: words.collect() });
    }
    lines
}

/// The environment that these manifests give their sidecars.
fn pod() -> Environment {
    Environment {
        namespace: Some("storage".into()),
        pod_uid: None,
        pod_namespace: Some("storage".into()),
        pod_name: Some("driver-0".into()),
        node_name: Some("node-a".into()),
        kubeconfig: None,
    }
}

fn config<P: Program + Debug>(args: &[&str], adjust: fn(&mut P::Flags)) -> Result<String, String> {
    let removed = match P::SYNTAX {
        Syntax::Go { removed } => removed,
        Syntax::Kubectl | Syntax::Merged(_) => &[],
    };
    let mut read: P::Flags = flags(&args.join(" "), removed)?;
    adjust(&mut read);
    let config = P::from_flags(read).map_err(|error| error.to_string())?;
    Ok(format!("{config:?}"))
}

/// What the program would run on, as text; none for a program that is to come.
fn read(program: &str, args: &[&str]) -> Option<Result<String, String>> {
    Some(match program {
        "csi-provisioner" => {
            config::<provisioner::Config>(args, |flags| flags.sidecar.environment = pod())
        }
        "csi-attacher" => {
            config::<attacher::Config>(args, |flags| flags.sidecar.environment = pod())
        }
        "csi-resizer" => config::<resizer::Config>(args, |flags| flags.sidecar.environment = pod()),
        "csi-snapshotter" => {
            config::<snapshotter::Config>(args, |flags| flags.sidecar.environment = pod())
        }
        "snapshot-controller" => {
            config::<snapshot_controller::Config>(args, |flags| flags.environment = pod())
        }
        "csi-external-health-monitor-controller" => {
            config::<health_monitor::Config>(args, |flags| flags.sidecar.environment = pod())
        }
        "csi-node-driver-registrar" => config::<node_registrar::Config>(args, |_| ()),
        "livenessprobe" => config::<liveness_probe::Config>(args, |_| ()),
        later => {
            let row = PROGRAMS.iter().find(|row| row.official.contains(&later)).expect(later);
            assert!(row.entry().is_none(), "{later} is there now: read its lines, too");
            return None;
        }
    })
}

#[test]
fn every_line_is_read_and_every_flag_of_it_counts() {
    let (mut charts, mut waiting) = (BTreeSet::new(), BTreeSet::new());
    let mut defaults: BTreeSet<_> = DEFAULTS.iter().copied().collect();
    for Line { chart, program, args } in lines() {
        let Some(whole) = read(program, &args) else {
            waiting.insert(program);
            continue;
        };
        let whole = whole.unwrap_or_else(|why| panic!("{chart}: {program}: {why}"));
        charts.insert(chart);
        for (at, flag) in args.iter().enumerate() {
            let mut rest = args.clone();
            rest.remove(at);
            if read(program, &rest) != Some(Ok(whole.clone())) {
                continue;
            }
            assert!(DEFAULTS.contains(&(program, flag)), "{chart}: {program}: {flag} does nothing");
            defaults.remove(&(program, *flag));
        }
    }
    assert!(charts.len() >= 16, "{charts:?}");
    assert!(defaults.is_empty(), "not in any line, or not the default: {defaults:?}");
    assert_eq!(waiting, BTreeSet::new(), "every official program is there");
}

#[test]
fn flags_that_changed_what_a_program_does_are_refused_with_their_successor() {
    for (chart, program, args, advice) in [
        (
            "portworx-operator 24.1.0, csi-provisioner 1",
            "csi-provisioner",
            "--v=3 --provisioner=pxd.portworx.com --csi-address=/csi/csi.sock",
            "leave the flag out",
        ),
        (
            "portworx-operator 24.1.0, csi-provisioner 1",
            "csi-provisioner",
            "--csi-address=/csi/csi.sock --enable-leader-election",
            "use --leader-election",
        ),
        (
            "portworx-operator 24.1.0, csi-attacher 1",
            "csi-attacher",
            "--v=3 --csi-address=/csi/csi.sock --leader-election=true --leader-election-type=configmaps",
            "use --leader-election, which always takes a Lease",
        ),
        (
            "ceph-csi-rbd 2024-10",
            "csi-snapshotter",
            "--csi-address=unix:///csi/csi-provisioner.sock --v=1 --timeout=60s --leader-election=true --extra-create-metadata=true --enable-volume-group-snapshots=false --http-endpoint=10.0.0.7:8092",
            "use --feature-gates=CSIVolumeGroupSnapshot=false",
        ),
        (
            "snapshot-controller up to 7.0, with group snapshots",
            "snapshot-controller",
            "--v=5 --leader-election=true --enable-volume-group-snapshots=true",
            "use --feature-gates=CSIVolumeGroupSnapshot=false or =true",
        ),
        (
            "charts of 2018",
            "csi-provisioner",
            "--csi-address=/csi/csi.sock --connection-timeout=15s",
            "use --timeout",
        ),
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        let refused = read(program, &args).expect("a program").expect_err(chart);
        assert!(refused.contains("was removed") && refused.contains(advice), "{chart}: {refused}");
    }
}
