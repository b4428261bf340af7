#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/model.h"
#include "model/mapped_file.h"
#include "model/range_source.h"

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
  /// Returns where bytes of a tensor are: the name of the file without its folder, and the bytes in it.
  [[nodiscard]] FileRange range_of(std::span<const std::byte> bytes) const;

 private:
  GgufFiles() = default;

  std::vector<std::unique_ptr<MappedFile>> parts_;
  std::vector<std::string> names_;  // [parts], without folders
  gguf::Model model_;
};

/// Returns the bytes of a GGUF file that opening it and describing the model read: the header and small tensors outside
/// the layers. Of the file, which has its whole size, the first `present` bytes can be read so far. Nothing: the header
/// is longer than that. Error: kData for a malformed header.
[[nodiscard]] Result<std::optional<std::vector<FileRange>>> gguf_description_ranges(const std::filesystem::path& path,
                                                                                    uint64_t present);

/// Returns whether a path names a GGUF file rather than a folder: by its ending, which a file needs not exist for, or
/// by its first bytes.
[[nodiscard]] bool is_gguf_path(const std::filesystem::path& path);
/// Returns the folder of what describes a model: the model's path, or the folder of its GGUF file.
[[nodiscard]] std::filesystem::path description_folder(const std::filesystem::path& model_path);

/// Finds the GGUF model in a folder that has no safetensors: the file, or the first of its parts. Nothing where there
/// is none. Error: kInvalidArgument for several, with their names.
[[nodiscard]] Result<std::optional<std::filesystem::path>> find_gguf(const std::filesystem::path& folder);

/// Returns the name of the model that a GGUF file is or is a part of: the file's, without its ending and the part's
/// number.
[[nodiscard]] std::string gguf_model_name(const std::filesystem::path& path);

/// Groups the paths of GGUF files by their models, each with all of its parts in order, whether or not `paths` has
/// them. Files with other contents, such as the vision part of a model, are left out.
[[nodiscard]] std::vector<std::vector<std::string>> group_gguf_files(const std::vector<std::string>& paths);

}  // namespace millrace::model
