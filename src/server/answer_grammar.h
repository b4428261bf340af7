#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "grammar/expression.h"
#include "server/openai/error.h"
#include "server/openai/request.h"
#include "text/tool_formats.h"

/// What an answer is held to, as a grammar's definition. The front's side of src/grammar, which knows of no requests.
namespace millrace::server {

/// How an answer that is held to something begins.
enum class AnswerStart : uint8_t {
  kPlain,           ///< at once
  kMayReason,       ///< <think>…</think> may come first
  kBegunReasoning,  ///< the prompt has opened <think>
};

/// The calls of tools that an answer may have.
struct HeldCalls {
  text::ToolFormat format = text::ToolFormat::kHermes;
  std::vector<openai::Tool> tools;  ///< that may be called
  bool are_wanted = false;          ///< nothing else may be said
  bool may_be_several = true;
};

/// What an answer is held to behind its reasoning: the form, calls, or either; text and calls where there is no form
/// and calls are not wanted.
struct HeldAnswer {
  AnswerStart start = AnswerStart::kPlain;
  std::optional<openai::AnswerForm> form;
  std::optional<HeldCalls> calls;
  std::string given;  ///< what the prompt ends with of it

  [[nodiscard]] bool is_free() const { return !form && !calls; }
  /// Equal for equal answers only.
  [[nodiscard]] std::string key() const;
};

/// Which arguments of tools are held to their schemas; others are any JSON object.
enum class HeldArguments : uint8_t { kAll, kStrict };

/// 400: what is wrong with the form, or with the schema of a strict tool. Of other tools a schema that nothing can be
/// held to is passed over.
[[nodiscard]] openai::ApiResult<grammar::Definition> define(const HeldAnswer& answer, HeldArguments held);

}  // namespace millrace::server
