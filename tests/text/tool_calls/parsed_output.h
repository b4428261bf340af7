#pragma once

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tool_calls/output_parser.h"
#include "text/tool_calls/parameter_types.h"
#include "text/tool_calls/partial_match.h"

namespace millrace::test {

/// The schema of the tools room_temp and f.
inline constexpr const char* kToolSchema =
    R"({"type":"object","properties":{"room":{"type":"string"},"digits":{"type":"integer"},"on":{"type":"boolean"},)"
    R"("list":{"type":"array"},"may":{"type":["string","null"]},"id":{"type":["string","integer"]}}})";

/// Returns the format of outputs that may call those tools.
inline text::OutputFormat output_format(text::ToolFormat tools, std::optional<text::ReasoningFormat> reasoning = {}) {
  text::OutputFormat format;
  format.tools = tools;
  format.reasoning = reasoning;
  auto types = std::make_shared<text::ParameterTypes>();
  for (const char* name : {"room_temp", "f"}) types->add(name, kToolSchema);
  format.parameter_types = std::move(types);
  return format;
}

/// Adds what a piece of output has given to what came before.
inline void join(text::OutputPart& all, text::OutputPart part) {
  if (part.content_was_reasoning) {
    part.reasoning.insert(0, std::exchange(all.content, {}));
    part.reasoning.resize(text::size_without_space(part.reasoning));
  }
  all.content += part.content;
  all.reasoning += part.reasoning;
  for (text::ToolCallPart& call : part.calls) text::append_call_part(all.calls, std::move(call));
}

/// Returns what the parser finds in `pieces` together.
inline text::OutputPart parse_pieces(const text::OutputFormat& format, const std::vector<std::string_view>& pieces) {
  text::OutputParser parser(format);
  text::OutputPart all;
  if (!format.prefix.empty()) parser.push(format.prefix, all);
  for (const std::string_view piece : pieces) {
    text::OutputPart part;
    parser.push(piece, part);
    join(all, std::move(part));
  }
  text::OutputPart part;
  parser.finish(part);
  join(all, std::move(part));
  return all;
}

/// Returns `answer` in pieces of `size` bytes.
inline std::vector<std::string_view> pieces_of(std::string_view answer, size_t size) {
  std::vector<std::string_view> pieces;
  for (size_t at = 0; at < answer.size(); at += size) pieces.push_back(answer.substr(at, size));
  return pieces;
}

/// Returns one line for all: "[reasoning] content {name id: arguments}…".
inline std::string summary(const text::OutputPart& part) {
  std::string line;
  if (!part.reasoning.empty()) line += '[' + part.reasoning + "] ";
  line += part.content;
  for (const text::ToolCallPart& call : part.calls) {
    line += " {" + call.name + (call.id.empty() ? "" : " #" + call.id) + ": " + call.arguments + '}';
  }
  return line;
}

/// Returns what the parser finds, and requires the same for every cut into two pieces, and for single bytes.
inline text::OutputPart parse_output(const text::OutputFormat& format, std::string_view answer) {
  text::OutputPart whole = parse_pieces(format, {answer});
  CHECK(summary(parse_pieces(format, pieces_of(answer, 1))) == summary(whole));
  for (size_t cut = 1; cut < answer.size(); ++cut) {
    CAPTURE(cut);
    CHECK(summary(parse_pieces(format, {answer.substr(0, cut), answer.substr(cut)})) == summary(whole));
  }
  return whole;
}

}  // namespace millrace::test
