#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "grammar/expression.h"
#include "server/openai/error.h"
#include "server/openai/request.h"
#include "text/tool_calls/reasoning_formats.h"
#include "text/tool_calls/tool_formats.h"

/// Turns the constraints of a request into the definition of a grammar (src/grammar, which knows no requests).
namespace millrace::server {

/// How a constrained output begins.
enum class ReasoningMode : uint8_t {
  kNone,      ///< without reasoning
  kOptional,  ///< reasoning may come first
  kOpened,    ///< the prompt has opened the reasoning
};

/// The tool calls that an output may contain.
struct ToolCallConstraint {
  text::ToolFormat format = text::ToolFormat::kHermes;
  std::vector<openai::Tool> tools;  ///< the tools that may be called
  bool must_call = false;           ///< the output consists of calls only
  bool allow_parallel = true;
};

/// Constrains an output after its reasoning: to the response format, to tool calls, or to either. Without a format, and
/// where calls are optional, text is free around them.
struct OutputConstraint {
  ReasoningMode reasoning = ReasoningMode::kNone;
  text::ReasoningFormat reasoning_format = text::ReasoningFormat::kThink;
  std::optional<openai::ResponseFormat> response_format;
  std::optional<ToolCallConstraint> calls;
  std::string prefix;  ///< the beginning of the output that the prompt ends with

  [[nodiscard]] bool is_unconstrained() const { return !response_format && !calls; }
};

/// The tools whose arguments follow their schemas; the others are any JSON object.
enum class SchemaEnforcement : uint8_t { kAll, kStrict };

/// Returns the definition of a constrained output. Error 400: the response format, or the schema of a strict tool, is
/// not supported. Keywords that another tool's schema has and that are not supported are ignored.
[[nodiscard]] openai::ApiResult<grammar::Definition> build_grammar(const OutputConstraint& constraint,
                                                                   SchemaEnforcement enforcement);

}  // namespace millrace::server
