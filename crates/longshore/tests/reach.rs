//! Who reaches the API of an instance: this machine, others, and its own pods.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use common::*;

/// An address of this machine that is not the loopback one.
fn outer_address() -> Option<std::net::IpAddr> {
    // Nothing is sent: connecting a datagram socket only chooses the address.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback())
}

#[test]
fn an_api_on_every_address_is_reached_at_each_of_them() {
    if !can_kubectl("listen on all") {
        return;
    }
    let home = Home::new("reach");
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let args = ["apiserver", "--tls-san", "lb.example.org", "--tls-san=203.0.113.9"];
        let api = Instance::start_at(&home, "api", &args, listen);
        let address = api.address();
        let port = address.strip_prefix("127.0.0.1:").unwrap_or_else(|| panic!("{address}"));
        let mut hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        hosts.extend(outer_address().map(|address| address.to_string()));
        for host in hosts {
            let server = format!("https://{host}:{port}");
            let done = api.kubectl(&["--server", &server, "get", "ns", "default"]);
            assert!(done.status.success(), "{listen} at {server}: {}", text(&done));
        }
        for name in ["lb.example.org", "203.0.113.9"] {
            let done = api.kubectl(&["--tls-server-name", name, "get", "ns", "default"]);
            assert!(done.status.success(), "{listen} as {name}: {}", text(&done));
        }
        let done = api.kubectl(&["--tls-server-name", "other.example.org", "get", "ns"]);
        assert!(text(&done).contains("certificate is valid for"), "{}", text(&done));
        assert_eq!(api.stop(), Some(0));
        // The next start has another list.
        let api =
            Instance::start_at(&home, "api", &["apiserver", "--tls-san=new.example.org"], listen);
        let done = api.kubectl(&["--tls-server-name", "new.example.org", "get", "ns", "default"]);
        assert!(done.status.success(), "{}", text(&done));
        let done = api.kubectl(&["--tls-server-name", "lb.example.org", "get", "ns"]);
        assert!(!done.status.success(), "{}", text(&done));
        assert_eq!(api.stop(), Some(0));
    }
}

#[test]
fn an_api_that_listens_under_a_name_is_reached_by_it() {
    if !can_kubectl("listen by name") {
        return;
    }
    let home = Home::new("reach-name");
    let api = Instance::start_at(&home, "api", &["apiserver"], "localhost:0");
    assert!(api.address().starts_with("localhost:"), "{}", api.address());
    let done = api.kubectl(&["get", "ns", "default"]);
    assert!(done.status.success(), "{}", text(&done));
    assert_eq!(api.stop(), Some(0));
}
