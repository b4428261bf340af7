#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>
#include <string>

/// The formats in which models write reasoning, as rows of data that the parser and the grammars read.
namespace millrace::text {

enum class ReasoningFormat : uint8_t { kThink, kSeed, kHunyuan3, kMistral, kGemma4, kCommand, kGranite, kHarmony };

/// An output is `start` reasoning `end`, then `content_open` content `content_close`.
struct ReasoningRow {
  ReasoningFormat format;
  std::string_view name;  ///< of --reasoning-parser
  std::string_view start;
  std::string_view end;
  std::string_view after_end = {};     ///< stands between `end` and what follows, as the grammar writes it
  std::string_view content_open = {};  ///< empty if content has no tags
  std::string_view content_close = {};
  std::span<const std::string_view> content_tags = {};  ///< removed from content
  bool may_lack_start = false;  ///< models leave out `start`: content before a lone `end` is reasoning
};

[[nodiscard]] const ReasoningRow& row_of(ReasoningFormat format);
/// Returns the name of each format.
[[nodiscard]] std::vector<std::string> reasoning_format_names();
/// Returns other names of formats, by which users of other servers know them.
[[nodiscard]] std::vector<std::string> reasoning_format_aliases();
[[nodiscard]] std::optional<ReasoningFormat> parse_reasoning_format(std::string_view word);
/// Returns the format that a chat template's source mentions.
[[nodiscard]] std::optional<ReasoningFormat> detect_reasoning_format(std::string_view source);
/// Returns whether a tag of a format contains a token of this spelling.
[[nodiscard]] bool is_reasoning_tag(std::string_view spelling);

/// Returns the tags that may stand in a text around calls: those of reasoning and of content in every format.
[[nodiscard]] std::span<const std::string_view> tags_of_answers();

/// Returns whether a rendered prompt has opened the reasoning of the output.
[[nodiscard]] bool prompt_opens_reasoning(std::string_view prompt, ReasoningFormat format);
/// Returns whether a rendered prompt has closed the reasoning of the output.
[[nodiscard]] bool prompt_closes_reasoning(std::string_view prompt, ReasoningFormat format);
/// Returns whether an output so far has not reached the end of its reasoning.
[[nodiscard]] bool is_within_reasoning(std::string_view begun_answer, ReasoningFormat format);

}  // namespace millrace::text
