#include "gguf/special_tokens.h"

#include <algorithm>
#include <array>

#include "gguf/token_types.h"

namespace millrace::gguf {
namespace {

/// Tokens that end a turn, a message or a text in chat formats.
constexpr std::array<std::string_view, 14> kEnds = {
    "<|return|>", "<|call|>", "<|eot_id|>",    "<|im_end|>", "<|end|>",          "<|end_of_text|>", "<|eom_id|>",
    "<EOT>",      "[EOT]",    "<end_of_turn>", "<turn|>",    "<|tool_response>", "<|endoftext|>",   "[e~["};

/// Tokens that begin a turn in chat formats.
constexpr std::array<std::string_view, 5> kBegins = {"<start_of_turn>", "<|im_start|>", "<|start_header_id|>",
                                                     "<|end_header_id|>", "<|turn>"};

bool is_delimiter(std::string_view token) {
  return std::ranges::find(kEnds, token) != kEnds.end() || std::ranges::find(kBegins, token) != kBegins.end();
}

}  // namespace

std::vector<int64_t> token_types(const Metadata& metadata) {
  const auto tokens = metadata.texts(kTokensKey);
  auto types = metadata.integers(kTokenTypesKey).value_or(std::vector<int64_t>());
  for (size_t id = 0; tokens && id < std::min(tokens->size(), types.size()); ++id) {
    if (types[id] == static_cast<int64_t>(TokenType::kNormal) && is_delimiter((*tokens)[id]))
      types[id] = static_cast<int64_t>(TokenType::kControl);
  }
  return types;
}

SpecialTokens special_tokens(const Metadata& metadata) {
  SpecialTokens special;
  const auto tokens = metadata.texts(kTokensKey);
  if (!tokens) return special;
  const auto find = [&](std::string_view name) -> std::optional<int64_t> {
    const auto id = metadata.integer(std::string(kTokenizerPrefix).append(name), INT32_MIN, UINT32_MAX);
    if (!id || *id < 0 || static_cast<size_t>(*id) >= tokens->size()) return std::nullopt;
    return id;
  };
  special.bos = find("bos_token_id");
  special.eos = find("eos_token_id");
  special.unk = find("unknown_token_id");
  special.pad = find("padding_token_id");
  const auto add = [&special](std::optional<int64_t> id) {
    if (id && std::ranges::find(special.ends, *id) == special.ends.end()) special.ends.push_back(*id);
  };
  for (const auto& id : {special.eos, find("eot_token_id"), find("eom_token_id")}) add(id);
  const Value* const list = metadata.find(std::string(kTokenizerPrefix).append("eos_token_ids"));
  for (const int64_t id :
       list == nullptr ? std::vector<int64_t>() : list->integers().value_or(std::vector<int64_t>())) {
    if (id >= 0 && static_cast<size_t>(id) < tokens->size()) add(id);
  }
  // Harmony ends parts of an output with "<|end|>".
  const bool is_harmony = std::ranges::find(*tokens, "<|return|>") != tokens->end();
  const std::vector<int64_t> types = token_types(metadata);
  for (size_t id = 0; id < std::min(tokens->size(), types.size()); ++id) {
    const auto type = static_cast<TokenType>(types[id]);
    if (type != TokenType::kControl && type != TokenType::kUserDefined) continue;
    if (is_harmony && (*tokens)[id] == "<|end|>") continue;
    if (std::ranges::find(kEnds, (*tokens)[id]) != kEnds.end()) add(static_cast<int64_t>(id));
  }
  return special;
}

}  // namespace millrace::gguf
