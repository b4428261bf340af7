#include <span>

#include "base/check.h"
#include "base/utf8.h"
#include "fuzz/targets.h"
#include "gguf/config_json.h"
#include "gguf/tensor_map.h"
#include "gguf/tokenizer_json.h"
#include "model/families/read_config.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace::fuzz {
namespace {

template <class T>
bool holds(const Result<T>& result) {
  if (result.has_error()) CHECK(result.error().code == ErrorCode::kData && !result.error().message.empty());
  return result.has_value();
}

void check_inside(std::span<const std::byte> part, std::string_view input) {
  const auto* const begin = reinterpret_cast<const std::byte*>(input.data());
  CHECK(part.data() >= begin && part.data() + part.size() <= begin + input.size());
}

void check_tokenizer(const gguf::Model& model) {
  const auto config = gguf::tokenizer_config_json(model);
  const auto json = gguf::tokenizer_json(model);
  if (!holds(config) || !holds(json)) return;
  const auto tokenizer = text::Tokenizer::from_json(*json, *config);
  if (!holds(tokenizer)) return;
  const auto ids = (*tokenizer)->encode("Hello 12 \xC3\xA9<s>\n", true);
  for (const TokenId id : ids) CHECK(id >= 0 && static_cast<size_t>(id) < (*tokenizer)->vocab_size());
  CHECK(is_valid_utf8((*tokenizer)->decode(ids, false)));
}

}  // namespace

void gguf_file(std::string_view input) {
  auto file = gguf::parse_file(std::as_bytes(std::span(input)), "fuzz.gguf");
  if (!holds(file)) return;
  for (const gguf::Tensor& tensor : file->tensors) check_inside(tensor.bytes, input);
  std::vector<gguf::File> files;
  files.push_back(std::move(*file));
  const auto model = gguf::Model::join(std::move(files));
  if (!holds(model)) return;
  if (const auto map = gguf::map_tensors(*model); holds(map)) {
    for (const auto& [name, tensor] : *map) {
      check_inside(tensor.bytes, input);
      for (const gguf::MappedTensor& part : tensor.parts) check_inside(part.bytes, input);
    }
  }
  if (const auto json = gguf::config_json(*model); holds(json)) (void)holds(model::parse_config(*json, "fuzz.gguf"));
  check_tokenizer(*model);
}

}  // namespace millrace::fuzz
