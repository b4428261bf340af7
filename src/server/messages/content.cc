#include "server/messages/content.h"

#include <algorithm>
#include <array>

#include "server/openai/media.h"

namespace millrace::server::messages {

using openai::bad_request;
using openai::FieldError;
using openai::Json;
using openai::Medium;

namespace {

/// The sources of documents whose text this server cannot read.
constexpr std::array<std::string_view, 3> kUnreadSources = {"base64", "url", "file"};
constexpr std::array<std::string_view, 4> kHostedBlocks = {"server_tool_use", "mcp_tool_use", "mcp_tool_result",
                                                           "container_upload"};
constexpr std::array<std::string_view, 10> kBlocks = {
    "text",        "image",          "document", "search_result",     "tool_use",
    "tool_result", "tool_reference", "thinking", "redacted_thinking", "compaction"};

FieldError refuse_type(const Block& block, std::string_view wanted) {
  return bad_request(block.path, "{}.type: '{}' is not supported, wanted {}", block.path, block.type.substr(0, 64),
                     wanted);
}

/// Appends the texts of an array of blocks. A null `medium` refuses images.
FieldError append_text_blocks(const std::string& path, Json value, std::string& out, std::optional<Medium>* medium) {
  JsonArray blocks;
  if (!value.get(blocks)) return openai::wrong_type(path, value, "a string or an array of text blocks");
  size_t index = 0;
  for (const Json item : blocks) {
    Block block;
    if (FieldError error = read_block(fmt::format("{}[{}]", path, index++), item, block)) return error;
    if (block.type == "image" && medium != nullptr) {
      append_text(out, openai::replace_medium("image", block.path, *medium));
      continue;
    }
    if (block.type != "text") return refuse_type(block, "text");
    std::string text;
    if (FieldError error = read_member(block, "text", true, text)) return error;
    append_text(out, text);
  }
  return std::nullopt;
}

/// Appends the text of a document, or a note for PDFs, files and addresses.
FieldError append_source(const Block& document, std::string& out, std::optional<Medium>& medium) {
  const std::string path = document.path + ".source";
  Block source;
  if (FieldError error = read_block(path, document.members["source"], source)) return error;
  if (source.type == "text") {
    std::string text;
    if (FieldError error = read_member(source, "data", true, text)) return error;
    append_text(out, text);
    return std::nullopt;
  }
  if (std::ranges::find(kUnreadSources, source.type) != kUnreadSources.end()) {
    append_text(out, openai::replace_medium("document", document.path, medium));
    return std::nullopt;
  }
  if (source.type != "content") {
    return bad_request(path, "{}.type: '{}' is not supported, wanted text, content, base64, url or file", path,
                       source.type.substr(0, 64));
  }
  const Json content = source.members["content"];
  std::string text;
  const FieldError error = content.is_string() ? openai::read_string(path + ".content", content, text)
                                               : append_text_blocks(path + ".content", content, text, &medium);
  append_text(out, text);
  return error;
}

FieldError append_document(const Block& block, std::string& out, std::optional<Medium>& medium) {
  for (const std::string_view name : {"title", "context"}) {
    std::string text;
    if (FieldError error = read_member(block, name, false, text)) return error;
    append_text(out, text);
  }
  return append_source(block, out, medium);
}

FieldError append_search_result(const Block& block, std::string& out) {
  for (const std::string_view name : {"title", "source"}) {
    std::string text;
    if (FieldError error = read_member(block, name, true, text)) return error;
    append_text(out, text);
  }
  return append_text_blocks(block.path + ".content", block.members["content"], out, nullptr);
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

FieldError append_block_text(const Block& block, std::string& out, std::optional<Medium>& medium) {
  if (block.type == "document") return append_document(block, out, medium);
  if (block.type == "search_result") return append_search_result(block, out);
  if (block.type == "image") {
    append_text(out, openai::replace_medium("image", block.path, medium));
    return std::nullopt;
  }
  if (block.type != "text") return refuse_type(block, "text, document, search_result or image");
  std::string text;
  if (FieldError error = read_member(block, "text", true, text)) return error;
  append_text(out, text);
  return std::nullopt;
}

FieldError append_compaction(const Block& block, std::string& out) {
  std::string text;
  if (FieldError error = read_member(block, "content", false, text)) return error;
  append_text(out, text);
  return std::nullopt;
}

bool is_known_block(std::string_view type) {
  return is_hosted_block(type) || std::ranges::find(kBlocks, type) != kBlocks.end();
}

bool is_hosted_block(std::string_view type) {
  return type.ends_with("_tool_result") || std::ranges::find(kHostedBlocks, type) != kHostedBlocks.end();
}

}  // namespace millrace::server::messages
