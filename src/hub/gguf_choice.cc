#include "hub/gguf_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ranges>

#include "model/gguf_files.h"

namespace millrace::hub {
namespace {

constexpr std::string_view kEnding = ".gguf";
constexpr std::string_view kUsualType = "Q4_K_M";
/// What the names of some publishers have before the type.
constexpr std::string_view kDynamic = "UD-";

std::string upper(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::toupper(c); });
  return result;
}

bool is_file_name(std::string_view text) {
  return text.size() > kEnding.size() && upper(text).ends_with(upper(kEnding));
}

/// Returns whether a text in capitals is "Q4_K_M", "IQ4_XS", "TQ2_0" and so on.
bool is_type(std::string_view text) {
  constexpr std::array<std::string_view, 8> kPlain = {"BF16", "F16",   "F32",       "FP16",
                                                      "FP32", "MXFP4", "MXFP4_MOE", "NVFP4"};
  if (text.starts_with(kDynamic)) text.remove_prefix(kDynamic.size());
  if (std::ranges::find(kPlain, text) != kPlain.end()) return true;
  if (text.starts_with('I') || text.starts_with('T')) text.remove_prefix(1);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto is_rest = [&](char c) { return is_digit(c) || (c >= 'A' && c <= 'Z') || c == '_'; };
  if (text.size() < 3 || text[0] != 'Q' || !is_digit(text[1])) return false;
  return text.find('_') != text.npos && std::ranges::all_of(text.substr(1), is_rest);
}

/// A model of a repository, in the paths of its files.
struct Choice {
  std::vector<std::string> paths;
  std::string folder;  ///< the last one that the files are in, in capitals
  std::string stem;    ///< the name without the part's number and the ending, in capitals

  explicit Choice(std::vector<std::string> files) : paths(std::move(files)) {
    const std::filesystem::path path(paths.front());
    folder = upper(path.parent_path().filename().string());
    stem = upper(model::gguf_model_name(path));
  }
  /// Returns whether the name ends with a type, or the folder has its name.
  [[nodiscard]] bool has_type(const std::string& type) const {
    if (folder == type || stem == type) return true;
    if (!stem.ends_with(type) || stem.size() == type.size()) return false;
    const char before = stem[stem.size() - type.size() - 1];
    return before == '-' || before == '.' || before == '_';
  }
  [[nodiscard]] bool has_file(std::string_view file) const {
    return std::ranges::any_of(paths, [&](const std::string& path) {
      return path == file || std::filesystem::path(path).filename().string() == file;
    });
  }
};

std::vector<Choice> choices_of(const RepoListing& listing) {
  std::vector<std::string> paths;
  for (const RepoFile& file : listing.files) {
    if (is_file_name(file.path)) paths.push_back(file.path);
  }
  std::vector<Choice> choices;
  for (auto& files : model::group_gguf_files(paths)) choices.emplace_back(std::move(files));
  return choices;
}

std::string names_of(const std::vector<Choice>& choices) {
  return fmt::format("{}", fmt::join(choices | std::views::transform([](const Choice& each) -> const std::string& {
                                       return each.paths.front();
                                     }),
                                     ", "));
}

Result<std::vector<RepoFile>> files_of(const RepoListing& listing, const Choice& choice) {
  std::vector<RepoFile> files;
  for (const std::string& path : choice.paths) {
    const RepoFile* file = listing.find(path);
    if (file == nullptr)
      return make_error(ErrorCode::kData, "the repository lacks {}, a part of {}", path, choice.paths.front());
    files.push_back(*file);
  }
  return files;
}

}  // namespace

bool names_gguf(std::string_view text) {
  return is_file_name(text) || is_type(upper(text));
}

bool has_gguf(const RepoListing& listing) {
  return !choices_of(listing).empty();
}

Result<std::vector<RepoFile>> choose_gguf(const RepoListing& listing, std::string_view wanted) {
  const std::vector<Choice> all = choices_of(listing);
  if (all.empty()) return make_error(ErrorCode::kNotFound, "the repository holds no GGUF model");
  if (wanted.empty() && all.size() == 1) return files_of(listing, all.front());
  const std::string type = upper(wanted.empty() ? kUsualType : wanted);
  std::vector<Choice> fitting;
  for (const Choice& each : all) {
    if (is_file_name(wanted) ? each.has_file(wanted) : each.has_type(type)) fitting.push_back(each);
  }
  // A type is also the end of "UD-" and that type, which has a name of its own.
  const auto is_dynamic = [dynamic = std::string(kDynamic) + type](const Choice& each) {
    return each.has_type(dynamic);
  };
  if (!std::ranges::all_of(fitting, is_dynamic)) std::erase_if(fitting, is_dynamic);
  if (fitting.size() == 1) return files_of(listing, fitting.front());
  if (fitting.size() > 1)
    return make_error(ErrorCode::kInvalidArgument, "'{}' fits {} GGUF models ({}), wanted the name of one file",
                      wanted.empty() ? kUsualType : wanted, fitting.size(), names_of(fitting));
  if (wanted.empty())
    return make_error(ErrorCode::kInvalidArgument,
                      "the repository holds {} GGUF models ({}), wanted one of them: ORG/NAME:TYPE or ORG/NAME:FILE",
                      all.size(), names_of(all));
  return make_error(ErrorCode::kNotFound, "the repository holds no GGUF model '{}', but {}", wanted, names_of(all));
}

}  // namespace millrace::hub
