#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "server/openai/request.h"
#include "server/options.h"
#include "server/output_constraint.h"
#include "text/chat_template/chat_template.h"
#include "text/tool_calls/output_format.h"

namespace millrace::server {

/// How the outputs of one chat template are written: from the server's flags, or as the template and the model's files
/// say. Refers to both, and lives as long as one request is prepared.
class ChatFormat {
 public:
  ChatFormat(const ServerOptions& options, const text::ChatTemplate& chat_template)
      : options_(options), chat_template_(chat_template) {}

  /// Returns whether it is known how the model writes calls.
  [[nodiscard]] bool can_call() const;
  [[nodiscard]] std::optional<text::ReasoningFormat> reasoning() const;
  /// Returns how the output that follows `prompt` separates content, reasoning and tool calls.
  [[nodiscard]] text::OutputFormat make_output_format(const openai::ChatRequest& request,
                                                      std::string_view prompt) const;
  /// Returns what restricts the output. Error 400: the restriction cannot be enforced in this format.
  [[nodiscard]] openai::ApiResult<OutputConstraint> make_output_constraint(const openai::ChatRequest& request,
                                                                           const text::OutputFormat& format) const;

 private:
  [[nodiscard]] std::optional<text::ToolFormat> tool_format() const;
  /// Returns the model's own description of its outputs if it decides how they are split, else null.
  [[nodiscard]] std::shared_ptr<const text::ResponseTemplate> response_template() const;

  const ServerOptions& options_;
  const text::ChatTemplate& chat_template_;
};

}  // namespace millrace::server
