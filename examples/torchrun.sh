#!/usr/bin/env bash
# One stage per host under torchrun; on every host: examples/torchrun.sh HEAD_HOST NODE_COUNT NODE_RANK [FLAG...].
# PP=2 TP=2 makes 2 stages of 2 ranks, on 2 hosts with a stage each or on 4 with a rank each.
# The head's host serves HTTP, to itself unless `--host 0.0.0.0` is among the flags.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
usage="wanted: HEAD_HOST NODE_COUNT NODE_RANK [FLAG...]"
head="${1:?$usage}" count="${2:?$usage}" rank="${3:?$usage}"
shift 3

# torchrun keeps its master port to itself; the ring takes the next one.
port="${MASTER_PORT:-29500}"
exec torchrun --nnodes "$count" --node-rank "$rank" --nproc-per-node 1 --master-addr "$head" --master-port "$port" \
  --no-python "${MILLRACE:-$here/build/millrace}" serve --model-path "${MODEL:-$here/models/books-4m}" \
  --pp-size "${PP:-$count}" --tp-size "${TP:-1}" --dist-init-addr "$head:$((port + 1))" "$@"
