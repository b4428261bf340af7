#include "model/gguf_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <ranges>
#include <set>

#include "base/check.h"
#include "model/checkpoint.h"

namespace millrace::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kGgufEnding = ".gguf";
constexpr std::string_view kGgufMagic = "GGUF";
/// Parts of the names of files that hold no language model: the vision part of one, and statistics of activations.
constexpr std::array<std::string_view, 2> kOtherContents = {"mmproj", "imatrix"};

/// Returns the paths of all parts of the model that a file is a part of.
std::vector<fs::path> part_paths(const fs::path& path) {
  auto name = gguf::parse_part_name(path.filename().string());
  if (!name) return {path};
  std::vector<fs::path> paths;
  for (name->part = 1; name->part <= name->count; ++name->part) paths.push_back(path.parent_path() / name->to_string());
  return paths;
}

bool has_other_content(const std::string& file_name) {
  // Parts that predict further tokens begin so.
  return file_name.starts_with("mtp-") || std::ranges::any_of(kOtherContents, [&](std::string_view part) {
           return file_name.find(part) != file_name.npos;
         });
}

/// Returns whether a file begins as a GGUF file does. Some programs keep them without an ending.
bool begins_as_gguf(const fs::path& path) {
  std::array<char, kGgufMagic.size()> begin{};
  std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
  return std::string_view(begin.data(), begin.size()) == kGgufMagic;
}

}  // namespace

Result<std::unique_ptr<GgufFiles>> GgufFiles::open(const fs::path& path) {
  std::unique_ptr<GgufFiles> files(new GgufFiles);
  std::vector<gguf::File> parsed;
  for (const fs::path& part : part_paths(path)) {
    auto mapping = MappedFile::open(part);
    if (!mapping) return mapping.error();
    auto file = gguf::parse_file((*mapping)->bytes(), part.string());
    if (!file) return file.error();
    files->parts_.push_back(std::move(*mapping));
    files->names_.push_back(part.filename().string());
    parsed.push_back(std::move(*file));
  }
  auto model = gguf::Model::join(std::move(parsed));
  if (!model) return model.error();
  files->model_ = std::move(*model);
  return files;
}

void GgufFiles::release(std::span<const std::byte> bytes) const {
  for (const auto& part : parts_) {
    const std::span<const std::byte> all = part->bytes();
    if (bytes.data() >= all.data() && bytes.data() < all.data() + all.size()) part->release(bytes);
  }
}

FileRange GgufFiles::range_of(std::span<const std::byte> bytes) const {
  for (size_t part = 0; part < parts_.size(); ++part) {
    const std::span<const std::byte> all = parts_[part]->bytes();
    if (bytes.data() < all.data() || bytes.data() >= all.data() + all.size()) continue;
    const auto begin = static_cast<uint64_t>(bytes.data() - all.data());
    return {.file = names_[part], .begin = begin, .end = begin + bytes.size()};
  }
  CHECK(bytes.empty(), "{} bytes are in no file of {}", bytes.size(), model_.source());
  return {.file = names_.front()};
}

Result<std::optional<std::vector<FileRange>>> gguf_description_ranges(const fs::path& path, uint64_t present) {
  constexpr size_t kSmallBytes = size_t{256} << 10;
  constexpr std::string_view kScale = ".scale";
  const auto mapping = MappedFile::open(path);
  if (!mapping) return mapping.error();
  const std::span<const std::byte> bytes = (*mapping)->bytes();
  uint64_t read_bytes = 0;
  const auto file = gguf::parse_file(bytes, path.string(), &read_bytes);
  // Bytes that are not there yet read as zeros, which may be taken for anything.
  if (read_bytes > present) return std::optional<std::vector<FileRange>>();
  if (!file) return file.error();
  const std::string name = path.filename().string();
  std::vector<FileRange> ranges = {{.file = name, .begin = 0, .end = file->header_bytes}};
  for (const gguf::Tensor& tensor : file->tensors) {
    const bool is_described = !tensor.name.starts_with("blk.") || tensor.name.ends_with(kScale);
    if (!is_described || tensor.bytes.size() > kSmallBytes) continue;
    const auto begin = static_cast<uint64_t>(tensor.bytes.data() - bytes.data());
    ranges.push_back({.file = name, .begin = begin, .end = begin + tensor.bytes.size()});
  }
  return std::optional(std::move(ranges));
}

bool is_gguf_path(const fs::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  std::error_code none;
  if (fs::is_directory(path, none)) return false;
  return ending == kGgufEnding || (fs::is_regular_file(path, none) && begins_as_gguf(path));
}

fs::path description_folder(const fs::path& model_path) {
  if (!is_gguf_path(model_path)) return model_path;
  return model_path.has_parent_path() ? model_path.parent_path() : fs::path(".");
}

Result<std::optional<fs::path>> find_gguf(const fs::path& folder) {
  std::error_code failure;
  for (const std::string_view name : {kSafetensorsName, kSafetensorsIndexName}) {
    if (fs::exists(folder / name, failure)) return std::optional<fs::path>();
  }
  std::set<fs::path> models;
  for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
    const fs::path& path = at->path();
    if (!is_gguf_path(path) || has_other_content(path.filename().string())) continue;
    models.insert(part_paths(path).front());
  }
  if (models.size() > 1)
    return make_error(
        ErrorCode::kInvalidArgument, "{}: holds {} models ({}), wanted the path of one of them", folder.string(),
        models.size(),
        fmt::join(models | std::views::transform([](const fs::path& path) { return path.filename().string(); }), ", "));
  return models.empty() ? std::optional<fs::path>() : std::optional(*models.begin());
}

std::string gguf_model_name(const fs::path& path) {
  const auto part = gguf::parse_part_name(path.filename().string());
  return part ? part->prefix : path.stem().string();
}

std::vector<std::vector<std::string>> group_gguf_files(const std::vector<std::string>& paths) {
  std::vector<std::vector<std::string>> models;
  std::set<std::string> known;
  for (const std::string& path : paths) {
    if (has_other_content(fs::path(path).filename().string())) continue;
    std::vector<std::string> parts;
    for (const fs::path& part : part_paths(path)) parts.push_back(part.string());
    if (known.insert(parts.front()).second) models.push_back(std::move(parts));
  }
  return models;
}

}  // namespace millrace::model
