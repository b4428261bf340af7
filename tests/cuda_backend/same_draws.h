#pragma once

#include <catch2/catch.hpp>

#include "cuda_backend/decode_rig.h"

/// Comparisons of what settings of a DecodeRig draw.
namespace millrace::test {

/// Fails unless both are the same token with the same logprobs.
inline void require_same(const tensor::SampleResult& drawn, const tensor::SampleResult& wanted) {
  REQUIRE(drawn.token == wanted.token);
  REQUIRE(drawn.logprobs.logprob == wanted.logprobs.logprob);
  REQUIRE(drawn.logprobs.top == wanted.logprobs.top);
}

/// Fails unless all sequences have the same draws.
inline void require_same(const DecodeRig::Drawn& drawn, const DecodeRig::Drawn& wanted) {
  REQUIRE(drawn.size() == wanted.size());
  for (size_t s = 0; s < drawn.size(); ++s) {
    CAPTURE(s);
    REQUIRE(drawn[s].size() == wanted[s].size());
    for (size_t i = 0; i < drawn[s].size(); ++i) {
      CAPTURE(i);
      require_same(drawn[s][i], wanted[s][i]);
    }
  }
}

}  // namespace millrace::test
