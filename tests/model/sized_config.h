#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>

#include "model/config.h"
#include "model/tensor_list.h"

namespace millrace::test {

/// A config.json, and what the model's card says.
struct SizedConfig {
  const char* name;
  const char* config;
  double billions;  ///< of parameters
  int32_t context_length;
};

/// Fails unless a config in bf16 that was read from `sized` has its sizes.
inline void check_sizes(const SizedConfig& sized, const model::ModelConfig& config) {
  CAPTURE(sized.name);
  const double billions = static_cast<double>(model::parameter_count(config)) / 1e9;
  CAPTURE(billions);
  REQUIRE(std::abs(billions - sized.billions) < 0.01 * sized.billions);
  REQUIRE(config.context_length() == sized.context_length);
  REQUIRE(config.dtype == tensor::DType::kBF16);
}

}  // namespace millrace::test
