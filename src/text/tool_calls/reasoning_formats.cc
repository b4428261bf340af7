#include "text/tool_calls/reasoning_formats.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::text {
namespace {

using enum ReasoningFormat;

constexpr std::array<std::string_view, 4> kCommandTags = {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>",
                                                          "<|END_TEXT|>"};
constexpr std::array kReasoningRows = {
    ReasoningRow{.format = kThink, .name = "think", .start = "<think>", .end = "</think>", .may_lack_start = true},
    ReasoningRow{.format = kSeed, .name = "seed_oss", .start = "<seed:think>", .end = "</seed:think>"},
    ReasoningRow{.format = kHunyuan3, .name = "hy_v3", .start = "<think:opensource>", .end = "</think:opensource>"},
    ReasoningRow{.format = kMistral, .name = "mistral", .start = "[THINK]", .end = "[/THINK]"},
    ReasoningRow{.format = kGemma4, .name = "gemma4", .start = "<|channel>thought\n", .end = "<channel|>"},
    ReasoningRow{.format = kCommand,
                 .name = "command",
                 .start = "<|START_THINKING|>",
                 .end = "<|END_THINKING|>",
                 .content_open = "<|START_RESPONSE|>",
                 .content_close = "<|END_RESPONSE|>",
                 .content_tags = kCommandTags},
    ReasoningRow{
        .format = kGranite, .name = "granite", .start = "Here is my thought process:", .end = "Here is my response:"},
    ReasoningRow{.format = kHarmony,
                 .name = "harmony",
                 .start = "<|channel|>analysis<|message|>",
                 .end = "<|end|>",
                 .after_end = "<|start|>assistant",
                 .content_open = "<|channel|>final<|message|>"},
};

constexpr std::array<std::string_view, 23> kAnswerTags = {"<think>",
                                                          "</think>",
                                                          "<seed:think>",
                                                          "</seed:think>",
                                                          "<think:opensource>",
                                                          "</think:opensource>",
                                                          "[THINK]",
                                                          "[/THINK]",
                                                          "<|channel>",
                                                          "<channel|>",
                                                          "<|START_THINKING|>",
                                                          "<|END_THINKING|>",
                                                          "<|START_RESPONSE|>",
                                                          "<|END_RESPONSE|>",
                                                          "<|START_TEXT|>",
                                                          "<|END_TEXT|>",
                                                          "<|channel|>",
                                                          "<|message|>",
                                                          "<|start|>",
                                                          "<|end|>",
                                                          "<|constrain|>",
                                                          "<|call|>",
                                                          "<|return|>"};

struct ReasoningAlias {
  std::string_view name;
  ReasoningFormat format;
};
constexpr std::array kReasoningAliases = {
    ReasoningAlias{"deepseek_r1", kThink},     ReasoningAlias{"deepseek-r1", kThink},
    ReasoningAlias{"deepseek_v3", kThink},     ReasoningAlias{"deepseek-v3", kThink},
    ReasoningAlias{"qwen3", kThink},           ReasoningAlias{"glm45", kThink},
    ReasoningAlias{"kimi_k2", kThink},         ReasoningAlias{"minimax_m2", kThink},
    ReasoningAlias{"openai_gptoss", kHarmony}, ReasoningAlias{"gpt-oss", kHarmony}};

}  // namespace

const ReasoningRow& row_of(ReasoningFormat format) {
  const ReasoningRow& row = kReasoningRows[static_cast<size_t>(format)];
  CHECK(row.format == format, "the rows are in the order of the formats");
  return row;
}

std::vector<std::string> reasoning_format_names() {
  std::vector<std::string> names;
  for (const ReasoningRow& row : kReasoningRows) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> reasoning_format_aliases() {
  std::vector<std::string> names;
  for (const ReasoningAlias& alias : kReasoningAliases) names.emplace_back(alias.name);
  return names;
}

std::optional<ReasoningFormat> parse_reasoning_format(std::string_view word) {
  const auto* row = std::ranges::find(kReasoningRows, word, &ReasoningRow::name);
  if (row != kReasoningRows.end()) return row->format;
  const auto* alias = std::ranges::find(kReasoningAliases, word, &ReasoningAlias::name);
  return alias == kReasoningAliases.end() ? std::nullopt : std::optional(alias->format);
}

std::optional<ReasoningFormat> detect_reasoning_format(std::string_view source) {
  const auto has = [source](std::string_view part) { return source.find(part) != std::string_view::npos; };
  if (has("<|channel|>") && has("<|message|>")) return kHarmony;
  if (has("<|channel>thought")) return kGemma4;
  // Hunyuan's template writes its tags by str.format.
  if (has("</think{}>") && has(":opensource")) return kHunyuan3;
  for (const ReasoningFormat format : {kMistral, kCommand, kSeed, kHunyuan3, kThink, kGranite}) {
    if (has(row_of(format).end)) return format;
  }
  return std::nullopt;
}

bool is_reasoning_tag(std::string_view spelling) {
  if (spelling.size() < 2) return false;
  return std::ranges::any_of(kReasoningRows, [spelling](const ReasoningRow& row) {
    const std::array parts = {row.start, row.end, row.after_end, row.content_open, row.content_close};
    return std::ranges::any_of(parts, [spelling](std::string_view part) { return part.find(spelling) != part.npos; }) ||
           std::ranges::find(row.content_tags, spelling) != row.content_tags.end();
  });
}

std::span<const std::string_view> tags_of_answers() {
  return kAnswerTags;
}

bool prompt_opens_reasoning(std::string_view prompt, ReasoningFormat format) {
  return without_space(prompt).ends_with(without_space(row_of(format).start));
}

bool prompt_closes_reasoning(std::string_view prompt, ReasoningFormat format) {
  return without_space(prompt).ends_with(row_of(format).end);
}

bool is_within_reasoning(std::string_view begun_answer, ReasoningFormat format) {
  const ReasoningRow& row = row_of(format);
  const size_t at = begun_answer.find(without_space(row.start));
  return at != std::string_view::npos && begun_answer.find(row.end, at) == std::string_view::npos;
}

}  // namespace millrace::text
