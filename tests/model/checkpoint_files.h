#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "support/temporary_folder.h"
#include "tensor/dtype.h"

namespace millrace::test {

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

/// A tensor of any dtype, by its name in files.
struct RawTensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Returns the bytes of values that are rounded to bf16.
inline std::vector<std::byte> bf16_bytes_of(const std::vector<float>& values) {
  std::vector<tensor::BFloat16> rounded;
  for (const float value : values) rounded.push_back(tensor::BFloat16::from_float(value));
  return bytes_of(rounded);
}

/// Returns a well-formed file of tensors of any dtypes.
inline std::string raw_safetensors_text(const std::vector<RawTensorToWrite>& tensors) {
  std::string header;
  std::string data;
  JsonWriter json(header);
  json.begin_object();
  for (const RawTensorToWrite& tensor : tensors) {
    json.key(tensor.name).begin_object().member("dtype", tensor.dtype).key("shape").begin_array();
    for (const int64_t dim : tensor.shape) json.value(dim);
    json.end_array().key("data_offsets").begin_array().value(data.size());
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    json.value(data.size()).end_array().end_object();
  }
  json.end_object();
  return safetensors_text(header, data);
}

/// Returns a well-formed file of F32 tensors.
inline std::string safetensors_text(const std::vector<TensorToWrite>& tensors) {
  std::vector<RawTensorToWrite> raw;
  for (const TensorToWrite& tensor : tensors)
    raw.push_back({tensor.name, "F32", tensor.shape, bytes_of(tensor.values)});
  return raw_safetensors_text(raw);
}

}  // namespace millrace::test
