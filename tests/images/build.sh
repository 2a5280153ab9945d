#!/usr/bin/env bash
# Make the images that the tests run in, without an image registry: `build.sh [test|busybox|trixie]...`.
#
#   rock-test:latest     Debian bookworm: sh, bash, python3, git, and mini-swe-agent in /opt/agent
#   rock-busybox:latest  one static program and nothing else: no bash, no python, no libc
#   rock-trixie:latest   Debian trixie for agents that need a newer Python: python3.13, pip, tmux, git; made
#                        only when it is asked for
#
# Needs an engine that answers, root, and Debian's packages and PyPI as this machine reaches them.
# A finished root is kept as a tarball, keyed by what it is made from, in $ROCK_IMAGE_CACHE (default
# ~/.cache/rock/images); an image the engine already has is left alone. Safe to run twice at once.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${ROCK_IMAGE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rock/images}
suite=bookworm
user_id=1000

say() { echo "images: $*"; }
fail() { echo "images: $*" >&2; exit 1; }

key_of() { # what an image is made from, in twelve letters
    { declare -f "make_$1" add_user; uname -m; cat "$here/agent-requirements.txt"; } |
        sha256sum | cut -c1-12
}

has_image() { # the engine's image of that name was made from exactly this
    [ "$(docker image inspect --format '{{index .Config.Labels "rock.key"}}' "$1" 2>/dev/null)" = "$2" ]
}

need() { # need PROGRAM PACKAGE...: install the packages if the program is not there
    command -v "$1" >/dev/null && return
    say "installing ${*:2}"
    quietly apt-get update
    DEBIAN_FRONTEND=noninteractive quietly apt-get install -y --no-install-recommends "${@:2}"
}

quietly() { # run a command, and show its output only if it failed
    "$@" </dev/null >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; fail "failed: $*"; }
}

add_user() { # a user for commands, so that none has to run as root
    echo "agent:x:$user_id:$user_id::/home/agent:/bin/sh" >>"$1/etc/passwd"
    echo "agent:x:$user_id:" >>"$1/etc/group"
    mkdir -p "$1/home/agent"
    chown "$user_id:$user_id" "$1/home/agent"
}

make_test() { # $1: an empty directory to fill
    local site=$1/opt/agent/lib/python3.11/site-packages arch
    arch=$(uname -m)
    need debootstrap debootstrap debian-archive-keyring
    say "bootstrapping $suite (about a minute)"
    quietly debootstrap --variant=minbase --include=python3,git,ca-certificates "$suite" "$1"
    rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/usr/share/{doc,man,locale}/*
    add_user "$1"

    # A virtual environment is a file, a link and a directory; pip fills it from outside, so that
    # the image's Python needs neither pip nor a network.
    say "installing mini-swe-agent into it"
    mkdir -p "$1/opt/agent/bin" "$site"
    printf 'home = /usr/bin\ninclude-system-site-packages = false\n' >"$1/opt/agent/pyvenv.cfg"
    ln -s /usr/bin/python3.11 "$1/opt/agent/bin/python3"
    "${PYTHON:-python3}" -m venv "$work/pip" || fail "python3 -m venv failed; on Debian: apt-get install python3-venv"
    quietly "$work/pip/bin/python" -m pip install --disable-pip-version-check --no-deps --no-compile \
        --only-binary :all: --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none \
        --platform "manylinux_2_28_$arch" --platform "manylinux_2_17_$arch" --platform "manylinux2014_$arch" \
        --platform any --target "$site" -r "$here/agent-requirements.txt"
    rm -rf "$site/bin"
    cat >"$1/opt/agent/bin/mini" <<'PY'
#!/opt/agent/bin/python3
import sys
from minisweagent.run.mini import app
sys.exit(app())
PY
    chmod 755 "$1/opt/agent/bin/mini"
    quietly chroot "$1" /opt/agent/bin/python3 -m compileall -q -j 2 /opt/agent/lib/python3.11/site-packages
}

make_busybox() {
    say "unpacking busybox-static"
    mkdir "$work/deb"
    (cd "$work/deb" && { apt-get -qq download busybox-static >"$work/log" 2>&1 || {
        quietly apt-get update
        quietly apt-get -qq download busybox-static
    }; })
    dpkg-deb -x "$work"/deb/*.deb "$work/deb"
    mkdir -p "$1"/{bin,sbin,usr/bin,usr/sbin,etc,tmp,root,proc,sys,dev,var}
    chmod 1777 "$1/tmp"
    cp "$(find "$work/deb" -type f -name busybox -perm -u+x)" "$1/bin/busybox"
    chroot "$1" /bin/busybox --install -s
    echo 'root:x:0:0:root:/root:/bin/sh' >"$1/etc/passwd"
    echo 'root:x:0:' >"$1/etc/group"
    add_user "$1"
}

make_trixie() {
    need debootstrap debootstrap debian-archive-keyring
    say "bootstrapping trixie (about a minute)"
    quietly debootstrap --variant=minbase --include=python3,python3-pip,tmux,git,ca-certificates trixie "$1"
    rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/* "$1"/usr/share/{doc,man,locale}/*
    # Its pip reaches PyPI as this machine does, also through a proxy with a certificate of its own.
    cp /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/ca-certificates.crt"
    add_user "$1"
}

build() { # build KIND IMAGE
    local key tar
    key=$(key_of "$1")
    has_image "$2" "$key" && { say "$2 is there ($key)"; return; }
    mkdir -p "$cache"
    exec 9>"$cache/$1.lock"
    flock -w 1200 9 || fail "another build of $2 is still running"
    has_image "$2" "$key" && { say "$2 is there ($key)"; return; }
    tar=$cache/$1-$key.tar
    if [ ! -f "$tar" ]; then
        [ "$(id -u)" = 0 ] || fail "$2 is not there, and only root can make it"
        work=$(mktemp -d "$cache/.work.XXXXXX")
        trap 'rm -rf --one-file-system "$work"' EXIT
        mkdir "$work/root"
        "make_$1" "$work/root"
        tar --numeric-owner -C "$work/root" -cf "$work/root.tar" .
        rm -f "$cache/$1"-*.tar
        mv "$work/root.tar" "$tar"
        rm -rf --one-file-system "$work"
        trap - EXIT
    fi
    say "importing $2 ($key)"
    docker import --change "LABEL rock.key=$key" --change 'CMD ["/bin/sh"]' \
        --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' "$tar" "$2" >/dev/null
    exec 9>&-
}

docker version >/dev/null 2>&1 || fail "no engine answers; try scripts/start-docker.sh"
[ $# -gt 0 ] || set -- test busybox
for kind in "$@"; do
    case $kind in
    test | busybox | trixie) build "$kind" "rock-$kind:latest" ;;
    *) fail "unknown image '$kind'; there are: test busybox trixie" ;;
    esac
done
