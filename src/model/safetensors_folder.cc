#include "model/safetensors_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/log.h"
#include "model/field_reader.h"

namespace millrace::model {
namespace {

constexpr size_t kMaxIndexBytes = size_t{64} << 20;
constexpr size_t kMaxIndexNesting = 16;

/// Returns whether an index may name this file: only files of its own folder are allowed.
bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(std::filesystem::path folder, std::shared_ptr<RangeSource> source)
    : folder_(std::move(folder)), index_path_(folder_ / kSafetensorsIndexName), source_(std::move(source)) {}

Result<std::unique_ptr<SafetensorsFolder>> SafetensorsFolder::open(const std::filesystem::path& folder,
                                                                   std::shared_ptr<RangeSource> source) {
  std::unique_ptr<SafetensorsFolder> opened(new SafetensorsFolder(folder, std::move(source)));
  RETURN_IF_ERROR(opened->open_files());
  return opened;
}

void SafetensorsFolder::find_names() {
  const std::string index_name(kSafetensorsIndexName);
  if (has_file(single_name_) || has_file(index_name)) return;
  const auto renamed = [](std::string_view name) {
    return std::string(kMistralWeights) + std::string(name.substr(name.find('.')));
  };
  if (!has_file(renamed(single_name_)) && !has_file(renamed(index_name))) return;
  single_name_ = renamed(single_name_);
  index_path_ = folder_ / renamed(index_name);
}

Result<void> SafetensorsFolder::open_files() {
  find_names();
  const Result<void> index = read_index();
  const bool has_single = has_file(single_name_);
  if (index && (!has_single || has_listed_files())) {
    if (has_single)
      log::warn("{}: tensors are read from the files that {} names, not all from {}", folder_.string(),
                index_path_.filename().string(), single_name_);
    return {};
  }
  if (has_single) {
    auto single = open_file(single_name_);
    if (!single) return single.error();
    shard_of_.clear();
    single_ = std::move(*single);
    return {};
  }
  if (index.error().code != ErrorCode::kNotFound) return index.error();
  return make_error(ErrorCode::kNotFound, "{}: holds neither {} nor {}", folder_.string(), single_name_,
                    kSafetensorsIndexName);
}

Result<void> SafetensorsFolder::read_index() {
  const std::string path = index_path_.string();
  const Result<std::string> text = read_file(index_path_, kMaxIndexBytes);
  if (!text) return text.error();
  JsonDocument document;
  const auto object = parse_object(document, path, *text, kMaxIndexNesting);
  if (!object) return object.error();
  FieldReader fields(path, *object);
  const auto weight_map = fields.object("weight_map");
  if (!weight_map) {
    fields.fail("weight_map is missing, wanted an object of file names");
    return *fields.error();
  }
  for (const auto member : *weight_map) {
    std::string_view file;
    if (!member.value.get(file) || !is_plain_file_name(file))
      return make_error(ErrorCode::kData, "{}: tensor '{}' is in {}, wanted the name of a file in the same folder",
                        path, member.key, json_excerpt(member.value));
    if (!shard_of_.try_emplace(std::string(member.key), file).second)
      return make_error(ErrorCode::kData, "{}: tensor '{}' is listed twice", path, member.key);
  }
  return {};
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFolder::open_file(const std::string& file_name) const {
  if (source_ && !source_->contains(file_name))
    return make_error(ErrorCode::kNotFound, "{}: there is no such file", (folder_ / file_name).string());
  if (source_) RETURN_IF_ERROR(source_->prepare_file(file_name));
  return SafetensorsFile::open(folder_ / file_name);
}

bool SafetensorsFolder::has_file(const std::string& file_name) const {
  if (source_) return source_->contains(file_name);
  std::error_code unreadable;  // whoever opens the file says why
  return std::filesystem::exists(folder_ / file_name, unreadable);
}

bool SafetensorsFolder::has_listed_files() const {
  std::set<std::string> files;
  for (const auto& [name, file] : shard_of_) files.insert(file);
  return !files.empty() && files != std::set<std::string>{single_name_} &&
         std::ranges::all_of(files, [this](const std::string& file) { return has_file(file); });
}

bool SafetensorsFolder::contains(std::string_view name) const {
  return single_ ? single_->contains(name) : shard_of_.contains(std::string(name));
}

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> names;
  if (single_) {
    for (const std::string_view name : single_->names()) names.emplace_back(name);
  }
  for (const auto& [name, file] : shard_of_) names.push_back(name);
  return names;
}

Result<void> SafetensorsFolder::fetch(std::span<const std::string> names) const {
  if (!source_) return {};
  std::vector<FileRange> ranges;
  for (const std::string& name : names) {
    if (!contains(name)) continue;
    const auto file = file_of(name);
    if (!file) return file.error();
    ranges.push_back(range_of(**file, name));
  }
  return source_->fetch(ranges);
}

Result<const SafetensorsFile*> SafetensorsFolder::filled_file_of(std::string_view name) const {
  const auto file = file_of(name);
  if (!file || !source_) return file;
  const FileRange range = range_of(**file, name);
  RETURN_IF_ERROR(source_->fetch({&range, 1}));
  return file;
}

Result<const SafetensorsFile*> SafetensorsFolder::file_of(std::string_view name) const {
  if (single_) return single_.get();
  const auto listed = shard_of_.find(std::string(name));
  if (listed == shard_of_.end())
    return make_error(ErrorCode::kNotFound, "{}: lists no tensor '{}'", index_path_.string(), name);
  const auto file = shard(listed->second);
  if (!file)
    return make_error(ErrorCode::kData, "{}: puts tensor '{}' into {}, but {}", index_path_.string(), name,
                      listed->second, file.error().message);
  if (!(*file)->contains(name))
    return make_error(ErrorCode::kData, "{}: puts tensor '{}' into {}, which lacks it", index_path_.string(), name,
                      listed->second);
  return file;
}

Result<const SafetensorsFile*> SafetensorsFolder::shard(const std::string& file_name) const {
  const std::lock_guard lock(mutex_);
  const auto known = shards_.find(file_name);
  if (known != shards_.end()) return known->second.get();
  auto opened = open_file(file_name);
  if (!opened) return opened.error();
  return shards_.emplace(file_name, std::move(*opened)).first->second.get();
}

FileRange SafetensorsFolder::range_of(const SafetensorsFile& file, std::string_view name) {
  const auto [begin, end] = file.byte_range(name);
  return {.file = std::filesystem::path(file.path()).filename(), .begin = begin, .end = end};
}

}  // namespace millrace::model
