//! What a program in a pod tries. Each attempt is harmless where it succeeds: values are written
//! back as they were, and calls get arguments that the kernel refuses after it has looked at rights.

#![expect(unsafe_code, reason = "the attempts are raw system calls")]

use std::ffi::{CStr, CString};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use libc::c_long;

/// What is outside and must not be reached.
pub struct Outside {
    pub host_pid: i64,
    pub data_dir: PathBuf,
    pub home: PathBuf,
    pub shm_key: i64,
    pub neighbour_key: i64,
    pub name: String,
    pub max_pids: i64,
}

/// Whether the attempt held, and what was seen.
pub type Verdict = Result<(), String>;

/// Errors that mean "no".
const REFUSALS: [i32; 9] = [
    libc::EPERM,
    libc::EACCES,
    libc::EROFS,
    libc::ENOSYS,
    libc::ESRCH,
    libc::ENOENT,
    libc::ENXIO,
    libc::ENODEV,
    libc::ENOTDIR,
];

fn call(number: c_long, args: [i64; 6]) -> Result<i64, i32> {
    let [a, b, c, d, e, f] = args;
    // SAFETY: pointers among the arguments point to constants or values that outlive the call.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        Ok(result)
    }
}

fn refused(number: c_long, args: &[i64]) -> Verdict {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    judge(call(number, all))
}

fn judge(result: Result<i64, i32>) -> Verdict {
    match result {
        Ok(value) => Err(format!("gave {value}")),
        Err(error) if REFUSALS.contains(&error) => Ok(()),
        Err(error) => Err(format!("got as far as {}", std::io::Error::from_raw_os_error(error))),
    }
}

fn text(text: &'static CStr) -> i64 {
    text.as_ptr() as i64
}

fn io(result: std::io::Result<()>) -> Verdict {
    match result {
        Ok(()) => Err("it worked".into()),
        Err(error) => judge(Err(error.raw_os_error().unwrap_or(0))),
    }
}

/// Opens for writing and writes back what is there.
fn not_written(path: &str) -> Verdict {
    let now = fs::read(path).unwrap_or_default();
    let opened = fs::OpenOptions::new().write(true).open(path);
    io(opened.and_then(|mut file| std::io::Write::write_all(&mut file, &now)))
}

/// Only opened: a written byte would do something.
fn not_opened(path: &str, write: bool) -> Verdict {
    io(fs::OpenOptions::new().read(!write).write(write).open(path).map(drop))
}

fn nothing_read(path: &str) -> Verdict {
    let mut buffer = [0; 64];
    match fs::File::open(path).and_then(|mut file| file.read(&mut buffer)) {
        Ok(0) | Err(_) => Ok(()),
        Ok(count) => Err(format!("{count} bytes of {path}")),
    }
}

fn nothing_listed(path: &str) -> Verdict {
    match fs::read_dir(path).map(Iterator::count) {
        Ok(0) | Err(_) => Ok(()),
        Ok(count) => Err(format!("{count} entries in {path}")),
    }
}

fn absent(path: impl AsRef<Path>) -> Verdict {
    match fs::symlink_metadata(&path) {
        Err(_) => Ok(()),
        Ok(_) => Err(format!("{} is there", path.as_ref().display())),
    }
}

/// A device that is made cannot be opened.
fn no_device_in(dir: &str) -> Verdict {
    let path = CString::new(format!("{dir}/attack-{}", std::process::id())).unwrap();
    let device = libc::makedev(1, 1);
    // SAFETY: the path is a string that outlives the calls.
    let made = unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, device) };
    if made != 0 {
        return Ok(());
    }
    let opened = fs::File::open(path.to_str().unwrap());
    let _ = fs::remove_file(path.to_str().unwrap());
    io(opened.map(drop))
}

/// A handle may be had, and must not lead anywhere.
fn no_open_by_handle_of(path: &'static CStr) -> Verdict {
    let (mut handle, mut mount) = ([0_u8; 136], 0_i32);
    handle[0] = 128;
    let (to, on) = (handle.as_mut_ptr() as i64, &raw mut mount as i64);
    // A filesystem without handles leaves a made-up one to be tried.
    let _ = call(libc::SYS_name_to_handle_at, [-100, text(path), to, on, 0, 0]);
    refused(libc::SYS_open_by_handle_at, &[-100, to, 0])
}

fn no_socket(family: i32, kind: i32, protocol: i32) -> Verdict {
    refused(libc::SYS_socket, &[family.into(), kind.into(), protocol.into()])
}

/// Looks for the instance's files by name below a directory.
fn no_secret_below(dir: &Path) -> Verdict {
    let mut todo = vec![dir.to_path_buf()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if name == "kubeconfig" || name.ends_with(".img") || name.starts_with("log-0") {
                return Err(format!("{} is seen", path.display()));
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                todo.push(path);
            }
        }
    }
    Ok(())
}

/// The old way out of a chroot: keep a directory open, chroot below, climb.
fn no_way_up(outside: &Outside) -> Verdict {
    let keep = fs::File::open("/").map_err(|error| error.to_string())?;
    let _ = fs::create_dir_all("/tmp/jail");
    // SAFETY: plain calls with constant strings.
    unsafe {
        libc::chroot(c"/tmp/jail".as_ptr());
        libc::fchdir(std::os::fd::AsRawFd::as_raw_fd(&keep));
        for _ in 0..64 {
            libc::chdir(c"..".as_ptr());
        }
        libc::chroot(c".".as_ptr());
    }
    no_secret_below(&outside.home)
}

/// Forks until the kernel says no.
fn fork_bomb(outside: &Outside) -> Verdict {
    let bound = outside.max_pids * 3;
    let mut children = Vec::new();
    let mut held = Err(format!("{bound} processes and no end"));
    for _ in 0..bound {
        // SAFETY: the child makes plain calls only.
        let pid = unsafe { libc::fork() };
        match pid {
            // SAFETY: plain calls.
            0 => unsafe {
                libc::pause();
                libc::_exit(0);
            },
            -1 => {
                held = Ok(());
                break;
            }
            pid => children.push(pid),
        }
    }
    for pid in children {
        // SAFETY: plain calls on own children.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
    }
    held
}

/// A call through the gate of 32-bit programs.
#[cfg(target_arch = "x86_64")]
fn by_32_bit_gate(number: i32, first: i32) -> Verdict {
    let result: i32;
    // SAFETY: the gate keeps all registers but the result; rbx is put back.
    unsafe {
        std::arch::asm!(
            "xchg {first:r}, rbx",
            "int 0x80",
            "xchg {first:r}, rbx",
            first = inout(reg) i64::from(first) => _,
            inlateout("eax") number => result,
            in("ecx") 0, in("edx") 0, in("esi") 0, in("edi") 0,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    if result < 0 { judge(Err(-result)) } else { Err(format!("gave {result}")) }
}

#[cfg(not(target_arch = "x86_64"))]
fn by_32_bit_gate(_number: i32, _first: i32) -> Verdict {
    Ok(())
}

fn no_release_agent() -> Verdict {
    let mut todo = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            let control =
                ["release_agent", "notify_on_release", "cgroup.procs", "pids.max", "tasks"];
            if control.contains(&entry.file_name().to_string_lossy().as_ref()) {
                not_opened(&path.display().to_string(), true)?;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                todo.push(path);
            }
        }
    }
    Ok(())
}

/// No process but those of this container.
fn no_foreign_process() -> Verdict {
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        if line.contains("pod-shim") || line.contains("--data-dir") {
            return Err(format!("{} is {line}", entry.path().display()));
        }
    }
    Ok(())
}

fn no_raised_capability() -> Verdict {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for line in status.lines().filter(|line| line.starts_with("Cap")) {
        let set = line.split_whitespace().nth(1).and_then(|hex| u64::from_str_radix(hex, 16).ok());
        // The default, and what the baseline lets a pod add.
        if set.unwrap_or(u64::MAX) & !(0xa004_05fb | 1 << 27) != 0 {
            return Err(line.to_owned());
        }
    }
    Ok(())
}

/// One thing that a pod can try.
pub type Attempt = (&'static str, Box<dyn Fn(&Outside) -> Verdict>);

fn attempt(name: &'static str, act: impl Fn(&Outside) -> Verdict + 'static) -> Attempt {
    (name, Box::new(act))
}

/// Everything that is tried, in order.
pub fn all() -> Vec<Attempt> {
    let mut list = kernel_settings();
    list.extend(kernel_secrets());
    list.extend(devices_and_sockets());
    list.extend(mounts());
    list.extend(namespaces_and_processes());
    list.extend(dangerous_calls());
    list.extend(other_interfaces());
    list.extend(shared_objects());
    list.extend(files_of_the_instance());
    list.push(attempt("fork bomb", fork_bomb));
    list
}

fn kernel_settings() -> Vec<Attempt> {
    let mut list: Vec<Attempt> = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/domainname",
        "/proc/sys/kernel/sysrq",
        "/proc/sys/kernel/randomize_va_space",
        "/proc/sys/kernel/shmmax",
        "/proc/sys/kernel/pid_max",
        "/proc/sys/vm/swappiness",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/fs/file-max",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/irq/default_smp_affinity",
        "/sys/kernel/uevent_helper",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/kernel/profiling",
        "/sys/module/loop/parameters/max_part",
        "/sys/class/net/lo/mtu",
        "/proc/1/root/proc/sys/kernel/core_pattern",
        "/proc/self/task/../../sys/kernel/core_pattern",
        "/proc/thread-self/root/proc/sys/vm/swappiness",
    ]
    .into_iter()
    .map(|path| {
        (path, Box::new(move |_: &Outside| not_written(path)) as Box<dyn Fn(&Outside) -> Verdict>)
    })
    .collect();
    for path in [
        "/proc/sysrq-trigger",
        "/proc/sys/fs/binfmt_misc/register",
        "/sys/power/state",
        "/proc/mtrr",
    ] {
        list.push(attempt(path, move |_| not_opened(path, true)));
    }
    list.push(attempt("create in /proc/sys", |_| io(fs::write("/proc/sys/kernel/attack", "1"))));
    list.push(attempt("cgroup directory", |_| {
        io(fs::create_dir("/sys/fs/cgroup/attack"))
            .and(io(fs::create_dir("/sys/fs/cgroup/pids/attack")))
    }));
    list.push(attempt("cgroup control files", |_| no_release_agent()));
    list.push(attempt("oom_score_adj", |_| io(fs::write("/proc/self/oom_score_adj", "-1000"))));
    list
}

fn kernel_secrets() -> Vec<Attempt> {
    let mut list = Vec::new();
    for path in [
        "/proc/kcore",
        "/proc/keys",
        "/proc/timer_list",
        "/proc/interrupts",
        "/proc/sched_debug",
        "/proc/latency_stats",
    ] {
        list.push(attempt(path, move |_| nothing_read(path)));
    }
    for path in [
        "/proc/acpi",
        "/proc/scsi",
        "/proc/asound",
        "/sys/firmware",
        "/sys/devices/virtual/powercap",
        "/sys/kernel/debug",
        "/sys/kernel/tracing",
        "/sys/kernel/security",
        "/sys/fs/bpf",
    ] {
        list.push(attempt(path, move |_| nothing_listed(path)));
    }
    for path in [
        "/dev/mem",
        "/dev/kmsg",
        "/dev/port",
        "/dev/loop-control",
        "/dev/vda",
        "/dev/fuse",
        "/dev/kvm",
        "/proc/kmsg",
    ] {
        list.push(attempt(path, move |_| not_opened(path, false)));
    }
    list
}

fn devices_and_sockets() -> Vec<Attempt> {
    let mut list = Vec::new();
    for (name, dir) in [
        ("device in /", "/"),
        ("device in /tmp", "/tmp"),
        ("device in /dev", "/dev"),
        ("device in /dev/shm", "/dev/shm"),
        ("device in /run", "/run"),
        ("device in /var/tmp", "/var/tmp"),
        ("device in a volume", "/volume"),
    ] {
        list.push(attempt(name, move |_| no_device_in(dir)));
    }
    list.push(attempt("packet socket", |_| no_socket(libc::AF_PACKET, libc::SOCK_RAW, 0x0300)));
    list.push(attempt("packet socket, cooked", |_| {
        no_socket(libc::AF_PACKET, libc::SOCK_DGRAM, 0x0300)
    }));
    list.push(attempt("raw socket", |_| {
        no_socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_TCP)
    }));
    list.push(attempt("raw socket, IPv6", |_| {
        no_socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_TCP)
    }));
    list.push(attempt("vsock", |_| no_socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0)));
    list.push(attempt("kernel crypto socket", |_| {
        no_socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0)
    }));
    list.push(attempt("interface down", |_| {
        let socket = call(libc::SYS_socket, [2, 2, 0, 0, 0, 0]).map_err(|e| e.to_string())?;
        let mut request = [0u8; 40];
        request[..2].copy_from_slice(b"lo");
        request[16] = 0x49;
        refused(libc::SYS_ioctl, &[socket, 0x8914, request.as_ptr() as i64])
    }));
    // The container has no terminal. With one, dev.tty.legacy_tiocsti decides, as under runc.
    list.push(attempt("typing into a terminal", |_| {
        match call(libc::SYS_ioctl, [0, 0x5412, text(c"x"), 0, 0, 0]) {
            Err(libc::ENOTTY) => Ok(()),
            other => judge(other),
        }
    }));
    list
}

fn mounts() -> Vec<Attempt> {
    let remount = (libc::MS_REMOUNT | libc::MS_BIND) as i64;
    vec![
        attempt("mount tmpfs", |_| {
            refused(libc::SYS_mount, &[text(c"x"), text(c"/tmp"), text(c"tmpfs"), 0, 0])
        }),
        attempt("mount proc", |_| {
            refused(libc::SYS_mount, &[text(c"x"), text(c"/tmp"), text(c"proc"), 0, 0])
        }),
        attempt("mount cgroup", |_| {
            refused(
                libc::SYS_mount,
                &[text(c"x"), text(c"/tmp"), text(c"cgroup"), 0, text(c"pids")],
            )
        }),
        attempt("bind", |_| {
            refused(libc::SYS_mount, &[text(c"/"), text(c"/tmp"), 0, libc::MS_BIND as i64, 0])
        }),
        attempt("remount /proc/sys writable", move |_| {
            refused(libc::SYS_mount, &[0, text(c"/proc/sys"), 0, remount, 0])
        }),
        attempt("remount /sys writable", move |_| {
            refused(libc::SYS_mount, &[0, text(c"/sys"), 0, remount, 0])
        }),
        attempt("remount / with devices", move |_| {
            refused(libc::SYS_mount, &[0, text(c"/"), 0, remount, 0])
        }),
        attempt("unmount /proc/sys", |_| refused(libc::SYS_umount2, &[text(c"/proc/sys"), 2])),
        attempt("unmount the mask of kcore", |_| {
            refused(libc::SYS_umount2, &[text(c"/proc/kcore"), 2])
        }),
        attempt("fsopen", |_| refused(libc::SYS_fsopen, &[text(c"tmpfs"), 0])),
        attempt("open_tree", |_| refused(libc::SYS_open_tree, &[-100, text(c"/"), 1])),
        attempt("move_mount", |_| {
            refused(libc::SYS_move_mount, &[-100, text(c"/proc/sys"), -100, text(c"/tmp"), 0])
        }),
        attempt("mount_setattr", |_| {
            let attr = [0u64; 4];
            refused(
                libc::SYS_mount_setattr,
                &[-100, text(c"/proc/sys"), 0, attr.as_ptr() as i64, 32],
            )
        }),
        attempt("pivot_root", |_| refused(libc::SYS_pivot_root, &[text(c"/"), text(c"/tmp")])),
        attempt("chroot and climb", no_way_up),
    ]
}

fn namespaces_and_processes() -> Vec<Attempt> {
    let mut list = Vec::new();
    for (name, flag) in [
        ("unshare mounts", 0x0002_0000),
        ("unshare users", 0x1000_0000),
        ("unshare network", 0x4000_0000),
        ("unshare processes", 0x2000_0000),
        ("unshare IPC", 0x0800_0000),
        ("unshare host name", 0x0400_0000),
        ("unshare cgroups", 0x0200_0000),
        ("unshare time", 0x80),
        ("unshare users and mounts", 0x1002_0000),
    ] {
        list.push(attempt(name, move |_| refused(libc::SYS_unshare, &[flag])));
    }
    list.push(attempt("clone into users", |_| refused(libc::SYS_clone, &[0x1000_0011])));
    list.push(attempt("clone into mounts", |_| refused(libc::SYS_clone, &[0x0002_0011])));
    list.push(attempt("clone3 into users", |_| {
        let args = [0x1000_0000u64, 0, 0, 0, 17, 0, 0, 0];
        refused(libc::SYS_clone3, &[args.as_ptr() as i64, 64])
    }));
    for (name, path) in
        [("join mounts of 1", "/proc/1/ns/mnt"), ("join network of 1", "/proc/1/ns/net")]
    {
        list.push(attempt(name, move |_| {
            let Ok(file) = fs::File::open(path) else { return Ok(()) };
            let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
            refused(libc::SYS_setns, &[fd.into(), 0])
        }));
    }
    list.push(attempt("setns by pid", |outside| refused(libc::SYS_setns, &[outside.host_pid, 0])));
    list.push(attempt("signal a process of the host", |o| {
        refused(libc::SYS_kill, &[o.host_pid, 0])
    }));
    list.push(attempt("tgkill a process of the host", |o| {
        refused(libc::SYS_tgkill, &[o.host_pid, o.host_pid, 0])
    }));
    list.push(attempt("pidfd of the host", |o| refused(libc::SYS_pidfd_open, &[o.host_pid, 0])));
    list.push(attempt("ptrace a process of the host", |o| {
        refused(libc::SYS_ptrace, &[16, o.host_pid, 0, 0])
    }));
    list.push(attempt("memory of a process of the host", |o| {
        let mut byte = [0u8; 8];
        let local = [byte.as_mut_ptr() as u64, 8];
        let remote = [0x40_0000u64, 8];
        let (local, remote) = (local.as_ptr() as i64, remote.as_ptr() as i64);
        refused(libc::SYS_process_vm_readv, &[o.host_pid, local, 1, remote, 1, 0])
    }));
    list.push(attempt("/proc of the host", |o| absent(format!("/proc/{}", o.host_pid))));
    list.push(attempt("processes of the instance", |_| no_foreign_process()));
    list.push(attempt("priority", |_| refused(libc::SYS_setpriority, &[0, 0, -20])));
    list.push(attempt("real-time scheduling", |_| {
        let priority = 50i32;
        refused(libc::SYS_sched_setscheduler, &[0, 1, &raw const priority as i64])
    }));
    list.push(attempt("capabilities beyond the default", |_| no_raised_capability()));
    list
}

fn dangerous_calls() -> Vec<Attempt> {
    let calls: [(&str, c_long, [i64; 5]); 37] = [
        ("sethostname", libc::SYS_sethostname, [text(c"attack"), 6, 0, 0, 0]),
        ("setdomainname", libc::SYS_setdomainname, [text(c"attack"), 6, 0, 0, 0]),
        ("keyctl", libc::SYS_keyctl, [0, -3, 0, 0, 0]),
        ("keyctl join session", libc::SYS_keyctl, [1, 0, 0, 0, 0]),
        ("add_key", libc::SYS_add_key, [text(c"user"), text(c"attack"), text(c"x"), 1, -3]),
        ("request_key", libc::SYS_request_key, [text(c"user"), text(c"attack"), 0, 0, 0]),
        ("bpf", libc::SYS_bpf, [0, 0, 0, 0, 0]),
        ("perf_event_open", libc::SYS_perf_event_open, [0, 0, -1, -1, 0]),
        ("io_uring_setup", libc::SYS_io_uring_setup, [1, 0, 0, 0, 0]),
        ("io_uring_enter", libc::SYS_io_uring_enter, [-1, 0, 0, 0, 0]),
        ("io_uring_register", libc::SYS_io_uring_register, [-1, 0, 0, 0, 0]),
        ("userfaultfd", libc::SYS_userfaultfd, [0, 0, 0, 0, 0]),
        ("kexec_load", libc::SYS_kexec_load, [0, 0, 0, 0, 0]),
        ("kexec_file_load", KEXEC_FILE_LOAD, [-1, -1, 0, 0, 0]),
        ("init_module", libc::SYS_init_module, [0, 0, text(c""), 0, 0]),
        ("finit_module", libc::SYS_finit_module, [-1, text(c""), 0, 0, 0]),
        ("delete_module", libc::SYS_delete_module, [text(c"attack"), 0x800, 0, 0, 0]),
        ("swapon", libc::SYS_swapon, [text(c"/"), 0, 0, 0, 0]),
        ("swapoff", libc::SYS_swapoff, [text(c"/"), 0, 0, 0, 0]),
        // Numbers that the kernel refuses after it has looked at rights.
        ("reboot", libc::SYS_reboot, [1, 2, 3, 0, 0]),
        ("settimeofday", libc::SYS_settimeofday, [0, ZEROS.as_ptr() as i64, 0, 0, 0]),
        ("clock_settime", libc::SYS_clock_settime, [0, 0, 0, 0, 0]),
        ("acct", libc::SYS_acct, [text(c"/"), 0, 0, 0, 0]),
        ("quotactl", libc::SYS_quotactl, [0x80_0002 << 8, 0, 0, 0, 0]),
        ("open_by_handle_at", libc::SYS_open_by_handle_at, [-100, HANDLE.as_ptr() as i64, 0, 0, 0]),
        ("fanotify_init", libc::SYS_fanotify_init, [0, 0, 0, 0, 0]),
        ("kernel log", libc::SYS_syslog, [3, 0, 0, 0, 0]),
        ("kernel log cleared", libc::SYS_syslog, [6, 0, 0, 0, 0]),
        ("vhangup", libc::SYS_vhangup, [0; 5]),
        ("personality without randomisation", libc::SYS_personality, [0x4_0000, 0, 0, 0, 0]),
        ("personality that reads implies exec", libc::SYS_personality, [0x40_0000, 0, 0, 0, 0]),
        ("migrate_pages", libc::SYS_migrate_pages, [1, 0, 0, 0, 0]),
        ("mbind", libc::SYS_mbind, [0, 0, 0, 0, 0]),
        ("kcmp", libc::SYS_kcmp, [1, 1, 0, 0, 0]),
        ("pidfd_getfd", libc::SYS_pidfd_getfd, [0, 0, 0, 0, 0]),
        ("process_madvise", libc::SYS_process_madvise, [-1, 0, 0, 0, 0]),
        ("lookup_dcookie", libc::SYS_lookup_dcookie, [0, 0, 0, 0, 0]),
    ];
    let mut list = vec![attempt("handle of a name", |_| no_open_by_handle_of(c"/volume"))];
    for (name, number, args) in calls {
        list.push(attempt(name, move |_| refused(number, &args)));
    }
    #[cfg(target_arch = "x86_64")]
    for (name, number) in [("iopl", libc::SYS_iopl), ("ioperm", libc::SYS_ioperm)] {
        list.push(attempt(name, move |_| refused(number, &[0, 1, 1])));
    }
    list
}

static ZEROS: [u8; 16] = [0; 16];
static HANDLE: [u8; 16] = *b"\x08\0\0\0\x01\0\0\0aaaaaaaa";

#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: c_long = 320;
#[cfg(target_arch = "aarch64")]
const KEXEC_FILE_LOAD: c_long = 294;

fn other_interfaces() -> Vec<Attempt> {
    let mut list = Vec::new();
    // Numbers of i386: getpid, keyctl, unshare, mount, socketcall, ptrace.
    for (name, number, first) in [
        ("32-bit getpid", 20, 0),
        ("32-bit keyctl", 288, 0),
        ("32-bit unshare", 310, 0x1000_0000),
        ("32-bit mount", 21, 0),
        ("32-bit umount2", 52, 0),
        ("32-bit sethostname", 74, 0),
        ("32-bit bpf", 357, 0),
    ] {
        list.push(attempt(name, move |_| by_32_bit_gate(number, first)));
    }
    for (name, number) in [
        ("x32 getpid", 39),
        ("x32 keyctl", 250),
        ("x32 unshare", 272),
        ("x32 ptrace", 521),
        ("x32 execve", 520),
    ] {
        list.push(attempt(name, move |_| refused(0x4000_0000 | number, &[])));
    }
    list.push(attempt("a number that no kernel has", |_| refused(4000, &[])));
    list
}

fn shared_objects() -> Vec<Attempt> {
    vec![
        attempt("System V memory of the host", |o| refused(libc::SYS_shmget, &[o.shm_key, 0, 0])),
        attempt("System V queue of the host", |o| refused(libc::SYS_msgget, &[o.shm_key, 0])),
        attempt("System V semaphores of the host", |o| {
            refused(libc::SYS_semget, &[o.shm_key, 0, 0])
        }),
        attempt("System V memory of another pod", |o| {
            refused(libc::SYS_shmget, &[o.neighbour_key, 0, 0])
        }),
        attempt("list of System V memory", |_| {
            let lines = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
            if lines.lines().count() > 1 { Err(lines) } else { Ok(()) }
        }),
        attempt("POSIX memory of the host", |o| absent(format!("/dev/shm/{}", o.name))),
        attempt("POSIX memory of another pod", |o| {
            absent(format!("/dev/shm/{}-neighbour", o.name))
        }),
        attempt("POSIX queue of the host", |o| {
            let name = CString::new(o.name.as_str()).unwrap();
            refused(libc::SYS_mq_open, &[name.as_ptr() as i64, 0, 0, 0])
        }),
        attempt("list of POSIX queues", |o| absent(format!("/dev/mqueue/{}", o.name))),
        attempt("temporary files of another pod", |o| absent(format!("/tmp/{}-neighbour", o.name))),
    ]
}

fn files_of_the_instance() -> Vec<Attempt> {
    let mut list = vec![
        attempt("kubeconfig", |o| {
            not_opened(&o.data_dir.join("kubeconfig").display().to_string(), false)
        }),
        attempt("data directory", |o| no_secret_below(&o.data_dir)),
        attempt("data directory by another path", |o| no_secret_below(&o.home)),
    ];
    for (name, prefix) in [
        ("data directory through 1", "/proc/1/root"),
        ("data directory through self", "/proc/self/root"),
        ("data directory through a working directory", "/proc/1/cwd"),
    ] {
        list.push(attempt(name, move |o| {
            let below = o.home.strip_prefix("/").unwrap_or(&o.home);
            no_secret_below(&Path::new(prefix).join(below))
        }));
    }
    list.push(attempt("inherited descriptors", |_| {
        for entry in fs::read_dir("/proc/1/fd").into_iter().flatten().flatten() {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            let target = target.display().to_string();
            let plain = ["/dev/null", "pipe:", "anon_inode:", "/proc", "socket:"];
            if !target.is_empty() && !plain.iter().any(|start| target.starts_with(start)) {
                return Err(format!("{} is {target}", entry.path().display()));
            }
        }
        Ok(())
    }));
    list
}

/// Makes objects that others look for.
pub fn leave_objects(key: i64, name: &str) -> i64 {
    let shm = call(libc::SYS_shmget, [key, 64, i64::from(libc::IPC_CREAT | 0o666), 0, 0, 0]);
    fs::write(format!("/dev/shm/{name}"), "x").unwrap();
    fs::write(format!("/tmp/{name}"), "x").unwrap();
    shm.unwrap()
}

/// Objects of the host that go with the value.
pub struct HostObjects {
    shm: i64,
    queue: i64,
    semaphores: i64,
    name: String,
}

impl HostObjects {
    pub fn new(key: i64, name: &str) -> Self {
        let flags = i64::from(libc::IPC_CREAT | 0o666);
        let shm = leave_objects(key, name);
        let queue = call(libc::SYS_msgget, [key, flags, 0, 0, 0, 0]).unwrap();
        let semaphores = call(libc::SYS_semget, [key, 1, flags, 0, 0, 0]).unwrap();
        let path = CString::new(name).unwrap();
        let open = i64::from(libc::O_CREAT | libc::O_RDWR);
        call(libc::SYS_mq_open, [path.as_ptr() as i64, open, 0o666, 0, 0, 0]).unwrap();
        Self { shm, queue, semaphores, name: name.to_owned() }
    }
}

impl Drop for HostObjects {
    fn drop(&mut self) {
        let _ = call(libc::SYS_shmctl, [self.shm, 0, 0, 0, 0, 0]);
        let _ = call(libc::SYS_msgctl, [self.queue, 0, 0, 0, 0, 0]);
        let _ = call(libc::SYS_semctl, [self.semaphores, 0, 0, 0, 0, 0]);
        let path = CString::new(self.name.as_str()).unwrap();
        let _ = call(libc::SYS_mq_unlink, [path.as_ptr() as i64, 0, 0, 0, 0, 0]);
        for dir in ["/dev/shm", "/tmp"] {
            let _ = fs::remove_file(format!("{dir}/{}", self.name));
        }
    }
}

/// Runs an attempt in a process of its own, whose end tells how it went.
pub fn try_in_child(outside: &Outside, act: &dyn Fn(&Outside) -> Verdict) -> Result<(), ()> {
    // SAFETY: the process has one thread that matters; the child ends by itself.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = match act(outside) {
            Ok(()) => 0,
            Err(why) => {
                println!("  {why}");
                1
            }
        };
        // SAFETY: ends the child without the test harness.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: the status outlives the call.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    if pid > 0 && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
        Ok(())
    } else {
        Err(())
    }
}
