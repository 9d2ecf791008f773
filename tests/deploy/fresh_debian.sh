#!/bin/bash
# tests/deploy/fresh_debian.sh [--user] [--bare] [--venv] [--keep-base DIR] COMMAND...
#
# What it is: runs a shell command in a truly fresh Debian 12, a throw-away chroot above a debootstrap of variant
# minbase, in the directory of a copy of this checkout whose path contains spaces. For proofs by hand; needs root and
# debootstrap, and is no part of the test suite.
# Guarantees: of this machine the chroot sees its certificate bundle, the settings of apt and pip, the wheel
# directories that those name (read-only) and its name servers; /dev/shm has 64 MiB; mounts and processes end with it.
#   --user   as an ordinary user, not as root       --bare   without Python (else with Debian's python3, without venv)
#   --venv   with python3-venv installed before the command
#   --keep-base DIR   where the debootstrap is kept between runs (default: a directory for temporary files)

set -euo pipefail
user=root
bare=""
venv=""
base=${TMPDIR:-/var/tmp}/fresh-debian
while [ $# -gt 0 ]; do
    case $1 in
    --user) user=newcomer; shift ;;
    --bare) bare=-bare; shift ;;
    --venv) venv=--venv; shift ;;
    --keep-base) base=$2; shift 2 ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || { sed -n '2,14p' "$0"; exit 2; }
checkout=$(cd "$(dirname "$0")/../.." && pwd -P)
mkdir -p "$base"

if [ ! -e "$base/root$bare.done" ]; then
    rm -rf "$base/root$bare"
    debootstrap --variant=minbase $([ -n "$bare" ] || echo --include=python3) bookworm "$base/root$bare" >"$base/debootstrap.log" 2>&1 ||
        { tail "$base/debootstrap.log"; exit 69; }
    touch "$base/root$bare.done"
fi

if [ -z "${FRESH_DEBIAN_INSIDE:-}" ]; then
    # A process namespace of its own: whatever is left running dies with it. A mount namespace: nothing stays mounted.
    exec env FRESH_DEBIAN_INSIDE=1 unshare --mount --pid --fork --kill-child "$0" \
        ${bare:+--bare} $venv $([ "$user" = root ] || echo --user) --keep-base "$base" "$@"
fi

layer=$(mktemp -d)
mount -t tmpfs -o mode=0755 tmpfs "$layer"
mkdir "$layer/upper" "$layer/work" "$layer/root"
mount -t overlay -o "lowerdir=$base/root$bare,upperdir=$layer/upper,workdir=$layer/work" overlay "$layer/root"
root=$layer/root
mount -t proc proc "$root/proc"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$root/dev/shm"

mkdir -p "$root/etc/ssl/certs"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
# The package ca-certificates, which python3-venv brings along, makes the bundle anew, from this directory too.
install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$root/usr/local/share/ca-certificates/machine.crt"
cp -rL /etc/apt/apt.conf.d /etc/apt/sources.list.d "$root/etc/apt/"
[ ! -e "$root/etc/apt/sources.list.d/debian.sources" ] || rm -f "$root/etc/apt/sources.list"
rm -f "$root"/etc/apt/apt.conf.d/*docker* "$root"/etc/apt/apt.conf.d/*{packagekit,appstream}*
cp /etc/resolv.conf /etc/hosts "$root/etc/"
settings=()
while IFS= read -r setting; do settings+=("$setting"); done < <(env | grep '^PIP_' || true)
if [ -e /etc/pip.conf ]; then cp /etc/pip.conf "$root/etc/pip.conf"; fi
for place in $(python3 -m pip config list | grep -oE "(file://)?/[^ ':\\\\]+" | sed 's,^file://,,' | sort -u); do
    [ -d "$place" ] || continue
    place=${place%/simple}
    mkdir -p "$root$place"
    mount --bind -o ro "$place" "$root$place"
done

chroot "$root" useradd --create-home newcomer 2>/dev/null || true
home=/root
[ "$user" = root ] || home=/home/$user
target="$home/a check out/dualsite"
mkdir -p "$root$target"
for place in .pip .config/pip; do
    if [ -e "$HOME/$place/pip.conf" ]; then install -D -m 644 "$HOME/$place/pip.conf" "$root$home/$place/pip.conf"; fi
done
(cd "$checkout" && tar -c --exclude=./.git --exclude=./.venv --exclude=__pycache__ --exclude='*.egg-info' \
    --exclude='./.*_cache' --exclude=.hypothesis .) | tar -x -C "$root$target"
chroot "$root" chown -R "$user:" "$home"

if [ -n "$venv" ]; then
    chroot "$root" sh -c 'apt-get -qq update && apt-get -qq install --yes --no-install-recommends python3-venv' >/dev/null 2>&1
fi
set +e
chroot "$root" setpriv --reuid="$(chroot "$root" id -u "$user")" --regid="$(chroot "$root" id -g "$user")" \
    --clear-groups env -i "${settings[@]}" HOME="$home" USER="$user" LC_ALL=C TERM=dumb \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /bin/sh -c "cd '$target' || exit
$*" </dev/null
code=$?
echo "fresh_debian: exit code $code" >&2
exit "$code"
