#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "grammar/expression.h"
#include "server/openai/error.h"
#include "server/openai/request.h"
#include "text/tool_calls/tool_formats.h"

/// What an answer is held to, as a grammar's definition. The front's side of src/grammar, which knows of no requests.
namespace millrace::server {

/// How an answer that is held to something begins.
enum class ReasoningMode : uint8_t {
  kNone,      ///< at once
  kOptional,  ///< <think>…</think> may come first
  kOpened,    ///< the prompt has opened <think>
};

/// The calls of tools that an answer may have.
struct ToolCallConstraint {
  text::ToolFormat format = text::ToolFormat::kHermes;
  std::vector<openai::Tool> tools;  ///< that may be called
  bool must_call = false;           ///< nothing else may be said
  bool allow_parallel = true;
};

/// What an answer is held to behind its reasoning: the form, calls, or either; text and calls where there is no form
/// and calls are not wanted.
struct OutputConstraint {
  ReasoningMode reasoning = ReasoningMode::kNone;
  std::optional<openai::ResponseFormat> response_format;
  std::optional<ToolCallConstraint> calls;
  std::string prefix;  ///< what the prompt ends with of it

  [[nodiscard]] bool is_unconstrained() const { return !response_format && !calls; }
  /// Equal for equal answers only.
  [[nodiscard]] std::string key() const;
};

/// Which arguments of tools are held to their schemas; others are any JSON object.
enum class SchemaEnforcement : uint8_t { kAll, kStrict };

/// 400: what is wrong with the form, or with the schema of a strict tool. Of other tools a schema that nothing can be
/// held to is passed over.
[[nodiscard]] openai::ApiResult<grammar::Definition> build_grammar(const OutputConstraint& constraint,
                                                                   SchemaEnforcement enforcement);

}  // namespace millrace::server
