# What tests/deploy/test_systemd.py does inside of its container, as the only service of a machine that has just booted.
#
# Guarantees: what was found out is in /steps/told, a line of NAME VALUE each, the last one "end PART"; all that was
# said is in /steps/said; the machine is off afterwards, whatever happened.
# Refuses to know: what is right; the test judges.

exec >/steps/said 2>&1
trap 'sync; systemctl poweroff --force --force' EXIT
set -eux
export REPLICATE_HOME=/var/lib/replicate

tell() {
    printf '%s %s\n' "$1" "$2" >>/steps/told
}

as() {
    setpriv --reuid=dualsite --regid=dualsite --init-groups "$@"
}

# wait_for COMMAND...: within a minute, however loaded the machine is.
wait_for() {
    tries=0
    until "$@" >/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt 1200 ]
        sleep 0.05
    done
}

state() {
    systemctl show --property=ActiveState --value "$1"
}

main_pid() {
    systemctl show --property=MainPID --value "$1"
}

drop_in() {
    mkdir -p "/run/systemd/system/$1.d"
    cat >"/run/systemd/system/$1.d/50-test.conf"
}

make_instances() {
    as replicate instance create primary --role primary
    as /usr/bin/python3 -c 'import sqlite3; sqlite3.connect("/var/lib/replicate/shop.db").execute("CREATE TABLE t (a, b)")'
    as replicate -i primary region add "$REPLICATE_HOME/shop.db" --name main
    as replicate -i primary peer add secondary 127.0.0.1:7430
    join_secondary
}

join_secondary() {
    network=$(as replicate -i primary instance show | sed -n 's/^network *//p')
    as replicate instance create secondary --role secondary --network "$network"
}

# An application that keeps its connection: the inode of the pool that it has mapped is told.
write_rows() {
    as /opt/dualsite/bin/python -c '
import re, sys, replicate
connection = replicate.connect("primary", "main")
with connection:
    connection.execute("INSERT INTO t VALUES (1, 2)")
print(re.findall(r"(\d+) +/dev/shm/dualsite-\S+-journal", open("/proc/self/maps").read())[0])
'
}

compare() {
    as replicate -i primary compare --with secondary | head -n 1
}

restarted() {
    now=$(main_pid "$1")
    [ "$now" != "$2" ] && [ "$now" != 0 ] && [ "$(state "$1")" = active ]
}

replicate_part() {
    make_instances
    printf '[Service]\nWatchdogSec=10\nRestartSec=100ms\n' | drop_in dualsite-.service
    systemctl daemon-reload
    systemctl start dualsite-receiver@secondary dualsite-source@primary
    as replicate -i secondary seed --from primary
    systemctl start dualsite-update@secondary
    source=$(main_pid dualsite-source@primary)
    receiver=$(main_pid dualsite-receiver@secondary)
    update=$(main_pid dualsite-update@secondary)
    tell pool-of-the-application "$(write_rows)"
    tell pool-of-the-source "$(awk '/-journal$/ { print $5; exit }' "/proc/$source/maps")"
    tell compared "$(compare)"
    tell user "$(stat -c %U "/proc/$source")"
    tell status "$(systemctl show --property=StatusText --value dualsite-source@primary)"
    tell watchdog "$([ "$(systemctl show --property=WatchdogTimestamp --value dualsite-source@primary)" != "" ] && echo yes)"

    kill -KILL "$source"
    kill -STOP "$receiver"
    kill -KILL "$update"
    wait_for restarted dualsite-source@primary "$source"
    tell source-killed "$(state dualsite-source@primary)"
    wait_for restarted dualsite-receiver@secondary "$receiver"
    tell receiver-frozen "$(state dualsite-receiver@secondary)"
    tell update-killed "$(state dualsite-update@secondary)"

    drop_in dualsite-update@.service </opt/dualsite/share/dualsite/examples/update-restart.conf
    systemctl daemon-reload
    systemctl start dualsite-update@secondary
    update=$(main_pid dualsite-update@secondary)
    kill -KILL "$update"
    wait_for restarted dualsite-update@secondary "$update"
    tell update-configured "$(state dualsite-update@secondary)"
    write_rows
    tell compared-after-restarts "$(compare)"

    systemctl stop 'dualsite-*@*'
    tell stopped "$(systemctl show --property=Result --value dualsite-source@primary) $(
        systemctl show --property=ExecMainStatus --value dualsite-source@primary
    )"
    tell pools-left "$(find /dev/shm -name 'dualsite-*' | wc -l)"
    echo 'nonsense = 1' >>"$REPLICATE_HOME/secondary/replicate.toml"
    # A start counts from 0. Before it systemd says how often the stopped one was restarted, until it forgets the unit.
    systemctl start dualsite-receiver@secondary || true
    sleep 0.5 # five times what a restart would wait
    tell wrong-setting "$(state dualsite-receiver@secondary) $(
        systemctl show --property=ExecMainStatus --value dualsite-receiver@secondary
    ) $(systemctl show --property=NRestarts --value dualsite-receiver@secondary)"
}

install_part() {
    unset PIP_CONFIG_FILE
    export PIP_NO_INDEX=1 PIP_FIND_LINKS=/wheels HOME=/root PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
    code=0
    /checkout/deploy/install || code=$?
    tell installed "$code"
    code=0
    replicate --version || code=$?
    tell command "$code"
    code=0
    /checkout/deploy/install || code=$?
    tell again "$code"
    tell directory "$(stat -c '%U %a' "$REPLICATE_HOME")"

    as replicate instance create primary --role primary
    as replicate -i primary peer add secondary 127.0.0.1:7430
    join_secondary
    systemctl enable --now dualsite-receiver@secondary
    as replicate -i primary source start
    code=0
    /checkout/deploy/uninstall || code=$?
    tell busy "$code"
    tell stopped "$(state dualsite-receiver@secondary)"
    as replicate -i primary source stop
    as rm -r "$REPLICATE_HOME/primary"
    code=0
    /checkout/deploy/uninstall || code=$?
    tell uninstalled "$code"
    tell left "$(echo "$REPLICATE_HOME"/*)"
    code=0
    /checkout/deploy/uninstall --purge || code=$?
    tell purged "$code"
    tell user-left "$(if id dualsite; then echo yes; else echo no; fi | tail -n 1)"
    [ ! -e "$REPLICATE_HOME" ]
    [ -z "$(find /etc/systemd/system /dev/shm -name 'dualsite-*')" ]
}

"$1_part"
tell end "$1"
