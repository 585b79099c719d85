# A cell for tests, benchmarks and the demo: starts it, stops it, leaves nothing behind. Sourced by
# bash with `set -euo pipefail` on. The only place that spells the command line of zonal.

# shellcheck shell=bash
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# need_zonal: builds the binary, unless ZONAL names one that was built elsewhere.
need_zonal() {
    if [ "$ZONAL" = "$BUILT/zonal" ] && [ -z "${IS_BUILT:-}" ]; then
        need_cargo
        say "building zonal ($PROFILE)"
        (cd "$ROOT" && cargo build --quiet --profile "$PROFILE" --package zonal) || die "zonal does not build"
    fi
    [ -x "$ZONAL" ] || die "$ZONAL is not there"
}

# need_faultfs: builds the failing disk, unless FAULTFS names one that was built elsewhere.
need_faultfs() {
    if [ -n "${IS_BUILT:-}" ]; then
        FAULTFS=$BUILT/zonal-faultfs
    elif [ -z "${FAULTFS:-}" ]; then
        need_cargo
        say "building zonal-faultfs ($PROFILE)"
        (cd "$ROOT" && cargo build --quiet --profile "$PROFILE" --package zonal-faultfs) || die "zonal-faultfs does not build"
        FAULTFS=$BUILT/zonal-faultfs
    fi
    export FAULTFS
}

# mounted PATH: whether something is mounted at exactly PATH.
mounted() {
    local path
    path=$(realpath -m "$1" 2>/dev/null) || return 1
    awk -v p="$path" '{ gsub(/\\040/, " ", $2) } $2 == p { found = 1 } END { exit !found }' /proc/mounts
}

# wait_for SECONDS COMMAND...: repeats the command until it succeeds.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.05
    done
}

# cell_up DIR MOUNT [ZONES [STORAGE_NODES]]
cell_up() {
    mkdir -p "$2"
    timeout -k 5 120 "$ZONAL" up --dir "$1" --mount "$2" --zones "${3:-2}" --storage-nodes "${4:-3}" || return 1
    wait_for 20 mounted "$2"
}

# cell_mount CELL MOUNT ZONE [OPTION...]: adds a mount of a running cell.
cell_mount() {
    local cell=$1 path=$2 zone=$3
    shift 3
    mkdir -p "$path"
    timeout -k 5 60 "$ZONAL" mount --cell "$cell" "$path" --zone "$zone" "$@" || return 1
    wait_for 20 mounted "$path"
}

# cell_mkdir ZONE PATH: makes a first-level directory homed in a zone.
cell_mkdir() {
    timeout -k 5 30 "$ZONAL" mkdir --zone "$1" "$2"
}

# cell_unit SIZE PATH: sets the stripe unit of new files in a directory.
cell_unit() {
    timeout -k 5 30 "$ZONAL" layout set --stripe-unit "$1" "$2"
}

# cell_umount PATH: unmounts; after ten seconds by force, which is an error.
cell_umount() {
    mounted "$1" || return 0
    if timeout -k 1 10 "$ZONAL" umount "$1" && wait_for 10 not_mounted "$1"; then return 0; fi
    force_umount "$1"
}

# force_umount PATH: unmounts what zonal did not; reports it and fails.
force_umount() {
    echo "$1 had to be unmounted by force" >&2
    timeout -k 1 5 umount "$1" 2>/dev/null || umount -l "$1" 2>/dev/null || true
    return 1
}

not_mounted() { ! mounted "$1"; }

# cell_down DIR MOUNT: stops the cell of DIR and its mounts; no error if it never ran.
cell_down() {
    local status=0
    [ -d "$1" ] || return 0
    timeout -k 5 60 "$ZONAL" down --dir "$1" || status=$?
    if mounted "$2"; then force_umount "$2" || status=1; fi
    [ "$status" = 0 ] || echo "zonal down --dir $1: status $status" >&2
    return "$status"
}

# processes_of DIR: processes of zonal and zonal-faultfs whose command line names a path below DIR.
processes_of() {
    local proc pid exe
    for proc in /proc/[0-9]*; do
        pid=${proc#/proc/}
        [ "$pid" != $$ ] || continue
        case $({ tr "\0" " " <"$proc/cmdline"; } 2>/dev/null || true) in
            *"$1"*)
                exe=$(readlink "$proc/exe" 2>/dev/null || true)
                case $(basename "${exe% (deleted)}") in "$(basename "$ZONAL")" | zonal-faultfs) echo "$pid" ;; esac
                ;;
        esac
    done
    return 0
}
