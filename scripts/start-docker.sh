#!/usr/bin/env bash
# Make a Docker engine answer on this machine: `start-docker.sh [start|stop|status]`.
#
# start   nothing if an engine answers; else, as root on Debian or Ubuntu, install what is missing
#         and start dockerd (log and pid in $ROCK_ENGINE_DIR, default /run/rock-engine).
# stop    end the dockerd that `start` began, and no other.
# status  say whether an engine answers; exit 1 if not.
set -euo pipefail

state=${ROCK_ENGINE_DIR:-/run/rock-engine}
wait_seconds=${ROCK_ENGINE_WAIT_SECONDS:-60}
packages=(docker.io iptables)

say() { echo "start-docker: $*"; }
fail() { echo "start-docker: $*" >&2; exit 1; }
answers() { timeout 5 docker version --format '{{.Server.Version}}' 2>/dev/null; }
# Field 22 of /proc/PID/stat, counted after the command name, which may hold spaces.
start_time() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# The pid of the dockerd that `start` began, if it is still that same process.
ours() {
    local pid began
    [ -r "$state/pid" ] || return 1
    read -r pid began <"$state/pid"
    [ -n "$began" ] && [ "$(start_time "$pid")" = "$began" ] && echo "$pid"
}

missing_packages() {
    command -v docker >/dev/null && command -v dockerd >/dev/null || echo docker.io
    command -v iptables >/dev/null || echo iptables
}

install_missing() {
    local missing
    mapfile -t missing < <(missing_packages)
    [ "${#missing[@]}" -gt 0 ] || return 0
    [ "$(id -u)" = 0 ] || fail "no engine answers, and only root can install ${packages[*]}"
    command -v apt-get >/dev/null || fail "no engine answers; install Docker (this script knows only apt)"
    say "installing ${missing[*]}"
    # The package's own start-up is not wanted: this script starts (and stops) the engine itself.
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    apt-get update -qq </dev/null >"$state/apt.log" 2>&1 || { tail -n 20 "$state/apt.log" >&2; fail "apt-get update failed"; }
    apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >>"$state/apt.log" 2>&1 ||
        { tail -n 20 "$state/apt.log" >&2; fail "apt-get install failed"; }
}

# Start dockerd with the given extra flags; true once it answers, false if it ended or took too long.
launch() {
    local pid
    # Its own session: a Ctrl-C at the terminal of the tests is not for the engine. Descriptor 9 is
    # the lock, which the engine must not hold on to.
    setsid nohup dockerd "$@" </dev/null >"$state/dockerd.log" 2>&1 9>&- &
    pid=$!
    echo "$pid $(start_time "$pid")" >"$state/pid"
    for _ in $(seq $((wait_seconds * 5))); do
        answers >/dev/null && return 0
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.2
    done
    return 1
}

start() {
    local version
    if version=$(answers); then
        say "an engine answers (version $version); nothing started"
        return
    fi
    [ "$(id -u)" = 0 ] || fail "no engine answers, and only root can start dockerd"
    mkdir -p "$state"
    exec 9>"$state/lock"
    flock -w 300 9 || fail "another start is still running"
    install_missing
    if version=$(answers); then
        say "an engine answers (version $version); nothing started"
        return
    fi
    if ! launch; then
        stop_ours
        # A kernel without netfilter still runs sandboxes: they have no network of their own.
        say "dockerd did not come up; trying without bridge and iptables"
        launch --iptables=false --ip6tables=false --bridge=none || {
            tail -n 20 "$state/dockerd.log" >&2
            stop_ours
            fail "dockerd does not answer after $wait_seconds s; see $state/dockerd.log"
        }
    fi
    say "started dockerd $(answers) (pid $(ours), log $state/dockerd.log)"
}

stop_ours() {
    local pid
    pid=$(ours) || { rm -f "$state/pid"; return 1; }
    kill -TERM "$pid"
    for _ in $(seq $((wait_seconds * 5))); do
        ours >/dev/null || { rm -f "$state/pid"; return 0; }
        sleep 0.2
    done
    kill -KILL "$pid" 2>/dev/null || true
    rm -f "$state/pid"
}

case ${1:-start} in
start) start ;;
stop) if stop_ours; then say "stopped the dockerd that this script had started"; else say "nothing to stop: no engine was started by this script"; fi ;;
status) version=$(answers) || fail "no engine answers"; say "an engine answers (version $version)" ;;
*) fail "usage: start-docker.sh [start|stop|status]" ;;
esac
