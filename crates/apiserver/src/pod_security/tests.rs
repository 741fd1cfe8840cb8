//! What each check has against which pods, in which versions.

use serde_json::{Value, json};

use super::*;

/// Labels without their prefix, and their values.
type Labels<'a> = &'a [(&'a str, &'a str)];

/// A pod that every level allows.
fn restricted() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "image": "i", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}})
}

fn with(pointer: &str, value: Value) -> Value {
    let mut pod = restricted();
    let mut place = &mut pod;
    for part in pointer.split('/') {
        place = match part.parse::<usize>() {
            Ok(index) => &mut place[index],
            Err(_) => &mut place[part],
        };
    }
    *place = value;
    pod
}

fn found(level: Level, version: Option<u64>, pod: &Value) -> String {
    details(&evaluate(LevelVersion { level, version }, &Pod::of(pod)))
}

#[test]
fn each_check_names_what_it_is_about() {
    let c = "spec/containers/0/securityContext";
    let rows: &[(Level, &str, Value, &str)] = &[
        (Level::Baseline, "spec/hostPID", json!(true), "host namespaces (hostPID=true)"),
        (
            Level::Baseline,
            "spec/volumes",
            json!([{"name": "v", "hostPath": {"path": "/"}}]),
            "hostPath volumes (volume \"v\")",
        ),
        (
            Level::Restricted,
            "spec/volumes",
            json!([{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "nfs": {}}]),
            "restricted volume types (volumes \"v\", \"w\" use restricted volume types \"hostPath\", \"nfs\")",
        ),
        (
            Level::Baseline,
            "spec/containers/0/ports",
            json!([{"hostPort": 80}, {"hostPort": 443}, {"containerPort": 1}]),
            "hostPort (container \"c\" uses hostPorts 443, 80)",
        ),
        (
            Level::Baseline,
            "spec/containers/0/livenessProbe",
            json!({"httpGet": {"host": "h"}}),
            "probe or lifecycle host (container \"c\" uses probe or lifecycle host \"h\")",
        ),
        (
            Level::Baseline,
            c,
            json!({"privileged": true}),
            "privileged (container \"c\" must not set securityContext.privileged=true)",
        ),
        (
            Level::Baseline,
            c,
            json!({"capabilities": {"add": ["SYS_ADMIN", "CHOWN"]}}),
            "non-default capabilities (container \"c\" must not include \"SYS_ADMIN\" in securityContext.capabilities.add)",
        ),
        (
            Level::Restricted,
            c,
            json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["CHOWN"]}}),
            "unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]; container \"c\" must not include \"CHOWN\" in securityContext.capabilities.add)",
        ),
        (
            Level::Restricted,
            c,
            json!({"capabilities": {"drop": ["ALL"]}}),
            "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false)",
        ),
        (
            Level::Restricted,
            "spec/securityContext/runAsNonRoot",
            json!(null),
            "runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true)",
        ),
        (
            Level::Restricted,
            "spec/securityContext/runAsNonRoot",
            json!(false),
            "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)",
        ),
        (
            Level::Restricted,
            "spec/securityContext/runAsUser",
            json!(0),
            "runAsUser=0 (pod must not set runAsUser=0)",
        ),
        (
            Level::Restricted,
            "spec/securityContext/seccompProfile",
            json!(null),
            "seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
        ),
        (
            Level::Baseline,
            "spec/securityContext/seccompProfile/type",
            json!("Unconfined"),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            Level::Baseline,
            "spec/securityContext/appArmorProfile",
            json!({"type": "Unconfined"}),
            "forbidden AppArmor profile (pod must not set AppArmor profile type to \"Unconfined\")",
        ),
        (
            Level::Baseline,
            "metadata/annotations",
            json!({"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}),
            "forbidden AppArmor profile (annotation must not set AppArmor profile type to \"container.apparmor.security.beta.kubernetes.io/c=\"unconfined\"\")",
        ),
        (
            Level::Baseline,
            "spec/securityContext/seLinuxOptions",
            json!({"type": "spc_t", "user": "u", "role": "r"}),
            "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set; role may not be set)",
        ),
        (
            Level::Baseline,
            c,
            json!({"procMount": "Unmasked"}),
            "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            Level::Baseline,
            "spec/securityContext/sysctls",
            json!([{"name": "kernel.msgmax"}, {"name": "net.ipv4.tcp_rmem"}]),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            Level::Baseline,
            "spec/securityContext/windowsOptions",
            json!({"hostProcess": true}),
            "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
        ),
    ];
    assert_eq!(found(Level::Restricted, None, &restricted()), "");
    for (level, field, value, wanted) in rows {
        let pod = with(field, value.clone());
        assert_eq!(found(*level, None, &pod), *wanted, "{field} = {value}");
        assert_eq!(found(Level::Privileged, None, &pod), "");
    }
}

#[test]
fn init_and_ephemeral_containers_are_judged_too() {
    let mut pod = restricted();
    for (list, name) in [("initContainers", "a"), ("ephemeralContainers", "z")] {
        pod["spec"][list] = json!([{"name": name, "securityContext": {"privileged": true}}]);
    }
    let wanted =
        "privileged (containers \"a\", \"z\" must not set securityContext.privileged=true)";
    assert_eq!(found(Level::Baseline, None, &pod), wanted);
}

#[test]
fn versions_judge_as_they_did() {
    let probe = with("spec/containers/0/livenessProbe", json!({"tcpSocket": {"host": "h"}}));
    let users = with("spec/hostUsers", json!(false));
    let mut own_root = users.clone();
    own_root["spec"]["securityContext"]["runAsNonRoot"] = json!(false);
    own_root["spec"]["securityContext"]["runAsUser"] = json!(0);
    let mut windows = with("spec/os", json!({"name": "windows"}));
    windows["spec"]["containers"][0]["securityContext"] = json!({});
    windows["spec"]["securityContext"]["seccompProfile"] = json!(null);
    let keepalive =
        with("spec/securityContext/sysctls", json!([{"name": "net.ipv4.tcp_keepalive_time"}]));
    let mut unmasked = users.clone();
    unmasked["spec"]["containers"][0]["securityContext"]["procMount"] = json!("Unmasked");
    let annotated = with(
        "metadata/annotations",
        json!({"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}),
    );
    let rows: &[(&str, Level, &Value, u64, u64)] = &[
        ("probes from 34", Level::Baseline, &probe, 33, 34),
        ("sysctls until 29", Level::Baseline, &keepalive, 29, 28),
        ("own users from 35", Level::Restricted, &own_root, 35, 34),
        ("unmasked in own users from 35", Level::Baseline, &unmasked, 35, 34),
        ("windows from 25", Level::Restricted, &windows, 25, 24),
        ("annotations before 19", Level::Baseline, &annotated, 19, 18),
    ];
    for (name, level, pod, good, bad) in rows {
        assert_eq!(found(*level, Some(*good), pod), "", "{name}");
        assert_ne!(found(*level, Some(*bad), pod), "", "{name}");
    }
    assert_ne!(found(Level::Restricted, None, &unmasked), "");
    assert_eq!(found(Level::Baseline, Some(99), &probe), found(Level::Baseline, None, &probe));
}

#[test]
fn labels_make_the_policy() {
    let labels = |pairs: &[(&str, &str)]| -> Value {
        let pairs = pairs.iter();
        pairs
            .map(|(k, v)| (format!("pod-security.kubernetes.io/{k}"), json!(v)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let shown = |pairs: &[(&str, &str)]| {
        let (policy, causes) = Policy::of(&labels(pairs));
        (format!("{} {} {}", policy.enforce, policy.audit, policy.warn), causes.len())
    };
    let rows: &[(Labels<'_>, &str, usize)] = &[
        (&[], "privileged:latest privileged:latest privileged:latest", 0),
        (&[("enforce", "baseline")], "baseline:latest privileged:latest baseline:latest", 0),
        (
            &[("enforce", "baseline"), ("enforce-version", "v1.22")],
            "baseline:v1.22 privileged:latest baseline:v1.22",
            0,
        ),
        (
            &[("enforce", "restricted"), ("warn", "baseline"), ("audit", "restricted")],
            "restricted:latest restricted:latest baseline:latest",
            0,
        ),
        (
            &[("enforce", "x"), ("audit", "y"), ("warn", "z")],
            "restricted:latest privileged:latest privileged:latest",
            3,
        ),
        (
            &[("enforce-version", "1.22"), ("audit-version", "v1.01"), ("warn-version", "v2.0")],
            "privileged:latest privileged:latest privileged:latest",
            3,
        ),
        (
            &[("enforce-version", "v1.0"), ("audit-version", "v1.")],
            "privileged:v1.0 privileged:latest privileged:latest",
            1,
        ),
    ];
    for (pairs, wanted, causes) in rows {
        assert_eq!(shown(pairs), ((*wanted).to_owned(), *causes), "{pairs:?}");
    }
}

#[test]
fn a_stricter_level_warns_of_pods_that_are_there() {
    let pod = |name: &str, bad: bool| {
        let mut pod = if bad { with("spec/hostPID", json!(true)) } else { restricted() };
        pod["metadata"]["name"] = json!(name);
        pod
    };
    let baseline = LevelVersion { level: Level::Baseline, version: None };
    assert!(warnings_for_existing("n", baseline, &[pod("a", false)]).is_empty());
    let warned =
        warnings_for_existing("n", baseline, &[pod("b", true), pod("a", true), pod("c", true)]);
    assert_eq!(
        warned,
        [
            "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"",
            "a (and 2 other pods): host namespaces"
        ]
    );
}

#[test]
fn only_other_images_and_new_containers_call_for_a_judgement() {
    let pod = restricted();
    assert!(!is_significant(&with("metadata/labels", json!({"a": "b"})), &pod));
    assert!(!is_significant(&with("spec/tolerations", json!([{}])), &pod));
    assert!(is_significant(&with("spec/containers/0/image", json!("j")), &pod));
    assert!(is_significant(&with("spec/ephemeralContainers", json!([{"name": "e"}])), &pod));
}
