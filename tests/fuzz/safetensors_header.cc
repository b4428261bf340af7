#include <span>

#include "base/check.h"
#include "fuzz/memory_file.h"
#include "fuzz/targets.h"
#include "model/safetensors.h"

namespace millrace::fuzz {
void safetensors_header(std::string_view input) {
  const MemoryFile memory(input);
  const auto file = model::SafetensorsFile::open(memory.path());
  if (file.has_error()) {
    CHECK(file.error().code == ErrorCode::kData && !file.error().message.empty());
    return;
  }
  uint64_t sum = 0;
  for (const char* name : {"a", "b", "model.embed_tokens.weight", ""}) {
    const auto tensor = (*file)->find(name);
    if (tensor.has_error()) {
      CHECK(!tensor.error().message.empty());
      continue;
    }
    CHECK((*file)->contains(name));
    CHECK(tensor->bytes() <= input.size());
    for (const std::byte each : std::span(tensor->data, tensor->bytes())) sum += static_cast<uint64_t>(each);
  }
  CHECK(sum <= 255 * 4 * input.size());
}

}  // namespace millrace::fuzz
