#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sched/plan/concurrency.h"

namespace millrace::sched {

/// What clients may know of the served model.
struct ModelInfo {
  std::string architecture;     ///< of config.json, e.g. "LlamaForCausalLM"
  uint32_t context_length = 0;  ///< prompt + output, tokens
  uint32_t vocab_size = 0;      ///< ids that may be sampled; without an output head: ids of prompts
  uint32_t hidden_size = 0;     ///< length of pooled vectors
  bool generates = true;        ///< false: the model has no output head, and requests are pooled
  uint64_t parameter_count = 0;
  uint32_t stage_count = 0;
  uint32_t rank_count = 1;  ///< tensor-parallel ranks of each stage
  uint64_t kv_token_capacity = 0;
  std::vector<Concurrency> concurrency = {};  ///< by length; empty before the pools are known
};

}  // namespace millrace::sched
