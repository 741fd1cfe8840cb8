//! What `longshore up` says at each verbosity.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use common::*;

/// Lines of the log of a claim's and a pod's whole life.
fn life(test: &str, verbosity: &str) -> Option<(Home, Vec<String>)> {
    if !can_run(test) {
        return None;
    }
    let home = Home::new(test);
    let up = Instance::start(&home, "data", &["up", verbosity]);
    up.apply(&claim("data", "longshore-shared"));
    up.apply(&pod("web", "data", "true"));
    up.wait("pod", "web", "succeeded", |pod| pod["status"]["phase"] == "Succeeded");
    let volume = up.json("pvc", "data")["spec"]["volumeName"].as_str().unwrap().to_owned();
    assert!(up.cli(&["delete", "pod", "web"]).status.success());
    up.wait("pod", "web", "went", serde_json::Value::is_null);
    assert!(up.cli(&["delete", "pvc", "data"]).status.success());
    up.wait("pv", &volume, "went", serde_json::Value::is_null);
    let log = home.path().join("data.log");
    assert_eq!(up.stop(), Some(0));
    let text = std::fs::read_to_string(log).unwrap();
    Some((home, text.lines().map(str::to_owned).collect()))
}

/// The message of a line in klog's form, without its header.
fn message(line: &str) -> &str {
    line.split_once("] ").map_or(line, |(_, message)| message)
}

#[test]
fn at_zero_there_is_the_first_screen_and_the_stop_and_nothing_else() {
    let Some((home, lines)) = life("quiet", "-v=0") else { return };
    let dir = home.path().join("data");
    let kubeconfig = dir.join("kubeconfig");
    assert_eq!(lines[0], format!("longshore {}", env!("CARGO_PKG_VERSION")));
    assert_eq!(lines[1], format!("data dir    {}", dir.display()));
    assert!(lines[2].starts_with("address     https://127.0.0.1:"), "{}", lines[2]);
    assert_eq!(lines[3], format!("kubeconfig  {}", kubeconfig.display()));
    assert_eq!(lines[4], format!("next        export KUBECONFIG={}", kubeconfig.display()));
    // Warnings are about this machine, and may be there or not.
    let rest: Vec<&String> = lines[5..].iter().filter(|line| line.starts_with('I')).collect();
    assert_eq!(rest.len(), 1, "{rest:#?}");
    assert!(message(rest[0]).starts_with("stopping; a second signal leaves at once"), "{rest:?}");
}

#[test]
fn at_two_each_claim_volume_and_pod_has_a_line_with_its_result() {
    let Some((_home, lines)) = life("results", "-v=2") else { return };
    let driver = r#"driver="shared.csi.longshore.dev""#;
    let (of_claim, of_pod) = (r#"claim="default/data""#, r#"pod="default/web""#);
    for (result, parts) in [
        ("volume is provisioned", [driver, of_claim, "volume=\"pvc-", "took=\""].as_slice()),
        ("claim is bound", &[driver, of_claim, "volume=\"pvc-"]),
        ("pod is Succeeded", &[of_pod, "node=\"", "took=\""]),
        ("pod is gone", &[of_pod, "node=\"", "took=\""]),
        ("volume is deleted", &[driver, "volume=\"pvc-", "took=\""]),
    ] {
        let said: Vec<_> = lines.iter().filter(|line| message(line).starts_with(result)).collect();
        assert_eq!(said.len(), 1, "{result}: {lines:#?}");
        for part in parts {
            assert!(said[0].contains(part), "{part} in {}", said[0]);
        }
    }
    for process in ["became leader", "driver registered", "the API is served"] {
        assert!(!lines.iter().any(|line| message(line).starts_with(process)), "{process}");
    }
}

#[test]
fn at_three_leases_and_registrations_are_told_too() {
    let Some((_home, lines)) = life("process", "-v=3") else { return };
    for process in ["became leader", "driver registered", "the API is served", "claim is bound"] {
        assert!(
            lines.iter().any(|line| message(line).starts_with(process)),
            "{process}: {lines:#?}"
        );
    }
}

#[test]
fn at_five_calls_and_events_name_driver_code_kind_and_object() {
    let Some((_home, lines)) = life("calls", "-v=5") else { return };
    let find = |message_is: &str, part: &str| {
        let found =
            lines.iter().find(|line| message(line).starts_with(message_is) && line.contains(part));
        found.unwrap_or_else(|| panic!("{message_is} {part}: {lines:#?}")).clone()
    };
    let call = find("GRPC response", "/CreateVolume");
    for part in [r#"driver="shared.csi.longshore.dev""#, r#"code="OK""#, "took=\""] {
        assert!(call.contains(part), "{part} in {call}");
    }
    let event = find("event", r#"reason="ProvisioningSucceeded""#);
    for part in [r#"kind="PersistentVolumeClaim""#, r#"object="default/data""#, r#"type="Normal""#]
    {
        assert!(event.contains(part), "{part} in {event}");
    }
}

/// Rust's debug text is told by a struct's brace, an enum's parenthesis with a quote, or escaped quotes.
#[test]
fn no_line_has_debug_text() {
    let Some((_home, lines)) = life("no-debug", "-v=4") else { return };
    let debug = |line: &&String| {
        [" { ", "Some(", "(\\\"", "=\"\\\"", "None,"].iter().any(|part| line.contains(part))
            // Requests and responses of drivers are JSON.
            && !line.contains("GRPC")
    };
    let found: Vec<_> = lines.iter().filter(debug).collect();
    assert!(found.is_empty(), "{found:#?}");
}
