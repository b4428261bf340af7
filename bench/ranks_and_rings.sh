#!/bin/sh
# Measures ranks and rings on this machine: collectives, sliced sends, two ranks against two threads, steps of rings that
# share experts, several rings against one, and a ring in another process. About twelve minutes on two quiet processors.
#
#   bench/ranks_and_rings.sh MODELS [BUILD]
#
# MODELS: a folder with qwen2.5-0.5b and llama-3.2-1b, random weights that are made where they are missing.
# With OLD_MODEL_SPEED, the model_speed of a build without sums in shards, it also states what shards cost one rank.
set -e
models=${1:?usage: bench/ranks_and_rings.sh MODELS [BUILD]}
root=$(cd "$(dirname "$0")/.." && pwd)
build=${2:-$root/build}
ninja -C "$build" millrace bench/load bench/collective_bench bench/steps_bench bench/model_speed
for shape in qwen2.5-0.5b llama-3.2-1b; do
  [ -e "$models/$shape/config.json" ] || "$root/tools/make_random_checkpoint.py" --shape "$shape" --out "$models/$shape" \
    --tokenizer "$root/models/books-4m"
done

run() {
  printf '\n## %s\n' "$*"
  "$@"
}

run "$build/bench/collective_bench" --ranks 2 --threads 1 --rows 1 32 512 --cols 896 2048 --rounds 7
run "$build/bench/steps_bench" --rounds 3 --steps 1000
run "$build/bench/model_speed" --model-path "$models/qwen2.5-0.5b" --device cpu --tp-size 1 2 --threads 2 \
  --quantization none w8a8_int8 --decode 1 16 --context 256 --output-len 24 --prefill 512 --rounds 5
run "$build/bench/model_speed" --model-path "$models/llama-3.2-1b" --device cpu --tp-size 1 2 --threads 2 \
  --decode 1 16 --context 256 --output-len 24 --prefill 512 --rounds 3
run "$root/bench/rings_bench.py" apart --build "$build" --rounds 5 --input-len 128 --output-len 64 --seed 7
run "$root/bench/rings_bench.py" speed --build "$build" --rings 2 --rounds 5 --threads 2 --input-len 128 --output-len 64 --seed 7
run "$root/bench/rings_bench.py" speed --build "$build" --model "$models/qwen2.5-0.5b" --rings 2 --rounds 3 --threads 2 \
  --input-len 64 --output-len 24 --requests 32 --seed 7 --serve-flags '--page-size 16 --max-total-tokens 8192'
run "$root/bench/rings_bench.py" routing --build "$build" --rings 4 --rounds 3 --think-s 0.3 --seed 7 \
  --serve-flags '--page-size 16 --max-total-tokens 5120'
if [ -n "$OLD_MODEL_SPEED" ]; then
  for turn in 1 2 3; do
    for program in "$OLD_MODEL_SPEED" "$build/bench/model_speed"; do
      run "$program" --model-path "$models/qwen2.5-0.5b" --device cpu --quantization none w8a8_int8 --decode 1 16 \
        --context 256 --output-len 24 --prefill 512 --rounds 3 --threads 2
    done
  done
fi
