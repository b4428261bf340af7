#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace::comm {

static_assert(std::endian::native == std::endian::little, "the wire form is little-endian, as are its hosts");

template <class T>
concept WireScalar = (std::is_arithmetic_v<T> || std::is_enum_v<T>) && !std::is_same_v<T, bool>;
template <class T>
concept WireId = WireScalar<typename T::rep> && std::is_constructible_v<T, typename T::rep>;

/// Appends fixed-width little-endian values to a byte string, in the formats of docs/wire.md.
class ByteWriter {
 public:
  template <WireScalar T>
  void put(T value) {
    append(&value, sizeof value);
  }
  void put(bool value) { put(static_cast<uint8_t>(value)); }
  template <WireId T>
  void put(T id) {
    put(id.value());
  }
  /// Writes a u32 count, then the elements as they lie in memory.
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void put_array(std::span<const T> values) {
    put(static_cast<uint32_t>(values.size()));
    append(values.data(), values.size_bytes());
  }
  void put_string(std::string_view text) { put_array(std::span(text.data(), text.size())); }
  [[nodiscard]] std::vector<std::byte> take() {
    bytes_.resize(std::exchange(size_, 0));
    return std::move(bytes_);
  }

 private:
  void append(const void* data, size_t size) {
    if (size > bytes_.size() - size_) bytes_.resize(std::max({2 * bytes_.size(), size_ + size, kFirstBytes}));
    if (size > 0) std::memcpy(bytes_.data() + size_, data, size);
    size_ += size;
  }
  static constexpr size_t kFirstBytes = 256;
  std::vector<std::byte> bytes_;  // the first size_ of them are written
  size_t size_ = 0;
};

/// Reads what ByteWriter wrote. The input may be hostile. A read past the end, or an impossible count, gives zeros and
/// empty arrays and makes ok() false for good.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <WireScalar T>
  [[nodiscard]] T get() {
    T value{};
    if (const std::byte* from = consume(sizeof value)) std::memcpy(&value, from, sizeof value);
    return value;
  }
  template <WireId T>
  [[nodiscard]] T get() {
    return T(get<typename T::rep>());
  }
  [[nodiscard]] bool get_bool() { return get<uint8_t>() != 0; }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::vector<T> get_array() {
    const size_t count = get_count(sizeof(T));
    std::vector<T> values(count);
    if (const std::byte* from = consume(count * sizeof(T)); from != nullptr && count > 0) {
      std::memcpy(values.data(), from, count * sizeof(T));
    }
    return values;
  }
  [[nodiscard]] std::string get_string() {
    const std::vector<char> text = get_array<char>();
    return {text.begin(), text.end()};
  }
  /// Reads a u32 count of elements that take at least `element_bytes` each in the rest of the input.
  [[nodiscard]] size_t get_count(size_t element_bytes) {
    const size_t count = get<uint32_t>();
    if (count <= rest_.size() / element_bytes) return count;
    ok_ = false;
    return 0;
  }
  [[nodiscard]] bool ok() const { return ok_; }
  /// Records a value that its field cannot have: ok() is false from now on.
  void fail() { ok_ = false; }
  /// Ignores the rest of the input.
  void skip_rest() { rest_ = {}; }
  /// Returns whether everything was read and nothing failed.
  [[nodiscard]] bool finished() const { return ok_ && rest_.empty(); }

 private:
  const std::byte* consume(size_t size) {
    if (!ok_ || size > rest_.size()) {
      ok_ = false;
      return nullptr;
    }
    const std::byte* from = rest_.data();
    rest_ = rest_.subspan(size);
    return from;
  }
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace millrace::comm
