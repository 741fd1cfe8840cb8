//! A machine with nothing but IPv6: a network namespace in which `::1` is the only address.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv6Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use longshore_testing::{Need, need};

use super::common::{Beside, Home, PATIENCE, binary, text};
use super::sidecar::Served;

/// The namespace lives as long as its first process.
struct Machine(Child);

impl Machine {
    fn start() -> Self {
        let script = "ip link set lo up && ip -4 address flush dev lo && echo up && exec sleep 600";
        let mut first = Command::new("unshare");
        first.args(["--net", "--", "sh", "-c", script]);
        let mut child = first.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 3];
        child.stdout.take().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"up\n");
        Self(child)
    }

    /// A command that runs in it.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args([&format!("--net=/proc/{}/ns/net", self.0.id()), "--"]);
        command.arg(binary()).args(args);
        command
    }

    fn start_program(&self, home: &Home, name: &str, args: &[&str]) -> Beside {
        Beside::start_command(home, name, &mut self.command(args))
    }

    /// The status of a GET on `[::1]`, asked from within.
    fn get(&self, port: u16, path: &str) -> Option<u16> {
        let namespace = fs::File::open(format!("/proc/{}/ns/net", self.0.id())).unwrap();
        // Only this thread moves, and it ends here.
        let asked = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let kind = rustix::thread::LinkNameSpaceType::Network;
                    let namespace = std::os::fd::AsFd::as_fd(&namespace);
                    rustix::thread::move_into_link_name_space(namespace, Some(kind)).unwrap();
                    let mut stream = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).ok()?;
                    let request = format!("GET {path} HTTP/1.0\r\nHost: test\r\n\r\n");
                    stream.write_all(request.as_bytes()).ok()?;
                    let mut answer = String::new();
                    stream.read_to_string(&mut answer).ok()?;
                    answer.split(' ').nth(1)?.parse().ok()
                })
                .join()
        });
        asked.unwrap()
    }

    fn answers(&self, what: &str, port: u16, path: &str, program: &Beside) {
        let began = Instant::now();
        while self.get(port, path) != Some(200) {
            let log = program.log_text();
            assert!(began.elapsed() < PATIENCE, "{what} does not answer on [::1]:{port}\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// `longshore apiserver --listen LISTEN`, and its kubeconfig.
    fn apiserver(&self, home: &Home, name: &str, listen: &str) -> (Beside, PathBuf) {
        let dir = home.path().join(name);
        let dir_text = dir.display().to_string();
        let args = ["apiserver", "--listen", listen, "--data-dir", &dir_text];
        let program = self.start_program(home, name, &args);
        let kubeconfig = dir.join("kubeconfig");
        let shown = kubeconfig.display().to_string();
        let began = Instant::now();
        loop {
            let done = self.command(&["get", "namespaces", "--kubeconfig", &shown]).output();
            let done = done.unwrap();
            if done.status.success() {
                return (program, kubeconfig);
            }
            let log = program.log_text();
            assert!(began.elapsed() < PATIENCE, "{listen}: {}\n{log}", text(&done));
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_listener_answers_and_kubeconfigs_work_where_there_is_no_ipv4() {
    if !need("network", &[Need::Root, Need::Tool("ip"), Need::Tool("nsenter")]) {
        return;
    }
    let (home, machine) = (Home::new("ipv6"), Machine::start());
    for (number, listen) in ["[::1]:0", "0.0.0.0:0", "[::]:0"].into_iter().enumerate() {
        let (api, _) = machine.apiserver(&home, &format!("api-{number}"), listen);
        assert_eq!(api.stop(), Some(0));
    }
    let (_api, kubeconfig) = machine.apiserver(&home, "api", ":0");
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let served = Served::new("six.example.com");
    let socket = format!("--csi-address={}", served.socket().display());
    let registry = format!("--plugin-registration-path={}", served.registry().display());
    let path = format!("--kubelet-registration-path={}", served.socket().display());
    let programs: [(&str, Vec<&str>, &str); 4] = [
        ("provisioner", vec![&kubeconfig, &socket], "/metrics"),
        ("attacher", vec![&kubeconfig, &socket], "/metrics"),
        ("liveness-probe", vec![&socket], "/healthz"),
        ("node-registrar", vec![&socket, &registry, &path], "/healthz"),
    ];
    // The namespace has all its ports for this test alone.
    let mut port = 9000;
    for (name, flags, route) in programs {
        for host in ["", "0.0.0.0", "[::]", "[::1]"] {
            port += 1;
            let endpoint = format!("--http-endpoint={host}:{port}");
            let args = [&[name][..], &flags, &[&endpoint]].concat();
            let program = machine.start_program(&home, &format!("{name}-{port}"), &args);
            machine.answers(&format!("{name} {endpoint}"), port, route, &program);
            assert_eq!(program.stop(), Some(0), "{name}");
        }
    }
}
