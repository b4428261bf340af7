#include <array>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "conformance/harness.h"

using namespace millrace;
using namespace millrace::test;
using tensor::DType;

/// What a norm of up to 3000 values in f32 may differ by, of a value: the order of its sum is the backend's.
constexpr double kNormTolerance = 2e-6;

TEST_CASE("embed reads rows of any dtype and zeros for unknown tokens") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 3);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const DType stored : {DType::kF32, DType::kBF16, DType::kF16}) {
      INFO(backend_case.name << " from " << tensor::to_string(stored));
      const int64_t width = random.integer(1, 70);
      const HostMatrix table(random.normal(50 * width), stored, 50, width);
      const auto embedding = backend->make_embedding(table.tensor());
      const std::vector<TokenId> tokens = {3, 49, 0, -1, 50, 3, 100000};
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix hidden = make_matrix(*backend, backend->hidden_dtype(), 7, width);
        backend->embed(*embedding, backend->upload(tokens), hidden.matrix);
        got = download(*backend, hidden.matrix);
      });
      const Values wanted = reference::rounded(reference::embed(table.tensor(), tokens), backend_case.table_dtype);
      check_close(got, wanted, 0.0, 0.0);
    }
  }
}

TEST_CASE("embed decodes the rows of tokens alone") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 79);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->decodes_embeddings()) continue;
    INFO(backend_case.name);
    const int64_t width = random.integer(1, 70);
    const HostMatrix table(random.normal(50 * width), DType::kF32, 50, width);
    std::mutex mutex;
    std::multiset<int64_t> decoded;
    const auto read = [&](int64_t first, int64_t count, float* out) {
      const std::scoped_lock lock(mutex);
      REQUIRE(count == 1);
      decoded.insert(first);
      tensor::read_floats(table.tensor(), first * width, count * width, out);
    };
    const auto embedding = backend->make_decoding_embedding(50, width, read);
    const std::vector<TokenId> tokens = {3, 49, 0, -1, 50, 3, 100000};
    Values got;
    backend->run_and_wait([&] {
      const DeviceMatrix hidden = make_matrix(*backend, backend->hidden_dtype(), 7, width);
      backend->embed(*embedding, backend->upload(tokens), hidden.matrix);
      got = download(*backend, hidden.matrix);
    });
    check_close(got, reference::embed(table.tensor(), tokens), 0.0, 0.0);
    REQUIRE(decoded == std::multiset<int64_t>{0, 3, 3, 49});
  }
}

TEST_CASE("f16 tables are read exactly with subnormals and infinities") {
  std::vector<uint16_t> bits;
  for (uint32_t word = 0; word < 0x7C01; ++word) bits.push_back(static_cast<uint16_t>(word));
  for (uint32_t word = 0x8000; word < 0xFC01; ++word) bits.push_back(static_cast<uint16_t>(word));
  const auto width = static_cast<int64_t>(bits.size());
  const tensor::HostTensor table{.name = "all",
                                 .dtype = DType::kF16,
                                 .shape = {1, width},
                                 .data = reinterpret_cast<const std::byte*>(bits.data())};
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    const auto embedding = backend->make_embedding(table);
    Values got;
    backend->run_and_wait([&] {
      const DeviceMatrix hidden = make_matrix(*backend, backend->hidden_dtype(), 1, width);
      const std::vector<TokenId> tokens = {0};
      backend->embed(*embedding, backend->upload(tokens), hidden.matrix);
      got = download(*backend, hidden.matrix);
    });
    REQUIRE(got == reference::rounded(reference::to_floats(table), backend_case.table_dtype));
  }
}

TEST_CASE("rms_norm agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 4);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const int64_t width : {int64_t{1}, int64_t{15}, int64_t{16}, int64_t{896}, random.integer(1, 3000)}) {
      INFO(backend_case.name << ": width " << width);
      const int64_t rows = random.integer(1, 9);
      const Values in = random.normal(rows * width, 3.0f);
      const Values weight = random.normal(width);
      const auto device_weight = backend->make_vector(weight);
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix hidden = make_matrix(*backend, backend->hidden_dtype(), rows, width);
        const DeviceMatrix out = make_matrix(*backend, backend->compute_dtype(), rows, width);
        upload(*backend, in, hidden);
        backend->rms_norm(hidden.matrix, *device_weight, 1e-5f, out.matrix);
        got = download(*backend, out.matrix);
      });
      check_close(got, reference::rms_norm(in, weight, 1e-5), unit(backend->compute_dtype()) + kNormTolerance, 1e-7);
    }
  }
}

TEST_CASE("rms_norm_in_place agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 5);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kExpertNorms)) continue;
    for (const int64_t width : {int64_t{1}, int64_t{15}, int64_t{896}, random.integer(1, 3000)}) {
      INFO(backend_case.name << ": width " << width);
      const int64_t rows = random.integer(1, 9);
      const Values in = random.normal(rows * width, 3.0f);
      const Values weight = random.normal(width);
      const auto device_weight = backend->make_vector(weight);
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix values = make_matrix(*backend, DType::kF32, rows, width);
        upload(*backend, in, values);
        backend->rms_norm_in_place(values.matrix, *device_weight, 1e-5f);
        got = download(*backend, values.matrix);
      });
      check_close(got, reference::rms_norm(in, weight, 1e-5), kNormTolerance, 1e-7);
    }
  }
}

TEST_CASE("layer_norm agrees with the reference in place and rounded") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 10);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kEncoders)) continue;
    for (const int64_t width : {int64_t{2}, int64_t{15}, int64_t{384}, random.integer(2, 3000)}) {
      INFO(backend_case.name << ": width " << width);
      const int64_t rows = random.integer(1, 9);
      Values in = random.normal(rows * width, 3.0f);
      for (float& value : in) value += 40.0f;
      const Values weight = random.normal(width);
      const Values bias = random.normal(width);
      const auto device_weight = backend->make_vector(weight);
      const auto device_bias = backend->make_vector(bias);
      Values got;
      Values residual;
      backend->run_and_wait([&] {
        const DeviceMatrix hidden = make_matrix(*backend, backend->hidden_dtype(), rows, width);
        const DeviceMatrix out = make_matrix(*backend, backend->compute_dtype(), rows, width);
        upload(*backend, in, hidden);
        backend->layer_norm(hidden.matrix, *device_weight, device_bias.get(), 1e-12f, true, out.matrix);
        got = download(*backend, out.matrix);
        residual = download(*backend, hidden.matrix);
      });
      const Values wanted = reference::layer_norm(in, weight, bias, 1e-12);
      check_close(residual, wanted, 1e-6, 1e-5);
      check_close(got, wanted, unit(backend->compute_dtype()) + 1e-6, 1e-5);
    }
  }
}

TEST_CASE("layer_norm without a bias leaves its input") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 13);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kLayerNorm)) continue;
    for (const int64_t width : {int64_t{2}, int64_t{33}, random.integer(2, 3000)}) {
      INFO(backend_case.name << ": width " << width);
      const Values in = random.normal(7 * width, 3.0f);
      const Values weight = random.normal(width);
      const auto device_weight = backend->make_vector(weight);
      Values got;
      Values residual;
      backend->run_and_wait([&] {
        const DeviceMatrix hidden = make_matrix(*backend, backend->hidden_dtype(), 7, width);
        const DeviceMatrix out = make_matrix(*backend, backend->compute_dtype(), 7, width);
        upload(*backend, in, hidden);
        backend->layer_norm(hidden.matrix, *device_weight, nullptr, 1e-5f, false, out.matrix);
        got = download(*backend, out.matrix);
        residual = download(*backend, hidden.matrix);
      });
      const Values no_bias(static_cast<size_t>(width));
      check_close(got, reference::layer_norm(in, weight, no_bias, 1e-5), unit(backend->compute_dtype()) + 1e-6, 1e-5);
      REQUIRE(residual == in);
    }
  }
}

TEST_CASE("convert rounds to the compute dtype") {
  Random random(14);
  const Values in = random.normal(5 * 75, 3.0f);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kConversion)) continue;
    INFO(backend_case.name);
    Values got;
    backend->run_and_wait([&] {
      const DeviceMatrix hidden = make_matrix(*backend, backend->hidden_dtype(), 5, 75);
      const DeviceMatrix out = make_matrix(*backend, backend->compute_dtype(), 5, 75);
      upload(*backend, in, hidden);
      backend->convert(hidden.matrix, out.matrix);
      got = download(*backend, out.matrix);
    });
    REQUIRE(got == reference::rounded(in, backend->compute_dtype()));
  }
}

TEST_CASE("scale and soft_cap change every element") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 15);
  Values in = random.normal(6 * 77, 20.0f);
  for (size_t i = 0; i < 5; ++i) in[i] = std::array{0.0f, -1e4f, 1e4f, 1e-6f, 30.0f}[i];
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kScaling) || !backend->computes(tensor::Feature::kSoftCap)) continue;
    INFO(backend_case.name);
    Values scaled;
    Values capped;
    backend->run_and_wait([&] {
      const DeviceMatrix matrix = make_matrix(*backend, DType::kF32, 6, 77);
      upload(*backend, in, matrix);
      backend->scale(matrix.matrix, 0.3f);
      scaled = download(*backend, matrix.matrix);
      upload(*backend, in, matrix);
      backend->soft_cap(matrix.matrix, 30.0f);
      capped = download(*backend, matrix.matrix);
    });
    for (size_t i = 0; i < in.size(); ++i) REQUIRE(scaled[i] == in[i] * 0.3f);
    check_close(capped, reference::soft_cap(in, 30.0), 1e-6, 1e-5);
  }
}

TEST_CASE("add_scaled_sums ends a block with and without a norm") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 17);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kScaledSums)) continue;
    const int64_t width = random.integer(1, 200);
    INFO(backend_case.name << ": width " << width);
    const Values before = random.normal(5 * width);
    const Values sums = random.normal(5 * width, 3.0f);
    const Values bias = random.normal(width);
    const Values norm = random.normal(width);
    const auto device_bias = backend->make_vector(bias);
    const auto device_norm = backend->make_vector(norm);
    for (const bool has_bias : {false, true}) {
      for (const bool has_norm : {false, true}) {
        Values got;
        backend->run_and_wait([&] {
          const DeviceMatrix hidden = make_matrix(*backend, backend->hidden_dtype(), 5, width);
          const DeviceMatrix added = make_matrix(*backend, DType::kF32, 5, width);
          upload(*backend, before, hidden);
          upload(*backend, sums, added);
          backend->add_scaled_sums(added.matrix, has_bias ? device_bias.get() : nullptr,
                                   has_norm ? device_norm.get() : nullptr, 1e-5f, 0.4f, hidden.matrix);
          got = download(*backend, hidden.matrix);
        });
        Values wanted = sums;
        for (size_t i = 0; i < wanted.size(); ++i) {
          if (has_bias) wanted[i] += bias[i % static_cast<size_t>(width)];
        }
        if (has_norm) wanted = reference::rms_norm(wanted, norm, 1e-5);
        for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = before[i] + 0.4f * wanted[i];
        check_close(got, wanted, 1e-6, 1e-5);
      }
    }
  }
}

TEST_CASE("add_gated_sums agrees with the reference") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 12);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kGatedSums)) continue;
    for (const int64_t width : {int64_t{1}, int64_t{75}, int64_t{896}}) {
      INFO(backend_case.name << ": width " << width);
      const Values gates{0.0f, -3.0f, 200.0f, -200.0f, 1.25f};
      const Values sums = random.normal(5 * width);
      const Values before = random.normal(5 * width);
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix added = make_matrix(*backend, DType::kF32, 5, width);
        const DeviceMatrix gate = make_matrix(*backend, DType::kF32, 5, 1);
        const DeviceMatrix hidden = make_matrix(*backend, backend->hidden_dtype(), 5, width);
        upload(*backend, sums, added);
        upload(*backend, gates, gate);
        upload(*backend, before, hidden);
        backend->add_gated_sums(added.matrix, gate.matrix, hidden.matrix);
        got = download(*backend, hidden.matrix);
      });
      check_close(got, reference::add_gated_sums(sums, gates, before), 1e-6, 1e-6);
    }
  }
}

TEST_CASE("add_embedding adds rows of any dtype and skips unknown ones") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 12);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    if (!backend->computes(tensor::Feature::kEncoders)) continue;
    for (const DType stored : {DType::kF32, DType::kBF16, DType::kF16}) {
      INFO(backend_case.name << " from " << tensor::to_string(stored));
      const HostMatrix table(random.normal(20 * 33), stored, 20, 33);
      const auto embedding = backend->make_embedding(table.tensor());
      const std::vector<int32_t> indices = {19, 0, -1, 20, 0};
      const Values before = random.normal(5 * 33);
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix hidden = make_matrix(*backend, backend->hidden_dtype(), 5, 33);
        upload(*backend, before, hidden);
        backend->add_embedding(*embedding, backend->upload(indices), hidden.matrix);
        got = download(*backend, hidden.matrix);
      });
      Values wanted = reference::rounded(reference::embed(table.tensor(), indices), backend_case.table_dtype);
      for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += before[i];
      check_close(got, wanted, 0.0, 0.0);
    }
  }
}

TEST_CASE("a row of elements that are not finite spoils no other") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int64_t kWidth = 70;
  Random random(18);
  const Values healthy = random.normal(3 * kWidth);
  Values spoilt = healthy;
  spoilt[kWidth + 5] = std::nanf("");
  spoilt[kWidth + 6] = kInfinity;
  spoilt[kWidth + 7] = -kInfinity;
  const Values weight = random.normal(kWidth);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    const auto norm = backend->make_vector(weight);
    const auto run = [&](const Values& in, tensor::Feature feature, const auto& op) {
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix from = make_matrix(*backend, DType::kF32, 3, kWidth);
        const DeviceMatrix out = make_matrix(*backend, backend->compute_dtype(), 3, kWidth);
        const DeviceMatrix sums = make_matrix(*backend, DType::kF32, 3, kWidth);
        upload(*backend, in, from);
        upload(*backend, healthy, out);
        upload(*backend, healthy, sums);
        got = download(*backend, op(from.matrix, out.matrix, sums.matrix));
      });
      INFO(backend_case.name << ": " << enum_name(feature));
      REQUIRE(std::isnan(got[kWidth + 5]) == (&in == &spoilt));
      return got;
    };
    const auto check = [&](tensor::Feature feature, const auto& op) {
      if (!backend->computes(feature)) return;
      const Values wanted = run(healthy, feature, op);
      const Values got = run(spoilt, feature, op);
      for (const size_t row : {size_t{0}, size_t{2}}) {
        for (size_t i = 0; i < kWidth; ++i) REQUIRE(got[row * kWidth + i] == wanted[row * kWidth + i]);
      }
    };
    using tensor::Feature;
    using tensor::Matrix;
    check(Feature::kConversion, [&](Matrix in, Matrix out, Matrix) { return backend->convert(in, out), out; });
    check(Feature::kScaling, [&](Matrix in, Matrix, Matrix) { return backend->scale(in, 0.5f), in; });
    check(Feature::kSoftCap, [&](Matrix in, Matrix, Matrix) { return backend->soft_cap(in, 3.0f), in; });
    check(Feature::kEncoders, [&](Matrix in, Matrix out, Matrix) { return backend->gelu(in, out), out; });
    check(Feature::kAttentionGates, [&](Matrix in, Matrix out, Matrix) { return backend->gate(out, in), out; });
    check(Feature::kLayerNorm, [&](Matrix in, Matrix out, Matrix) {
      return backend->layer_norm(in, *norm, norm.get(), 1e-5f, false, out), out;
    });
    check(Feature::kScaledSums, [&](Matrix in, Matrix, Matrix sums) {
      return backend->add_scaled_sums(in, nullptr, norm.get(), 1e-5f, 0.5f, sums), sums;
    });
  }
}

TEST_CASE("gather_rows copies rows in any order") {
  Random random(5);
  for (const BackendCase& backend_case : backend_cases()) {
    INFO(backend_case.name);
    const auto backend = backend_case.make();
    const Values in = random.normal(6 * 37);
    const std::vector<int32_t> rows = {5, 0, 0, 3};
    Values got;
    backend->run_and_wait([&] {
      const DeviceMatrix from = make_matrix(*backend, DType::kF32, 6, 37);
      const DeviceMatrix to = make_matrix(*backend, DType::kF32, 4, 37);
      upload(*backend, in, from);
      backend->gather_rows(from.matrix, backend->upload(rows), to.matrix);
      got = download(*backend, to.matrix);
    });
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t i = 0; i < 37; ++i) REQUIRE(got[r * 37 + i] == in[static_cast<size_t>(rows[r]) * 37 + i]);
    }
  }
}

TEST_CASE("copy_columns copies a block of columns and no others") {
  Random random(6);
  for (const BackendCase& backend_case : backend_cases()) {
    const auto backend = backend_case.make();
    for (const int64_t rows : {0, 1, 7}) {
      CAPTURE(backend_case.name, rows);
      const Values in = random.normal(rows * 37);
      const Values before = random.normal(rows * 24);
      Values got;
      backend->run_and_wait([&] {
        const DeviceMatrix from = make_matrix(*backend, DType::kF32, rows, 37);
        const DeviceMatrix to = make_matrix(*backend, DType::kF32, rows, 24);
        upload(*backend, in, from);
        upload(*backend, before, to);
        backend->copy_columns(from.matrix, 20, to.matrix, 5, 13);
        got = download(*backend, to.matrix);
      });
      Values wanted = before;
      for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
        for (size_t i = 0; i < 13; ++i) wanted[row * 24 + 5 + i] = in[row * 37 + 20 + i];
      }
      REQUIRE(got == wanted);
    }
  }
}
