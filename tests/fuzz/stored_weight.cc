#include <map>
#include <vector>

#include "base/check.h"
#include "base/json_value.h"
#include "fuzz/memory_file.h"
#include "fuzz/targets.h"
#include "model/safetensors.h"
#include "weights/companions.h"
#include "weights/find_weight.h"
#include "weights/fp8_weight.h"

namespace millrace::fuzz {
namespace {

using namespace weights;

constexpr int64_t kMaxExtent = 512;
const std::string kName = "a.weight";

template <class T>
bool holds(const Result<T>& result) {
  if (result.has_error()) CHECK(result.error().code == ErrorCode::kData && !result.error().message.empty());
  return result.has_value();
}

/// The tensors of a file, each in memory of its own, so that a read beyond one is seen.
class Tensors {
 public:
  explicit Tensors(const model::SafetensorsFile& file) {
    std::vector<std::string> names = companion_names(kName);
    names.push_back(kName);
    for (const std::string& name : names) {
      const auto stored = file.find_stored(name);
      if (stored.has_error()) continue;
      tensors_[name] = {.dtype = std::string(stored->dtype),
                        .shape = {stored->shape.begin(), stored->shape.end()},
                        .bytes = {stored->bytes.begin(), stored->bytes.end()}};
    }
  }

  [[nodiscard]] TensorLookup lookup() const {
    return [this](const std::string& name) -> Result<RawTensor> {
      const auto found = tensors_.find(name);
      if (found == tensors_.end()) return make_error(ErrorCode::kNotFound, "there is no '{}'", name);
      return RawTensor{.dtype = found->second.dtype, .shape = found->second.shape, .bytes = found->second.bytes};
    };
  }

 private:
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Tensor> tensors_;
};

/// Reads all that a weight consists of, in each way in which it may be kept.
void read_all(const StoredWeight& weight) {
  std::vector<float> values(static_cast<size_t>(weight.rows * weight.cols));
  decode_rows(weight, 0, weight.rows, values.data());
  const tensor::TermRange rows{0, weight.rows};
  if (is_fp8(weight)) (void)to_fp8(weight, rows);
  if (!code_layout(weight)) return;
  (void)has_zero_points(weight);
  (void)narrowest_code_scales(weight, rows);
  (void)to_codes(weight, rows, 1);
}

}  // namespace

void stored_weight(std::string_view input) {
  const size_t end = input.find('\0');
  if (end == input.npos) return;
  const auto document = JsonDocument::parse(input.substr(0, end));
  JsonObject config;
  int64_t rows = 0;
  int64_t cols = 0;
  if (document.has_error() || !document->root().get(config)) return;
  if (!config["rows"].get(rows) || !config["cols"].get(cols)) return;
  if (rows < 1 || rows > kMaxExtent || cols < 1 || cols > kMaxExtent) return;
  const auto format = parse_weight_format(config);
  if (!holds(format)) return;
  const MemoryFile memory(input.substr(end + 1));
  const auto file = model::SafetensorsFile::open(memory.path());
  if (!holds(file)) return;
  const Tensors tensors(**file);
  const TensorLookup lookup = tensors.lookup();
  const auto weight = find_stored_weight(lookup, *format, kName, rows, cols);
  if (!holds(weight) || !*weight) return;
  CHECK((**weight).rows == rows && (**weight).cols == cols);
  // Where a config says that groups are in order, ranks take its word.
  if (!format->has_groups_in_order || (**weight).has_groups_in_order()) {
    const auto stored = find_stored_format(lookup, *format, kName, rows, cols);
    CHECK(stored.has_value() && *stored && **stored == stored_format(**weight), "ranks would not agree on a format");
  }
  read_all(**weight);
}

}  // namespace millrace::fuzz
