#!/bin/bash
# tests/deploy/fresh_debian.sh [--user] [--bare] [--venv] [--release NAME] [--keep-base DIR] COMMAND...
#
# What it is: runs a shell command in a truly fresh Debian 12, a throw-away copy of a debootstrap of variant minbase, in
# the directory of an unpacked archive of this checkout (no git) whose path contains spaces. The test of it is
# long_form.py; needs root and debootstrap (69 where one of them is missing, or the mirror does not answer).
# Guarantees: the command sees HOME, PATH and LANG alone; of this machine the chroot sees its certificate bundle, its
# mirror of Debian and how to get there, the files of pip's settings, the directories that those name (read-only) and
# its name servers; mounts and processes end with it.
#   --user   as an ordinary user, not as root       --bare   without Python (else with Debian's python3, without venv)
#   --venv   with python3-venv installed before the command
#   --release NAME   of Debian, instead of bookworm (trixie has another Python)
#   --keep-base DIR   where the debootstrap is kept between runs (default: a directory for temporary files)

set -euo pipefail
user=root
bare=""
venv=""
release=bookworm
base=${TMPDIR:-/var/tmp}/fresh-debian
given=("$@")
while [ $# -gt 0 ]; do
    case $1 in
    --user) user=newcomer; shift ;;
    --bare) bare=-bare; shift ;;
    --venv) venv=--venv; shift ;;
    --release) release=$2; shift 2 ;;
    --keep-base) base=$2; shift 2 ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || { sed -n '2,17p' "$0"; exit 2; }
PATH=$PATH:/usr/sbin:/sbin
if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "fresh_debian: needs root, and debootstrap (apt-get install debootstrap)" >&2
    exit 69
fi

if [ -z "${FRESH_DEBIAN_INSIDE:-}" ]; then
    # A process namespace of its own: whatever is left running dies with it. A mount namespace: nothing stays mounted.
    exec env FRESH_DEBIAN_INSIDE=1 unshare --mount --pid --fork --kill-child "$0" "${given[@]}"
fi

checkout=$(cd "$(dirname "$0")/../.." && pwd -P)
mkdir -p "$base"
made=$base/$release$bare
if [ ! -e "$made.done" ]; then
    # This machine's mirror, where it is a Debian; else the one that debootstrap knows.
    # shellcheck disable=SC2016
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Origin: Debian' 2>/dev/null |
        grep -v security | head -n 1) || mirror=""
    rm -rf "$made"
    options=(--variant=minbase)
    [ -n "$bare" ] || options+=(--include=python3)
    # shellcheck disable=SC2086
    debootstrap "${options[@]}" "$release" "$made" $mirror >"$base/debootstrap.log" 2>&1 ||
        { tail "$base/debootstrap.log" >&2; exit 69; }
    touch "$made.done"
fi

layer=$(mktemp -d "$base/run.XXXXXX")
root=$layer/root
# shellcheck disable=SC2317
end() {
    umount --recursive --lazy "$root" 2>/dev/null || true
    mountpoint -q "$root" || rm -rf "$layer"
}
trap end EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
cp -a "$made" "$root"
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o size=2g,mode=1777 tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -sf pts/ptmx "$root/dev/ptmx"

mkdir -p "$root/etc/ssl/certs"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
# The package ca-certificates, which python3-venv brings along, makes the bundle anew, from this directory too.
install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$root/usr/local/share/ca-certificates/machine.crt"
apt-config dump 2>/dev/null | grep '^Acquire::' | grep -v IndexTargets >"$root/etc/apt/apt.conf.d/90machine" || true
cp /etc/resolv.conf /etc/hosts "$root/etc/"
for place in /etc/pip.conf /etc/xdg/pip; do
    [ ! -e "$place" ] || { mkdir -p "$root$(dirname "$place")"; cp -rL "$place" "$root$place"; }
done
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
# As `git archive` packs it, with what is not committed yet.
(cd "$checkout" && tar -c --exclude=./.git --exclude='./.venv*' --exclude=__pycache__ --exclude='*.egg-info' \
    --exclude='./.*_cache' --exclude=.hypothesis --exclude=./build --exclude=./sites .) | tar -x -C "$root$target"
chroot "$root" chown -R "$user:" "$home"

if [ -n "$venv" ]; then
    chroot "$root" sh -c 'apt-get -qq update && apt-get -qq install --yes --no-install-recommends python3-venv' >/dev/null 2>&1
fi
code=0
chroot "$root" setpriv --reuid="$(chroot "$root" id -u "$user")" --regid="$(chroot "$root" id -g "$user")" \
    --clear-groups env -i HOME="$home" LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    /bin/sh -c "cd '$target' || exit
$*" </dev/null || code=$?
echo "fresh_debian: exit code $code" >&2
exit "$code"
