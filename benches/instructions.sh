#!/usr/bin/env bash
# Counts the instructions that each stage takes for a row, by callgrind, and writes benches/instructions.md. Two runs of
# different length, so that what comes before and after the rows drops out. Called by `make instructions`; needs valgrind.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(${CARGO:-cargo} bench --locked --bench instructions --no-run --message-format=json 2>/dev/null |
    grep -o '"executable":"[^"]*instructions-[^"]*"' | tail -n 1 | cut -d'"' -f4)
[ -x "$program" ] || { echo "the benchmark was not built" >&2; exit 1; }
counts=$(mktemp -d); trap 'rm -rf "$counts"' EXIT

count() { # stage size times
    valgrind --tool=callgrind --callgrind-out-file="$counts/out" "$program" "$@" 2>&1 |
        sed -n 's/.*Collected *: *\([0-9]*\).*/\1/p'
}

row() { # stage size rows-each times
    local few many
    few=$(count "$1" "$2" "$4"); many=$(count "$1" "$2" $(($4 * 3)))
    echo "| \`$5\` | $(((many - few) / ($4 * 2 * $3))) |"
}

{
    echo "# Instructions a row"
    echo
    echo "What each stage takes for one row before the Kafka client has it, counted by callgrind: the same on every machine with the"
    echo "same compiler, so that a regression shows in review. \`make instructions\` writes this file. Copying a payload counts as one"
    echo "instruction for some 32 bytes, and above a few kB as one for each byte."
    echo
    echo "$(rustc --version), $(uname -m)"
    echo
    echo "| stage | instructions |"
    echo "|---|---|"
    for size in 200 1024 10240; do row frame $size 1 2000 "frame/payload=$size"; done
    for size in 200 1024 10240; do row decode $size 1 2000 "decode/payload=$size"; done
    for size in 200 1024 10240; do row insert $size 1 2000 "insert/payload=$size"; done
    for size in 1 10 1000; do row ledger $size $size $((20000 / size)) "ledger/rows_per_transaction=$size"; done
} > benches/instructions.md
cat benches/instructions.md
