# Makes this shell a machine of its own, with the names that the pages use. Its process, mount, network and host name
# namespaces are new; the first argument is a directory for what the pages keep in /var/lib, /srv and the home.
set -e
home=$1
mount --make-rprivate /
# Copies of other tests' mounts would hold their loop devices.
while read -r _ _ _ _ point _; do
  case $point in */longshore-*) umount -l "$point" 2>/dev/null || true ;; esac
done < /proc/self/mountinfo
mount -t proc proc /proc
hostname vm
ip link set lo up
mount --bind "$home/lib" /var/lib
mount --bind "$home/srv" /srv
export CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}"
export CARGO_NET_OFFLINE=true CARGO_TERM_COLOR=never
export HOME="$home/root" PATH="$home/bin:$PATH" LC_ALL=C TZ=UTC COLUMNS=120
unset KUBECONFIG
cd "$home/work"
set +e
