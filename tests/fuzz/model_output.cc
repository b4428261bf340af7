#include <algorithm>
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

/// Returns a format of calls, and one of reasoning if the second word names one.
OutputFormat format_of(std::string_view tools, std::string_view reasoning) {
  OutputFormat format;
  format.tools = parse_tool_format(tools);
  format.reasoning = parse_reasoning_format(reasoning);
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
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string_view names = input.substr(0, end);
  const size_t blank = std::min(names.find(' '), names.size());
  const OutputFormat format = format_of(names.substr(0, blank), names.substr(std::min(blank + 1, names.size())));
  if (!format.tools || end == input.size()) return;
  const std::string_view answer = input.substr(end + 1);
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
