//! A real node: pods with claims on the reference driver and on ours.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod support;

use longshore_real_kube::tools::{self, Tool};
use longshore_real_kube::{Cluster, Controllers, drivers, node};
use support::{TOOLS, Traces, eventually, ok, options, pod, step};

fn claim(cluster: &Cluster, class: &str) {
    let claim = format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: claim}}\n\
         spec: {{storageClassName: {class}, accessModes: [ReadWriteOnce], \
         resources: {{requests: {{storage: 64Mi}}}}}}\n"
    );
    ok(cluster, &["apply", "--filename", "-"], &claim);
}

/// A claim and a pod; the pod writes and goes; another reads; all goes.
fn life_of_a_claim(cluster: &Cluster, class: &str) {
    claim(cluster, class);
    let write = "echo written by the first > /data/file && sync && touch /tmp/done && sleep 1000";
    step("  the first pod", || pod(cluster, "writer", write, Some("claim")));
    let read = ["exec", "writer", "--", "cat", "/data/file"];
    assert_eq!(ok(cluster, &read, ""), "written by the first\n");
    step("  its end", || ok(cluster, &["delete", "pod", "writer", "--timeout=60s"], ""));
    let script = "touch /tmp/done && sleep 1000";
    step("  the second pod", || pod(cluster, "reader", script, Some("claim")));
    let read = ["exec", "reader", "--", "cat", "/data/file"];
    assert_eq!(ok(cluster, &read, ""), "written by the first\n");
    let both = ["delete", "pod/reader", "pvc/claim", "--timeout=60s"];
    step("  the end of both", || ok(cluster, &both, ""));
    eventually(&format!("the volume of class {class} is deleted"), || {
        ok(cluster, &["get", "pv", "--output", "name"], "").is_empty()
    });
}

/// The real attach-detach controller asks, our attacher acts, and both clean up.
fn life_of_an_attachment(cluster: &Cluster, class: &str) {
    claim(cluster, class);
    pod(cluster, "attached", "echo x > /data/file && touch /tmp/done && sleep 1000", Some("claim"));
    let columns =
        "jsonpath={range .items[*]}{.spec.attacher} {.spec.nodeName} {.status.attached}{end}";
    let attached = ok(cluster, &["get", "volumeattachments", "--output", columns], "");
    assert_eq!(attached, format!("{class} {} true", node::NAME));
    ok(cluster, &["delete", "pod/attached", "pvc/claim", "--timeout=60s"], "");
    eventually("the volume is detached and deleted", || {
        ok(cluster, &["get", "volumeattachments,pv", "--output", "name"], "").is_empty()
    });
}

#[test]
fn claims_are_mounted_in_pods_of_a_real_kubelet() {
    if !node::possible() || !tools::need(&TOOLS) {
        return;
    }
    if !tools::need(&[Tool::Hostpath, Tool::CsiProvisioner]) {
        return;
    }
    let mut cluster =
        step("the cluster", || Cluster::start(&options(Controllers::Volumes))).unwrap();
    let class = step("the reference driver", || drivers::hostpath(&mut cluster).unwrap());
    step("a claim on the reference driver", || life_of_a_claim(&cluster, &class));
    let class = step("the reference driver with attaching", || {
        drivers::hostpath_attached(&mut cluster).unwrap()
    });
    step("an attached claim on the reference driver", || life_of_an_attachment(&cluster, &class));
    let class = step("our driver", || drivers::ours(&mut cluster).unwrap());
    step("a claim on our driver", || life_of_a_claim(&cluster, &class));

    // Ended in the middle of things: a pod runs, with a volume on a loop device.
    claim(&cluster, &class);
    pod(&cluster, "left-running", "touch /tmp/done && sleep 1000", Some("claim"));
    let traces = Traces::of(cluster.dir()).unwrap();
    traces.assert_there(&["process", "pod process", "cgroup", "link", "pod link", "loop"]);
    step("the end", || cluster.stop()).unwrap();
    traces.assert_gone();
}

#[test]
fn two_nodes_at_once_do_not_meet() {
    if !node::possible() || !tools::need(&TOOLS) {
        return;
    }
    let run = |name: &'static str| {
        let cluster = Cluster::start(&options(Controllers::Volumes)).unwrap();
        pod(&cluster, name, "touch /tmp/done && sleep 1000", None);
        (cluster, name)
    };
    let (one, two) = std::thread::scope(|scope| {
        let (one, two) = (scope.spawn(|| run("one")), scope.spawn(|| run("two")));
        (one.join().unwrap(), two.join().unwrap())
    });
    let traces = [Traces::of(one.0.dir()).unwrap(), Traces::of(two.0.dir()).unwrap()];
    for ((cluster, name), traces) in [&one, &two].into_iter().zip(&traces) {
        traces.assert_there(&["process", "pod process", "cgroup", "link", "pod link"]);
        let pods = ok(cluster, &["get", "pods", "--output", "name"], "");
        assert_eq!(pods, format!("pod/{name}\n"));
    }
    one.0.stop().unwrap();
    traces[0].assert_gone();
    // The end of one is nothing to the other.
    traces[1].assert_there(&["process", "pod process", "cgroup", "link", "pod link"]);
    assert_eq!(ok(&two.0, &["exec", "two", "--", "echo", "here"], ""), "here\n");
    two.0.stop().unwrap();
    traces[1].assert_gone();
}
