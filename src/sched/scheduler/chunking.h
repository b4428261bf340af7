#pragma once

#include <cstdint>

#include "base/enum_names.h"

namespace millrace::sched {

/// How a long prompt's prefill is cut into chunks.
enum class Chunking : uint8_t {
  kFixed,      ///< chunked_prefill_size tokens per micro-batch
  kPublished,  ///< sizes from a quadratic fit of stage 0's prompts without prefixes, as published for another server
  kBalanced,   ///< sizes that take the slowest stage one target time, with all else in the micro-batch
};

inline constexpr EnumName<Chunking> kChunkingNames[] = {
    {Chunking::kFixed, "fixed"},
    {Chunking::kPublished, "published"},
    {Chunking::kBalanced, "balanced"},
};
constexpr std::span<const EnumName<Chunking>> enum_names(Chunking) {
  return kChunkingNames;
}

}  // namespace millrace::sched
