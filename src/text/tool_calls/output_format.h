#pragma once

#include <memory>
#include <optional>
#include <string>

#include "text/tool_calls/reasoning_formats.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::text {

class ParameterTypes;
class ResponseTemplate;

/// How to split an output into reasoning, content and tool calls.
struct OutputFormat {
  std::optional<ReasoningFormat> reasoning;  ///< of reasoning that comes before the content; empty: it stays content
  bool begins_in_reasoning = false;          ///< the prompt has opened it
  bool reasoning_is_closed = false;          ///< the prompt has closed it, or ends within content
  std::optional<ToolFormat> tools;
  std::shared_ptr<const ParameterTypes> parameter_types;  ///< of the tools; null if all are strings
  bool has_constrained_calls = false;  ///< a grammar, which knows calls after the reasoning only, constrains them
  /// The beginning of a call that ends the prompt. It is parsed as if the model had written it.
  std::string prefix;
  /// The model's own description of its outputs, which replaces all of the above but `reasoning`.
  std::shared_ptr<const ResponseTemplate> response_template;
  std::string prompt_end;  ///< with response_template: the prompt's text after its last anchor
  [[nodiscard]] bool is_plain() const { return !reasoning && !tools && !response_template; }
  /// Returns whether the output may have calls.
  [[nodiscard]] bool has_tools() const { return tools || response_template; }
};

}  // namespace millrace::text
