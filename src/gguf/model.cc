#include "gguf/model.h"

#include <charconv>

namespace millrace::gguf {
namespace {

constexpr std::string_view kEnding = ".gguf";
constexpr size_t kDigits = 5;
constexpr std::string_view kOf = "-of-";

/// Reads exactly five digits.
std::optional<int32_t> five_digits(std::string_view text) {
  int32_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.size() != kDigits || failure != std::errc() || end != text.data() + text.size() || number < 1)
    return std::nullopt;
  return number;
}

/// Refuses a part whose metadata places it elsewhere. A file that is not split has no such keys.
void check_part(const Metadata& metadata, size_t part, size_t count) {
  constexpr int64_t kMaxParts = 99'999;
  const auto given_count = metadata.integer("split.count", 0, kMaxParts);
  const auto given_part = metadata.integer("split.no", 0, kMaxParts);
  if (static_cast<size_t>(given_count.value_or(1)) != count && !(given_count.value_or(0) == 0 && count == 1))
    metadata.fail("split.count is {}, but the model has {} files by their names, wanted NAME-00001-of-{:05}.gguf",
                  given_count.value_or(1), count, given_count.value_or(1));
  if (static_cast<size_t>(given_part.value_or(0)) != part)
    metadata.fail("split.no is {}, wanted {} by the file's name", given_part.value_or(0), part);
}

}  // namespace

std::string PartName::to_string() const {
  return fmt::format("{}-{:05}{}{:05}{}", prefix, part, kOf, count, kEnding);
}

std::optional<PartName> parse_part_name(std::string_view name) {
  constexpr size_t kTail = 1 + kDigits + kOf.size() + kDigits + kEnding.size();
  if (name.size() < kTail || !name.ends_with(kEnding)) return std::nullopt;
  const std::string_view tail = name.substr(name.size() - kTail);
  if (tail.front() != '-' || tail.substr(1 + kDigits, kOf.size()) != kOf) return std::nullopt;
  const auto part = five_digits(tail.substr(1, kDigits));
  const auto count = five_digits(tail.substr(1 + kDigits + kOf.size(), kDigits));
  if (!part || !count || *part > *count) return std::nullopt;
  return PartName{.prefix = std::string(name.substr(0, name.size() - kTail)), .part = *part, .count = *count};
}

Result<Model> Model::join(std::vector<File> parts) {
  try {
    Model model;
    for (size_t part = 0; part < parts.size(); ++part) check_part(parts[part].metadata, part, parts.size());
    model.metadata_ = std::move(parts.front().metadata);
    for (const File& file : parts) {
      for (const Tensor& tensor : file.tensors) {
        if (!model.index_.emplace(tensor.name, model.tensors_.size()).second)
          model.metadata_.fail("tensor '{}' is in two files of the model", tensor.name);
        model.tensors_.push_back(tensor);
      }
    }
    const auto wanted = model.metadata_.integer("split.tensors.count", 0, INT32_MAX);
    if (wanted && parts.size() > 1 && static_cast<size_t>(*wanted) != model.tensors_.size())
      model.metadata_.fail("split.tensors.count is {}, but the files hold {} tensors", *wanted, model.tensors_.size());
    return model;
  } catch (const ErrorException& failure) {
    return failure.error();
  }
}

const Tensor* Model::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::string_view Model::architecture() const {
  const auto name = metadata_.text("general.architecture");
  if (!name) metadata_.fail("general.architecture is missing, wanted the name of a family, as 'llama'");
  return *name;
}

}  // namespace millrace::gguf
