#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "gguf/model.h"
#include "model/mapped_file.h"

namespace millrace::model {

/// A model in a GGUF file or in its parts NAME-00001-of-0000N.gguf, mapped. The headers are read when it is opened, the
/// bytes of tensors when they are accessed.
class GgufFiles {
 public:
  /// Opens the model that a file is, or is a part of. Errors begin with the path: kNotFound, with the part that is
  /// missing; kData for a malformed file.
  [[nodiscard]] static Result<std::unique_ptr<GgufFiles>> open(const std::filesystem::path& path);

  [[nodiscard]] const gguf::Model& model() const { return model_; }
  /// Releases the memory that caches bytes of a tensor. See MappedFile::release.
  void release(std::span<const std::byte> bytes) const;

 private:
  GgufFiles() = default;

  std::vector<std::unique_ptr<MappedFile>> parts_;
  gguf::Model model_;
};

/// Returns whether a path names a GGUF file rather than a folder: by its ending, which a file needs not exist for, or
/// by its first bytes.
[[nodiscard]] bool is_gguf_path(const std::filesystem::path& path);
/// Returns the folder of what describes a model: the model's path, or the folder of its GGUF file.
[[nodiscard]] std::filesystem::path description_folder(const std::filesystem::path& model_path);

/// Finds the GGUF model in a folder that has no safetensors: the file, or the first of its parts. Nothing where there
/// is none. Error: kInvalidArgument for several, with their names.
[[nodiscard]] Result<std::optional<std::filesystem::path>> find_gguf(const std::filesystem::path& folder);

}  // namespace millrace::model
