//! The real binary: exit codes, sentences, help, and the names it answers to.

use std::path::Path;
use std::process::{Command, Output};

const LONGSHORE: &str = env!("CARGO_BIN_EXE_longshore");

struct Ran {
    code: i32,
    out: String,
    err: String,
}

fn run(program: impl AsRef<Path>, args: &[&str]) -> Ran {
    let Output { status, stdout, stderr } = Command::new(program.as_ref())
        .args(args)
        .env_remove("KUBECONFIG")
        .env_remove("POD_NAMESPACE")
        .output()
        .expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the binary prints UTF-8");
    Ran { code: status.code().expect("no signal"), out: text(stdout), err: text(stderr) }
}

/// Refused: exit code 2, nothing on stdout, one line on stderr.
fn refused(program: impl AsRef<Path>, args: &[&str], sentence: &str) {
    let ran = run(program, args);
    assert_eq!(ran.code, 2, "{args:?}: {}", ran.err);
    assert_eq!(ran.out, "", "{args:?}");
    assert_eq!(ran.err.trim_end(), sentence, "{args:?}");
}

fn link(dir: &tempfile::TempDir, name: &str) -> std::path::PathBuf {
    let link = dir.path().join(name);
    std::os::unix::fs::symlink(LONGSHORE, &link).expect("a link can be made");
    link
}

#[test]
fn unknown_flags_are_refused_with_the_nearest() {
    refused(
        LONGSHORE,
        &["provisioner", "-leader-electoin"],
        "longshore: unknown flag -leader-electoin; did you mean --leader-election? (see `longshore provisioner --help`)",
    );
    refused(
        LONGSHORE,
        &["up", "--data-dri=/x"],
        "longshore: unknown flag --data-dri; did you mean --data-dir? (see `longshore up --help`)",
    );
}

#[test]
fn bad_values_are_refused() {
    refused(
        LONGSHORE,
        &["attacher", "--timeout=15"],
        "longshore: --timeout cannot be `15`: a duration is written as in Go, for example 1m30s, 10s or 500ms (see `longshore attacher --help`)",
    );
    refused(
        LONGSHORE,
        &["up", "--nodes", "0"],
        "longshore: --nodes cannot be `0`: it must be at least 1 (see `longshore up --help`)",
    );
    refused(
        LONGSHORE,
        &["provisioner", "--leader-election", "false"],
        "longshore: unexpected argument `false`; write --leader-election=false (see `longshore provisioner --help`)",
    );
}

#[test]
fn removed_flags_name_their_successor() {
    for (flag, successor) in
        [("-provisioner=x", "--csi-address"), ("-connection-timeout=1s", "--timeout")]
    {
        let ran = run(LONGSHORE, &["provisioner", flag]);
        assert_eq!(ran.code, 2);
        assert!(ran.err.contains("was removed") && ran.err.contains(successor), "{}", ran.err);
    }
}

#[test]
fn programs_of_later_versions_say_so() {
    refused(
        LONGSHORE,
        &["explain", "-v=5"],
        "longshore: `explain` is not part of this version yet",
    );
    refused(LONGSHORE, &["audit"], "longshore: `audit` is not part of this version yet");
}

#[test]
fn flags_that_need_a_pod_say_so() {
    for (flag, variable) in [("--enable-capacity", "NAMESPACE"), ("--node-deployment", "NODE_NAME")]
    {
        let ran = run(LONGSHORE, &["provisioner", flag]);
        assert_ne!(ran.code, 0, "{flag}");
        assert!(ran.err.contains(variable), "{flag}: {}", ran.err);
    }
}

#[test]
fn some_values_exit_1_as_upstream() {
    for (flags, part) in [
        // case: csi-protocol/14.21
        (&["--http-endpoint=:1", "--metrics-address=:2"][..], "cannot be used together"),
        // case: attacher/48
        (&["--worker-threads=0"], "--worker-threads must be greater than zero"),
    ] {
        let ran = run(LONGSHORE, &[&["attacher"], flags].concat());
        assert_eq!(ran.code, 1, "{flags:?}: {}", ran.err);
        assert!(ran.err.contains(part), "{flags:?}: {}", ran.err);
    }
}

#[test]
fn version_and_help_go_to_stdout() {
    let version = env!("CARGO_PKG_VERSION");
    for args in [&["--version"][..], &["-version"]] {
        let ran = run(LONGSHORE, args);
        assert_eq!((ran.code, ran.out), (0, format!("longshore {version}\n")));
    }
    for (args, words) in [
        (&["--help"][..], &["Usage: longshore <COMMAND>", "demo", "provisioner", "Exit codes"][..]),
        (&["up", "--help"], &["Usage: longshore up", "--data-dir <DIR>", "Examples:"]),
        (&["help", "driver"], &["Usage: longshore driver", "--pool <[NAME=]DIR>"]),
        (&["get", "-h"], &["Usage: longshore get", "-o, --output <FORMAT>"]),
        (&["attacher", "-help"], &["--leader-election[=<BOOL>]", "Leader election:"]),
    ] {
        let ran = run(LONGSHORE, args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        for word in words {
            assert!(ran.out.contains(word), "{args:?} lacks {word}:\n{}", ran.out);
        }
        assert!(!ran.out.contains("pod-shim"), "{args:?}");
    }
}

#[test]
fn nothing_to_do_is_wrong_usage() {
    refused(
        LONGSHORE,
        &[],
        "longshore: say what to do, for example `longshore demo` (see `longshore --help`)",
    );
    refused(
        LONGSHORE,
        &["upp"],
        "longshore: unknown command `upp`; did you mean `up`? (see `longshore --help`)",
    );
}

#[test]
fn completions_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(LONGSHORE, &["completions", shell]);
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("leader-election"), "{shell}");
    }
    let ran = run(LONGSHORE, &["completions", "tcsh"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("it is one of bash, zsh, fish"), "{}", ran.err);
}

#[test]
fn a_link_makes_it_the_official_program() {
    let dir = tempfile::tempdir().expect("a directory");
    let provisioner = link(&dir, "csi-provisioner");
    let ran = run(&provisioner, &["--version"]);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!((ran.code, ran.out), (0, format!("{} {version}\n", provisioner.display())));
    refused(
        &provisioner,
        &["--timout=1s"],
        "csi-provisioner: unknown flag --timout; did you mean --timeout? (see `csi-provisioner --help`)",
    );
    // The flags are checked before the version is told, as upstream does.
    assert_eq!(run(&provisioner, &["--version", "--feature-gates=Nope=true"]).code, 2);
    let help = run(link(&dir, "csi-attacher"), &["--help"]);
    assert_eq!(help.code, 0);
    assert!(help.out.contains("Usage: csi-attacher"), "{}", help.out);
    for name in [
        "csi-resizer",
        "csi-snapshotter",
        "snapshot-controller",
        "csi-external-health-monitor-controller",
    ] {
        let link = link(&dir, name);
        let help = run(&link, &["--help"]);
        match help.code {
            0 => assert!(help.out.contains(&format!("Usage: {name}")), "{}", help.out),
            _ => {
                let sentence = format!("{name}: `{name}` is not part of this version yet");
                refused(&link, &["-v=5"], &sentence);
            }
        }
    }
}

#[test]
fn failed_client_commands_exit_1() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("nothing");
    let missing = missing.to_str().expect("UTF-8");
    let ran = run(LONGSHORE, &["get", "pvc", "--kubeconfig", missing]);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    assert_eq!(
        ran.err.trim_end(),
        format!(
            "longshore: cannot use the client configuration {missing}: there is no such file; start `longshore up` or give another with --kubeconfig"
        )
    );
}

#[test]
fn a_server_that_is_away_gets_one_sentence() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let dir = tempfile::tempdir().expect("a directory");
    let kubeconfig = dir.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).expect("a file");
    let ran = run(LONGSHORE, &["get", "pvc", "--kubeconfig", kubeconfig.to_str().expect("UTF-8")]);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    assert!(
        ran.err
            .starts_with(&format!("longshore: cannot reach the API server at http://{address}/: ")),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("refused") && ran.err.lines().count() == 1, "{}", ran.err);
}

#[test]
fn a_file_that_may_not_be_read_is_not_called_missing() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::os::unix::process::CommandExt as _;
    let dir = tempfile::tempdir().expect("a directory");
    if dir.path().metadata().expect("metadata").uid() != 0 {
        return;
    }
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open.clone()).expect("mode");
    let (program, kubeconfig) = (dir.path().join("longshore"), dir.path().join("kubeconfig"));
    std::fs::copy(LONGSHORE, &program).expect("a copy that others may run");
    std::fs::set_permissions(&program, open).expect("mode");
    std::fs::write(&kubeconfig, "apiVersion: v1\n").expect("a file");
    std::fs::set_permissions(&kubeconfig, std::fs::Permissions::from_mode(0o600)).expect("mode");
    for (args, want) in [
        (["get", "pvc"].as_slice(), "permission denied; run as the owner of"),
        (&["controllers"], "permission denied; run as its owner"),
    ] {
        let ran = std::process::Command::new(&program)
            .args(args)
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .uid(65534)
            .gid(65534)
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{said}");
        assert!(said.contains(want) && !said.contains("no such file"), "{said}");
    }
}

#[test]
fn the_flag_wins_over_the_variable_and_says_so_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let (flag, variable) = (dir.path().join("flag"), dir.path().join("variable"));
    for program in ["attacher", "provisioner", "controllers"] {
        let ran = std::process::Command::new(LONGSHORE)
            .arg(program)
            .arg(format!("--kubeconfig={}", flag.display()))
            .env("KUBECONFIG", &variable)
            .output()
            .expect("runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        let note = format!(
            "--kubeconfig={} is used; the environment says KUBECONFIG={}",
            flag.display(),
            variable.display()
        );
        assert_eq!(said.matches(&note).count(), 1, "{program}: {said}");
        let refusal = format!("cannot read kubeconfig {}: there is no such file", flag.display());
        assert_eq!(said.matches(&refusal).count(), 1, "{program}: {said}");
        assert_eq!(said.matches("no such file").count(), 1, "{program}: {said}");
    }
}

#[test]
fn causes_are_said_once() {
    for (kubeconfig, says, cause) in [
        (None, "no cluster is configured", "environment variable not found"),
        (Some("/nonexistent/config"), "there is no such file", "o such file"),
    ] {
        let mut command = std::process::Command::new(LONGSHORE);
        command.args(["attacher", "--csi-address=/nonexistent/csi.sock"]);
        command.args(kubeconfig.map(|file| format!("--kubeconfig={file}")));
        command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST");
        let ran = command.output().expect("runs");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(said.contains(says), "{said}");
        assert_eq!(said.matches(cause).count(), 1, "{said}");
    }
}

#[test]
fn a_pool_whose_parent_is_not_there_is_refused_and_nothing_is_made() {
    let dir = tempfile::tempdir().expect("a directory");
    let (pool, socket) = (dir.path().join("typo/pool"), dir.path().join("csi.sock"));
    let endpoint = format!("--endpoint={}", socket.display());
    let data = dir.path().join("data");
    for args in [
        ["driver", "--node-id=n", &endpoint, &format!("--pool={}", pool.display())],
        [
            "up",
            "--listen=127.0.0.1:0",
            &format!("--data-dir={}", data.display()),
            &format!("--pool={}", pool.display()),
        ],
    ] {
        let ran = run(LONGSHORE, &args);
        if ran.err.contains("root") {
            return;
        }
        assert_eq!(ran.code, 1, "{}", ran.err);
        assert!(ran.err.contains("there is no directory"), "{}", ran.err);
        assert!(!pool.exists() && !pool.parent().expect("typo").exists() && !data.exists());
    }
}

#[test]
fn flags_of_the_go_runtime_get_one_log_line() {
    // The socket's directory does not exist and no cluster is configured, so the program ends by itself.
    let args = [
        "attacher",
        "--automaxprocs",
        "--kubeconfig=/nonexistent/kubeconfig",
        "--csi-address=/nonexistent/csi.sock",
    ];
    let ran = run(LONGSHORE, &args);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert_eq!(ran.err.matches("--automaxprocs has no effect").count(), 1, "{}", ran.err);
}
