#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "gguf/file.h"

namespace millrace::gguf {

/// The name of one part of a model in several files: PREFIX-00001-of-00003.gguf.
struct PartName {
  std::string prefix;
  int32_t part = 1;   ///< from 1
  int32_t count = 1;  ///< parts of the model
  [[nodiscard]] std::string to_string() const;
};
/// Returns the parts of a file name, if it is that of a part.
[[nodiscard]] std::optional<PartName> parse_part_name(std::string_view file_name);

/// A model in one file or in several parts: the metadata of the first, and the tensors of all. Borrows the files'
/// bytes.
class Model {
 public:
  /// Joins the parts in their order. Error: kData, which names the file: a part in another's position, a tensor in two
  /// parts, or other tensors than the first part counts.
  [[nodiscard]] static Result<Model> join(std::vector<File> parts);

  [[nodiscard]] const Metadata& metadata() const { return metadata_; }
  /// Returns the path of the first file, with which messages begin.
  [[nodiscard]] const std::string& source() const { return metadata_.source(); }
  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  /// Finds a tensor by its name in the file; null if there is none.
  [[nodiscard]] const Tensor* find(std::string_view name) const;
  /// Returns general.architecture. Throws ErrorException (kData) if it is missing.
  [[nodiscard]] std::string_view architecture() const;

 private:
  Metadata metadata_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string_view, size_t> index_;
};

}  // namespace millrace::gguf
