#!/usr/bin/env bash
# One stage per host under Open MPI: examples/openmpi.sh HOST_A,HOST_B [FLAG...]; a host may be HOST:SLOTS. The first host
# serves HTTP, to itself unless `--host 0.0.0.0` is among the flags. PP=2 TP=2 makes 2 stages of 2 ranks, on 2 hosts with a
# stage each or on 4 with a rank each.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
hosts="${1:?wanted: HOST_A,HOST_B [FLAG...]}"
shift
IFS=, read -r -a names <<< "$hosts"

# Ranks count from the first host on. Open MPI does not say where rank 0 is, so the address is given.
exec mpirun --host "$hosts" -np "${#names[@]}" --bind-to none \
  "${MILLRACE:-$here/build/millrace}" serve --model-path "${MODEL:-$here/models/books-4m}" \
  --pp-size "${PP:-${#names[@]}}" --tp-size "${TP:-1}" --dist-init-addr "${names[0]%%:*}:${RING_PORT:-30100}" "$@"
