#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace millrace::test {

/// A folder for one test, removed at its end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "millrace-model-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void write(std::string_view name, std::string_view content) const {
    std::ofstream(path_ / name, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
  }

 private:
  std::filesystem::path path_;
};

struct TensorToWrite {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// Returns a safetensors file of any header and data, well formed or not.
inline std::string safetensors_text(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  file += header;
  file += data;
  return file;
}

/// Returns a well-formed file of F32 tensors.
inline std::string safetensors_text(const std::vector<TensorToWrite>& tensors) {
  std::string header;
  std::string data;
  JsonWriter json(header);
  json.begin_object();
  for (const TensorToWrite& tensor : tensors) {
    json.key(tensor.name).begin_object().member("dtype", "F32").key("shape").begin_array();
    for (const int64_t dim : tensor.shape) json.value(dim);
    json.end_array().key("data_offsets").begin_array().value(data.size());
    data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
    json.value(data.size()).end_array().end_object();
  }
  json.end_object();
  return safetensors_text(header, data);
}

}  // namespace millrace::test
