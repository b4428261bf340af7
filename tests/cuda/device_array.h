#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda/kernels.h"
#include "conformance/harness.h"

/// The shared parts of the CUDA op tests: "device" memory, which under the emulator is heap memory.
namespace millrace::test {

/// An allocation of exactly `count` elements, so that the address sanitizer detects any access outside.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count, int fill = 0)
      : data_(static_cast<T*>(std::malloc(count * sizeof(T))), &std::free) {
    count_ = count;
    if (count > 0) std::memset(static_cast<void*>(data_.get()), fill, count * sizeof(T));
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    if (!values.empty()) std::memcpy(data_.get(), values.data(), values.size() * sizeof(T));
  }
  [[nodiscard]] T* get() const { return data_.get(); }
  [[nodiscard]] size_t size() const { return count_; }
  [[nodiscard]] std::vector<T> values() const { return std::vector<T>(data_.get(), data_.get() + count_); }

 private:
  std::unique_ptr<T, decltype(&std::free)> data_;
  size_t count_ = 0;
};

[[nodiscard]] inline std::vector<uint16_t> bf16_bits(const Values& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(tensor::BFloat16::from_float(value).bits);
  return bits;
}
[[nodiscard]] inline Values bf16_values(const std::vector<uint16_t>& bits) {
  Values values;
  for (const uint16_t one : bits) values.push_back(tensor::BFloat16{one}.to_float());
  return values;
}
[[nodiscard]] inline Values rounded_bf16(const Values& values) {
  return reference::rounded(values, tensor::DType::kBF16);
}

}  // namespace millrace::test
