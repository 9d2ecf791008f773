# The set-up that deploy/demo and deploy/test share: finds a Python, makes the environment, installs into it.
#
# Guarantees: a second run installs nothing; two runs at once do not clash; an environment that an interrupted run
# left half made is made again; a directory that is not ours is never emptied; nothing is written but the environment
# (and the package's build information in the checkout). When it fails, the last lines say what to do.
# Refuses to know: what the environment is used for, and git.
#
# To be sourced by a POSIX shell, which has set `checkout`. Afterwards descriptor 9 holds a shared lock on the
# environment, so that nobody installs into it while it is in use.

PYTHON_NEEDED="3.11"
LOCK_WAIT_S=1800
MARKER=".dualsite-environment" # names a directory that we made and may empty
STAMP=".dualsite-stamp"        # what was installed completely: "HASH EXTRA"

environment=""
python=""
child=""

say() {
    printf '%s\n' "$*" >&2
}

# fail EXIT_CODE TEXT...
fail() {
    fail_code=$1
    shift
    printf '%s: %s\n' "deploy/${0##*/}" "$*" >&2
    exit "$fail_code"
}

# Runs one long step so that a signal ends it, all that it started, and us at once: a shell waits for a foreground
# child before it looks at its traps, and pip's helpers would outlive pip but for a process group of their own.
# The step's output goes to the file given first, and is shown when the step fails.
run_step() {
    step_log=$1
    shift
    setsid "$@" </dev/null >>"$step_log" 2>&1 9>&- &
    child=$!
    trap 'stop_step 130' INT
    trap 'stop_step 143' TERM
    trap 'stop_step 129' HUP
    step_code=0
    wait "$child" || step_code=$?
    trap - INT TERM HUP
    child=""
    return "$step_code"
}

stop_step() {
    trap '' INT TERM HUP
    if [ -n "$child" ]; then
        kill -- "-$child" 2>/dev/null || kill "$child" 2>/dev/null || true
        wait "$child" 2>/dev/null || true
    fi
    say "deploy/${0##*/}: interrupted during the set-up; the next run repairs the environment"
    exit "$1"
}

can_run() {
    "$1" -c 'import sys; sys.exit(sys.version_info < tuple(map(int, sys.argv[1].split("."))))' "$PYTHON_NEEDED" \
        >/dev/null 2>&1
}

can_make_environments() {
    can_run "$1" && "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

# Sets `python` to the first interpreter that is new enough and can make environments. PYTHON, if set, is the only one.
find_python() {
    python=""
    if [ -n "${PYTHON:-}" ]; then
        can_make_environments "$PYTHON" && python=$PYTHON
    else
        for candidate in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
            if command -v "$candidate" >/dev/null 2>&1 && can_make_environments "$candidate"; then
                python=$candidate
                break
            fi
        done
    fi
    [ -n "$python" ]
}

# apt_install PACKAGE: as root.
apt_install() {
    package=$1
    say "Installing $package (apt-get) ..."
    install_log=$(mktemp)
    tries=1
    # Another apt-get may hold its lists; that lock has no time-out of its own.
    until run_step "$install_log" apt-get -q update &&
        run_step "$install_log" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 \
            install --yes --no-install-recommends "$package"; do
        if [ "$tries" -ge 5 ]; then
            tail -n 20 "$install_log" >&2
            rm -f "$install_log"
            fail 69 "apt-get could not install $package; its last lines stand above"
        fi
        tries=$((tries + 1))
        sleep 5
    done
    rm -f "$install_log"
}

# The same rule as Spark's own: JAVA_HOME, if it is set, else the search path.
find_java() {
    if [ -n "${JAVA_HOME:-}" ]; then
        [ -x "$JAVA_HOME/bin/java" ]
    else
        command -v java >/dev/null 2>&1
    fi
}

# install_missing PYTHON JAVA: what is not "" is missing. Root gets it installed; anybody else is told of all of it at
# once, and the one command. Only the tests need Java, for archive and replay by Spark.
install_missing() {
    missing="" packages="" can_install=yes
    if [ -n "$1" ]; then
        missing="Python $PYTHON_NEEDED or newer with the modules venv and ensurepip${PYTHON:+ (PYTHON=$PYTHON)}"
        packages=python3-venv
        [ -z "${PYTHON:-}" ] || can_install="" packages=""
    fi
    if [ -n "$2" ]; then
        missing="${missing:+$missing; }Java 17 or newer for the tests of Spark${JAVA_HOME:+ (JAVA_HOME=$JAVA_HOME has none)}"
        packages="${packages:+$packages }openjdk-17-jre-headless"
        [ -z "${JAVA_HOME:-}" ] || can_install=""
    fi
    if [ -z "$can_install" ] || [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        say "deploy/${0##*/}: missing on this machine: $missing."
        if [ -n "$packages" ]; then
            say "As root, on Debian, run"
            say "    apt-get update && apt-get install --yes $packages"
            say "and then start this again."
        fi
        exit 69
    fi
    for package in $packages; do
        apt_install "$package"
    done
    [ -z "$1" ] || find_python ||
        fail 69 "Python $PYTHON_NEEDED or newer is needed; this machine offers $(python3 --version 2>&1)"
    [ -z "$2" ] || find_java || fail 69 "Java 17 or newer is needed, and is not found after its installation"
}

# Makes the directory ours if it is new or empty; refuses one that holds something else.
claim_directory() {
    if [ ! -d "$environment" ]; then
        mkdir -p "$environment" 2>/dev/null ||
            fail 73 "cannot make the directory $environment; name another one with --environment DIR"
    fi
    environment=$(CDPATH="" cd -- "$environment" && pwd -P) || fail 77 "cannot enter $environment"
}

lock_environment() {
    lock_kind=$1
    [ -r "$environment" ] || fail 77 "no permission to read $environment; name another one with --environment DIR"
    exec 9<"$environment"
    if ! flock "$lock_kind" -n 9; then
        say "Waiting: another run uses or sets up $environment ..."
        flock "$lock_kind" -w "$LOCK_WAIT_S" 9 || fail 75 "$environment was in use for $LOCK_WAIT_S seconds; try again later"
    fi
    [ "$environment" -ef /dev/fd/9 ] || fail 75 "$environment was removed while we waited for it; try again"
}

# What has to be installed again when it changes. Without the right to write into the checkout its files are copied.
wanted_hash() {
    {
        cat "$checkout/pyproject.toml" "$checkout/deploy/environment.sh"
        printf '%s\n' "$checkout" "$install_mode"
        "$environment/bin/python" -c 'import sys; print(sys.version, sys.base_prefix)' 2>&1
        if [ "$install_mode" = copy ]; then
            (cd "$checkout" && find replicate source_server receiver_server update_process deploy/manual \
                \( -name '*.py' -o -name '*.md' \) -exec cat {} +)
        fi
    } | sha256sum | cut -c 1-64
}

# True when the stamp says that everything for the extra `$1` ("run" or "test") is installed.
is_complete() {
    [ -x "$environment/bin/python" ] && [ -x "$environment/bin/replicate" ] && [ -r "$environment/$STAMP" ] || return 1
    read -r stamp_hash stamp_extra <"$environment/$STAMP" || return 1
    [ "$stamp_hash" = "$(wanted_hash)" ] || return 1
    [ "$stamp_extra" = test ] || [ "$stamp_extra" = "$1" ]
}

make_environment() {
    if [ -e "$environment/$MARKER" ]; then
        # Ours: a stamp and a Python that runs mean that only packages changed; anything else is made again.
        if [ -e "$environment/$STAMP" ] && can_run "$environment/bin/python"; then
            return
        fi
        find "$environment" -mindepth 1 -maxdepth 1 ! -name "$MARKER" -exec rm -rf {} +
    elif [ -n "$(ls -A "$environment")" ]; then
        # Somebody else's: used if it is a working environment, but never emptied.
        if [ -e "$environment/pyvenv.cfg" ] && can_run "$environment/bin/python" &&
            "$environment/bin/python" -m pip --version >/dev/null 2>&1; then
            return
        fi
        fail 73 "$environment is not empty and is no working Python environment; name another with --environment DIR"
    else
        : >"$environment/$MARKER" || fail 77 "cannot write into $environment"
    fi
    [ -n "$python" ] || find_python || install_missing python ""
    say "Making the environment $environment ..."
    printf '*\n' >"$environment/.gitignore"
    run_step "$environment/set-up.log" "$python" -m venv "$environment" || show_failure "making the environment failed"
}

show_failure() {
    tail -n 25 "$environment/set-up.log" >&2
    fail 69 "$1; the last lines of $environment/set-up.log stand above"
}

# set_up_environment DIRECTORY EXTRA: afterwards "$environment/bin/python" and "$environment/bin/replicate" work.
set_up_environment() {
    environment=$1
    extra=$2
    # Settings of the caller's that would make Python or pip look, or install, elsewhere.
    unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_USER PIP_REQUIRE_VIRTUALENV
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
    install_mode=editable
    [ -w "$checkout" ] || install_mode=copy

    # Before a directory is made: a machine that lacks Python is left as it was.
    lacks_python="" lacks_java=""
    [ -x "$environment/bin/python" ] || find_python || lacks_python=yes
    [ "$extra" != test ] || find_java || lacks_java=yes
    [ -z "$lacks_python$lacks_java" ] || install_missing "$lacks_python" "$lacks_java"
    claim_directory
    lock_environment -s
    if is_complete "$extra"; then
        return
    fi
    lock_environment -x
    if ! is_complete "$extra"; then
        [ -w "$environment" ] || fail 77 "no permission to write into $environment; name another with --environment DIR"
        make_environment
        rm -f "$environment/$STAMP"
        say "Installing Dualsite Replicate and what it needs (only now; about a minute) ..."
        install_package
        printf '%s %s\n' "$(wanted_hash)" "$extra" >"$environment/$STAMP.new"
        mv "$environment/$STAMP.new" "$environment/$STAMP"
    fi
    lock_environment -s
}

install_package() {
    if [ "$extra" != test ]; then
        install_with "[web]" || show_failure "pip could not install"
    elif ! install_with "[test,spark,plot,fuzz]"; then
        say "The fuzzer (the extra fuzz) does not install here; trying without: its tests will be skipped."
        install_with "[test,spark,plot]" || show_failure "pip could not install"
    fi
}

# install_with EXTRAS: the package with these extras, such as "[test]".
install_with() {
    suffix=$1
    source_directory=$checkout
    if [ "$install_mode" = copy ]; then
        source_directory=$environment/source
        rm -rf "$source_directory"
        mkdir "$source_directory"
        (cd "$checkout" && cp -RL pyproject.toml README.md replicate source_server receiver_server update_process deploy \
            "$source_directory") || fail 74 "cannot copy the checkout to $source_directory"
        set -- "$source_directory$suffix"
    else
        set -- --editable "$source_directory$suffix"
    fi
    run_step "$environment/set-up.log" "$environment/bin/python" -m pip install --quiet --prefer-binary \
        --only-binary atheris --progress-bar off "$@"
}
