#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <new>
#include <numeric>

#include "cuda/device_array.h"
#include "cuda/emulator/emulator.h"

using namespace millrace;
using namespace millrace::test;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The error of a feature, silu(gate) · up of sums in f32, before it is rounded to bf16.
constexpr float kFeatureError = 2e-5f;

struct Sizes {
  int32_t hidden = 0;
  int32_t intermediate = 0;
  int32_t experts = 0;
  int32_t per_row = 0;
  int32_t rows = 0;
  bool renormalize = true;
  [[nodiscard]] std::string shown() const {
    return fmt::format("{} rows of {}, {} of {} experts of {}, renormalize {}", rows, hidden, per_row, experts,
                       intermediate, renormalize);
  }
};

/// Memory in whole pages, whose access can be forbidden in parts.
class Pages {
 public:
  explicit Pages(size_t bytes)
      : bytes_(bytes), data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (data_ == MAP_FAILED) throw std::bad_alloc();
  }
  Pages(const Pages&) = delete;
  ~Pages() { munmap(data_, bytes_); }
  [[nodiscard]] std::byte* get() const { return static_cast<std::byte*>(data_); }
  /// Forbids access: a read there ends the program.
  void forbid(size_t begin, size_t count) const { REQUIRE(mprotect(get() + begin, count, PROT_NONE) == 0); }

 private:
  size_t bytes_;
  void* data_;
};

/// Packed experts, and their values for the reference.
class Layer {
 public:
  Layer(Random& random, const Sizes& sizes, cuda::MatrixInstruction by = cuda::MatrixInstruction::kMma)
      : sizes_(sizes), by_(by) {
    const int32_t width = sizes.hidden;
    const int32_t inner = sizes.intermediate;
    const auto matrix = [&](int32_t out, int32_t in) {
      return rounded_bf16(random.normal(int64_t{out} * in, 1.0f / std::sqrt(static_cast<float>(in))));
    };
    for (size_t i = 0; i < static_cast<size_t>(sizes.experts); ++i) {
      values.push_back({matrix(inner, width), matrix(inner, width), matrix(width, inner)});
      pack(values.back().gate, inner, width, cuda::PackAs::kGate, gate_up_.get() + i * gate_up_bytes_);
      pack(values.back().up, inner, width, cuda::PackAs::kUp, gate_up_.get() + i * gate_up_bytes_);
      pack(values.back().down, width, inner, cuda::PackAs::kRows, down_.get() + i * down_bytes_);
    }
  }
  [[nodiscard]] cuda::DeviceExperts device() const {
    return {.gate_up = gate_up_.get(),
            .down = down_.get(),
            .count = sizes_.experts,
            .per_row = sizes_.per_row,
            .renormalize = sizes_.renormalize,
            .hidden = sizes_.hidden,
            .intermediate = sizes_.intermediate,
            .by = by_};
  }
  /// Forbids access to this expert from now on.
  void forbid(size_t expert) const {
    gate_up_.forbid(expert * gate_up_bytes_, gate_up_bytes_);
    down_.forbid(expert * down_bytes_, down_bytes_);
  }
  [[nodiscard]] tensor::ExpertOptions options() const {
    return {.routing = {.experts_per_row = sizes_.per_row, .renormalize = sizes_.renormalize}};
  }

  std::vector<reference::Expert> values;

 private:
  static void pack(const Values& dense, int32_t rows, int32_t in, cuda::PackAs as, std::byte* to) {
    const DeviceArray<uint16_t> source(bf16_bits(dense));
    cuda::pack_weight(nullptr, source.get(), cuda::SourceType::kBF16, rows, in, 0, as, to);
  }
  const Sizes sizes_;
  const cuda::MatrixInstruction by_;
  // Multiples of 8 KiB, which are whole pages.
  const size_t gate_up_bytes_ = cuda::packed_weight_bytes(sizes_.intermediate, sizes_.hidden, true);
  const size_t down_bytes_ = cuda::packed_weight_bytes(sizes_.hidden, sizes_.intermediate, false);
  const Pages gate_up_{gate_up_bytes_ * static_cast<size_t>(sizes_.experts)};
  const Pages down_{down_bytes_ * static_cast<size_t>(sizes_.experts)};
};

struct Rows {
  Values x, logits, hidden;
};
Rows random_rows(Random& random, const Sizes& sizes) {
  return {rounded_bf16(random.normal(int64_t{sizes.rows} * sizes.hidden)),
          random.normal(int64_t{sizes.rows} * sizes.experts, 2.0f), random.normal(int64_t{sizes.rows} * sizes.hidden)};
}
Values rows_of(const Values& all, int64_t width, const std::vector<int64_t>& rows) {
  Values some;
  for (const int64_t row : rows) some.insert(some.end(), all.begin() + row * width, all.begin() + (row + 1) * width);
  return some;
}
Rows rows_of(const Rows& all, const Sizes& sizes, const std::vector<int64_t>& rows) {
  return {rows_of(all.x, sizes.hidden, rows), rows_of(all.logits, sizes.experts, rows),
          rows_of(all.hidden, sizes.hidden, rows)};
}
std::vector<int64_t> numbers(int64_t begin, int64_t end) {
  std::vector<int64_t> all(static_cast<size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

/// Returns the rows after the op; the last `padding` rows belong to no sequence.
Values mix(const cuda::DeviceExperts& experts, const Rows& rows, const DeviceArray<uint8_t>& workspace,
           int32_t padding = 0) {
  const auto count = static_cast<int32_t>(rows.logits.size()) / experts.count;
  const DeviceArray<uint16_t> x(bf16_bits(rows.x));
  const DeviceArray<float> logits(rows.logits);
  const DeviceArray<float> hidden(rows.hidden);
  // Two sequences, and one without rows.
  const int32_t owned = count - padding;
  const DeviceArray<int32_t> sequences(std::vector<int32_t>{3});
  const DeviceArray<int32_t> row_begin(std::vector<int32_t>{0, owned / 2, owned / 2, owned});
  const cuda::DeviceBatch batch{.sequence_count = sequences.get(), .row_begin = row_begin.get()};
  cuda::fused_moe(nullptr, x.get(), logits.get(), experts, batch, count, hidden.get(), workspace.get(),
                  workspace.size());
  return hidden.values();
}
DeviceArray<uint8_t> workspace_for(const cuda::DeviceExperts& experts, int32_t rows) {
  return DeviceArray<uint8_t>(cuda::fused_moe_workspace_bytes(experts, rows));
}
Values mix(const Layer& layer, const Rows& rows, int32_t padding = 0) {
  const auto count = static_cast<int32_t>(rows.logits.size()) / layer.device().count;
  return mix(layer.device(), rows, workspace_for(layer.device(), count), padding);
}

void check_mixture(const Layer& layer, const Rows& rows, const Values& got) {
  const auto [sums, jumps] = reference::fused_moe(
      rows.x, rows.logits, layer.values, layer.options(), [](const Values& of, int64_t) { return rounded_bf16(of); },
      kFeatureError);
  Values wanted = sums;
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += rows.hidden[i];
  check_close(got, wanted, 1e-5, 2e-5, jumps);
}

bool same_bits(const Values& a, const Values& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("fused MoE agrees with the reference for all tiles") {
  const auto by = GENERATE(cuda::MatrixInstruction::kMma, cuda::MatrixInstruction::kWgmma);
  INFO("seed " << test_seed() << (by == cuda::MatrixInstruction::kMma ? ", mma" : ", wgmma"));
  Random random(test_seed() + 150);
  std::vector<Sizes> all = {{64, 40, 8, 2, 1, true},    // a row alone
                            {72, 24, 4, 4, 9, false},   // all experts
                            {128, 48, 3, 1, 33, true},  // tiles of 32
                            {40, 16, 2, 2, 130, true},  // rows beyond a tile of 128
                            {33, 7, 5, 3, 70, false},   // of no multiple of anything
                            {600, 8, 3, 2, 40, true},   // sums in splits
                            {16, 8, 130, 5, 20, true},  // experts of five words, most without rows
                            {8, 8, 512, 33, 3, false},  // the most experts
                            {1, 1, 1, 1, 2, true}};
  for (int i = 0; i < 3; ++i) {
    Sizes sizes{.hidden = static_cast<int32_t>(random.integer(1, 150)),
                .intermediate = static_cast<int32_t>(random.integer(1, 90)),
                .experts = static_cast<int32_t>(random.integer(1, 70)),
                .rows = static_cast<int32_t>(random.integer(1, 80)),
                .renormalize = random.integer(0, 1) != 0};
    sizes.per_row = static_cast<int32_t>(random.integer(1, std::min(4, sizes.experts)));
    all.push_back(sizes);
  }
  for (const Sizes& sizes : all) {
    INFO(sizes.shown());
    const Layer layer(random, sizes, by);
    const Rows rows = random_rows(random, sizes);
    check_mixture(layer, rows, mix(layer, rows));
  }
}

TEST_CASE("a fused MoE row has equal bits among 1 to 150 rows") {
  const auto by = GENERATE(cuda::MatrixInstruction::kMma, cuda::MatrixInstruction::kWgmma);
  INFO("seed " << test_seed() << (by == cuda::MatrixInstruction::kMma ? ", mma" : ", wgmma"));
  Random random(test_seed() + 151);
  // Experts of the second are so many that their tiles are narrow with any rows.
  for (const Sizes& sizes : {Sizes{530, 24, 4, 2, 150, true}, Sizes{40, 16, 30, 3, 150, false}}) {
    INFO(sizes.shown());
    const Layer layer(random, sizes, by);
    Rows rows = random_rows(random, sizes);
    // Half of the rows want one expert above all.
    for (size_t row = 0; row < 75; ++row) rows.logits[row * static_cast<size_t>(sizes.experts) + 1] += 9.0f;
    const Values whole = mix(layer, rows);
    const DeviceArray<uint8_t> workspace = workspace_for(layer.device(), sizes.rows);
    std::vector<int64_t> order = numbers(0, sizes.rows);
    for (const int64_t count : {1, 2, 8, 9, 17, 31, 32, 33, 65, 100, 149}) {
      INFO(count << " rows");
      std::shuffle(order.begin(), order.end(), random.engine());
      emulator::set_order_seed(static_cast<uint64_t>(random.integer(1, 1 << 30)));
      const std::vector<int64_t> some(order.begin(), order.begin() + count);
      REQUIRE(
          same_bits(mix(layer.device(), rows_of(rows, sizes, some), workspace), rows_of(whole, sizes.hidden, some)));
    }
  }
}

TEST_CASE("an expert alone has the bits of a dense GEMM with splits") {
  const auto by = GENERATE(cuda::MatrixInstruction::kMma, cuda::MatrixInstruction::kWgmma);
  INFO("seed " << test_seed() << (by == cuda::MatrixInstruction::kMma ? ", mma" : ", wgmma"));
  Random random(test_seed() + 158);
  for (const int32_t count : {1, 7, 40}) {
    const Sizes sizes{700, 530, 1, 1, count, false};
    INFO(sizes.shown());
    const Layer layer(random, sizes, by);
    Rows rows = random_rows(random, sizes);
    std::ranges::fill(rows.hidden, 0.0f);
    const cuda::DeviceWeight gate_up{.data = layer.device().gate_up,
                                     .out_features = sizes.intermediate,
                                     .in_features = sizes.hidden,
                                     .gate_up = true,
                                     .by = by};
    const cuda::DeviceWeight down{.data = layer.device().down,
                                  .out_features = sizes.hidden,
                                  .in_features = sizes.intermediate,
                                  .gate_up = false,
                                  .by = by};
    const DeviceArray<uint8_t> workspace(
        std::max(cuda::matmul_workspace_bytes(gate_up, count), cuda::matmul_workspace_bytes(down, count)));
    const DeviceArray<uint16_t> x(bf16_bits(rows.x));
    const DeviceArray<uint16_t> activated(static_cast<size_t>(count) * static_cast<size_t>(sizes.intermediate), 0xFF);
    const DeviceArray<float> out(rows.x.size(), 0xFF);
    cuda::matmul_silu_mul(nullptr, x.get(), gate_up, count, activated.get(), workspace.get());
    cuda::matmul(nullptr, activated.get(), down, nullptr, count, out.get(), cuda::OutputType::kF32, workspace.get());
    REQUIRE(mix(layer, rows) == out.values());
  }
}

TEST_CASE("expert results are added in order of expert number") {
  const DeviceArray<uint8_t> gate_up(3 * cuda::packed_weight_bytes(1, 1, true));
  const DeviceArray<uint8_t> down(3 * cuda::packed_weight_bytes(1, 1, false));
  // The values are so large that the last is rounded when it is added to another.
  const Values downs = {0x1p22f, -0x1p22f, 1.0f};
  for (size_t i = 0; i < downs.size(); ++i) {
    const auto pack = [&](float value, cuda::PackAs as, const DeviceArray<uint8_t>& to) {
      const DeviceArray<float> source(Values{value});
      cuda::pack_weight(nullptr, source.get(), cuda::SourceType::kF32, 1, 1, 0, as, to.get() + i * to.size() / 3);
    };
    pack(16.0f, cuda::PackAs::kGate, gate_up);  // rounded, its silu is itself
    pack(1.0f, cuda::PackAs::kUp, gate_up);
    pack(downs[i], cuda::PackAs::kRows, down);
  }
  const cuda::DeviceExperts experts{.gate_up = gate_up.get(),
                                    .down = down.get(),
                                    .count = 3,
                                    .per_row = 3,
                                    .renormalize = true,
                                    .hidden = 1,
                                    .intermediate = 1};
  const DeviceArray<uint8_t> workspace = workspace_for(experts, 2);
  const Values got = mix(experts, {{1.0f, 1.0f}, {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 1.0f}, {0.0f, 0.0f}}, workspace);
  REQUIRE(got[0] == 16.0f * (1.0f / 3.0f));
  REQUIRE(got[1] == Approx(16.0 * std::exp(1.0) / (2.0 + std::exp(1.0))).epsilon(1e-6));
}

TEST_CASE("rows that all go to one expert are tiled without a trace") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 152);
  for (const int32_t experts : {1, 40}) {
    const Sizes sizes{48, 24, experts, 1, 145, false};
    INFO(sizes.shown());
    const Layer layer(random, sizes);
    Rows rows = random_rows(random, sizes);
    for (size_t row = 0; row < 145; ++row) rows.logits[(row + 1) * static_cast<size_t>(experts) - 1] = 30.0f;
    for (int32_t i = 0; i < experts - 1; ++i) layer.forbid(static_cast<size_t>(i));
    const Values whole = mix(layer, rows);
    check_mixture(layer, rows, whole);
    for (const int64_t row : {0, 7, 8, 127, 128, 144}) {
      REQUIRE(same_bits(mix(layer, rows_of(rows, sizes, {row})), rows_of(whole, sizes.hidden, {row})));
    }
  }
}

TEST_CASE("rows of no sequence stay and no expert is read for them") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 153);
  const Sizes sizes{64, 32, 6, 2, 40, true};
  for (const int32_t owned : {0, 1, 5, 32, 33, 39}) {
    INFO("owned " << owned);
    const Layer layer(random, sizes);
    Rows rows = random_rows(random, sizes);
    for (int32_t row = 0; row < sizes.rows; ++row) {
      float* const logits = rows.logits.data() + row * sizes.experts;
      if (row < owned) {
        logits[4] = logits[5] = -50.0f;
      } else {
        logits[4] = logits[5] = 50.0f;
        if (row % 3 == 0) logits[0] = kNan;
      }
    }
    const Values alone = mix(layer, rows_of(rows, sizes, numbers(0, owned)));
    layer.forbid(4);
    layer.forbid(5);
    const Values got = mix(layer, rows, sizes.rows - owned);
    REQUIRE(same_bits(rows_of(got, sizes.hidden, numbers(0, owned)), alone));
    REQUIRE(same_bits(rows_of(got, sizes.hidden, numbers(owned, sizes.rows)),
                      rows_of(rows.hidden, sizes.hidden, numbers(owned, sizes.rows))));
  }
}

TEST_CASE("equal router logits choose the lowest experts") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 154);
  const Sizes sizes{24, 8, 100, 5, 3, true};
  const Layer layer(random, sizes);
  Rows rows = random_rows(random, sizes);
  const auto logit = [&](size_t row, size_t expert) -> float& { return rows.logits[row * 100 + expert]; };
  std::fill(rows.logits.begin(), rows.logits.begin() + 100, 1.5f);  // 0 to 4
  for (size_t i = 0; i < 100; ++i) logit(1, i) = -3.0f;
  for (const size_t i : {99u, 67u, 35u, 3u, 34u, 66u})
    logit(1, i) = i == 99 ? 0.0f : -0.0f;  // all but 99, equal as they are
  for (size_t i = 0; i < 100; ++i) logit(2, i) = -kInfinity;
  for (const size_t i : {70u, 71u}) logit(2, i) = 4.0f;  // 0 to 2, with no weight
  check_mixture(layer, rows, mix(layer, rows));
  for (size_t i = 5; i < 100; ++i) {
    if (i != 67 && i != 35 && i != 34 && i != 66 && i != 70 && i != 71) layer.forbid(i);
  }
  check_mixture(layer, rows, mix(layer, rows));
}

TEST_CASE("a row that is not finite becomes NaN and changes no other") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 155);
  for (const bool renormalize : {false, true}) {
    const Sizes sizes{40, 16, 36, 3, 37, renormalize};
    const Layer layer(random, sizes);
    const Rows rows = random_rows(random, sizes);
    const Values wanted = mix(layer, rows);
    Rows bad = rows;
    const auto logit = [&](int32_t row, int32_t expert) -> float& {
      return bad.logits[static_cast<size_t>(row * sizes.experts + expert)];
    };
    logit(0, 35) = kNan;
    logit(13, 5) = -kNan;  // as a word the other end of the order
    logit(3, 0) = kInfinity;
    logit(4, 1) = kInfinity;
    logit(4, 34) = kInfinity;
    for (int32_t i = 0; i < sizes.experts; ++i) logit(36, i) = i == 20 ? kNan : -kInfinity;
    for (int32_t i = 0; i < sizes.experts; ++i) logit(7, i) = -kInfinity;
    bad.x[9 * 40 + 3] = kNan;
    bad.x[11 * 40] = -kInfinity;
    const Values got = mix(layer, bad);
    for (int64_t row = 0; row < sizes.rows; ++row) {
      INFO("row " << row);
      const Values own = rows_of(got, sizes.hidden, {row});
      if (row == 0 || row == 3 || row == 4 || row == 7 || row == 9 || row == 11 || row == 13 || row == 36) {
        REQUIRE(std::ranges::none_of(own, [](float value) { return std::isfinite(value); }));
      } else {
        REQUIRE(same_bits(own, rows_of(wanted, sizes.hidden, {row})));
      }
    }
  }
}

TEST_CASE("little scratch computes in parts with the same bits") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 156);
  const Sizes sizes{36, 20, 7, 2, 50, true};
  const Layer layer(random, sizes);
  const Rows rows = random_rows(random, sizes);
  const Values wanted = mix(layer, rows);
  for (const int32_t at_once : {1, 9, 33, 49}) {
    INFO(at_once << " rows at once");
    const DeviceArray<uint8_t> workspace = workspace_for(layer.device(), at_once);
    REQUIRE(same_bits(mix(layer.device(), rows, workspace), wanted));
    const Values padded = mix(layer.device(), rows, workspace, 12);
    REQUIRE(same_bits(rows_of(padded, sizes.hidden, numbers(0, 38)), rows_of(wanted, sizes.hidden, numbers(0, 38))));
    REQUIRE(
        same_bits(rows_of(padded, sizes.hidden, numbers(38, 50)), rows_of(rows.hidden, sizes.hidden, numbers(38, 50))));
  }
}

TEST_CASE("scratch serves layers of any sizes and grows to 256 MiB") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 157);
  const DeviceArray<uint8_t> workspace(size_t{1} << 20);
  for (const Sizes& sizes : {Sizes{64, 40, 33, 3, 40, true}, Sizes{16, 8, 2, 1, 1, false},
                             Sizes{72, 16, 9, 9, 20, true}, Sizes{64, 40, 33, 3, 40, true}}) {
    INFO(sizes.shown());
    const Layer layer(random, sizes);
    const Rows rows = random_rows(random, sizes);
    REQUIRE(same_bits(mix(layer.device(), rows, workspace), mix(layer, rows)));
  }
  const cuda::DeviceExperts large{.gate_up = nullptr,
                                  .down = nullptr,
                                  .count = 128,
                                  .per_row = 8,
                                  .renormalize = true,
                                  .hidden = 2048,
                                  .intermediate = 768};
  size_t last = 0;
  for (int32_t rows = 1; rows <= 1 << 20; rows *= 2) {
    const size_t bytes = cuda::fused_moe_workspace_bytes(large, rows);
    REQUIRE(bytes >= last);
    last = bytes;
  }
  REQUIRE(last == size_t{256} << 20);
}

TEST_CASE("unsupported experts and missing scratch are refused") {
  const auto bytes_of = [](int32_t count, int32_t per_row, int32_t groups = 1, int32_t groups_per_row = 1) {
    return cuda::fused_moe_workspace_bytes({.gate_up = nullptr,
                                            .down = nullptr,
                                            .count = count,
                                            .per_row = per_row,
                                            .renormalize = true,
                                            .routing = {.group_count = groups, .groups_per_row = groups_per_row},
                                            .hidden = 8,
                                            .intermediate = 8},
                                           1);
  };
  REQUIRE(bytes_of(cuda::kMaxExperts, cuda::kMaxExperts) > 0);
  REQUIRE(bytes_of(8, 4, 4, 2) > 0);
  // Groups of unequal size, more groups than there are, and too few experts in the groups of a row.
  for (const auto& [groups, of_row] : {std::pair(3, 1), std::pair(4, 5), std::pair(4, 1)})
    REQUIRE_THROWS_AS(bytes_of(8, 4, groups, of_row), std::invalid_argument);
  REQUIRE_THROWS_WITH(bytes_of(513, 8), "fused_moe: 8 of 513 experts per row, wanted at least one of at most 512");
  REQUIRE_THROWS_AS(bytes_of(8, 9), std::invalid_argument);
  REQUIRE_THROWS_AS(bytes_of(8, 0), std::invalid_argument);
  const cuda::DeviceExperts experts{.gate_up = nullptr,
                                    .down = nullptr,
                                    .count = 4,
                                    .per_row = 2,
                                    .renormalize = true,
                                    .hidden = 8,
                                    .intermediate = 8};
  const size_t one = cuda::fused_moe_workspace_bytes(experts, 1);
  REQUIRE_THROWS_WITH(cuda::fused_moe(nullptr, nullptr, nullptr, experts, {}, 1, nullptr, nullptr, one - 1),
                      fmt::format("fused_moe: scratch of {} bytes, wanted {} for one row", one - 1, one));
}
