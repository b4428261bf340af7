#include "server/messages/content.h"

#include <algorithm>
#include <array>

namespace millrace::server::messages {

using openai::bad_request;
using openai::FieldError;
using openai::Json;

namespace {

constexpr std::array<std::string_view, 4> kHostedBlocks = {"server_tool_use", "mcp_tool_use", "mcp_tool_result",
                                                           "container_upload"};

FieldError refuse_type(const Block& block, std::string_view wanted) {
  if (block.type == "image") {
    return bad_request(block.path, "{}: found an image, but this model reads text alone", block.path);
  }
  return bad_request(block.path, "{}.type: '{}' is not supported, wanted {}", block.path, block.type.substr(0, 64),
                     wanted);
}

FieldError append_text_blocks(const std::string& path, Json value, std::string& out) {
  JsonArray blocks;
  if (!value.get(blocks)) return openai::wrong_type(path, value, "a string or an array of text blocks");
  size_t index = 0;
  for (const Json item : blocks) {
    Block block;
    if (FieldError error = read_block(fmt::format("{}[{}]", path, index++), item, block)) return error;
    if (block.type != "text") return refuse_type(block, "text");
    std::string text;
    if (FieldError error = read_member(block, "text", true, text)) return error;
    append_text(out, text);
  }
  return std::nullopt;
}

/// Appends the text of a document. PDFs, files and addresses hold none that this server can read.
FieldError append_source(const Block& document, std::string& out) {
  const std::string path = document.path + ".source";
  Block source;
  if (FieldError error = read_block(path, document.members["source"], source)) return error;
  if (source.type == "text") {
    std::string text;
    if (FieldError error = read_member(source, "data", true, text)) return error;
    append_text(out, text);
    return std::nullopt;
  }
  if (source.type != "content") {
    return bad_request(path, "{}.type: '{}' is not supported, wanted text or content", path, source.type.substr(0, 64));
  }
  std::string text;
  if (FieldError error = read_text_content(path + ".content", source.members["content"], text)) return error;
  append_text(out, text);
  return std::nullopt;
}

FieldError append_document(const Block& block, std::string& out) {
  for (const std::string_view name : {"title", "context"}) {
    std::string text;
    if (FieldError error = read_member(block, name, false, text)) return error;
    append_text(out, text);
  }
  return append_source(block, out);
}

FieldError append_search_result(const Block& block, std::string& out) {
  for (const std::string_view name : {"title", "source"}) {
    std::string text;
    if (FieldError error = read_member(block, name, true, text)) return error;
    append_text(out, text);
  }
  return append_text_blocks(block.path + ".content", block.members["content"], out);
}

}  // namespace

void append_text(std::string& out, std::string_view text) {
  if (text.empty()) return;
  if (!out.empty()) out += '\n';
  out += text;
}

FieldError read_block(std::string path, Json value, Block& block) {
  block.path = std::move(path);
  if (!value.get(block.members)) return openai::wrong_type(block.path, value, "an object");
  const Json type = block.members["type"];
  if (type.get(block.type)) return std::nullopt;
  return openai::wrong_type(block.path + ".type", type, "a string");
}

FieldError read_member(const Block& block, std::string_view name, bool is_required, std::string& out) {
  const Json value = block.members[name];
  const bool is_left_out = value.is_missing() || value.is_null();
  if (is_left_out && !is_required) return std::nullopt;
  return openai::read_string(fmt::format("{}.{}", block.path, name), value, out);
}

FieldError append_block_text(const Block& block, std::string& out) {
  if (block.type == "document") return append_document(block, out);
  if (block.type == "search_result") return append_search_result(block, out);
  if (block.type != "text") return refuse_type(block, "text, document or search_result");
  std::string text;
  if (FieldError error = read_member(block, "text", true, text)) return error;
  append_text(out, text);
  return std::nullopt;
}

FieldError read_text_content(const std::string& path, Json value, std::string& out) {
  out.clear();
  if (value.is_string()) return openai::read_string(path, value, out);
  return append_text_blocks(path, value, out);
}

bool is_hosted_block(std::string_view type) {
  return type.ends_with("_tool_result") || std::ranges::find(kHostedBlocks, type) != kHostedBlocks.end();
}

}  // namespace millrace::server::messages
