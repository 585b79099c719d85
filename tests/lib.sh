# Shared by the scripts of tests/ and bench/: paths, and tools to install. Sourced by bash with `set
# -euo pipefail` on.

# shellcheck shell=bash
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
TOOLS=$TARGET/tools
# Build profile: release; dev; or suite, which the unit tests have built already. The latter two
# check arithmetic overflow.
PROFILE=${PROFILE:-release}
BUILT=$TARGET/$([ "$PROFILE" = dev ] && echo debug || echo "$PROFILE")
ZONAL=${ZONAL:-$BUILT/zonal}

say() { printf '%s\n' "$*"; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# need COMMAND=PACKAGE...: installs packages whose command is missing.
need() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null 2>&1 || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "please install: ${missing[*]}"
    [ "$(id -u)" = 0 ] || die "not root, please run: sudo apt-get install ${missing[*]}"
    say "installing ${missing[*]}"
    local log
    log=$(mktemp)
    if ! DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
        apt-get update -q >>"$log" 2>&1 || true
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >>"$log" 2>&1 || {
            tail -n 20 "$log" >&2
            die "apt-get could not install ${missing[*]}"
        }
    fi
    rm -f "$log"
}

# need_cargo: adds cargo from rustup's folder to PATH.
need_cargo() {
    command -v cargo >/dev/null 2>&1 || PATH=$HOME/.cargo/bin:$PATH
    command -v cargo >/dev/null 2>&1 || die "cargo is missing. Hint: install Rust from https://rustup.rs"
    need cc=gcc
}

# tool NAME VERSION: builds a test program of crates.io once into $TOOLS, prints its path. One
# caller builds; others wait for it.
tool() {
    local name=$1 version=$2 mark=$TOOLS/$1-$2 turn
    mkdir -p "$TOOLS"
    exec {turn}>"$TOOLS/$name.lock"
    flock "$turn"
    if [ ! -e "$mark" ] || [ ! -x "$TOOLS/bin/$name" ]; then
        need_cargo >&2
        say "building $name $version (once)" >&2
        # Optimization gains little for runs of seconds.
        export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=0
        (cd "$TOOLS" && CARGO_TARGET_DIR=$TOOLS/build nice cargo install --quiet --locked --force "$name" --version "$version" --root "$TOOLS") >&2 || die "cargo could not install $name $version"
        touch "$mark"
    fi
    exec {turn}>&-
    say "$TOOLS/bin/$name"
}
