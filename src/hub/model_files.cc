#include "hub/model_files.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/json_value.h"
#include "hub/gguf_choice.h"

namespace millrace::hub {
namespace {

/// Files of more than this are no descriptions, whatever their name.
constexpr uint64_t kMaxDescriptionBytes = uint64_t{256} << 20;
/// Copies of the weights in other formats, or parts of training.
constexpr std::array<std::string_view, 7> kOtherFolders = {"original/", "onnx/",      "openvino/", "coreml/",
                                                           "gguf/",     "checkpoint", "runs/"};
constexpr std::array<std::string_view, 4> kDescriptionEndings = {".json", ".jinja", ".txt", ".model"};

bool has_any_ending(std::string_view path, std::span<const std::string_view> endings) {
  return std::ranges::any_of(endings, [path](std::string_view ending) { return path.ends_with(ending); });
}

/// Returns what else a repository holds that looks like weights, for an error.
std::vector<std::string> other_weights(const RepoListing& listing) {
  constexpr std::array<std::string_view, 6> kEndings = {".bin", ".gguf", ".pt", ".pth", ".safetensors", ".onnx"};
  constexpr size_t kShown = 4;
  std::vector<std::string> found;
  for (const RepoFile& file : listing.files) {
    if (found.size() < kShown && has_any_ending(file.path, kEndings)) found.push_back(file.path);
  }
  return found;
}

/// Returns the files that an index lists.
Result<std::vector<RepoFile>> listed_files(const RepoListing& listing, const std::string& index,
                                           std::string_view holder) {
  const auto document = JsonDocument::parse(index, kModelFileJson);
  if (document.has_error()) return make_error(ErrorCode::kData, "{}: {}", kIndexName, document.error().message);
  JsonObject weight_map;
  if (!document->root()["weight_map"].get(weight_map))
    return make_error(ErrorCode::kData, "{}: weight_map is missing, wanted an object of file names", kIndexName);
  std::set<std::string> names;
  for (const JsonMember member : weight_map) {
    std::string_view name;
    if (!member.value.get(name))
      return make_error(ErrorCode::kData, "{}: tensor '{}' is in no file", kIndexName, member.key);
    names.emplace(name);
  }
  if (names.empty()) return make_error(ErrorCode::kData, "{}: weight_map is empty, wanted a file", kIndexName);
  std::vector<RepoFile> files;
  for (const std::string& name : names) {
    const RepoFile* file = name.find('/') == name.npos ? listing.find(name) : nullptr;
    if (file == nullptr)
      return make_error(ErrorCode::kData, "{} puts tensors into {}, which {} lacks", kIndexName, name, holder);
    files.push_back(*file);
  }
  return files;
}

}  // namespace

bool is_model_description(const std::string& path) {
  const auto is_inside = [&path](std::string_view folder) { return path.starts_with(folder); };
  if (std::ranges::any_of(kOtherFolders, is_inside)) return false;
  return has_any_ending(path, kDescriptionEndings);
}

std::vector<RepoFile> description_files(const RepoListing& listing) {
  std::vector<RepoFile> files;
  for (const RepoFile& file : listing.files) {
    if (is_model_description(file.path) && file.size_bytes <= kMaxDescriptionBytes) files.push_back(file);
  }
  return files;
}

Result<std::vector<RepoFile>> weight_files(const RepoListing& listing, const std::string& index, std::string_view gguf,
                                           std::string_view holder) {
  if (!gguf.empty()) return choose_gguf(listing, gguf);
  const RepoFile* single = listing.find(kSingleName);
  if (listing.find(kIndexName) != nullptr) {
    auto listed = listed_files(listing, index, holder);
    if (listed || single == nullptr) return listed;
  }
  if (single != nullptr) return std::vector<RepoFile>{*single};
  if (has_gguf(listing)) return choose_gguf(listing, {});
  const auto others = other_weights(listing);
  if (others.empty()) return make_error(ErrorCode::kNotFound, "{} holds no weights, wanted {}", holder, kSingleName);
  return make_error(ErrorCode::kNotFound, "{} holds neither {} nor {}, but {}", holder, kSingleName, kIndexName,
                    fmt::join(others, ", "));
}

}  // namespace millrace::hub
