#include <cmath>

#include "conformance/harness.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;

namespace {

struct MatmulSizes {
  int64_t rows, in, out;
};

/// Returns ragged, odd and ordinary shapes, and some random ones.
std::vector<MatmulSizes> matmul_sizes(Random& random) {
  std::vector<MatmulSizes> sizes = {{1, 1, 1},     {1, 64, 64},    {7, 33, 65},  {2, 896, 130},
                                    {25, 257, 31}, {130, 300, 70}, {1, 2500, 64}};
  for (int i = 0; i < 4; ++i) sizes.push_back({random.integer(1, 40), random.integer(1, 400), random.integer(1, 300)});
  return sizes;
}

/// Returns the rounding error of an f32 sum of k terms of unit scale. Each of k additions rounds a partial sum of about
/// sqrt(k) by 2^-24, and errors add like a random walk; times ten.
double sum_error(int64_t k) {
  return 10.0 * static_cast<double>(k) * 0x1p-24 + 1e-6;
}

}  // namespace

TEST_CASE("matmul agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed());
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    const DType compute = backend->compute_dtype();
    for (const auto& [rows, in, out] : matmul_sizes(random)) {
      const DType stored =
          std::array{DType::kF32, DType::kBF16, DType::kF16}[static_cast<size_t>(random.integer(0, 2))];
      INFO(backend_case.name << ": " << rows << " x " << in << " x " << out << " from " << tensor::to_string(stored));
      // The weight is stacked from two parts.
      const int64_t split = random.integer(0, out - 1);
      const HostMatrix first(random.normal(split * in), stored, split, in);
      const HostMatrix second(random.normal((out - split) * in), stored, out - split, in);
      std::vector<tensor::HostTensor> parts = {first.tensor(), second.tensor()};
      const auto weight = backend->pack(parts);
      REQUIRE(weight->out_features() == out);
      REQUIRE(weight->in_features() == in);
      Values weights = reference::to_floats(first.tensor());
      const Values rest = reference::to_floats(second.tensor());
      weights.insert(weights.end(), rest.begin(), rest.end());
      weights = reference::rounded(weights, compute);
      const Values x = reference::rounded(random.normal(rows * in), compute);
      const Values bias = random.integer(0, 1) != 0 ? random.normal(out) : Values{};
      const auto device_bias = backend->make_vector(bias);
      const DType result = random.integer(0, 1) != 0 ? DType::kF32 : compute;
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix left = make_matrix(*backend, compute, rows, in);
        const DeviceMatrix product = make_matrix(*backend, result, rows, out);
        upload(*backend, x, left);
        backend->matmul(left.matrix, *weight, bias.empty() ? nullptr : device_bias.get(), product.matrix);
        got = download(*backend, product.matrix);
      });
      check_close(got, reference::matmul(x, weights, bias, in, out), unit(result), sum_error(in));
    }
  }
}

TEST_CASE("a weight in f32 is multiplied in f32") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 4);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kF32Weights)) continue;
    for (const auto& [rows, in, out] : matmul_sizes(random)) {
      INFO(backend_case.name << ": " << rows << " x " << in << " x " << out);
      const HostMatrix stored(random.normal(out * in), DType::kF32, out, in);
      const auto weight = backend->pack_f32(stored.tensor());
      const Values x = reference::rounded(random.normal(rows * in), backend->compute_dtype());
      const Values bias = random.normal(out);
      const auto device_bias = backend->make_vector(bias);
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix left = make_matrix(*backend, backend->compute_dtype(), rows, in);
        const DeviceMatrix product = make_matrix(*backend, DType::kF32, rows, out);
        upload(*backend, x, left);
        backend->matmul(left.matrix, *weight, device_bias.get(), product.matrix);
        got = download(*backend, product.matrix);
      });
      check_close(got, reference::matmul(x, reference::to_floats(stored.tensor()), bias, in, out), unit(DType::kF32),
                  sum_error(in));
    }
  }
}

TEST_CASE("a row of a product in f32 depends on no other row") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 6);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kF32Weights)) continue;
    for (const int64_t in : {int64_t{3}, int64_t{128}, int64_t{260}, random.integer(1, 700)}) {
      constexpr int64_t kRows = 19;
      constexpr int64_t kFeatures = 13;
      INFO(backend_case.name << ": " << in << " inputs");
      const HostMatrix stored(random.normal(kFeatures * in), DType::kF16, kFeatures, in);
      const auto weight = backend->pack_f32(stored.tensor());
      Values x = reference::rounded(random.normal(kRows * in), backend->compute_dtype());
      const auto multiply = [&](const Values& left) {
        const auto rows = static_cast<int64_t>(left.size()) / in;
        Values got;
        backend->run_and_wait([&] {
          const DeviceMatrix given = make_matrix(*backend, backend->compute_dtype(), rows, in);
          const DeviceMatrix product = make_matrix(*backend, DType::kF32, rows, kFeatures);
          upload(*backend, left, given);
          backend->matmul(given.matrix, *weight, nullptr, product.matrix);
          got = download(*backend, product.matrix);
        });
        return got;
      };
      x[static_cast<size_t>(4 * in)] = std::nanf("");
      const Values together = multiply(x);
      for (int64_t row = 0; row < kRows; ++row) {
        const Values alone = multiply({x.begin() + row * in, x.begin() + (row + 1) * in});
        for (int64_t i = 0; i < kFeatures; ++i) {
          const float value = together[static_cast<size_t>(row * kFeatures + i)];
          const bool is_as_wanted = row == 4 ? std::isnan(value) : value == alone[static_cast<size_t>(i)];
          REQUIRE(is_as_wanted);
        }
      }
    }
  }
}

TEST_CASE("matmul_add adds the product and its bias to the hidden state") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 1);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    const DType compute = backend->compute_dtype();
    for (const auto& [rows, in, out] : matmul_sizes(random)) {
      INFO(backend_case.name << ": " << rows << " x " << in << " x " << out);
      const HostMatrix stored(random.normal(out * in), compute, out, in);
      const tensor::HostTensor part = stored.tensor();
      const auto weight = backend->pack({&part, 1});
      const Values x = reference::rounded(random.normal(rows * in), compute);
      const Values before = random.normal(rows * out);
      const Values bias = random.integer(0, 1) != 0 ? random.normal(out) : Values{};
      const auto device_bias = backend->make_vector(bias);
      Values wanted = reference::matmul(x, reference::to_floats(part), bias, in, out);
      for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += before[i];
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix left = make_matrix(*backend, compute, rows, in);
        const DeviceMatrix hidden = make_matrix(*backend, backend->hidden_dtype(), rows, out);
        upload(*backend, x, left);
        upload(*backend, before, hidden);
        backend->matmul_add(left.matrix, *weight, bias.empty() ? nullptr : device_bias.get(), hidden.matrix);
        got = download(*backend, hidden.matrix);
      });
      check_close(got, wanted, unit(backend->hidden_dtype()), sum_error(in));
    }
  }
}

TEST_CASE("matmul_silu_mul agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 2);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    const DType compute = backend->compute_dtype();
    for (const auto& [rows, in, out] : matmul_sizes(random)) {
      INFO(backend_case.name << ": " << rows << " x " << in << " x " << out);
      const HostMatrix gate(random.normal(out * in), compute, out, in);
      const HostMatrix up(random.normal(out * in), compute, out, in);
      const auto weight = backend->pack_gate_up(gate.tensor(), up.tensor());
      REQUIRE(weight->out_features() == out);
      const Values x = reference::rounded(random.normal(rows * in, 0.5f), compute);
      const Values wanted =
          reference::activate({}, reference::matmul(x, reference::to_floats(gate.tensor()), {}, in, out),
                              reference::matmul(x, reference::to_floats(up.tensor()), {}, in, out));
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix left = make_matrix(*backend, compute, rows, in);
        const DeviceMatrix result = make_matrix(*backend, compute, rows, out);
        upload(*backend, x, left);
        backend->matmul_silu_mul(left.matrix, *weight, result.matrix);
        got = download(*backend, result.matrix);
      });
      check_close(got, wanted, unit(compute) + 1e-4, sum_error(in) * 3 * std::sqrt(static_cast<double>(in)));
    }
  }
}
