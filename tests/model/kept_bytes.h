#pragma once

#include "cpu/cpu_backend.h"
#include "cpu/memory.h"
#include "model/stored_twins.h"
#include "model/test_pipeline.h"

namespace millrace::test {

/// Returns the bytes that a random model in a format keeps packed on a CPU, in bf16 arithmetic.
[[nodiscard]] inline double kept_bytes(const model::ModelConfig& config, const StoredFormat& format) {
  model::ModelConfig stored = config;
  stored.weight_format = format.format;
  const Twins twins(config, format, 11);
  const auto checkpoint = model::Checkpoint::open(twins.stored.path()).value();
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kBF16});
  const uint64_t before = cpu::packed_bytes();
  const TestPipeline pipeline(*checkpoint, stored, *backend, {});
  return static_cast<double>(cpu::packed_bytes() - before);
}

}  // namespace millrace::test
