#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace millrace::text {

/// What a tokenizer puts around one text, and around a pair of texts.
struct PostProcessor {
  /// One part of the result: a text's tokens, or tokens that are always there.
  struct Piece {
    enum class Kind { kFirst, kSecond, kTokens };
    Kind kind = Kind::kFirst;
    uint32_t type_id = 0;
    std::vector<TokenId> tokens;
  };

  std::vector<Piece> single = {{.kind = Piece::Kind::kFirst, .type_id = 0, .tokens = {}}};
  std::vector<Piece> pair = {{.kind = Piece::Kind::kFirst, .type_id = 0, .tokens = {}},
                             {.kind = Piece::Kind::kSecond, .type_id = 1, .tokens = {}}};
};

}  // namespace millrace::text
