# Process 1 of a node: makes the private view of the machine, then only reaps orphans.
# Runs in new mount, pid and network namespaces; when it ends, the kernel ends the rest.
set -eu
dir=$1
cgroup=$2

# containerd, its shims and the kubelet write to fixed places here. In this view these are throw-away.
mount -t tmpfs -o mode=755 tmpfs /run
for part in lib log; do
	mkdir -p "/run/longshore/$part/upper" "/run/longshore/$part/work"
	mount -t overlay -o "lowerdir=/var/$part,upperdir=/run/longshore/$part/upper,workdir=/run/longshore/$part/work" \
		overlay "/var/$part"
done

# The node sees only its own part of each cgroup hierarchy, so what it makes is found there.
mkdir /run/longshore/cgroup
table=$(cat /proc/self/mountinfo)
while read -r _ _ _ _ point rest; do
	case " $rest" in *" - cgroup "* | *" - cgroup2 "*) ;; *) continue ;; esac
	own=$point/$cgroup
	mkdir "$own"
	if [ -e "$point/cpuset.mems" ] && [ -e "$own/cpuset.mems" ]; then
		# The older kind starts empty, and an empty set cannot hold a process.
		cat "$point/cpuset.cpus" >"$own/cpuset.cpus"
		cat "$point/cpuset.mems" >"$own/cpuset.mems"
	fi
	mount --bind "$own" /run/longshore/cgroup
	umount "$point"
	mount --move /run/longshore/cgroup "$point"
done <<END
$table
END

# The kubelet and the network plugin would set these for the whole machine. They are shown the
# values they want instead, and the machine keeps its own.
pretend() {
	[ -e "/proc/sys/$1" ] || return 0
	file=/run/longshore/$(echo "$1" | tr / -)
	echo "$2" >"$file"
	mount --bind "$file" "/proc/sys/$1"
}
pretend vm/overcommit_memory 1
pretend vm/panic_on_oom 0
pretend kernel/panic 10
pretend kernel/panic_on_oops 1
pretend kernel/keys/root_maxkeys 1000000
pretend kernel/keys/root_maxbytes 25000000
pretend net/ipv4/ip_forward 1

# Mounts of pods and drivers reach each other, as on any node.
mount --make-rshared /
: >"$dir/machine.ready"
sleep infinity &
wait
