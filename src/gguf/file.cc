#include "gguf/file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_set>

namespace millrace::gguf {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers in files are little-endian");

constexpr std::string_view kMagic = "GGUF";
/// The magic numbers of the formats that came before, as their bytes stand in a file.
constexpr std::array<std::string_view, 4> kOldMagics = {"lmgg", "fmgg", "tjgg", "algg"};
constexpr std::string_view kAlignmentKey = "general.alignment";
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint32_t kMaxRank = 4;
constexpr int kMaxArrayNesting = 4;

/// The types that ggml has and that are not decoded here, for errors.
struct UnsupportedType {
  uint32_t id;
  std::string_view name;
};
constexpr UnsupportedType kUnsupportedTypes[] = {
    {4, "Q4_2"},      {5, "Q4_3"},   {9, "Q8_1"},   {15, "Q8_K"},       {16, "IQ2_XXS"},    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},  {19, "IQ1_S"}, {21, "IQ3_S"}, {22, "IQ2_S"},      {24, "I8"},         {25, "I16"},
    {26, "I32"},      {27, "I64"},   {28, "F64"},   {29, "IQ1_M"},      {31, "Q4_0_4_4"},   {32, "Q4_0_4_8"},
    {33, "Q4_0_8_8"}, {34, "TQ1_0"}, {35, "TQ2_0"}, {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"},
};

std::string_view name_of_unsupported(uint32_t id) {
  const auto* const found = std::ranges::find(kUnsupportedTypes, id, &UnsupportedType::id);
  return found == std::end(kUnsupportedTypes) ? "not known" : found->name;
}

/// Reads the header from its beginning. Every function throws where the file ends too early.
class HeaderReader {
 public:
  HeaderReader(std::span<const std::byte> bytes, const std::string& source)
      : bytes_(bytes), file_{.metadata = Metadata(source), .tensors = {}} {}

  File read() {
    read_version();
    const auto tensor_count = number<uint64_t>("the number of tensors");
    const auto key_count = number<uint64_t>("the number of metadata keys");
    check_count(key_count, kMinKeyBytes, "metadata keys");
    for (uint64_t i = 0; i < key_count; ++i) read_key();
    check_count(tensor_count, kMinTensorBytes, "tensors");
    for (uint64_t i = 0; i < tensor_count; ++i) read_tensor();
    place_tensors();
    return std::move(file_);
  }
  /// Returns the bytes that were read.
  [[nodiscard]] uint64_t position() const { return position_; }

 private:
  static constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
  static constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 4 + 8;

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    file_.metadata.fail(format, std::forward<Args>(args)...);
  }

  [[nodiscard]] uint64_t remaining() const { return bytes_.size() - position_; }

  std::span<const std::byte> take(uint64_t count, std::string_view what) {
    if (count > remaining())
      fail("ends inside {}: {} bytes from {} on, wanted {} (truncated?)", what, remaining(), position_, count);
    const auto part = bytes_.subspan(position_, count);
    position_ += count;
    return part;
  }

  template <class T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }

  std::string_view text(std::string_view what) {
    const auto length = number<uint64_t>(what);
    const auto bytes = take(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void check_count(uint64_t count, uint64_t min_bytes, std::string_view what) const {
    if (count > remaining() / min_bytes)
      fail("says that it has {} {}, more than its {} bytes can hold", count, what, bytes_.size());
  }

  void read_version() {
    const auto magic = take(std::min<uint64_t>(kMagic.size(), bytes_.size()), "the magic number");
    const std::string_view found(reinterpret_cast<const char*>(magic.data()), magic.size());
    if (std::ranges::find(kOldMagics, found) != kOldMagics.end())
      fail("is a GGML file of before GGUF, wanted GGUF: convert the model again");
    if (found != kMagic) {
      std::string hex;
      for (const std::byte each : magic) hex += fmt::format("{:02x}", static_cast<unsigned>(each));
      fail("begins with the bytes {}, wanted 47475546 (GGUF)", hex);
    }
    const auto version = number<uint32_t>("the version");
    if (version != 0 && (version & 0xFFFFu) == 0)
      fail("has version {:#x}: it is big-endian, wanted a little-endian file", version);
    if (version != 2 && version != 3) fail("is of GGUF version {}, wanted 2 or 3", version);
  }

  Value value(ValueType type, std::string_view key, int nesting) {
    const uint64_t begin = position_;
    if (const auto size = fixed_bytes(type)) return {type, take(*size, key)};
    if (type == ValueType::kString) {
      (void)text(key);
      return {type, bytes_.subspan(begin, position_ - begin)};
    }
    if (nesting == kMaxArrayNesting) fail("{}: arrays are nested more than {} deep", key, kMaxArrayNesting);
    const ValueType element = value_type(key);
    const auto count = number<uint64_t>(key);
    const uint64_t items_begin = position_;
    const auto item_bytes = fixed_bytes(element);
    const uint64_t min_bytes = item_bytes.value_or(sizeof(uint64_t));
    if (count > remaining() / min_bytes)
      fail("ends inside {}: {} bytes from {} on, wanted {} items (truncated?)", key, remaining(), position_, count);
    if (item_bytes) {
      (void)take(count * *item_bytes, key);
    } else {
      for (uint64_t i = 0; i < count; ++i) (void)value(element, key, nesting + 1);
    }
    return {element, count, bytes_.subspan(items_begin, position_ - items_begin)};
  }

  ValueType value_type(std::string_view key) {
    const auto type = number<uint32_t>(key);
    if (type >= kValueTypeCount) fail("{} is of type {}, wanted 0 to {}", key, type, kValueTypeCount - 1);
    return static_cast<ValueType>(type);
  }

  void read_key() {
    const std::string_view key = text("a metadata key");
    if (key.empty()) fail("metadata key {} is empty", file_.metadata.size());
    if (!file_.metadata.add(key, value(value_type(key), key, 0))) fail("metadata key {} is given twice", key);
  }

  void read_tensor() {
    const std::string_view name = text("the name of a tensor");
    const auto rank = number<uint32_t>(name);
    if (rank > kMaxRank) fail("tensor '{}' has {} dimensions, wanted at most {}", name, rank, kMaxRank);
    std::vector<int64_t> shape(rank);
    for (int64_t& side : shape) {
      side = number<int64_t>(name);
      if (side < 1) fail("tensor '{}' has a dimension of {}, wanted at least 1", name, side);
    }
    const auto type_id = number<uint32_t>(name);
    const auto type = weights::find_ggml_type(type_id);
    if (!type)
      fail("tensor '{}' is of type {} ({}), which is not decoded here", name, type_id, name_of_unsupported(type_id));
    if (!names_.insert(name).second) fail("tensor '{}' is listed twice", name);
    std::ranges::reverse(shape);
    offsets_.push_back(number<uint64_t>(name));
    file_.tensors.push_back({.name = name, .type = *type, .shape = std::move(shape), .bytes = {}});
  }

  [[nodiscard]] uint64_t alignment() const {
    const auto given = file_.metadata.integer(kAlignmentKey, 1, int64_t{1} << 31);
    if (!given) return kDefaultAlignment;
    if (!std::has_single_bit(static_cast<uint64_t>(*given)))
      fail("{} is {}, wanted a power of two", kAlignmentKey, *given);
    return static_cast<uint64_t>(*given);
  }

  /// Returns the bytes of a tensor by its shape.
  [[nodiscard]] uint64_t bytes_of(const Tensor& tensor) const {
    const int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
    if (columns % tensor.type.block_weights != 0)
      fail("tensor '{}' of shape [{}] has {} columns, wanted a multiple of {} ({})", tensor.name,
           fmt::join(tensor.shape, ", "), columns, tensor.type.block_weights, tensor.type.name);
    uint64_t blocks = 1;
    bool overflows = false;
    for (const int64_t side : tensor.shape)
      overflows |= __builtin_mul_overflow(blocks, static_cast<uint64_t>(side), &blocks);
    blocks /= static_cast<uint64_t>(tensor.type.block_weights);
    uint64_t bytes = 0;
    overflows |= __builtin_mul_overflow(blocks, uint64_t{tensor.type.block_bytes}, &bytes);
    if (overflows) fail("tensor '{}' of shape [{}] has too many values", tensor.name, fmt::join(tensor.shape, ", "));
    return bytes;
  }

  /// Finds the tensors' bytes after the header.
  void place_tensors() {
    const uint64_t align = alignment();
    const uint64_t begin = (position_ + align - 1) / align * align;
    const uint64_t available = bytes_.size() - std::min<uint64_t>(begin, bytes_.size());
    file_.header_bytes = static_cast<size_t>(std::min<uint64_t>(begin, bytes_.size()));
    for (size_t i = 0; i < file_.tensors.size(); ++i) {
      Tensor& tensor = file_.tensors[i];
      const uint64_t offset = offsets_[i];
      const uint64_t size = bytes_of(tensor);
      if (offset % align != 0)
        fail("tensor '{}' begins at {} of the data, wanted a multiple of {}", tensor.name, offset, align);
      if (offset > available || size > available - offset)
        fail("tensor '{}': {} bytes from {} on reach beyond the {} bytes of data in the file (truncated?)", tensor.name,
             size, offset, available);
      tensor.bytes = bytes_.subspan(begin + offset, size);
    }
    std::vector<const Tensor*> ordered;
    for (const Tensor& tensor : file_.tensors) ordered.push_back(&tensor);
    std::ranges::sort(ordered, {}, [](const Tensor* tensor) { return tensor->bytes.data(); });
    for (size_t i = 1; i < ordered.size(); ++i) {
      const auto& before = *ordered[i - 1];
      if (before.bytes.data() + before.bytes.size() > ordered[i]->bytes.data())
        fail("tensors '{}' and '{}' overlap", before.name, ordered[i]->name);
    }
  }

  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;
  File file_;
  std::vector<uint64_t> offsets_;  // of the tensors, in the data
  std::unordered_set<std::string_view> names_;
};

}  // namespace

Result<File> parse_file(std::span<const std::byte> bytes, const std::string& source, uint64_t* read_bytes) {
  HeaderReader reader(bytes, source);
  const auto note_end = [&] {
    if (read_bytes != nullptr) *read_bytes = reader.position();
  };
  try {
    File file = reader.read();
    note_end();
    return file;
  } catch (const ErrorException& failure) {
    note_end();
    return failure.error();
  }
}

}  // namespace millrace::gguf
