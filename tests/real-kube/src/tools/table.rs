//! The programs, where each comes from and how it is linked.

use super::Tool;

/// Where a program comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    /// A package of one of the pinned Go modules beside this crate.
    Module {
        /// The module's directory below `tools/`.
        module: &'static str,
        /// The Go package.
        package: &'static str,
        /// How it is built.
        kind: Kind,
        /// Strings that the linker sets.
        set: &'static [(&'static str, &'static str)],
    },
    /// The Go module proxy does not serve the module, so it cannot be pinned.
    Brought,
}

/// How a package becomes a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `go build`.
    Program,
    /// `go build` without C, for an image without libraries.
    Static,
    /// `go test -c`.
    Test,
}

/// The Kubernetes version of the control plane; `tools/kubernetes/go.mod` pins the same.
pub const KUBERNETES: &str = "v1.37.0";
const KUBERNETES_SET: &[(&str, &str)] = &[
    ("k8s.io/component-base/version.gitVersion", KUBERNETES),
    ("k8s.io/component-base/version.gitMajor", "1"),
    ("k8s.io/component-base/version.gitMinor", "37"),
    ("k8s.io/component-base/version.gitTreeState", "clean"),
    ("k8s.io/client-go/pkg/version.gitVersion", KUBERNETES),
];
const CONTAINERD_SET: &[(&str, &str)] =
    &[("github.com/containerd/containerd/v2/version.Version", "v2.4.2")];
/// The version with which the transcripts of kubectl were recorded.
const KUBECTL_SET: &[(&str, &str)] = &[
    ("k8s.io/component-base/version.gitVersion", "v1.32.4"),
    ("k8s.io/component-base/version.gitMajor", "1"),
    ("k8s.io/component-base/version.gitMinor", "32"),
    ("k8s.io/client-go/pkg/version.gitVersion", "v1.32.4"),
];

/// The newest kubectl.
const KUBECTL_NEXT_SET: &[(&str, &str)] = &[
    ("k8s.io/component-base/version.gitVersion", "v1.37.2"),
    ("k8s.io/component-base/version.gitMajor", "1"),
    ("k8s.io/component-base/version.gitMinor", "37"),
    ("k8s.io/client-go/pkg/version.gitVersion", "v1.37.2"),
];

/// helm says which Kubernetes it renders for where there is no cluster.
const HELM_SET: &[(&str, &str)] = &[
    ("helm.sh/helm/v3/internal/version.version", "v3.22.0"),
    ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor", "1"),
    ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor", "37"),
];

const fn kubernetes(package: &'static str, kind: Kind) -> Source {
    Source::Module { module: "kubernetes", package, kind, set: KUBERNETES_SET }
}

const fn program(
    module: &'static str,
    package: &'static str,
    set: &'static [(&'static str, &'static str)],
) -> Source {
    Source::Module { module, package, kind: Kind::Program, set }
}

/// One that also runs in an image without libraries.
const fn sidecar(
    module: &'static str,
    package: &'static str,
    set: &'static [(&'static str, &'static str)],
) -> Source {
    Source::Module { module, package, kind: Kind::Static, set }
}

/// The program's name and its source.
pub(super) const fn entry(tool: Tool) -> (&'static str, Source) {
    match tool {
        Tool::Etcd => ("etcd", program("etcd", "go.etcd.io/etcd/server/v3", &[])),
        Tool::Etcdutl => ("etcdutl", program("etcdutl", "go.etcd.io/etcd/etcdutl/v3", &[])),
        Tool::KubeApiserver => {
            ("kube-apiserver", kubernetes("k8s.io/kubernetes/cmd/kube-apiserver", Kind::Program))
        }
        Tool::KubeControllerManager => (
            "kube-controller-manager",
            kubernetes("k8s.io/kubernetes/cmd/kube-controller-manager", Kind::Program),
        ),
        Tool::KubeScheduler => {
            ("kube-scheduler", kubernetes("k8s.io/kubernetes/cmd/kube-scheduler", Kind::Program))
        }
        Tool::Kubelet => ("kubelet", kubernetes("k8s.io/kubernetes/cmd/kubelet", Kind::Program)),
        Tool::Containerd => (
            "containerd",
            program(
                "containerd",
                "github.com/containerd/containerd/v2/cmd/containerd",
                CONTAINERD_SET,
            ),
        ),
        Tool::ContainerdShim => (
            "containerd-shim-runc-v2",
            program(
                "containerd",
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                CONTAINERD_SET,
            ),
        ),
        Tool::Kubectl => ("kubectl", program("kubectl", ".", KUBECTL_SET)),
        Tool::KubectlNext => ("kubectl-next", program("kubectl-next", ".", KUBECTL_NEXT_SET)),
        Tool::E2eTest => ("e2e.test", kubernetes("k8s.io/kubernetes/test/e2e", Kind::Test)),
        Tool::Agnhost => {
            ("agnhost", kubernetes("k8s.io/kubernetes/test/images/agnhost", Kind::Static))
        }
        Tool::CsiProvisioner => (
            "csi-provisioner",
            sidecar(
                "sidecars",
                "github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner",
                &[("main.version", "v5.3.0")],
            ),
        ),
        Tool::CsiResizer => (
            "csi-resizer",
            sidecar(
                "sidecars",
                "github.com/kubernetes-csi/external-resizer/cmd/csi-resizer",
                &[("main.version", "v1.14.0")],
            ),
        ),
        Tool::CsiSnapshotter => (
            "csi-snapshotter",
            sidecar(
                "snapshotter",
                "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
                &[("main.version", "v8.6.0")],
            ),
        ),
        Tool::SnapshotController => (
            "snapshot-controller",
            program(
                "snapshotter",
                "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
                &[("main.version", "v8.6.0")],
            ),
        ),
        Tool::Hostpath => (
            "hostpathplugin",
            program(
                "hostpath",
                "github.com/kubernetes-csi/csi-driver-host-path/cmd/hostpathplugin",
                &[("main.version", "v1.7.2")],
            ),
        ),
        Tool::Helm => ("helm", program("helm", "helm.sh/helm/v3/cmd/helm", HELM_SET)),
        Tool::CsiSanity => (
            "csi-sanity",
            program("csi-sanity", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity", &[]),
        ),
        Tool::CsiAttacher => ("csi-attacher", Source::Brought),
        Tool::Livenessprobe => ("livenessprobe", Source::Brought),
        Tool::NodeDriverRegistrar => ("csi-node-driver-registrar", Source::Brought),
        Tool::HealthMonitor => ("csi-external-health-monitor-controller", Source::Brought),
    }
}
