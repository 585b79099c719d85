# Runs suites: the output of each goes to a log file, one line has the result, a count ends the run.
# Sourced by bash with `set -euo pipefail` on, after lib.sh.

# shellcheck shell=bash
LOGS=$TARGET/test-logs
TALLY=${ZONAL_TALLY:-}

# begin_tally: starts the count, unless a caller's count continues.
begin_tally() {
    mkdir -p "$LOGS"
    if [ -z "$TALLY" ]; then
        TALLY=$LOGS/tally
        : >"$TALLY"
        : >"$TALLY.failed"
    fi
}

# suite NAME SECONDS COMMAND...: runs a command with a time limit and counts its results.
#
# A command that ends with a line `...: N passed, ... N failed`, and cargo test, count with their
# own numbers; any other as one. Returns the command's status.
suite() {
    local name=$1 limit=$2 log status=0 start=$SECONDS passed failed note
    shift 2
    log=$LOGS/$name.log
    printf '%-34s ' "$name"
    timeout -k 10 "$limit" "$@" >"$log" 2>&1 || status=$?
    read -r passed failed < <(count "$log")
    if [ "$passed" = 0 ] && [ "$failed" = 0 ] && [ "$status" = 0 ]; then passed=1; fi
    if [ "$failed" = 0 ] && [ "$status" != 0 ]; then failed=1; fi
    if [ "$failed" != 0 ] && [ "$status" = 0 ]; then status=1; fi
    note=$(grep -oE '[1-9][0-9]* skipped' "$log" | tail -n 1 || true)
    [ "$status" != 124 ] && [ "$status" != 137 ] || note="${note:+$note, }stopped after $limit s"
    printf '%s  %s passed, %s failed%s  (%s s)\n' "$([ "$status" = 0 ] && echo ok || echo FAILED)" "$passed" "$failed" "${note:+, $note}" $((SECONDS - start))
    echo "$passed $failed" >>"$TALLY"
    if [ "$status" != 0 ]; then
        say "--- the last lines of $log"
        tail -n 40 "$log" | cut -c 1-400
        say "---"
        { echo "$name:"; { grep -E '^(FAILED|---- .* stdout|error)|panicked at' "$log" || tail -n 1 "$log"; } | head -n 5 | cut -c 1-600 || true; } >>"$TALLY.failed"
    fi
    return "$status"
}

# count LOG: "PASSED FAILED" from the log's last summary, or the sum of cargo's summaries.
count() {
    sed 's/\x1b\[[0-9;]*m//g' "$1" | awk '
        /^test result: / {
            for (i = 2; i <= NF; i++) {
                if ($i ~ /^passed/) cp += $(i - 1)
                if ($i ~ /^failed/) cf += $(i - 1)
            }
        }
        /^[a-z][^:]*: [0-9]+ passed, (.* )?[0-9]+ failed/ {
            line = $0
            sub(/^[^:]*: /, "", line)
            p = line + 0
            sub(/ failed.*/, "", line)
            n = split(line, w, " ")
            f = w[n] + 0
        }
        END { print p + cp, f + cf }'
}

# closing: lists the failures once more, then prints the count alone on its line. Fails if anything
# failed.
closing() {
    [ ! -s "$TALLY.failed" ] || { say "--- failed" && cat "$TALLY.failed"; }
    awk '{ p += $1; f += $2 } END { printf "%d passed, %d failed\n", p, f; exit f > 0 || p == 0 }' "$TALLY"
}
