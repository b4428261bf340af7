#include "server/chat_format.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "text/tool_calls/parameter_types.h"
#include "text/tool_calls/response_template.h"

namespace millrace::server {

using openai::ApiResult;
using openai::bad_request;

std::shared_ptr<const text::ResponseTemplate> ChatFormat::response_template() const {
  if (options_.uses_response_template) return chat_template_.response_template();
  const bool is_unknown = options_.detect_tool_format && !chat_template_.tool_format();
  return is_unknown ? chat_template_.response_template() : nullptr;
}

std::optional<text::ToolFormat> ChatFormat::tool_format() const {
  if (!options_.detect_tool_format) return options_.tool_format;
  return chat_template_.supports_tools() ? chat_template_.tool_format() : std::nullopt;
}

bool ChatFormat::can_call() const {
  if (tool_format()) return true;
  const auto described = response_template();
  return described != nullptr && described->has(text::ResponseTemplate::Target::kCalls);
}

std::optional<text::ReasoningFormat> ChatFormat::reasoning() const {
  if (!options_.detect_reasoning_format) return options_.reasoning_format;
  const auto described = response_template();
  // The description says how reasoning is written, so that any format only says that there is some.
  const bool has_described = described != nullptr && described->has(text::ResponseTemplate::Target::kReasoning);
  if (has_described && !chat_template_.reasoning_format()) return text::ReasoningFormat::kThink;
  return chat_template_.reasoning_format();
}

ApiResult<OutputConstraint> ChatFormat::make_output_constraint(const openai::ChatRequest& request,
                                                               const text::OutputFormat& format) const {
  const openai::Conversation& conversation = request.conversation;
  OutputConstraint constraint;
  const auto reasoning = this->reasoning();
  constraint.reasoning_format = reasoning.value_or(text::ReasoningFormat::kThink);
  if (format.begins_in_reasoning) {
    constraint.reasoning = ReasoningMode::kOpened;
  } else if (reasoning && !conversation.continue_final_message) {
    constraint.reasoning = ReasoningMode::kOptional;
  }
  constraint.response_format = request.response_format;
  const bool must_call = conversation.forces_call();
  const bool is_described = format.response_template != nullptr;
  const bool constrains_calls =
      must_call || conversation.restricts_tools || std::ranges::any_of(conversation.tools, [&](const auto& tool) {
        return tool.is_strict && (!tool.input || !is_described);
      });
  if (is_described &&
      std::ranges::any_of(conversation.tools, [](const auto& tool) { return tool.input.has_value(); })) {
    log::debug(
        "a custom tool's grammar is shown to the model but not enforced: the model's response_template describes "
        "its calls, which cannot be constrained");
  }
  if (is_described && constrains_calls) {
    const char* field = must_call ? "tool_choice" : "tools";
    return bad_request(field,
                       "{}: calls that the model's response_template describes cannot be constrained, wanted "
                       "tool_choice 'auto' or 'none', and no strict function",
                       field);
  }
  const auto written = conversation.forbids_calls() ? tool_format() : format.tools;
  if (!written || (!constrains_calls && !constraint.response_format)) return constraint;
  constraint.calls = ToolCallConstraint{*written, conversation.tools, must_call, request.parallel_tool_calls};
  if (conversation.tool_choice == openai::ToolChoice::kNamed) {
    std::erase_if(constraint.calls->tools,
                  [&](const openai::Tool& tool) { return tool.name != conversation.chosen_tool; });
    constraint.calls->allow_parallel = false;
  }
  if (must_call && constraint.reasoning == ReasoningMode::kNone) {
    constraint.prefix = text::tool_call_prefix(*format.tools, conversation.chosen_tool);
  }
  return constraint;
}

text::OutputFormat ChatFormat::make_output_format(const openai::ChatRequest& request, std::string_view prompt) const {
  const openai::Conversation& conversation = request.conversation;
  text::OutputFormat format;
  const auto reasoning = this->reasoning();
  if (request.separate_reasoning || !request.include_reasoning) format.reasoning = reasoning;
  // A prompt is looked at for <think> also if its template has none.
  const auto tags = reasoning.value_or(text::ReasoningFormat::kThink);
  format.begins_in_reasoning = conversation.continue_final_message
                                   ? text::is_within_reasoning(conversation.messages.back().content, tags)
                                   : text::prompt_opens_reasoning(prompt, tags);
  // A constrained output writes the start of its reasoning, so that an end alone is content.
  format.reasoning_is_closed = conversation.continue_final_message || text::prompt_closes_reasoning(prompt, tags) ||
                               request.response_format.has_value();
  if (const auto described = response_template()) {
    format.response_template = described;
    format.prompt_end = described->prompt_end(prompt);
  }
  if (!conversation.has_tools()) return format;
  if (format.response_template == nullptr) format.tools = tool_format();
  if (format.tools && !text::needs_parameter_types(*format.tools)) return format;
  auto types = std::make_shared<text::ParameterTypes>();
  for (const openai::Tool& tool : conversation.tools) types->add(tool.name, tool.parameters);
  format.parameter_types = std::move(types);
  return format;
}

}  // namespace millrace::server
