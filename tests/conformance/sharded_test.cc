// Sums that are divided over ranks: their value, and that every count of ranks gives the same bits.

#include <fmt/core.h>

#include "conformance/harness.h"
#include "conformance/random_fp8.h"
#include "tensor/quantized_inputs.h"
#include "tensor/slices.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;
using tensor::RankPosition;
using tensor::SumShards;
using tensor::TermRange;
using tensor::W8Activations;

namespace {

enum class Format : uint8_t { kCompute, kW8, kW8A8, kW8A8Int8, kFp8, kFp8Rows, kW4, kW4Wide };

/// A sum over the outputs of heads, or of `inputs` features.
struct Sum {
  int64_t heads = 0;
  int64_t inputs = 0;

  [[nodiscard]] SumShards shards(RankPosition position) const {
    return heads > 0 ? tensor::head_shards(heads, inputs / heads, position) : tensor::feature_shards(inputs, position);
  }
};

constexpr Sum kSums[] = {{.heads = 16, .inputs = 512},
                         {.heads = 8, .inputs = 128},
                         {.heads = 8, .inputs = 160},
                         {.heads = 8, .inputs = 24},
                         {.inputs = 1160},
                         {.inputs = 200},
                         {.inputs = 7}};

std::vector<Format> formats_of(const tensor::Backend& backend) {
  if (!tensor::quantizes_inputs(backend)) return {Format::kCompute, Format::kW8, Format::kW4, Format::kW4Wide};
  return {Format::kCompute, Format::kW8,      Format::kW8A8, Format::kW8A8Int8,
          Format::kFp8,     Format::kFp8Rows, Format::kW4,   Format::kW4Wide};
}

Values columns(const Values& matrix, int64_t width, TermRange cols) {
  Values some;
  for (auto row = matrix.begin(); row != matrix.end(); row += width)
    some.insert(some.end(), row + cols.begin, row + cols.end);
  return some;
}

/// Adds vectors pairwise until one is left.
Values tree(std::vector<Values> sums) {
  while (sums.size() > 1) {
    std::vector<Values> halves;
    for (size_t i = 0; i < sums.size(); i += 2) {
      Values& half = halves.emplace_back(sums[i]);
      for (size_t j = 0; j < half.size(); ++j) half[j] += sums[i + 1][j];
    }
    sums = std::move(halves);
  }
  return sums.front();
}

/// A weight [out, inputs], its inputs, a bias and a residual.
class ShardedCase {
 public:
  ShardedCase(Random& random, tensor::Backend& backend, const Sum& sum, Format format)
      : sum(sum),
        rows(random.integer(0, 2) == 0 ? 130 : random.integer(1, 40)),
        out(random.integer(1, 100)),
        x(reference::rounded(random.normal(rows * sum.inputs), backend.compute_dtype())),
        bias(random.normal(out)),
        before(random.normal(rows * out)),
        plain(random.normal(out * sum.inputs), backend.compute_dtype(), out, sum.inputs),
        quantized(tensor::quantize_w8(plain.tensor(), format == Format::kW8A8Int8 ? tensor::W8Scaling::kPerChannel
                                                                                  : tensor::W8Scaling::kPerGroup)),
        fp8(rounded_to_fp8(plain.tensor(), format == Format::kFp8Rows ? Fp8Block{1, 0} : Fp8Block{48, 64})),
        quantized_w4(tensor::quantize_w4(plain.tensor(), format == Format::kW4Wide ? 256 : 32)),
        backend_(backend),
        format_(format),
        bias_(backend.make_vector(bias)) {}

  [[nodiscard]] bool is_fp8() const { return format_ == Format::kFp8 || format_ == Format::kFp8Rows; }
  [[nodiscard]] bool has_4_bits() const { return format_ == Format::kW4 || format_ == Format::kW4Wide; }
  /// Returns whether a rank's columns can be cut from the weight.
  [[nodiscard]] bool can_cut(int32_t ranks) const {
    if (format_ == Format::kCompute || format_ == Format::kW8A8Int8 || is_fp8()) return true;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      if (sum.shards({rank, ranks}).owned().begin % tensor::kW8Group != 0) return false;
    }
    return true;
  }
  [[nodiscard]] std::unique_ptr<tensor::PackedWeight> pack(RankPosition position) const {
    const SumShards shards = sum.shards(position);
    if (format_ == Format::kCompute) {
      return backend_.pack_sharded(tensor::column_slice(plain.tensor(), shards.owned()).tensor, shards);
    }
    if (is_fp8()) return backend_.pack_sharded_fp8(tensor::column_slice(fp8.matrix, shards.owned()), shards);
    if (has_4_bits())
      return backend_.pack_sharded_codes(tensor::column_slice(quantized_w4.view(), shards.owned()), shards);
    const auto inputs = format_ == Format::kW8 ? W8Activations::kUnquantized : W8Activations::kInt8;
    return backend_.pack_sharded_w8(tensor::column_slice(quantized.view(), shards.owned()).matrix, inputs, shards);
  }
  /// Returns the rank's sums.
  [[nodiscard]] Values sums_of(RankPosition position) const {
    const TermRange owned = sum.shards(position).owned();
    const auto weight = pack(position);
    REQUIRE(weight->in_features() == owned.size());
    Values sums;
    backend_.run_and_wait([&] {
      const DeviceMatrix left = make_matrix(backend_, backend_.compute_dtype(), rows, owned.size());
      const DeviceMatrix result = make_matrix(backend_, DType::kF32, rows, out);
      upload(backend_, columns(x, sum.inputs, owned), left);
      backend_.matmul(left.matrix, *weight, nullptr, result.matrix);
      sums = download(backend_, result.matrix);
    });
    return sums;
  }
  /// Returns the sums of all ranks, whose integers are added in the order of ranks.
  [[nodiscard]] Values integer_sums(int32_t ranks) const {
    std::vector<std::unique_ptr<tensor::PackedWeight>> weights;
    for (int32_t rank = 0; rank < ranks; ++rank) weights.push_back(pack({rank, ranks}));
    Values sums;
    backend_.run_and_wait([&] {
      const DeviceMatrix magnitudes = make_matrix(backend_, DType::kF32, rows, ranks);
      upload(backend_, magnitudes_of(ranks), magnitudes);
      std::vector<int32_t> total(static_cast<size_t>(rows * out));
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const TermRange owned = sum.shards({rank, ranks}).owned();
        const DeviceMatrix left = make_matrix(backend_, backend_.compute_dtype(), rows, owned.size());
        upload(backend_, columns(x, sum.inputs, owned), left);
        std::vector<int32_t> own(total.size());
        backend_.matmul_integers(left.matrix, *weights[static_cast<size_t>(rank)], magnitudes.matrix,
                                 {.data = own.data(), .rows = rows, .cols = out});
        for (size_t i = 0; i < own.size(); ++i) total[i] += own[i];
      }
      const DeviceMatrix result = make_matrix(backend_, DType::kF32, rows, out);
      backend_.scale_integers({.data = total.data(), .rows = rows, .cols = out}, *weights.front(), magnitudes.matrix,
                              result.matrix);
      sums = download(backend_, result.matrix);
    });
    return sums;
  }
  /// Returns the residual with the whole sum and the bias.
  [[nodiscard]] Values whole() const {
    const auto weight = pack({});
    return with_hidden([&](const tensor::Matrix& hidden) {
      const DeviceMatrix left = make_matrix(backend_, backend_.compute_dtype(), rows, sum.inputs);
      upload(backend_, x, left);
      backend_.matmul_add(left.matrix, *weight, bias_.get(), hidden);
    });
  }
  /// Returns the residual with the given sum and the bias.
  [[nodiscard]] Values finished(const Values& sums) const {
    return with_hidden([&](const tensor::Matrix& hidden) {
      const DeviceMatrix summed = make_matrix(backend_, DType::kF32, rows, out);
      upload(backend_, sums, summed);
      backend_.add_sums(summed.matrix, bias_.get(), hidden);
    });
  }

  const Sum sum;
  const int64_t rows;
  const int64_t out;
  const Values x;
  const Values bias;
  const Values before;
  const HostMatrix plain;
  const tensor::W8Storage quantized;
  const Fp8Storage fp8;
  const tensor::CodeStorage quantized_w4;

 private:
  template <class Work>
  Values with_hidden(const Work& work) const {
    Values result;
    backend_.run_and_wait([&] {
      const DeviceMatrix hidden = make_matrix(backend_, backend_.hidden_dtype(), rows, out);
      upload(backend_, before, hidden);
      work(hidden.matrix);
      result = download(backend_, hidden.matrix);
    });
    return result;
  }

  /// Returns the largest magnitude of each row on each of `ranks` ranks.
  [[nodiscard]] Values magnitudes_of(int32_t ranks) const {
    Values all(static_cast<size_t>(rows * ranks));
    for (int32_t rank = 0; rank < ranks; ++rank) {
      const TermRange owned = sum.shards({rank, ranks}).owned();
      const DeviceMatrix part = make_matrix(backend_, backend_.compute_dtype(), rows, owned.size());
      const DeviceMatrix found = make_matrix(backend_, DType::kF32, rows, 1);
      upload(backend_, columns(x, sum.inputs, owned), part);
      backend_.row_magnitudes(part.matrix, found.matrix);
      const Values own = download(backend_, found.matrix);
      for (size_t row = 0; row < own.size(); ++row)
        all[row * static_cast<size_t>(ranks) + static_cast<size_t>(rank)] = own[row];
    }
    return all;
  }

  tensor::Backend& backend_;
  const Format format_;
  const std::unique_ptr<tensor::DeviceVector> bias_;
};

std::string shown(const BackendCase& backend_case, const Sum& sum, Format format) {
  constexpr const char* kNames[] = {"plain", "w8", "w8a8", "w8a8_int8", "fp8", "fp8 of rows", "w4", "w4 of 256"};
  return fmt::format("{}, {}: {} inputs, {} heads", backend_case.name, kNames[static_cast<size_t>(format)], sum.inputs,
                     sum.heads);
}

}  // namespace

TEST_CASE("borders of shards do not depend on the count of ranks") {
  const SumShards heads = tensor::head_shards(14, 64, {});
  REQUIRE(heads.border == std::array<int64_t, 9>{0, 64, 192, 320, 448, 512, 640, 768, 896});
  const SumShards features = tensor::feature_shards(4864, {});
  REQUIRE(features.border == std::array<int64_t, 9>{0, 576, 1216, 1792, 2432, 3008, 3648, 4224, 4864});
  REQUIRE(tensor::feature_shards(72, {}).border == std::array<int64_t, 9>{0, 8, 16, 24, 32, 40, 48, 56, 72});
  REQUIRE(tensor::expert_shards(3, {}).border == std::array<int64_t, 9>{0, 0, 0, 1, 1, 1, 2, 2, 3});
  for (const int32_t size : {1, 2, 4, 8}) {
    int64_t end = 0;
    for (int32_t rank = 0; rank < size; ++rank) {
      const SumShards own = tensor::feature_shards(4864, {rank, size});
      REQUIRE(own.border == features.border);
      REQUIRE(own.owned().begin == end);
      end = own.owned().end;
    }
    REQUIRE(end == 4864);
  }
}

TEST_CASE("a GEMM in shards agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 60);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const Sum& sum : kSums) {
      for (const Format format : formats_of(*backend)) {
        INFO(shown(backend_case, sum, format));
        const ShardedCase sharded(random, *backend, sum, format);
        if (format == Format::kW8A8Int8) {
          const Values wanted = reference::matmul_int8(sharded.x, sharded.quantized.view());
          const bool same = sharded.sums_of({}) == wanted;
          REQUIRE(same);
          continue;
        }
        Values weights = reference::to_floats(sharded.plain.tensor());
        if (sharded.has_4_bits()) {
          weights = reference::to_floats(sharded.quantized_w4.view());
        } else if (sharded.is_fp8()) {
          weights = reference::rounded(tensor::decode(sharded.fp8.matrix), backend_case.w8_dtype());
        } else if (format != Format::kCompute) {
          weights = reference::to_floats(sharded.quantized.view());
          if (format == Format::kW8) weights = reference::rounded(weights, backend_case.w8_dtype());
        }
        Values inputs = sharded.x;
        // Where borders cut a group of 32 inputs, its parts have scales of their own, which the reference does not
        // model.
        const bool rounds_w4 = sharded.has_4_bits() && tensor::quantizes_inputs(*backend);
        if (sharded.has_4_bits() && !rounds_w4) weights = reference::rounded(weights, DType::kBF16);
        if (format == Format::kW8A8 || rounds_w4) {
          if (!sharded.can_cut(tensor::kSumShards)) continue;
          inputs = reference::rounded_to_int8(inputs, sum.inputs);
        }
        Values wanted = reference::matmul(inputs, weights, sharded.bias, sum.inputs, sharded.out);
        for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += sharded.before[i];
        check_close(sharded.whole(), wanted, unit(DType::kF32),
                    40.0 * static_cast<double>(sum.inputs) * 0x1p-24 + 1e-6);
      }
    }
  }
}

TEST_CASE("GEMMs of ranks add up to the same bits for every count") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 61);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const Sum& sum : kSums) {
      for (const Format format : formats_of(*backend)) {
        INFO(shown(backend_case, sum, format));
        const ShardedCase sharded(random, *backend, sum, format);
        const Values wanted = sharded.whole();
        // One count per case and run: all of them take minutes where instructions are emulated.
        const auto ranks = static_cast<int32_t>(int64_t{1} << random.integer(0, 3));
        if (!sharded.can_cut(ranks) || sum.inputs < 8 * ranks) continue;
        std::vector<Values> sums;
        if (format == Format::kW8A8Int8) {
          sums.push_back(sharded.integer_sums(ranks));
        } else {
          for (int32_t rank = 0; rank < ranks; ++rank) sums.push_back(sharded.sums_of({rank, ranks}));
        }
        const bool same = sharded.finished(tree(sums)) == wanted;
        INFO(ranks << " ranks, " << sharded.rows << " x " << sharded.out);
        REQUIRE(same);
      }
    }
  }
}

TEST_CASE("columns of an 8-bit matrix keep their values and scales") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 62);
  const HostMatrix source(random.normal(5 * 150), DType::kF32, 5, 150);
  for (const auto scaling : {tensor::W8Scaling::kPerGroup, tensor::W8Scaling::kPerChannel}) {
    const tensor::W8Storage whole = tensor::quantize_w8(source.tensor(), scaling);
    const TermRange cols{64, 150};
    const Values wanted = columns(reference::to_floats(whole.view()), 150, cols);
    REQUIRE(reference::to_floats(tensor::column_slice(whole.view(), cols).matrix) == wanted);
    const Values rows = reference::to_floats(tensor::row_slice(whole.view(), {2, 4}));
    const Values all = reference::to_floats(whole.view());
    REQUIRE(rows == Values(all.begin() + 300, all.begin() + 600));
    Values padded(all.begin() + 450, all.end());
    padded.resize(4 * 150);
    REQUIRE(reference::to_floats(tensor::padded_rows(whole.view(), 3, 4).matrix) == padded);
  }
}
