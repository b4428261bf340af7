#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/openai/choice_delta.h"

/// The items of a response's output.
namespace millrace::server::responses {

enum class ItemKind : uint8_t { kMessage, kReasoning, kFunctionCall, kCustomCall, kCompaction };
enum class ItemStatus : uint8_t { kInProgress, kCompleted, kIncomplete };

struct OutputItem {
  ItemKind kind = ItemKind::kMessage;
  ItemStatus status = ItemStatus::kInProgress;
  std::string id;
  std::string text;                   ///< of a message or reasoning; a call's arguments or input; a sealed summary
  std::string call_id;                ///< of a call
  std::string name;                   ///< of a call
  std::string name_space;             ///< of a call; empty: none
  std::vector<ScoredToken> logprobs;  ///< of a message, where they are wanted
};

/// Returns the prefix of an item's id.
[[nodiscard]] std::string_view id_prefix(ItemKind kind);
[[nodiscard]] inline bool is_call(ItemKind kind) {
  return kind == ItemKind::kFunctionCall || kind == ItemKind::kCustomCall;
}
/// Returns whether items of this kind have content parts.
[[nodiscard]] inline bool has_parts(ItemKind kind) {
  return kind == ItemKind::kMessage || kind == ItemKind::kReasoning;
}

/// Writes the item as an object. One in progress is as empty as it begins.
void write_item(JsonWriter& json, const OutputItem& item, const ChoiceOptions& options);
/// Writes the content part of a message or of reasoning, with `text` in it.
void write_part(JsonWriter& json, const OutputItem& item, std::string_view text, const ChoiceOptions& options);
/// Writes the array of logprobs.
void write_logprobs(JsonWriter& json, std::span<const ScoredToken> logprobs, const ChoiceOptions& options);

}  // namespace millrace::server::responses
