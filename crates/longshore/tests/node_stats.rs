//! What a node of `longshore up` tells of its volumes, over its socket.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

use common::*;
use serde_json::Value;

fn get(socket: &Path, path: &str) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: node\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"), "{head}");
    body.to_owned()
}

#[test]
fn metrics_and_the_summary_are_at_the_nodes_socket() {
    if !can_run("node-stats") {
        return;
    }
    let home = Home::new("node-stats");
    let up = Instance::up(&home, "data");
    let nodes = fs::read_dir(up.data_dir.join("nodes")).unwrap();
    let node = nodes.flatten().next().unwrap();
    let socket = node.path().join("http.sock");
    let summary: Value = serde_json::from_str(&get(&socket, "/stats/summary")).unwrap();
    assert_eq!(summary["node"]["nodeName"], node.file_name().to_str().unwrap());
    assert!(summary["pods"].is_array());
    let metrics = get(&socket, "/metrics");
    for driver in ["local.csi.longshore.dev", "shared.csi.longshore.dev"] {
        let line = format!(
            "csi_operations_seconds_count{{driver_name=\"{driver}\",method_name=\"/csi.v1.Node/NodeGetInfo\",\
             grpc_status_code=\"OK\",migrated=\"false\"}}"
        );
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }
    assert!(metrics.contains("plugin_manager_total_plugins{"), "{metrics}");
    up.stop();
    assert!(!socket.exists(), "it goes with the node");
}
