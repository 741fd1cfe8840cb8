// What a container can do: one line for each probe, `name = answer`. Nothing here changes the machine
// even where it is allowed: calls that would have arguments that cannot work, and files that hold
// settings are opened or asked about, never written.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *name, const char *format, ...) {
	va_list rest;
	va_start(rest, format);
	printf("%s = ", name);
	vprintf(format, rest);
	printf("\n");
	fflush(stdout);
	va_end(rest);
}

static const char *word(long result) {
	return result >= 0 ? "ok" : strerrorname_np(errno) ? strerrorname_np(errno) : "?";
}

// Each call is made by a child of its own, so that none changes what the next one finds.
#define PROBE(name, call)                               \
	do {                                            \
		pid_t child = fork();                   \
		if (child == 0) {                       \
			long result = (long)(call);     \
			say(name, "%s", word(result));  \
			_exit(0);                       \
		}                                       \
		int status = 0;                         \
		waitpid(child, &status, 0);             \
		if (!WIFEXITED(status))                 \
			say(name, "signal %d", WTERMSIG(status)); \
	} while (0)
#define CALL(name, ...) PROBE("call " name, syscall(__VA_ARGS__))

static void status_fields(void) {
	static const char *fields[] = {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs",
		"Seccomp", "Uid", "Gid", "Groups", "Umask", "SigBlk", "SigIgn", "NSpid"};
	char line[512];
	FILE *file = fopen("/proc/self/status", "r");
	while (file && fgets(line, sizeof line, file)) {
		char *colon = strchr(line, ':');
		if (!colon)
			continue;
		*colon = 0;
		for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
			if (!strcmp(line, fields[i])) {
				char name[64], *value = colon + 1;
				snprintf(name, sizeof name, "status %s", line);
				value += strspn(value, " \t");
				for (char *end = value + strlen(value); end > value && strchr(" \n", end[-1]);)
					*--end = 0;
				// The C library keeps signals 32 and 33 for itself; whether they are ignored
				// comes from whoever started the test.
				char reset[32];
				if (!strcmp(line, "SigIgn")) {
					snprintf(reset, sizeof reset, "%016llx", strtoull(value, NULL, 16) & ~(3ull << 31));
					value = reset;
				}
				for (char *one = value; *one; one++)
					if (*one == '\t')
						*one = ' ';
				say(name, "%s", value);
			}
	}
	if (file)
		fclose(file);
}

// What of a mount bears on rights: its type and flags, without those about times of access.
static void mount_options(const char *point) {
	char line[4096], answer[256] = "not a mount", name[128];
	FILE *file = fopen("/proc/self/mountinfo", "r");
	while (file && fgets(line, sizeof line, file)) {
		char at[1024], flags[256], type[64];
		char *dash = strstr(line, " - ");
		if (!dash || sscanf(line, "%*s %*s %*s %*s %1023s %255s", at, flags) != 2)
			continue;
		if (strcmp(at, point) || sscanf(dash, " - %63s", type) != 1)
			continue;
		snprintf(answer, sizeof answer, "%s", type);
		for (char *flag = strtok(flags, ","); flag; flag = strtok(NULL, ","))
			if (!strstr(flag, "atime")) {
				strcat(answer, " ");
				strcat(answer, flag);
			}
	}
	if (file)
		fclose(file);
	snprintf(name, sizeof name, "mount %s", point);
	// The type of the root is the runtime's affair.
	char *shown = answer;
	if (!strcmp(point, "/"))
		shown = strchr(answer, ' ') ? strchr(answer, ' ') + 1 : answer;
	say(name, "%s", shown);
}

// What can be read of a file or a directory.
static void seen(const char *path) {
	char name[256], byte;
	struct stat found;
	snprintf(name, sizeof name, "read %s", path);
	if (lstat(path, &found)) {
		say(name, "%s", word(-1));
		return;
	}
	if (S_ISDIR(found.st_mode)) {
		DIR *dir = opendir(path);
		if (!dir) {
			say(name, "directory %s", word(-1));
			return;
		}
		int count = 0;
		for (struct dirent *one; (one = readdir(dir));)
			count += one->d_name[0] != '.';
		say(name, "directory %s", count ? "with entries" : "empty");
		closedir(dir);
		return;
	}
	int fd = open(path, O_RDONLY | O_NONBLOCK);
	if (fd < 0) {
		say(name, "file %s", word(-1));
		return;
	}
	ssize_t got = read(fd, &byte, 1);
	say(name, "file %s", got < 0 ? word(-1) : got ? "with content" : "empty");
	close(fd);
}

static void written(const char *path) {
	char name[256];
	snprintf(name, sizeof name, "open for writing %s", path);
	PROBE(name, open(path, O_WRONLY | O_NONBLOCK));
}

// Files below a directory that may be written: how many, and the first.
static int may_write;
static char first[512];
static void walk(const char *path, int depth) {
	DIR *dir = depth > 12 ? NULL : opendir(path);
	for (struct dirent *one; dir && (one = readdir(dir));) {
		char below[1024];
		if (!strcmp(one->d_name, ".") || !strcmp(one->d_name, ".."))
			continue;
		// Processes come and go, and theirs are their own.
		if (!strcmp(path, "/proc") && (strchr("0123456789", one->d_name[0]) || strstr(one->d_name, "self")))
			continue;
		// The network is another one.
		if (!strcmp(path, "/proc") && !strcmp(one->d_name, "net"))
			continue;
		if ((size_t)snprintf(below, sizeof below, "%s/%s", path, one->d_name) >= sizeof below)
			continue;
		if (one->d_type == DT_DIR)
			walk(below, depth + 1);
		if (one->d_type != DT_LNK && !access(below, W_OK)) {
			if (!may_write++ || strcmp(below, first) < 0)
				snprintf(first, sizeof first, "%s", below);
		}
	}
	if (dir)
		closedir(dir);
}
static void writable_below(const char *path) {
	char name[128];
	may_write = 0;
	first[0] = 0;
	walk(path, 0);
	snprintf(name, sizeof name, "writable below %s", path);
	say(name, "%d %s", may_write, first);
}

static int by_name(const struct dirent **one, const struct dirent **two) {
	return strcmp((*one)->d_name, (*two)->d_name);
}

static void nodes_of_dev(void) {
	static const char *known[] = {"console", "core", "fd", "full", "fuse", "kmsg", "mem", "kvm", "loop-control",
		"mqueue", "net", "null", "port", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty",
		"urandom", "zero", "vda", "mapper"};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		char name[64], path[64], link[128] = "";
		struct stat found;
		snprintf(name, sizeof name, "device %s", known[i]);
		snprintf(path, sizeof path, "/dev/%s", known[i]);
		if (lstat(path, &found))
			say(name, "%s", word(-1));
		else if (S_ISLNK(found.st_mode) && readlink(path, link, sizeof link - 1) > 0)
			say(name, "link %s", link);
		else
			say(name, "%o %u:%u of %u:%u", found.st_mode, major(found.st_rdev), minor(found.st_rdev),
				found.st_uid, found.st_gid);
	}
	struct dirent **list;
	int count = scandir("/dev", &list, NULL, by_name);
	printf("all of /dev =");
	for (int i = 0; i < count; i++)
		if (list[i]->d_name[0] != '.')
			printf(" %s", list[i]->d_name);
	printf("\n");
}

static void limits(void) {
	static const struct { const char *name; int number; } all[] = {{"CORE", RLIMIT_CORE}, {"AS", RLIMIT_AS},
		{"DATA", RLIMIT_DATA}, {"STACK", RLIMIT_STACK}, {"NPROC", RLIMIT_NPROC}, {"MEMLOCK", RLIMIT_MEMLOCK},
		{"RTPRIO", RLIMIT_RTPRIO}, {"NICE", RLIMIT_NICE}, {"FSIZE", RLIMIT_FSIZE}, {"NOFILE", RLIMIT_NOFILE},
		{"MSGQUEUE", RLIMIT_MSGQUEUE}, {"SIGPENDING", RLIMIT_SIGPENDING}, {"LOCKS", RLIMIT_LOCKS}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		char name[64];
		struct rlimit limit;
		getrlimit(all[i].number, &limit);
		snprintf(name, sizeof name, "limit %s", all[i].name);
		say(name, "%lld %lld", (long long)limit.rlim_cur, (long long)limit.rlim_max);
	}
	struct rlimit more = {RLIM_INFINITY, RLIM_INFINITY};
	PROBE("raise NOFILE without end", setrlimit(RLIMIT_NOFILE, &more));
	PROBE("raise NICE", (more.rlim_cur = more.rlim_max = 40, setrlimit(RLIMIT_NICE, &more)));
}

static void process(void) {
	char text[256] = "";
	say("process id", "%d", getpid());
	say("session", "%d", getsid(0));
	say("group of processes", "%d", getpgrp());
	gethostname(text, sizeof text);
	say("host name", "%s", text);
	say("working directory", "%s", getcwd(text, sizeof text));
	say("dumpable", "%d", prctl(PR_GET_DUMPABLE));
	say("securebits", "%d", prctl(PR_GET_SECUREBITS));
	say("no new rights", "%d", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
	say("nice", "%d", getpriority(PRIO_PROCESS, 0));
	say("scheduler", "%d", sched_getscheduler(0));
	int signal_at_end = 0;
	prctl(PR_GET_PDEATHSIG, &signal_at_end);
	say("signal at the parent's end", "%d", signal_at_end);
	printf("descriptors =");
	for (int fd = 0; fd < 256; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			printf(" %d", fd);
	printf("\n");
	int count = 0;
	DIR *dir = opendir("/proc");
	for (struct dirent *one; dir && (one = readdir(dir));)
		count += one->d_name[0] >= '0' && one->d_name[0] <= '9';
	say("processes seen", "%d", count);
	char map[256] = "";
	int fd = open("/proc/self/uid_map", O_RDONLY);
	if (fd >= 0 && read(fd, map, sizeof map - 1) > 0) {
		unsigned from, to, length;
		sscanf(map, "%u %u %u", &from, &to, &length);
		say("users", "%u %u %u", from, to, length);
	}
	int outside = 0;
	char line[1024];
	FILE *file = fopen("/proc/self/cgroup", "r");
	while (file && fgets(line, sizeof line, file))
		outside += strcmp(strrchr(line, ':'), ":/\n") != 0;
	say("cgroups seem to be roots", "%s", outside ? "no" : "yes");
}

static void calls_about_mounts(void) {
	CALL("mount tmpfs", SYS_mount, "none", "/probe", "tmpfs", 0, NULL);
	CALL("mount proc", SYS_mount, "none", "/probe", "proc", 0, NULL);
	CALL("mount bind", SYS_mount, "/proc", "/probe", NULL, MS_BIND, NULL);
	CALL("mount remount /sys", SYS_mount, NULL, "/sys", NULL, MS_REMOUNT | MS_BIND, NULL);
	CALL("mount private", SYS_mount, NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL);
	CALL("umount2", SYS_umount2, "/proc/kcore", MNT_DETACH);
	CALL("pivot_root", SYS_pivot_root, "/", "/");
	CALL("fsopen", SYS_fsopen, "tmpfs", 0);
	CALL("fspick", SYS_fspick, AT_FDCWD, "/", 0);
	CALL("fsmount", SYS_fsmount, -1, 0, 0);
	CALL("fsconfig", SYS_fsconfig, -1, 0, NULL, NULL, 0);
	CALL("open_tree", SYS_open_tree, AT_FDCWD, "/", 0);
	CALL("open_tree clone", SYS_open_tree, AT_FDCWD, "/", 1);
	CALL("move_mount", SYS_move_mount, -1, "", -1, "", 0);
	CALL("mount_setattr", SYS_mount_setattr, -1, "", 0, NULL, 0);
	CALL("statmount", 457, NULL, NULL, 0, 0);
	CALL("listmount", 458, NULL, NULL, 0, 0);
	CALL("open_tree_attr", 467, -1, "", 0, NULL, 0);
	CALL("chroot", SYS_chroot, "/");
	CALL("name_to_handle_at", SYS_name_to_handle_at, AT_FDCWD, "/", NULL, NULL, 0);
	CALL("open_by_handle_at", SYS_open_by_handle_at, AT_FDCWD, NULL, 0);
	CALL("quotactl", SYS_quotactl, 0x80000100, NULL, 0, NULL);
	CALL("quotactl_fd", SYS_quotactl_fd, -1, 0x80000100, 0, NULL);
	CALL("swapon", SYS_swapon, "/none", 0);
	CALL("swapoff", SYS_swapoff, "/none");
	CALL("fanotify_init", SYS_fanotify_init, 0, 0);
	CALL("fanotify_init report", SYS_fanotify_init, 0x200, 0);
	CALL("fanotify_mark", SYS_fanotify_mark, -1, 0, 0, -1, NULL);
}

static void calls_about_namespaces(void) {
	static const struct { const char *name; unsigned long flag; } all[] = {{"user", CLONE_NEWUSER},
		{"mount", CLONE_NEWNS}, {"pid", CLONE_NEWPID}, {"net", CLONE_NEWNET}, {"ipc", CLONE_NEWIPC},
		{"uts", CLONE_NEWUTS}, {"cgroup", CLONE_NEWCGROUP}, {"time", 0x80}};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		char name[64];
		snprintf(name, sizeof name, "call unshare %s", all[i].name);
		PROBE(name, syscall(SYS_unshare, all[i].flag));
		if (all[i].flag == 0x80)
			continue;
		snprintf(name, sizeof name, "call clone %s", all[i].name);
		PROBE(name, ({
			long child = syscall(SYS_clone, all[i].flag | SIGCHLD, 0, 0, 0, 0);
			if (child == 0)
				_exit(0);
			child;
		}));
	}
	CALL("unshare files", SYS_unshare, CLONE_FILES);
	CALL("unshare nothing", SYS_unshare, 0);
	CALL("setns", SYS_setns, open("/proc/self/ns/net", O_RDONLY), 0);
	CALL("clone3", SYS_clone3, NULL, 0);
	CALL("sethostname", SYS_sethostname, NULL, -1);
	CALL("setdomainname", SYS_setdomainname, NULL, -1);
}

static void calls_about_the_kernel(void) {
	struct timespec wrong = {0, 2000000000};
	struct timeval wrong_too = {0, 2000000};
	struct timex nothing = {0}, change = {.modes = ADJ_TICK, .tick = 1};
	char page[128] = {0};
	CALL("bpf", SYS_bpf, 0, page, sizeof page);
	CALL("bpf load", SYS_bpf, 5, page, sizeof page);
	CALL("perf_event_open", SYS_perf_event_open, page, 0, -1, -1, 0);
	CALL("keyctl", SYS_keyctl, 0, -3, 0, 0, 0);
	CALL("add_key", SYS_add_key, "user", "longshore", "x", 1, -1);
	CALL("request_key", SYS_request_key, "user", "longshore", NULL, -1);
	CALL("io_uring_setup", SYS_io_uring_setup, 0, NULL);
	CALL("io_uring_enter", SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0);
	CALL("io_uring_register", SYS_io_uring_register, -1, 0, NULL, 0);
	CALL("userfaultfd", SYS_userfaultfd, 0);
	CALL("userfaultfd of user mode", SYS_userfaultfd, 1);
	CALL("kexec_load", SYS_kexec_load, 0, 100, NULL, -1);
	CALL("kexec_file_load", SYS_kexec_file_load, -1, -1, 0, NULL, -1);
	CALL("init_module", SYS_init_module, NULL, 0, "");
	CALL("finit_module", SYS_finit_module, -1, "", 0);
	CALL("delete_module", SYS_delete_module, "longshore_none", 0);
	CALL("reboot", SYS_reboot, 0, 0, 0, NULL);
	CALL("acct", SYS_acct, "/none/none");
	CALL("settimeofday", SYS_settimeofday, &wrong_too, NULL);
	CALL("clock_settime", SYS_clock_settime, 0, &wrong);
	CALL("adjtimex", SYS_adjtimex, &nothing);
	CALL("adjtimex change", SYS_adjtimex, &change);
	CALL("clock_adjtime", SYS_clock_adjtime, 0, &nothing);
	CALL("iopl", SYS_iopl, 3);
	CALL("ioperm", SYS_ioperm, 0x80, 1, 1);
	CALL("syslog size", SYS_syslog, 10, NULL, 0);
	CALL("syslog read", SYS_syslog, 3, page, sizeof page);
	CALL("lookup_dcookie", SYS_lookup_dcookie, 0, NULL, 0);
	CALL("nfsservctl", SYS_nfsservctl, 0, NULL, NULL);
	CALL("uselib", SYS_uselib, "/none");
	CALL("ustat", SYS_ustat, 0, NULL);
	CALL("sysfs", SYS_sysfs, 3);
	CALL("_sysctl", SYS__sysctl, NULL);
	CALL("create_module", SYS_create_module, NULL, 0);
	CALL("get_kernel_syms", SYS_get_kernel_syms, NULL);
	CALL("query_module", SYS_query_module, NULL, 0, NULL, 0, NULL);
	CALL("vhangup", SYS_vhangup);
	CALL("landlock version", SYS_landlock_create_ruleset, NULL, 0, 1);
	CALL("landlock_restrict_self", SYS_landlock_restrict_self, -1, 0);
	CALL("seccomp", SYS_seccomp, 2, 0, page);
	CALL("seccomp strict", SYS_seccomp, 1, 1, NULL);
	CALL("modify_ldt", SYS_modify_ldt, 0, page, sizeof page);
	CALL("memfd_secret", SYS_memfd_secret, 0);
	CALL("memfd_create", SYS_memfd_create, "x", 0);
	CALL("cachestat", 451, -1, NULL, NULL, 0);
	CALL("fchmodat2", 452, -1, "", 0, 0);
	CALL("map_shadow_stack", 453, 0, 0, 0);
	CALL("futex_wake", 454, NULL, 0, 0, 0);
	CALL("lsm_get_self_attr", 459, 0, NULL, NULL, 0);
	CALL("mseal", 462, 0, 0, 0);
	CALL("number 600", 600);
	CALL("x32 getpid", 0x40000000 | 39);
	PROBE("personality of now", personality(0xffffffff));
	PROBE("personality of fixed addresses", personality(0x0040000));
	PROBE("personality of executable data", personality(0x0400000));
	PROBE("personality of 32 bit", personality(8));
}

static void calls_about_processes(void) {
	int one = 0;
	unsigned long mask = 1;
	char from = 'x', to;
	struct iovec here = {&to, 1}, there = {&from, 1};
	CALL("ptrace traceme", SYS_ptrace, PTRACE_TRACEME, 0, 0, 0);
	CALL("ptrace seize of parent", SYS_ptrace, PTRACE_SEIZE, getppid(), 0, 0);
	CALL("process_vm_readv", SYS_process_vm_readv, getppid(), &here, 1, &there, 1, 0);
	CALL("process_vm_writev", SYS_process_vm_writev, getppid(), &here, 0, &there, 0, 0);
	CALL("process_madvise", SYS_process_madvise, -1, NULL, 0, 0, 0);
	CALL("process_mrelease", SYS_process_mrelease, -1, 0);
	CALL("kcmp", SYS_kcmp, getpid(), getpid(), 0, 0, 0);
	CALL("pidfd_open", SYS_pidfd_open, getpid(), 0);
	CALL("pidfd_getfd", SYS_pidfd_getfd, -1, 0, 0);
	CALL("pidfd_send_signal", SYS_pidfd_send_signal, -1, 0, NULL, 0);
	CALL("mbind", SYS_mbind, 0, 0, 0, &mask, 8, 0);
	CALL("set_mempolicy", SYS_set_mempolicy, 0, NULL, 0);
	CALL("get_mempolicy", SYS_get_mempolicy, &one, NULL, 0, 0, 0);
	CALL("set_mempolicy_home_node", 450, 0, 0, 0, 0);
	CALL("move_pages", SYS_move_pages, 0, 0, NULL, NULL, NULL, 0);
	CALL("migrate_pages", SYS_migrate_pages, 0, 8, &mask, &mask);
	CALL("setpriority up", SYS_setpriority, PRIO_PROCESS, 0, -10);
	CALL("setpriority down", SYS_setpriority, PRIO_PROCESS, 0, 10);
	CALL("sched_setscheduler real time", SYS_sched_setscheduler, 0, SCHED_FIFO, &(int){1});
	CALL("ioprio_set real time", SYS_ioprio_set, 1, 0, 1 << 13);
	CALL("setuid", SYS_setuid, 4321);
	CALL("setgid", SYS_setgid, 4321);
	CALL("setgroups", SYS_setgroups, 0, NULL);
	CALL("kill of process 1", SYS_kill, 1, 0);
	CALL("mlockall", SYS_mlockall, MCL_CURRENT);
	CALL("capset of all", SYS_capset, &((int[]){0x20080522, 0}), &((int[]){-1, -1, 0, -1, -1, 0}));
	PROBE("ambient capability", prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0));
	PROBE("drop of the bounding set", prctl(PR_CAPBSET_DROP, CAP_CHOWN, 0, 0, 0));
	PROBE("set of securebits", prctl(PR_SET_SECUREBITS, 1, 0, 0, 0));
	PROBE("terminal input", ioctl(0, 0x5412, "x"));
	PROBE("terminal paste", ioctl(0, 0x541C, "\3"));
	PROBE("shared memory", shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600));
}

static void calls_about_files(void) {
	PROBE("write to the root", open("/longshore-probe", O_CREAT | O_WRONLY, 0600));
	PROBE("write to /dev", open("/dev/longshore-probe", O_CREAT | O_WRONLY, 0600));
	PROBE("write to /dev/shm", open("/dev/shm/longshore-probe", O_CREAT | O_WRONLY, 0600));
	PROBE("write to /sys/fs/cgroup", mkdir("/sys/fs/cgroup/longshore-probe", 0700));
	PROBE("make a fifo", mknod("/data/fifo", S_IFIFO | 0600, 0));
	PROBE("make the device null", mknod("/data/null", S_IFCHR | 0600, makedev(1, 3)));
	PROBE("make the device of memory", mknod("/data/mem", S_IFCHR | 0600, makedev(1, 1)));
	PROBE("make the device of a disk", mknod("/data/disk", S_IFBLK | 0600, makedev(7, 0)));
	PROBE("chown", (close(creat("/data/file", 0600)), chown("/data/file", 1234, 1234)));
	PROBE("set user id", (close(creat("/data/set", 0700)), chmod("/data/set", 04755)));
	PROBE("file of another user", (setgid(0), open("/data/file", O_WRONLY)));
	PROBE("trusted attribute", syscall(SYS_setxattr, "/data/set", "trusted.x", "x", 1, 0));
	PROBE("file capability", syscall(SYS_setxattr, "/data/set", "security.capability",
		"\1\0\0\2\0\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20, 0));
	PROBE("immutable", ({
		long flags = 0x10;
		ioctl(open("/data/set", O_RDONLY), _IOW('f', 2, long), &flags);
	}));
	PROBE("pseudo terminal", posix_openpt(O_RDWR | O_NOCTTY));
	PROBE("queue of messages", syscall(SYS_mq_open, "longshore", O_CREAT | O_RDWR, 0600, NULL));
	PROBE("write to /dev/null", write(open("/dev/null", O_WRONLY), "x", 1));
	// The same mode as before: were the node the host's own, this would change the host.
	PROBE("mode of /dev/null", chmod("/dev/null", 0666));
	PROBE("mode of a masked file", chmod("/proc/kcore", 0666));
	PROBE("termination message", write(open("/dev/termination-log", O_WRONLY), "last words", 10));
	PROBE("read of /dev/random", read(open("/dev/random", O_RDONLY), &(char){0}, 1));
	PROBE("terminal", open("/dev/tty", O_RDWR));
}

static void sockets(void) {
	PROBE("socket packet", socket(AF_PACKET, SOCK_RAW, 0));
	PROBE("socket raw icmp", socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
	PROBE("socket raw 6", socket(AF_INET6, SOCK_RAW, IPPROTO_ICMPV6));
	PROBE("socket vsock", socket(40, SOCK_STREAM, 0));
	PROBE("socket alg", socket(38, SOCK_SEQPACKET, 0));
	PROBE("socket key", socket(15, SOCK_RAW, 2));
	PROBE("socket xdp", socket(44, SOCK_RAW, 0));
	PROBE("socket of no family", socket(46, SOCK_RAW, 0));
	PROBE("socket netlink route", socket(AF_NETLINK, SOCK_RAW, 0));
	PROBE("socket netlink audit", socket(AF_NETLINK, SOCK_RAW, 9));
	PROBE("socket netlink kobject", socket(AF_NETLINK, SOCK_RAW, 15));
	PROBE("socket unix", socket(AF_UNIX, SOCK_STREAM, 0));
	PROBE("socket tcp", socket(AF_INET, SOCK_STREAM, 0));
	PROBE("socket udp", socket(AF_INET, SOCK_DGRAM, 0));
	PROBE("mark of packets", setsockopt(socket(AF_INET, SOCK_DGRAM, 0), SOL_SOCKET, SO_MARK, &(int){7}, 4));
	PROBE("bind to a low port", ({
		struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(19), .sin_addr = {htonl(0x7f000001)}};
		bind(socket(AF_INET, SOCK_DGRAM, 0), (struct sockaddr *)&at, sizeof at);
	}));
}

int main(void) {
	static const char *mounts[] = {"/", "/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue",
		"/sys/fs/cgroup", "/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger",
		"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/proc/interrupts", "/sys/firmware",
		"/sys/devices/virtual/powercap", "/data", "/probe"};
	static const char *read_them[] = {"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys",
		"/proc/key-users", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/interrupts", "/proc/kmsg", "/proc/kallsyms",
		"/proc/kpageflags", "/proc/kpagecount", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/iomem",
		"/proc/ioports", "/proc/modules", "/proc/mounts", "/proc/cmdline", "/proc/config.gz",
		"/proc/self/stack", "/proc/self/pagemap", "/proc/1/environ", "/proc/1/root", "/proc/1/mem",
		"/sys/firmware", "/sys/devices/virtual/powercap", "/sys/kernel/debug", "/sys/kernel/tracing",
		"/sys/kernel/security", "/sys/fs/bpf", "/sys/fs/pstore", "/sys/module", "/sys/fs/cgroup",
		"/sys/kernel/notes", "/sys/kernel/vmcoreinfo"};
	static const char *write_them[] = {"/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness",
		"/proc/sys/kernel/modprobe", "/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname",
		"/proc/sys/kernel/shmmax", "/proc/sys/kernel/msgmax", "/proc/sys/fs/mqueue/queues_max",
		"/proc/sys/kernel/ns_last_pid", "/proc/sys/fs/binfmt_misc/register", "/proc/sysrq-trigger",
		"/proc/sys/net/ipv4/ip_forward", "/proc/self/oom_score_adj", "/proc/self/loginuid",
		"/proc/self/timerslack_ns", "/proc/self/uid_map", "/proc/self/gid_map", "/proc/self/setgroups",
		"/proc/irq/default_smp_affinity", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/mtrr",
		"/proc/1/mem", "/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled",
		"/sys/kernel/uevent_helper", "/sys/module/kernel/parameters/panic", "/sys/kernel/profiling"};
	setvbuf(stdout, NULL, _IOLBF, 0);
	status_fields();
	process();
	for (size_t i = 0; i < sizeof mounts / sizeof *mounts; i++)
		mount_options(mounts[i]);
	nodes_of_dev();
	for (size_t i = 0; i < sizeof read_them / sizeof *read_them; i++)
		seen(read_them[i]);
	for (size_t i = 0; i < sizeof write_them / sizeof *write_them; i++)
		written(write_them[i]);
	writable_below("/proc");
	writable_below("/sys");
	limits();
	calls_about_mounts();
	calls_about_namespaces();
	calls_about_the_kernel();
	calls_about_processes();
	calls_about_files();
	sockets();
	say("the end", "reached");
	return 0;
}
