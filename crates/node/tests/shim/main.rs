//! The shim for real: namespaces, throw-away root, volumes, exit status, logs, adoption.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod guard;

use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore_files::mounts::MountTable;
use longshore_node::pods::shim_client::{ShimClient, ShimProgram, living_shim};
use longshore_node::shim::protocol::{
    Bind, Cgroup, ContainerRun, LogLimit, Request, RunState, Sandbox, Seccomp, process_start,
};
use longshore_node::shim::rights;
use longshore_testing::{Need, need};

/// A pod directory whose processes end with the test, also when it panics.
struct Pod {
    dir: tempfile::TempDir,
}

impl Pod {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn run(&self, script: &str) -> ContainerRun {
        ContainerRun {
            name: "main".into(),
            attempt: 0,
            argv: vec!["sh".into(), "-c".into(), script.into()],
            env: vec![
                ("PATH".into(), "/usr/bin:/bin".into()),
                ("GREETING".into(), "hello there".into()),
            ],
            working_dir: "/work-dir".into(),
            binds: vec![],
            hidden: vec![],
            uid: 0,
            gid: 0,
            groups: vec![],
            capabilities: rights::capability_set(&[], &[]).unwrap(),
            no_new_privs: false,
            privileged: false,
            read_only_root: false,
            log: self.path().join("logs/main.log"),
            log_limit: LogLimit::default(),
            sandbox: Sandbox { hostname: Some("the-pod".into()), ..Sandbox::default() },
            seccomp: Seccomp::default(),
            stdin: false,
            stdin_once: false,
            tty: false,
        }
    }

    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.path().join("logs/main.log")).unwrap_or_default();
        text.lines()
            .map(|line| line.splitn(4, ' ').nth(3).unwrap_or("").to_owned() + "\n")
            .collect()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        if let Some(shim) = living_shim(self.path()) {
            let pid = rustix::process::Pid::from_raw(shim.pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

fn program() -> ShimProgram {
    let exe = std::env::current_exe().unwrap();
    let shim = exe.parent().unwrap().parent().unwrap().join("examples/shim");
    assert!(shim.exists(), "{} is built by `cargo test -p longshore-node`", shim.display());
    ShimProgram { program: shim, args: vec![] }
}

async fn ended(client: &ShimClient) -> RunState {
    let mut view = client.view();
    let wait = view.wait_for(|view| view.newest("main").is_some_and(|run| run.outcome.is_some()));
    let view = tokio::time::timeout(Duration::from_secs(30), wait)
        .await
        .expect("the container ends")
        .unwrap();
    view.newest("main").unwrap().clone()
}

async fn run_to_end(pod: &Pod, run: ContainerRun) -> RunState {
    let client = ShimClient::open(&program(), pod.path()).await.unwrap();
    client.tell(&Request::Start(Box::new(run))).await.unwrap();
    let state = ended(&client).await;
    client.quit().await;
    assert_eq!(living_shim(pod.path()), None);
    state
}

/// Starts a container that says `up`, and waits until it did.
async fn start_and_wait(pod: &Pod, run: ContainerRun) -> ShimClient {
    let client = ShimClient::open(&program(), pod.path()).await.unwrap();
    client.tell(&Request::Start(Box::new(run))).await.unwrap();
    while !pod.log().contains("up") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    client
}

#[tokio::test]
async fn exit_code_output_and_environment() {
    if !need("exit_code_output_and_environment", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let state =
        run_to_end(&pod, pod.run("echo $GREETING; pwd; echo oops >&2; echo pid $$; exit 7")).await;
    let outcome = state.outcome.unwrap();
    assert_eq!((outcome.exit_code, outcome.signal, outcome.start_error), (7, 0, None));
    let log = pod.log();
    for line in ["hello there", "/work-dir", "oops", "pid 1"] {
        assert!(log.lines().any(|one| one == line), "{line} in {log}");
    }
}

#[tokio::test]
async fn signals_that_the_agent_ignores_have_their_default_in_a_container() {
    if !need("signals_that_the_agent_ignores_have_their_default_in_a_container", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    // As under `nohup`.
    let shim = program().program.display().to_string();
    let ignoring = ShimProgram {
        program: "/usr/bin/env".into(),
        args: vec!["--ignore-signal=HUP,USR1".into(), shim],
    };
    let client = ShimClient::open(&ignoring, pod.path()).await.unwrap();
    let run = pod.run("grep SigIgn: /proc/self/status");
    client.tell(&Request::Start(Box::new(run))).await.unwrap();
    ended(&client).await;
    client.quit().await;
    assert_eq!(pod.log().trim(), "SigIgn:\t0000000000000000");
}

#[tokio::test]
async fn a_missing_program_is_a_start_error() {
    if !need("a_missing_program_is_a_start_error", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let mut run = pod.run("");
    run.argv = vec!["no-such-program".into()];
    let outcome = run_to_end(&pod, run).await.outcome.unwrap();
    assert_eq!(outcome.exit_code, 128);
    assert!(outcome.start_error.unwrap().contains("executable file not found"));
}

#[tokio::test]
async fn the_host_is_not_written_and_hidden_directories_are_empty() {
    if !need("the_host_is_not_written_and_hidden_directories_are_empty", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let hidden = tempfile::tempdir_in("/var/tmp").unwrap();
    std::fs::write(hidden.path().join("secret"), "x").unwrap();
    let marker = format!("/etc/longshore-test-{}", std::process::id());
    let script = format!(
        "echo x > {marker} && cat {marker}; ls -A {hidden} | wc -l; ls -A /tmp | wc -l; touch /tmp/a /run/b && echo fresh; \
         head -c 4 /dev/zero | wc -c; echo lost > /dev/null; ls /dev | grep -c loop; mknod /dev/x b 7 0 && cat /dev/x; \
         wc -l < /proc/self/mountinfo",
        hidden = hidden.path().display()
    );
    let mut run = pod.run(&script);
    run.hidden = vec![hidden.path().to_owned()];
    // By default it cannot even be made.
    run.capabilities |= rights::capability_set(&["MKNOD".to_owned()], &["ALL".to_owned()]).unwrap();
    run_to_end(&pod, run).await;
    assert!(!Path::new(&marker).exists());
    let log = pod.log();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(&lines[..6], &["x", "0", "0", "fresh", "4", "0"], "{log}");
    assert!(log.contains("Permission denied"), "a made device cannot be opened: {log}");
}

#[tokio::test]
async fn a_hidden_directory_is_hidden_by_every_path_that_shows_it() {
    if !need("a_hidden_directory_is_hidden_by_every_path_that_shows_it", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let home = tempfile::tempdir_in("/var/tmp").unwrap();
    let (real, bound) = (home.path().join("real/data"), home.path().join("bound"));
    std::fs::create_dir_all(&real).unwrap();
    std::fs::create_dir_all(&bound).unwrap();
    std::fs::write(real.join("secret"), "x").unwrap();
    let _bound = Bound::new(&real, &bound);
    let (key, socket) = (home.path().join("key"), home.path().join("socket"));
    std::fs::write(&key, "secret").unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    // The data directory is a bind mount; the directory behind it is on the root filesystem.
    let script =
        "find $HOME -name secret; cat $HOME/key; [ -S $HOME/socket ] && echo socket; echo looked";
    let mut run = pod.run(script);
    run.env.push(("HOME".into(), home.path().display().to_string()));
    run.hidden = vec![bound, key, socket];
    run_to_end(&pod, run).await;
    assert_eq!(pod.log(), "looked\n");
}

/// A bind mount on the host.
struct Bound(PathBuf);

impl Bound {
    fn new(source: &Path, target: &Path) -> Self {
        rustix::mount::mount_bind(source, target).unwrap();
        Self(target.to_owned())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn volumes_are_bound_and_read_only_is_kept() {
    if !need("volumes_are_bound_and_read_only_is_kept", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("in"), "from the host").unwrap();
    let mut run = pod.run(
        "cat /data/rw/in; echo; echo from the pod > /data/rw/out; touch /data/ro/x || echo refused; cat /etc/one-file",
    );
    let bind = |target: &str, read_only| Bind {
        source: data.path().to_owned(),
        target: PathBuf::from(target),
        read_only,
        ..Bind::default()
    };
    let file = Bind {
        source: data.path().join("in"),
        target: "/etc/one-file".into(),
        read_only: true,
        ..Bind::default()
    };
    run.binds = vec![bind("/data/rw", false), bind("/data/ro", true), file];
    let state = run_to_end(&pod, run).await;
    let log = pod.log();
    assert_eq!(state.outcome.unwrap().exit_code, 0, "{log}");
    assert_eq!(std::fs::read_to_string(data.path().join("out")).unwrap(), "from the pod\n");
    assert_eq!(log.matches("from the host").count(), 2, "{log}");
    assert!(log.contains("refused"), "{log}");
}

#[tokio::test]
async fn user_groups_and_capabilities() {
    if !need("user_groups_and_capabilities", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let mut run = pod.run("id -u; id -g; id -G; grep -E 'CapEff|NoNewPrivs' /proc/self/status");
    (run.uid, run.gid, run.groups, run.no_new_privs) = (1234, 2345, vec![3000, 4000], true);
    run_to_end(&pod, run).await;
    let log = pod.log();
    assert_eq!(log.lines().take(3).collect::<Vec<_>>(), ["1234", "2345", "2345 3000 4000"]);
    assert!(log.contains("CapEff:\t0000000000000000") && log.contains("NoNewPrivs:\t1"), "{log}");

    let pod = Pod::new();
    let mut run = pod.run("grep -E 'Cap|Seccomp|NoNew' /proc/self/status");
    run.capabilities = 1;
    run_to_end(&pod, run).await;
    let log = pod.log();
    for (name, value) in [("Inh", 0), ("Prm", 1), ("Eff", 1), ("Bnd", 1), ("Amb", 0)] {
        assert!(log.contains(&format!("Cap{name}:\t000000000000000{value}")), "{name} in {log}");
    }
    // The filter holds although new rights are not forbidden.
    assert!(log.contains("Seccomp:\t2") && log.contains("NoNewPrivs:\t0"), "{log}");

    let pod = Pod::new();
    let mut run = pod.run("grep Seccomp: /proc/self/status");
    run.seccomp = Seccomp::Unconfined;
    run_to_end(&pod, run).await;
    assert_eq!(pod.log(), "Seccomp:\t0\n");
}

#[tokio::test]
async fn a_signal_is_delivered_and_quit_kills_everything() {
    if !need("a_signal_is_delivered_and_quit_kills_everything", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let run = pod.run("trap 'echo caught; exit 5' TERM; echo up; while :; do sleep 0.05; done");
    let client = start_and_wait(&pod, run).await;
    client.tell(&Request::Signal { name: "main".into(), signal: 15 }).await.unwrap();
    assert_eq!(ended(&client).await.outcome.unwrap().exit_code, 5);

    // The first process ignores TERM as every pid 1 does; quitting the shim kills it all the same.
    let mut run = pod.run("sleep 1000 & wait");
    run.attempt = 1;
    client.tell(&Request::Start(Box::new(run))).await.unwrap();
    let mut view = client.view();
    view.wait_for(|view| view.newest("main").is_some_and(|run| run.attempt == 1)).await.unwrap();
    let pid = view.borrow().newest("main").unwrap().pid;
    client.quit().await;
    assert_eq!(process_start(pid), None);
}

#[tokio::test]
async fn another_agent_adopts_the_shim_and_its_runs() {
    if !need("another_agent_adopts_the_shim_and_its_runs", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let client = ShimClient::open(&program(), pod.path()).await.unwrap();
    let first = living_shim(pod.path()).unwrap();
    client.tell(&Request::Start(Box::new(pod.run("sleep 0.3; exit 4")))).await.unwrap();
    drop(client);
    let again = ShimClient::open(&program(), pod.path()).await.unwrap();
    assert_eq!(living_shim(pod.path()), Some(first));
    assert_eq!(ended(&again).await.outcome.unwrap().exit_code, 4);
    again.quit().await;
}

/// The process of the container, once the client has heard of it: its output may come first.
async fn started(client: &ShimClient) -> i32 {
    let mut view = client.view();
    let view = view.wait_for(|view| view.newest("main").is_some()).await.unwrap();
    view.newest("main").unwrap().pid
}

#[tokio::test]
async fn a_shim_of_an_earlier_version_is_known_and_let_go_only_when_idle() {
    if !need("a_shim_of_an_earlier_version_is_known_and_let_go_only_when_idle", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let client = ShimClient::open(&program(), pod.path()).await.unwrap();
    client.tell(&Request::Start(Box::new(pod.run("sleep 0.5")))).await.unwrap();
    let mut view = client.view();
    view.wait_for(|view| view.newest("main").is_some()).await.unwrap();
    let shim = living_shim(pod.path()).unwrap();
    let old = serde_json::json!({"pid": shim.pid, "pid_started": shim.pid_started});
    std::fs::write(pod.path().join("shim/identity.json"), old.to_string()).unwrap();
    let again = ShimClient::open(&program(), pod.path()).await.unwrap();
    assert!(!again.is_idle_and_old(), "its container goes on");
    ended(&again).await;
    assert!(again.is_idle_and_old());
    assert!(!client.is_idle_and_old());
    again.quit().await;
}

#[tokio::test]
async fn a_kernel_setting_of_the_pod_is_not_the_hosts() {
    if !need("a_kernel_setting_of_the_pod_is_not_the_hosts", &[Need::Root]) {
        return;
    }
    let file = "/proc/sys/kernel/shm_rmid_forced";
    let before = std::fs::read_to_string(file).unwrap();
    let other = if before.trim() == "1" { "0" } else { "1" };
    let pod = Pod::new();
    let mut run = pod.run(&format!("cat {file}"));
    run.sandbox.sysctls = vec![("kernel.shm_rmid_forced".into(), other.into())];
    run_to_end(&pod, run).await;
    assert_eq!(pod.log().trim(), other);
    assert_eq!(std::fs::read_to_string(file).unwrap(), before);
}

#[tokio::test]
async fn the_shims_own_program_cannot_be_written_from_a_container() {
    if !need("the_shims_own_program_cannot_be_written_from_a_container", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let client = start_and_wait(&pod, pod.run("echo up; sleep 1000")).await;
    let shim = living_shim(pod.path()).unwrap().pid;
    // While it runs it is busy; afterwards only the mount is in the way.
    let mount = rustix::fs::statvfs(format!("/proc/{shim}/exe")).unwrap().f_flag;
    assert!(mount.contains(rustix::fs::StatVfsMountFlags::RDONLY), "{mount:?}");
    assert_eq!(std::fs::read_to_string(format!("/proc/{shim}/comm")).unwrap(), "shim\n");
    // A container whose command is that program runs it without any right to it.
    let mut run = pod.run("");
    (run.name, run.argv) = ("exe".into(), vec!["/proc/self/exe".into()]);
    run.log = pod.path().join("logs/exe.log");
    client.tell(&Request::Start(Box::new(run))).await.unwrap();
    let mut view = client.view();
    let over = |view: &longshore_node::pods::shim_client::ShimView| {
        view.newest("exe").is_some_and(|run| run.outcome.is_some())
    };
    view.wait_for(over).await.unwrap();
    let log = std::fs::read_to_string(pod.path().join("logs/exe.log")).unwrap();
    assert!(log.contains("not by hand"), "{log}");
    client.quit().await;
}

#[tokio::test]
async fn a_working_directory_cannot_be_a_descriptor_of_the_shim() {
    if !need("a_working_directory_cannot_be_a_descriptor_of_the_shim", &[Need::Root]) {
        return;
    }
    for fd in 3..40 {
        let pod = Pod::new();
        let mut run = pod.run("cat < /dev/null; ls -A; ls -A ..");
        run.working_dir = format!("/proc/self/fd/{fd}").into();
        let outcome = run_to_end(&pod, run).await.outcome.unwrap();
        assert!(outcome.start_error.is_some(), "{fd}: {}", pod.log());
    }
}

#[tokio::test]
async fn a_container_sees_its_own_cgroup_of_the_unified_hierarchy_and_cannot_write_it() {
    let name = "a_container_sees_its_own_cgroup_of_the_unified_hierarchy_and_cannot_write_it";
    let table = MountTable::read().unwrap();
    let Some(unified) = table.cgroups().find(|mount| mount.fstype == "cgroup2") else { return };
    if !need(name, &[Need::Root]) {
        return;
    }
    let dir = unified.path.join(format!("longshore-test-{}", std::process::id()));
    std::fs::create_dir(&dir).unwrap();
    let pod = Pod::new();
    let mut run = pod.run(
        "grep ^0:: /proc/self/cgroup; cat /sys/fs/cgroup/cgroup.procs | head -1; \
         mkdir /sys/fs/cgroup/x 2>/dev/null && echo made; ls -d /sys/fs/cgroup/longshore* 2>/dev/null; echo looked",
    );
    run.sandbox.cgroups = vec![Cgroup { dir: dir.clone(), ..Cgroup::default() }];
    run_to_end(&pod, run).await;
    let removed = std::fs::remove_dir(&dir);
    assert_eq!(pod.log(), "0::/\n1\nlooked\n");
    removed.unwrap();
}

#[tokio::test]
async fn a_container_holds_no_mounts_but_its_own() {
    if !need("a_container_holds_no_mounts_but_its_own", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let foreign = Mounted::new();
    let own = Mounted::new();
    let mut run = pod.run("echo up; sleep 1000");
    run.binds = vec![Bind {
        source: own.path().to_owned(),
        target: "/volume".into(),
        read_only: false,
        ..Bind::default()
    }];
    let client = start_and_wait(&pod, run).await;
    let pid = started(&client).await;
    let table = MountTable::of_process(pid.cast_unsigned()).unwrap();
    let holds = |volume: &Mounted| table.mounts.iter().any(|one| one.device == volume.device());
    assert!(holds(&own), "the container has its volume");
    assert!(!holds(&foreign), "another pod's volume is not held");
    // What a driver does at unstage: while a pod held the mount, its device would stay busy.
    client.quit().await;
}

/// A tmpfs that stands for a volume on the host.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        rustix::mount::mount(
            "volume",
            dir.path(),
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            None,
        )
        .unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn device(&self) -> (u32, u32) {
        MountTable::read().unwrap().at(self.path()).expect("mounted").device
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn the_hosts_kernel_settings_and_secrets_are_out_of_reach() {
    if !need("the_hosts_kernel_settings_and_secrets_are_out_of_reach", &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    // The same value is written, so that a hole does the host no harm.
    let script = "for f in kernel/core_pattern vm/swappiness kernel/hostname; do \
         v=$(cat /proc/sys/$f); (echo \"$v\" > /proc/sys/$f) 2>/dev/null && echo \"writable $f\"; done; \
         (echo h > /proc/sysrq-trigger) 2>/dev/null && echo writable sysrq; \
         for f in kcore keys timer_list interrupts; do [ -s /proc/$f ] && head -c 1 /proc/$f | grep -q . && echo seen $f; done; \
         ls /sys/firmware /proc/acpi 2>/dev/null | grep -v : | grep -q . && echo seen firmware; \
         touch /sys/x 2>/dev/null && echo writable sys; \
         grep ' /sys/fs/cgroup' /proc/self/mountinfo | grep -v ' ro,' | grep -q . && echo writable cgroup; \
         grep -c ' /sys/kernel/' /proc/self/mountinfo; hostname; echo done";
    run_to_end(&pod, pod.run(script)).await;
    assert_eq!(pod.log().lines().collect::<Vec<_>>(), ["0", "the-pod", "done"], "{}", pod.log());
}

/// The devices of a container are its own: a pod whose user is root owns the host's as well, and could
/// take `/dev/null` away from everybody.
#[tokio::test]
async fn the_mode_of_a_device_changes_in_the_container_and_not_on_the_host() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let name = "the_mode_of_a_device_changes_in_the_container_and_not_on_the_host";
    if !need(name, &[Need::Root]) {
        return;
    }
    let host = || std::fs::metadata("/dev/null").unwrap();
    let before = (host().mode(), host().uid());
    let secret = tempfile::NamedTempFile::new().unwrap();
    // Adds a right that does no harm, should the host have it for a moment.
    let script = format!(
        "for f in /dev/null /proc/kcore /proc/timer_list {}; do \
         chmod 0667 $f 2>/dev/null && stat -c '%a %t:%T' $f; done; echo lost > /dev/null && echo written",
        secret.path().display()
    );
    let mut logs = Vec::new();
    for privileged in [false, true] {
        let pod = Pod::new();
        let mut run = pod.run(&script);
        // Like a kubeconfig that lies among files which the root shows.
        run.hidden = vec![secret.path().to_owned()];
        if privileged {
            (run.privileged, run.capabilities) = (true, rights::ALL);
        }
        run_to_end(&pod, run).await;
        logs.push(pod.log());
        let after = (host().mode(), host().uid());
        std::fs::set_permissions("/dev/null", std::fs::Permissions::from_mode(before.0)).unwrap();
        assert_eq!(after, before, "privileged: {privileged}\n{}", pod.log());
    }
    assert_eq!(logs[0].lines().next(), Some("667 1:3"), "{}", logs[0]);
    for log in logs {
        assert_eq!(log.lines().last(), Some("written"), "{log}");
    }
}

#[tokio::test]
async fn a_privileged_container_has_the_hosts_kernel_settings_and_devices_but_its_own_names() {
    let name = "a_privileged_container_has_the_hosts_kernel_settings_and_devices_but_its_own_names";
    if !need(name, &[Need::Root]) {
        return;
    }
    let pod = Pod::new();
    let script = "v=$(cat /proc/sys/vm/swappiness); echo $v > /proc/sys/vm/swappiness && echo writable; \
         head -c 1 /proc/timer_list | wc -c; grep Seccomp: /proc/self/status; hostname; \
         ls /dev/shm | wc -l; [ -c /dev/loop-control ] && echo devices; touch /dev/of-the-pod; grep CapEff /proc/self/status";
    let mut run = pod.run(script);
    (run.privileged, run.capabilities) = (true, rights::ALL);
    run_to_end(&pod, run).await;
    let held = std::fs::read_to_string("/proc/self/status").unwrap();
    let held = held.lines().find(|line| line.starts_with("CapBnd")).unwrap();
    let held = held.replace("CapBnd", "CapEff");
    let expected = ["writable", "1", "Seccomp:\t0", "the-pod", "0", "devices", &held];
    assert_eq!(pod.log().lines().collect::<Vec<_>>(), expected);
    assert!(!Path::new("/dev/of-the-pod").exists(), "files in /dev are the container's");
}

#[tokio::test]
async fn containers_of_a_pod_share_host_name_ipc_and_shared_memory_and_nothing_with_the_host() {
    let name =
        "containers_of_a_pod_share_host_name_ipc_and_shared_memory_and_nothing_with_the_host";
    if !need(name, &[Need::Root, Need::Tool("ipcmk")]) {
        return;
    }
    let pod = Pod::new();
    let client = ShimClient::open(&program(), pod.path()).await.unwrap();
    let namespaces =
        "for n in uts ipc mnt pid cgroup; do echo $n=$(readlink /proc/self/ns/$n); done";
    let mut first = pod.run(&format!(
        "ipcmk -M 64 >/dev/null; echo shared > /dev/shm/x; {namespaces}; echo up; sleep 1000"
    ));
    first.name = "first".into();
    first.log = pod.path().join("logs/first.log");
    client.tell(&Request::Start(Box::new(first))).await.unwrap();
    let first_log =
        || std::fs::read_to_string(pod.path().join("logs/first.log")).unwrap_or_default();
    while !first_log().contains(" up\n") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let look = format!(
        "{namespaces}; cat /dev/shm/x; ipcs -m | grep -c 0x; grep -c mqueue /proc/self/mountinfo"
    );
    for attempt in 0..2 {
        let mut run = pod.run(&look);
        run.attempt = attempt;
        client.tell(&Request::Start(Box::new(run))).await.unwrap();
        let mut view = client.view();
        let over = |view: &longshore_node::pods::shim_client::ShimView| {
            view.newest("main").is_some_and(|run| run.attempt == attempt && run.outcome.is_some())
        };
        view.wait_for(over).await.unwrap();
        let log = pod.log();
        for line in ["shared", "1"] {
            assert!(log.lines().any(|one| one == line), "{line} in {log}");
        }
        for line in log.lines().filter(|line| line.contains('=')) {
            let (kind, id) = line.split_once('=').unwrap();
            let ours = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
            assert_ne!(ours.display().to_string(), id, "{kind} is not the host's");
            let same = first_log().contains(&format!(" {line}\n"));
            assert_eq!(same, ["uts", "ipc"].contains(&kind), "{kind} among containers");
        }
    }
    client.quit().await;
    let host = rustix::system::uname().nodename().to_owned();
    assert_ne!(host.as_c_str(), c"the-pod");
}
