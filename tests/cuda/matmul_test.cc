#include <algorithm>
#include <numeric>

#include "cuda/device_array.h"
#include "cuda/emulator/emulator.h"

using namespace millrace;
using namespace millrace::test;

namespace {

struct Weight {
  DeviceArray<uint8_t> packed;
  cuda::DeviceWeight device;
};

/// Packs the parts, stacked.
Weight pack(const std::vector<HostMatrix>& parts, cuda::SourceType type, cuda::MatrixInstruction by) {
  const auto in = static_cast<int32_t>(parts.front().tensor().shape[1]);
  int32_t out = 0;
  for (const HostMatrix& part : parts) out += static_cast<int32_t>(part.tensor().shape[0]);
  Weight weight{DeviceArray<uint8_t>(cuda::packed_weight_bytes(out, in, false)), {}};
  int32_t first = 0;
  for (const HostMatrix& part : parts) {
    const tensor::HostTensor host = part.tensor();
    const DeviceArray<uint8_t> source(std::vector<uint8_t>(reinterpret_cast<const uint8_t*>(host.data),
                                                           reinterpret_cast<const uint8_t*>(host.data) + host.bytes()));
    const auto rows = static_cast<int32_t>(host.shape[0]);
    cuda::pack_weight(nullptr, source.get(), type, rows, in, first, cuda::PackAs::kRows, weight.packed.get());
    first += rows;
  }
  weight.device = {.data = weight.packed.get(), .out_features = out, .in_features = in, .gate_up = false, .by = by};
  return weight;
}

Weight pack_gate_up(const Values& gate, const Values& up, int32_t out, int32_t in, cuda::MatrixInstruction by) {
  Weight weight{DeviceArray<uint8_t>(cuda::packed_weight_bytes(out, in, true)), {}};
  const DeviceArray<uint16_t> device_gate(bf16_bits(gate));
  const DeviceArray<uint16_t> device_up(bf16_bits(up));
  cuda::pack_weight(nullptr, device_gate.get(), cuda::SourceType::kBF16, out, in, 0, cuda::PackAs::kGate,
                    weight.packed.get());
  cuda::pack_weight(nullptr, device_up.get(), cuda::SourceType::kBF16, out, in, 0, cuda::PackAs::kUp,
                    weight.packed.get());
  weight.device = {.data = weight.packed.get(), .out_features = out, .in_features = in, .gate_up = true, .by = by};
  return weight;
}

DeviceArray<uint8_t> workspace_for(const cuda::DeviceWeight& weight, int32_t rows) {
  return DeviceArray<uint8_t>(cuda::matmul_workspace_bytes(weight, rows));
}

/// Returns x (bf16 values) [rows, in] times the weight; with a gate_up weight the gated result.
Values product(const Weight& weight, const Values& x, const Values& bias, const DeviceArray<uint8_t>& workspace) {
  const auto rows = static_cast<int32_t>(x.size()) / weight.device.in_features;
  const DeviceArray<uint16_t> device_x(bf16_bits(x));
  const DeviceArray<float> device_bias(bias);
  const size_t count = static_cast<size_t>(rows) * static_cast<size_t>(weight.device.out_features);
  if (weight.device.gate_up) {
    const DeviceArray<uint16_t> out(count, 0xFF);
    cuda::matmul_silu_mul(nullptr, device_x.get(), weight.device, rows, out.get(), workspace.get());
    return bf16_values(out.values());
  }
  const DeviceArray<float> out(count, 0xFF);
  cuda::matmul(nullptr, device_x.get(), weight.device, bias.empty() ? nullptr : device_bias.get(), rows, out.get(),
               cuda::OutputType::kF32, workspace.get());
  return out.values();
}

/// Generates each instruction in turn.
cuda::MatrixInstruction each_instruction() {
  return GENERATE(cuda::MatrixInstruction::kMma, cuda::MatrixInstruction::kWgmma);
}
const char* name_of(cuda::MatrixInstruction by) {
  return by == cuda::MatrixInstruction::kMma ? "mma" : "wgmma";
}

double sum_error(int64_t in) {
  return 1e-5 * std::sqrt(static_cast<double>(in));
}

/// Returns the chosen rows of x.
Values take_rows(const Values& x, int64_t width, const std::vector<int64_t>& rows) {
  Values chosen;
  for (const int64_t row : rows) chosen.insert(chosen.end(), x.begin() + row * width, x.begin() + (row + 1) * width);
  return chosen;
}

}  // namespace

TEST_CASE("the order of a sum follows from the weight of all ranks") {
  const cuda::MatrixInstruction by = each_instruction();
  INFO("seed " << test_seed() << ", " << name_of(by));
  Random random(test_seed() + 111);
  constexpr int32_t kIn = 1024;
  constexpr int32_t kPart = 64;
  constexpr int32_t kAll = 12800;  // fills the GPU without splits, which a part does not
  const Values values = random.normal(int64_t{2 * kPart} * kIn);
  const Values half(values.begin(), values.begin() + int64_t{kPart} * kIn);
  const auto result = [&](const Values& weights, int32_t rows, int32_t whole_features, const Values& x) {
    Weight weight = pack({HostMatrix(weights, tensor::DType::kF32, rows, kIn)}, cuda::SourceType::kF32, by);
    weight.device.whole_features = whole_features;
    return product(weight, x, {}, workspace_for(weight.device, static_cast<int32_t>(x.size()) / kIn));
  };
  for (const int32_t rows : {1, 40}) {
    const Values x = rounded_bf16(random.normal(int64_t{rows} * kIn));
    const Values both = result(values, 2 * kPart, kAll, x);
    const Values one = result(half, kPart, kAll, x);
    Values wanted;
    for (int32_t row = 0; row < rows; ++row) {
      const auto begin = both.begin() + int64_t{row} * 2 * kPart;
      wanted.insert(wanted.end(), begin, begin + kPart);
    }
    REQUIRE(one == wanted);
    REQUIRE(one != result(half, kPart, 0, x));
  }
}

TEST_CASE("GEMMs agree with the reference for all shapes and dtypes") {
  const cuda::MatrixInstruction by = each_instruction();
  INFO("seed " << test_seed() << ", " << name_of(by));
  Random random(test_seed() + 110);
  struct Shape {
    int32_t in;
    std::vector<int32_t> outs;
    int32_t rows;
  };
  const Shape shapes[] = {{64, {64}, 1},
                          {130, {70, 3}, 9},
                          {8, {1}, 3},
                          {1, {5}, 2},
                          {520, {136}, 17},
                          {600, {40, 40, 9}, 33},
                          {72, {200}, 70},
                          {321, {128}, 150},
                          {200, {130}, 530},
                          {static_cast<int32_t>(random.integer(1, 700)),
                           {static_cast<int32_t>(random.integer(1, 150))},
                           static_cast<int32_t>(random.integer(1, 140))}};
  const std::pair<tensor::DType, cuda::SourceType> types[] = {{tensor::DType::kF32, cuda::SourceType::kF32},
                                                              {tensor::DType::kBF16, cuda::SourceType::kBF16},
                                                              {tensor::DType::kF16, cuda::SourceType::kF16}};
  for (const Shape& shape : shapes) {
    const auto& [dtype, type] = types[random.integer(0, 2)];
    std::vector<HostMatrix> parts;
    Values stacked;
    int32_t out = 0;
    for (const int32_t rows : shape.outs) {
      parts.emplace_back(random.normal(int64_t{rows} * shape.in), dtype, rows, shape.in);
      const Values stored = rounded_bf16(reference::to_floats(parts.back().tensor()));
      stacked.insert(stacked.end(), stored.begin(), stored.end());
      out += rows;
    }
    INFO("in " << shape.in << ", out " << out << ", rows " << shape.rows << ", " << tensor::to_string(dtype));
    const Weight weight = pack(parts, type, by);
    const Values x = rounded_bf16(random.normal(int64_t{shape.rows} * shape.in));
    const Values bias = random.integer(0, 1) != 0 ? random.normal(out) : Values{};
    const Values wanted = reference::matmul(x, stacked, bias, shape.in, out);
    const auto workspace = workspace_for(weight.device, shape.rows);
    check_close(product(weight, x, bias, workspace), wanted, 1e-5, sum_error(shape.in));

    const DeviceArray<uint16_t> device_x(bf16_bits(x));
    const DeviceArray<float> device_bias(bias);
    const float* bias_or_null = bias.empty() ? nullptr : device_bias.get();
    const DeviceArray<uint16_t> narrow(wanted.size(), 0xFF);
    cuda::matmul(nullptr, device_x.get(), weight.device, bias_or_null, shape.rows, narrow.get(),
                 cuda::OutputType::kBF16, workspace.get());
    check_close(bf16_values(narrow.values()), wanted, 0x1p-8, sum_error(shape.in));

    const Values hidden = random.normal(static_cast<int64_t>(wanted.size()));
    const DeviceArray<float> device_hidden(hidden);
    cuda::matmul_add(nullptr, device_x.get(), weight.device, bias_or_null, shape.rows, device_hidden.get(),
                     workspace.get());
    Values sum = wanted;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += hidden[i];
    check_close(device_hidden.values(), sum, 1e-5, sum_error(shape.in));
  }
}

TEST_CASE("matmul_silu_mul agrees with the reference") {
  const cuda::MatrixInstruction by = each_instruction();
  INFO("seed " << test_seed() << ", " << name_of(by));
  Random random(test_seed() + 111);
  for (const auto& [in, out, rows] : {std::array{64, 32, 1}, {96, 44, 12}, {300, 7, 40}, {260, 100, 130}}) {
    INFO("in " << in << ", out " << out << ", rows " << rows);
    const Values gate = rounded_bf16(random.normal(int64_t{out} * in, 0.1f));
    const Values up = rounded_bf16(random.normal(int64_t{out} * in, 0.1f));
    const Values x = rounded_bf16(random.normal(int64_t{rows} * in));
    const Weight weight = pack_gate_up(gate, up, out, in, by);
    const Values wanted =
        reference::activate({}, reference::matmul(x, gate, {}, in, out), reference::matmul(x, up, {}, in, out));
    check_close(product(weight, x, {}, workspace_for(weight.device, rows)), wanted, 0x1p-7, sum_error(in));
  }
}

TEST_CASE("a CUDA GEMM row has equal bits among 1 to 600 rows") {
  const cuda::MatrixInstruction by = each_instruction();
  INFO("seed " << test_seed() << ", " << name_of(by));
  Random random(test_seed() + 112);
  constexpr int64_t kRows = 600;
  // Sums in one piece, in a few splits, and in many.
  for (const auto& [in, out, gated] : {std::array{72, 70, 0}, {640, 130, 0}, {1100, 24, 0}, {530, 40, 1}}) {
    INFO("in " << in << ", out " << out);
    const Values matrix = rounded_bf16(random.normal(int64_t{out} * in));
    const Values other = rounded_bf16(random.normal(int64_t{out} * in));
    const Weight weight = gated != 0
                              ? pack_gate_up(matrix, other, out, in, by)
                              : pack({HostMatrix(matrix, tensor::DType::kBF16, out, in)}, cuda::SourceType::kBF16, by);
    const Values x = rounded_bf16(random.normal(kRows * in));
    const auto workspace = workspace_for(weight.device, kRows);
    const Values whole = product(weight, x, {}, workspace);
    REQUIRE(std::ranges::all_of(whole, [](float value) { return std::isfinite(value); }));
    std::vector<int64_t> rows(kRows);
    std::iota(rows.begin(), rows.end(), 0);
    for (const int64_t count : {int64_t{1}, int64_t{2}, int64_t{8}, int64_t{9}, int64_t{16}, int64_t{17}, int64_t{32},
                                int64_t{33}, int64_t{64}, int64_t{65}, int64_t{128}, int64_t{129}, int64_t{256},
                                int64_t{257}, int64_t{511}, int64_t{512}, random.integer(1, kRows)}) {
      INFO(count << " rows");
      std::shuffle(rows.begin(), rows.end(), random.engine());
      const std::vector<int64_t> chosen(rows.begin(), rows.begin() + count);
      emulator::set_order_seed(static_cast<uint64_t>(random.integer(1, 1 << 30)));
      const Values some = product(weight, take_rows(x, in, chosen), {}, workspace);
      const Values wanted = take_rows(whole, out, chosen);
      REQUIRE(std::memcmp(some.data(), wanted.data(), wanted.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("a product wants a weight of its kind") {
  const Weight rows = pack({HostMatrix(Values(64, 1.0f), tensor::DType::kF32, 8, 8)}, cuda::SourceType::kF32,
                           cuda::MatrixInstruction::kMma);
  const Weight gated = pack_gate_up(Values(64, 1.0f), Values(64, 1.0f), 8, 8, cuda::MatrixInstruction::kMma);
  REQUIRE_THROWS_WITH(cuda::matmul_silu_mul(nullptr, nullptr, rows.device, 1, nullptr, nullptr),
                      "matmul_silu_mul: found a weight packed as rows, wanted the other kind");
  REQUIRE_THROWS_AS(cuda::matmul(nullptr, nullptr, gated.device, nullptr, 1, nullptr, cuda::OutputType::kF32, nullptr),
                    std::invalid_argument);
}
