#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "fuzz/targets.h"
#include "text/tool_calls/output_parser.h"
#include "text/tool_calls/parameter_types.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::fuzz {
namespace {

using namespace text;

constexpr const char* kSchema =
    R"({"type":"object","properties":{"room":{"type":"string"},"digits":{"type":"integer"},"list":{"type":"array"}}})";
constexpr size_t kReasoningFormatCount = static_cast<size_t>(ReasoningFormat::kHarmony) + 1;

/// Returns the number that a letter stands for: 0 for a.
size_t number_of(char letter, size_t count) {
  return static_cast<uint8_t>(letter - 'a') % count;
}

OutputFormat format_of(char tools, char reasoning) {
  OutputFormat format;
  format.tools = static_cast<ToolFormat>(number_of(tools, kToolFormatCount));
  const size_t number = number_of(reasoning, kReasoningFormatCount + 1);
  if (number < kReasoningFormatCount) format.reasoning = static_cast<ReasoningFormat>(number);
  auto types = std::make_shared<ParameterTypes>();
  types->add("room_temp", kSchema);
  format.parameter_types = std::move(types);
  return format;
}

/// Adds what a piece of output has given to what came before.
void join(OutputPart& all, OutputPart part) {
  if (part.content_was_reasoning) {
    part.reasoning.insert(0, std::exchange(all.content, {}));
    part.reasoning.resize(size_without_space(part.reasoning));
  }
  all.content += part.content;
  all.reasoning += part.reasoning;
  for (ToolCallPart& call : part.calls) append_call_part(all.calls, std::move(call));
}

/// Returns what the parser finds in an answer that comes in pieces of `size` bytes.
OutputPart parse(const OutputFormat& format, std::string_view answer, size_t size) {
  OutputParser parser(format);
  OutputPart all;
  for (size_t at = 0; at < answer.size(); at += size) {
    OutputPart part;
    parser.push(answer.substr(at, size), part);
    join(all, std::move(part));
  }
  OutputPart part;
  parser.finish(part);
  join(all, std::move(part));
  CHECK(parser.calls_started() == all.calls.size() && parser.calls_finished() <= parser.calls_started());
  for (size_t i = 0; i < all.calls.size(); ++i) CHECK(all.calls[i].index == i && !all.calls[i].name.empty());
  return all;
}

}  // namespace

void model_output(std::string_view input) {
  if (input.size() < 3) return;
  const OutputFormat format = format_of(input[0], input[1]);
  const std::string_view answer = input.substr(2);
  const OutputPart whole = parse(format, answer, answer.size());
  for (const size_t size : {1, 3}) {
    const OutputPart pieces = parse(format, answer, size);
    CHECK(pieces.content == whole.content && pieces.reasoning == whole.reasoning);
    CHECK(pieces.calls.size() == whole.calls.size());
    for (size_t i = 0; i < whole.calls.size(); ++i) {
      CHECK(pieces.calls[i].name == whole.calls[i].name && pieces.calls[i].id == whole.calls[i].id);
      CHECK(pieces.calls[i].arguments == whole.calls[i].arguments);
    }
  }
}

}  // namespace millrace::fuzz
