#!/usr/bin/env bash
# One stage per host under torchrun; on every host: examples/torchrun.sh HEAD_HOST NODE_COUNT NODE_RANK [FLAG...].
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
  --pp-size "$count" --dist-init-addr "$head:$((port + 1))" "$@"
