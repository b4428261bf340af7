#include "golden_test/gguf_source.h"

#include "model/checkpoint.h"

namespace millrace::test {

GgufSource::GgufSource(const std::filesystem::path& folder, std::string architecture)
    : architecture_(std::move(architecture)) {
  config_ = parser_.load((folder / "config.json").string());
  const auto checkpoint = model::Checkpoint::open(folder).value();
  for (const std::string& name : checkpoint->names()) {
    const auto stored = checkpoint->find_stored(name).value();
    tensors_[name] = {.dtype = std::string(stored.dtype),
                      .shape = {stored.shape.begin(), stored.shape.end()},
                      .bytes = std::string(reinterpret_cast<const char*>(stored.bytes.data()), stored.bytes.size())};
  }
}

}  // namespace millrace::test
