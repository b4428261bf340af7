#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gguf/metadata.h"

namespace millrace::gguf {

/// The special tokens that metadata names, by their ids. An id beyond the vocabulary counts as absent.
struct SpecialTokens {
  std::optional<int64_t> bos;
  std::optional<int64_t> eos;
  std::optional<int64_t> unk;
  std::optional<int64_t> pad;
  std::vector<int64_t> ends;  ///< all that end an output: eos, the ends of turns and messages; without repetitions
};

/// Returns the types of the vocabulary's tokens; empty if metadata has none. Tokens that delimit turns in chat formats
/// are control tokens, also where a file calls them normal, as some do: a text never means them otherwise. Throws
/// ErrorException (kData) for a key of another type.
[[nodiscard]] std::vector<int64_t> token_types(const Metadata& metadata);

/// Finds the special tokens. Metadata names one end of outputs as a rule; the ends of turns that chat models use are
/// found by their text among the control tokens. Throws ErrorException (kData) for a key of another type.
[[nodiscard]] SpecialTokens special_tokens(const Metadata& metadata);

}  // namespace millrace::gguf
