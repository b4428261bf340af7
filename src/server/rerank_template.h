#pragma once

#include <cstdint>
#include <span>

#include "base/enum_names.h"

namespace millrace::server {

/// How a query and a document become one prompt.
enum class RerankTemplate : uint8_t {
  kPair,   ///< the query's tokens, then the document's
  kQwen3,  ///< the chat of Qwen3-Reranker, which ends before its yes or no
};

inline constexpr EnumName<RerankTemplate> kRerankTemplateNames[] = {
    {RerankTemplate::kPair, "pair"},
    {RerankTemplate::kQwen3, "qwen3"},
};
constexpr std::span<const EnumName<RerankTemplate>> enum_names(RerankTemplate) {
  return kRerankTemplateNames;
}

}  // namespace millrace::server
