#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::test {

/// Writes a GGUF file: metadata first, then tensors.
class GgufText {
 public:
  explicit GgufText(uint32_t version = 3) : version_(version) {}

  GgufText& add(std::string_view key, std::string_view text) { return begin(key, 8).string(text); }
  GgufText& add(std::string_view key, const char* text) { return add(key, std::string_view(text)); }
  GgufText& add(std::string_view key, bool flag) { return begin(key, 7).raw(static_cast<uint8_t>(flag)); }
  GgufText& add(std::string_view key, float number) { return begin(key, 6).raw(number); }
  GgufText& add(std::string_view key, uint32_t number) { return begin(key, 4).raw(number); }
  GgufText& add(std::string_view key, int number) { return add(key, static_cast<uint32_t>(number)); }
  GgufText& add(std::string_view key, uint16_t number) { return begin(key, 2).raw(number); }
  GgufText& add(std::string_view key, const std::vector<std::string>& texts) {
    begin(key, 9).raw(uint32_t{8}).raw(static_cast<uint64_t>(texts.size()));
    for (const std::string& text : texts) string(text);
    return *this;
  }
  GgufText& add(std::string_view key, const std::vector<int32_t>& numbers) { return add_array(key, 5, numbers); }
  GgufText& add(std::string_view key, const std::vector<float>& numbers) { return add_array(key, 6, numbers); }
  /// Adds a value of any type as it stands in a file.
  GgufText& add_raw(std::string_view key, uint32_t type, std::string_view bytes) {
    begin(key, type).keys_ += bytes;
    return *this;
  }

  /// Adds a tensor of `shape`, outermost first, whose bytes follow those before it.
  GgufText& tensor(std::string_view name, const std::vector<int64_t>& shape, uint32_t type, std::string_view bytes) {
    describe(name, shape, type, data_.size());
    data_ += bytes;
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
    return *this;
  }
  GgufText& tensor(std::string_view name, const std::vector<int64_t>& shape, const std::vector<float>& values) {
    const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    return tensor(name, shape, 0, bytes);
  }
  /// Adds a tensor's description alone.
  GgufText& describe(std::string_view name, const std::vector<int64_t>& shape, uint32_t type, uint64_t offset) {
    append(infos_, static_cast<uint64_t>(name.size()));
    infos_ += name;
    append(infos_, static_cast<uint32_t>(shape.size()));
    for (size_t axis = shape.size(); axis-- > 0;) append(infos_, shape[axis]);
    append(infos_, type);
    append(infos_, offset);
    ++tensor_count_;
    return *this;
  }
  /// Aligns the data otherwise than by 32 bytes.
  GgufText& align(uint32_t alignment) {
    alignment_ = alignment;
    return add("general.alignment", alignment);
  }

  [[nodiscard]] std::string text() const {
    std::string file = "GGUF";
    append(file, version_);
    append(file, tensor_count_);
    append(file, key_count_);
    file += keys_ + infos_;
    file.resize((file.size() + alignment_ - 1) / alignment_ * alignment_);
    return file + data_;
  }

 private:
  template <class T>
  static void append(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  GgufText& begin(std::string_view key, uint32_t type) {
    ++key_count_;
    return string(key).raw(type);
  }
  GgufText& string(std::string_view text) {
    raw(static_cast<uint64_t>(text.size()));
    keys_ += text;
    return *this;
  }
  template <class T>
  GgufText& raw(T value) {
    append(keys_, value);
    return *this;
  }
  template <class T>
  GgufText& add_array(std::string_view key, uint32_t type, const std::vector<T>& numbers) {
    begin(key, 9).raw(type).raw(static_cast<uint64_t>(numbers.size()));
    for (const T number : numbers) raw(number);
    return *this;
  }

  uint32_t version_;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  uint64_t alignment_ = 32;
  std::string keys_;
  std::string infos_;
  std::string data_;
};

}  // namespace millrace::test
