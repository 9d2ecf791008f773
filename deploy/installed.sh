# What deploy/install and deploy/uninstall share: where things go, and the list of what was installed.
#
# Guarantees: nothing but what the list names is ever removed or replaced, and nothing that was changed since by hand.
# Refuses to know: what is installed, and why.
#
# To be sourced by a POSIX shell after environment.sh. The list is a file in the prefix; a line of it is
#     CHECKSUM PATH      a file or a link: PATH without --root, CHECKSUM of its content or of where it points
#     directory PATH     a directory that was made for one of them

LIST="installed-files"
STATE_DIRECTORY=/var/lib/replicate
SERVICE_USER=dualsite

root=""
prefix=/opt/dualsite

# A directory that a unit file can name without quotes.
check_prefix() {
    case $prefix in
    / | /usr | /usr/local | /opt | /etc | /var | /home | /root) fail 2 "--prefix $prefix: the directory must be all ours" ;;
    *[!A-Za-z0-9._/-]* | */../* | */.. | *//* | */./*) fail 2 "--prefix $prefix: a plain path of letters, digits and . _ - is needed" ;;
    /*) prefix=${prefix%/} ;;
    *) fail 2 "--prefix wants an absolute path, not $prefix" ;;
    esac
}

check_permission() {
    [ -n "$root" ] || [ "$(id -u)" = 0 ] ||
        fail 77 "only root may do this; start it with sudo, or give --root DIR to make a tree for a package"
}

# One at a time. The lock is on the directory around the prefix, or what there is of it: it leaves nothing behind.
lock_prefix() {
    lock_on=$root$(dirname "$prefix")
    while [ ! -d "$lock_on" ]; do lock_on=$(dirname "$lock_on"); done
    exec 9<"$lock_on"
    flock -n 9 || fail 75 "another installation is at work below $lock_on; try again when it has ended"
}

checksum() {
    if [ -L "$1" ]; then
        readlink "$1" | sha256sum | cut -c 1-64
    else
        sha256sum <"$1" | cut -c 1-64
    fi
}

# What the list of an earlier installation says of a path; nothing if it does not know it.
listed() {
    [ ! -r "$root$prefix/$LIST" ] || awk -v path="$1" '$2 == path && $1 != "directory" { print $1 }' "$root$prefix/$LIST"
}

listed_directories() {
    [ ! -r "$root$prefix/$LIST" ] || awk '$1 == "directory" { print $2 }' "$root$prefix/$LIST"
}

listed_files() {
    [ ! -r "$root$prefix/$LIST" ] || awk 'length($1) == 64 { print $2 }' "$root$prefix/$LIST"
}

# True while a service manager runs that our files are for.
has_systemd() {
    [ -z "$root" ] && [ -d /run/systemd/system ] && command -v systemctl >/dev/null 2>&1
}

# Removes a listed file unless it was changed by hand.
remove_listed() {
    if [ ! -e "$root$1" ] && [ ! -L "$root$1" ]; then
        return
    fi
    if [ "$(checksum "$root$1")" = "$(listed "$1")" ]; then
        rm -f "$root$1" || fail 74 "cannot remove $root$1"
    else
        say "left, because it was changed by hand: $root$1"
    fi
}
