#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "model/range_source.h"
#include "model/safetensors.h"

namespace millrace::model {

/// The weight files of a checkpoint folder.
inline constexpr std::string_view kSafetensorsName = "model.safetensors";
inline constexpr std::string_view kSafetensorsIndexName = "model.safetensors.index.json";
/// What begins these names in Mistral's own format, in place of "model".
inline constexpr std::string_view kMistralWeights = "consolidated";

/// The safetensors files of a folder: the shards that an index names, or a single file. A shard is mapped when the
/// first of its tensors is found. Names are those of the files. All const methods are thread-safe. Tensors borrow the
/// mapping: the folder outlives them.
class SafetensorsFolder {
 public:
  /// Opens a folder. The files of Mistral's own format count where there are no others. With both an index and a single
  /// file the index counts, as for vLLM. The single file counts if the index is broken, or names no file, or one that
  /// is gone. Errors begin with the path: kNotFound when it holds neither, kData for a malformed one. With a `source`
  /// the files are filled as they are read; its errors are those of every other call.
  [[nodiscard]] static Result<std::unique_ptr<SafetensorsFolder>> open(const std::filesystem::path& folder,
                                                                       std::shared_ptr<RangeSource> source);

  /// Returns whether the index lists the tensor, or the single file holds it.
  [[nodiscard]] bool contains(std::string_view name) const;
  [[nodiscard]] std::vector<std::string> names() const;
  /// Fetches tensors in few requests, where there is a source. Unknown names are skipped.
  [[nodiscard]] Result<void> fetch(std::span<const std::string> names) const;
  /// Returns the mapped file that holds a tensor, with the tensor's bytes. Errors: kNotFound for an unknown name; kData
  /// for a missing, truncated or malformed shard, or a shard without the tensor that the index promises.
  [[nodiscard]] Result<const SafetensorsFile*> filled_file_of(std::string_view name) const;
  /// Returns the mapped file that holds a tensor. Where there is a source the tensor's bytes may be missing. Errors:
  /// those of filled_file_of().
  [[nodiscard]] Result<const SafetensorsFile*> file_of(std::string_view name) const;

 private:
  SafetensorsFolder(std::filesystem::path folder, std::shared_ptr<RangeSource> source);
  [[nodiscard]] Result<void> open_files();
  /// Chooses between the names of files.
  void find_names();
  [[nodiscard]] Result<void> read_index();
  [[nodiscard]] Result<std::unique_ptr<SafetensorsFile>> open_file(const std::string& file_name) const;
  [[nodiscard]] bool has_file(const std::string& file_name) const;
  /// Returns whether the index names files that are there, and not the single file alone.
  [[nodiscard]] bool has_listed_files() const;
  [[nodiscard]] Result<const SafetensorsFile*> shard(const std::string& file_name) const;
  /// Returns where the bytes of a tensor lie in a file of the folder.
  [[nodiscard]] static FileRange range_of(const SafetensorsFile& file, std::string_view name);

  const std::filesystem::path folder_;
  std::string single_name_{kSafetensorsName};
  std::filesystem::path index_path_;
  const std::shared_ptr<RangeSource> source_;  ///< null: the folder has all bytes
  std::unique_ptr<SafetensorsFile> single_;
  std::unordered_map<std::string, std::string> shard_of_;  ///< name to file name; empty with a single file
  mutable std::mutex mutex_;                               ///< guards shards_
  mutable std::unordered_map<std::string, std::unique_ptr<SafetensorsFile>> shards_;
};

}  // namespace millrace::model
