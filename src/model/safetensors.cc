#include "model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "model/field_reader.h"

namespace millrace::model {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeaderBytes = size_t{100} << 20;  // the format's own limit is 100 MB
constexpr size_t kMaxHeaderNesting = 8;
constexpr size_t kHighestRank = 16;

static_assert(std::endian::native == std::endian::little, "the header length and the weights are little-endian");

struct KnownDType {
  std::string_view name;
  size_t bytes;
};

constexpr std::array kKnownDtypes{
    KnownDType{"F32", 4},     KnownDType{"BF16", 2},    KnownDType{"F16", 2},     KnownDType{"F64", 8},
    KnownDType{"I64", 8},     KnownDType{"I32", 4},     KnownDType{"I16", 2},     KnownDType{"I8", 1},
    KnownDType{"U64", 8},     KnownDType{"U32", 4},     KnownDType{"U16", 2},     KnownDType{"U8", 1},
    KnownDType{"F8_E4M3", 1}, KnownDType{"F8_E5M2", 1}, KnownDType{"F8_E8M0", 1}, KnownDType{"BOOL", 1},
};

/// Returns the bytes of an element; none for an unknown dtype, which `find` refuses.
std::optional<size_t> element_bytes(std::string_view dtype) {
  const auto known =
      std::find_if(kKnownDtypes.begin(), kKnownDtypes.end(), [&](const KnownDType& k) { return k.name == dtype; });
  if (known == kKnownDtypes.end()) return std::nullopt;
  return known->bytes;
}

/// Returns the bytes of a dense tensor; none when they overflow.
std::optional<size_t> dense_bytes(const std::vector<int64_t>& shape, size_t element) {
  size_t bytes = element;
  for (const int64_t dim : shape)
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(dim), &bytes)) return std::nullopt;
  return bytes;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

/// Fills the entries of a file from its header.
struct SafetensorsFile::HeaderParser {
  SafetensorsFile& file;
  std::span<const std::byte> bytes;
  size_t data_begin = 0;

  Result<void> parse() {
    uint64_t length = 0;
    if (bytes.size() < kLengthBytes)
      return bad("has {} bytes, a safetensors file has at least {}", bytes.size(), kLengthBytes);
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (length > bytes.size() - kLengthBytes)
      return bad("header length {} is above the {} bytes that follow it (truncated, or not a safetensors file)", length,
                 bytes.size() - kLengthBytes);
    if (length > kMaxHeaderBytes) return bad("header length {} is above the limit of {}", length, kMaxHeaderBytes);
    data_begin = kLengthBytes + length;
    const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes, length);
    JsonDocument document;
    const auto object = parse_object(document, file.path_ + ": header", json, kMaxHeaderNesting);
    if (!object) return object.error();
    for (const auto member : *object) {
      if (member.key == "__metadata__") continue;
      RETURN_IF_ERROR(add(std::string(member.key), member.value));
    }
    return refuse_overlaps();
  }

  Result<void> add(std::string name, JsonValue element) {
    Entry entry;
    RETURN_IF_ERROR(read(name, element, entry));
    const size_t data_bytes = bytes.size() - data_begin;
    const size_t begin = entry.begin;
    const size_t end = entry.end;
    if (begin > end) return bad("tensor '{}': data_offsets [{}, {}] run backwards", name, begin, end);
    if (end > data_bytes)
      return bad("tensor '{}': data_offsets [{}, {}] reach beyond the {} bytes of data in the file (truncated?)", name,
                 begin, end, data_bytes);
    if (const auto element_size = element_bytes(entry.dtype)) {
      const auto wanted = dense_bytes(entry.shape, *element_size);
      if (!wanted || *wanted != end - begin)
        return bad("tensor '{}': data_offsets span {} bytes, shape {} of {} wants {}", name, end - begin,
                   shape_text(entry.shape), entry.dtype, wanted ? std::to_string(*wanted) : "more than 2^64");
    }
    entry.begin += data_begin;
    entry.end += data_begin;
    const auto [position, inserted] = file.entries_.try_emplace(std::move(name), std::move(entry));
    if (!inserted) return bad("tensor '{}' is listed twice", position->first);
    return {};
  }

  Result<void> read(const std::string& name, JsonValue element, Entry& entry) {
    JsonObject object;
    if (!element.get(object)) return bad("tensor '{}' is {}, wanted an object", name, json_excerpt(element));
    std::string_view dtype;
    if (!object["dtype"].get(dtype)) return bad("tensor '{}': dtype is missing", name);
    entry.dtype = dtype;
    JsonValue given_shape;
    JsonArray shape;
    if (!object["shape"].get(given_shape)) return bad("tensor '{}': shape is missing", name);
    if (!given_shape.get(shape))
      return bad("tensor '{}': shape {} is not a list of sizes", name, json_excerpt(given_shape));
    for (const JsonValue item : shape) {
      int64_t dim = 0;
      if (!item.get(dim) || dim < 0)
        return bad("tensor '{}': shape {} is not a list of sizes", name, json_excerpt(given_shape));
      if (entry.shape.size() == kHighestRank) return bad("tensor '{}': rank is above {}", name, kHighestRank);
      entry.shape.push_back(dim);
    }
    JsonArray offsets;
    uint64_t begin = 0;
    uint64_t end = 0;
    if (!object["data_offsets"].get(offsets) || offsets.size() != 2 || !offsets.at(0).get(begin) ||
        !offsets.at(1).get(end))
      return bad("tensor '{}': data_offsets is missing or not a pair of byte offsets", name);
    entry.begin = begin;
    entry.end = end;
    return {};
  }

  Result<void> refuse_overlaps() {
    std::vector<const decltype(file.entries_)::value_type*> ordered;
    for (const auto& entry : file.entries_)
      if (entry.second.begin != entry.second.end) ordered.push_back(&entry);
    std::sort(ordered.begin(), ordered.end(),
              [](const auto* left, const auto* right) { return left->second.begin < right->second.begin; });
    for (size_t i = 1; i < ordered.size(); ++i)
      if (ordered[i]->second.begin < ordered[i - 1]->second.end)
        return bad("tensors '{}' and '{}' overlap", ordered[i - 1]->first, ordered[i]->first);
    return {};
  }

  template <class... Args>
  Error bad(fmt::format_string<Args...> format, Args&&... args) {
    return Error{ErrorCode::kData, file.path_ + ": " + fmt::format(format, std::forward<Args>(args)...)};
  }
};

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::open(const std::filesystem::path& path) {
  auto mapping = MappedFile::open(path);
  if (!mapping) return mapping.error();
  std::unique_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->path_ = path.string();
  file->mapping_ = std::move(*mapping);
  RETURN_IF_ERROR((HeaderParser{*file, file->mapping_->bytes()}.parse()));
  return file;
}

Result<StoredTensor> SafetensorsFile::find_stored(std::string_view name) const {
  const auto found = entries_.find(std::string(name));
  if (found == entries_.end()) return make_error(ErrorCode::kNotFound, "{}: has no tensor '{}'", path_, name);
  const Entry& entry = found->second;
  return StoredTensor{entry.dtype, entry.shape, mapping_->bytes().subspan(entry.begin, entry.end - entry.begin)};
}

std::vector<std::string_view> SafetensorsFile::names() const {
  std::vector<std::string_view> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

std::pair<uint64_t, uint64_t> SafetensorsFile::byte_range(std::string_view name) const {
  const auto found = entries_.find(std::string(name));
  if (found == entries_.end()) return {0, 0};
  return {found->second.begin, found->second.end};
}

void SafetensorsFile::release(std::string_view name) const {
  if (const auto stored = find_stored(name)) mapping_->release(stored->bytes);
}

Result<tensor::HostTensor> SafetensorsFile::find(std::string_view name) const {
  const auto stored = find_stored(name);
  if (!stored) return stored.error();
  const bool computed = stored->dtype == "F32" || stored->dtype == "BF16" || stored->dtype == "F16";
  if (!computed)
    return make_error(ErrorCode::kData, "{}: tensor '{}' has dtype {}, wanted F32, BF16 or F16", path_, name,
                      stored->dtype);
  if (stored->shape.size() > 4)
    return make_error(ErrorCode::kData, "{}: tensor '{}' has rank {}, wanted at most 4", path_, name,
                      stored->shape.size());
  return tensor::HostTensor{.name = std::string(name),
                            .dtype = *tensor::parse_dtype(stored->dtype),
                            .shape = tensor::Shape(stored->shape),
                            .data = stored->bytes.data()};
}

}  // namespace millrace::model
