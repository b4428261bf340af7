#pragma once

#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "weights/find_weight.h"

namespace millrace::weights {

/// A tensor of a weight, under the name that errors give it.
struct NamedTensor : RawTensor {
  std::string name;

  [[nodiscard]] Error wrong(std::string_view wanted) const;
  [[nodiscard]] bool has_shape(std::initializer_list<int64_t> wanted) const;
  [[nodiscard]] int64_t elements() const;
  /// Refuses any but I32 [rows, cols].
  [[nodiscard]] Result<void> check_words(int64_t rows, int64_t cols) const;
  /// Returns the number at an index of its bytes.
  template <class T>
  [[nodiscard]] T at(size_t index) const {
    T number{};
    std::memcpy(&number, bytes.data() + index * sizeof(T), sizeof(T));
    return number;
  }
};

/// The tensors that store one weight, and its description, which the functions of readers.h fill. Lives while one
/// weight is found; what the constructor takes outlives it.
class WeightTensors {
 public:
  /// `has_values` is false where the lookup returns the values of names_read_for_format() alone.
  WeightTensors(const TensorLookup& lookup, const WeightFormat& format, const std::string& name, int64_t rows,
                int64_t cols, bool has_values);

  [[nodiscard]] const WeightFormat& format() const { return format_; }
  [[nodiscard]] bool has_values() const { return has_values_; }

  /// Finds a tensor that may be absent.
  [[nodiscard]] Result<std::optional<NamedTensor>> optional(std::string_view suffix) const;
  /// Finds a tensor without which the codes `owner` cannot be read.
  [[nodiscard]] Result<NamedTensor> required(std::string_view suffix, const NamedTensor& owner) const;
  /// Finds words I32 [rows, cols] without which the codes `owner` cannot be read.
  [[nodiscard]] Result<NamedTensor> required_words(std::string_view suffix, const NamedTensor& owner, int64_t rows,
                                                   int64_t cols) const;
  /// Finds the first of several scales that is there.
  [[nodiscard]] Result<NamedTensor> any_scale(std::initializer_list<std::string_view> suffixes,
                                              const NamedTensor& owner) const;

  /// Returns the bits of codes that are stored in `codes.shape[dim]` words; those of the format where none fit.
  [[nodiscard]] Result<int> bits_of(const NamedTensor& codes, size_t dim) const;
  [[nodiscard]] Result<void> set_scales(const NamedTensor& found, int64_t row_stride, int64_t group_stride);
  /// Sets the size of groups, of which `groups` lie along the columns.
  [[nodiscard]] Result<void> set_groups(const NamedTensor& scales, int64_t groups);
  /// Sets scales [groups, rows], and returns the number of groups.
  [[nodiscard]] Result<int64_t> set_transposed_scales(const NamedTensor& codes, std::string_view suffix);
  /// Sets the group of each column, where it is stored. An index of -1 says that the order is not used.
  [[nodiscard]] Result<void> set_group_index(std::string_view suffix);

  StoredWeight weight;

 private:
  const TensorLookup& lookup_;
  const WeightFormat& format_;
  const std::string prefix_;
  const bool has_values_;
};

}  // namespace millrace::weights
