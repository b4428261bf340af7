#include "conformance/random_experts.h"

#include <fmt/core.h>

#include <cmath>

#include "conformance/random_fp8.h"

namespace millrace::test {

using tensor::DType;
using tensor::Feature;
using tensor::Routing;

std::string shown(const BackendCase& backend_case, const ExpertSizes& sizes, ExpertFormat format, int64_t rows) {
  const char* const names[] = {"plain", "w8", "w8a8", "w8a8_int8", "fp8", "w4"};
  const Routing& routing = sizes.routing;
  return fmt::format(
      "{}, {}: {} rows of {}, {} of {} experts of {}, renormalize {}, score {}, scale {}, {} biases, {} of {} groups "
      "by "
      "{}, function {}, gated {}, expert biases {}",
      backend_case.name, names[static_cast<size_t>(format)], rows, sizes.hidden, routing.experts_per_row, sizes.experts,
      sizes.inner, routing.renormalize, static_cast<int>(routing.score), routing.scale, routing.choice_bias.size(),
      routing.groups_per_row, routing.group_count, static_cast<int>(routing.group_score),
      static_cast<int>(sizes.activation.function), sizes.gated, sizes.has_biases);
}

ExpertSizes random_sizes(Random& random) {
  ExpertSizes sizes{.hidden = random.integer(1, 150), .inner = random.integer(1, 90), .routing = {}};
  sizes.experts = static_cast<int32_t>(random.integer(1, 11));
  sizes.routing = {static_cast<int32_t>(random.integer(1, sizes.experts)), random.integer(0, 1) != 0};
  return sizes;
}

namespace {

/// The blocks of experts in E4M3.
constexpr Fp8Block kExpertBlock = {16, 64};

/// Draws groups of two or more experts, if the count of experts has such a divisor.
void draw_groups(Random& random, int32_t experts, Routing& routing) {
  const auto groups = static_cast<int32_t>(random.integer(2, 5));
  if (experts % groups != 0 || experts / groups < 2) return;
  routing.group_count = groups;
  routing.groups_per_row = static_cast<int32_t>(random.integer(1, groups));
  routing.group_score = random.integer(0, 1) != 0 ? tensor::GroupScore::kMax : tensor::GroupScore::kSumOfTwo;
  routing.experts_per_row = std::min(routing.experts_per_row, routing.groups_per_row * (experts / groups));
}

}  // namespace

ExpertSizes random_sizes(Random& random, const tensor::Backend& backend) {
  ExpertSizes sizes = random_sizes(random);
  if (backend.computes(Feature::kRouting)) {
    Routing& routing = sizes.routing;
    sizes.experts = static_cast<int32_t>(random.integer(1, 20));
    routing.score = random.integer(0, 1) != 0 ? tensor::RouterScore::kSigmoid : tensor::RouterScore::kSoftmax;
    routing.experts_per_row = static_cast<int32_t>(random.integer(1, sizes.experts));
    if (random.integer(0, 1) != 0) routing.scale = 2.5f;
    if (random.integer(0, 1) != 0) routing.sum_epsilon = 1e-2;
    if (random.integer(0, 1) != 0) routing.min_sum = 0.4;
    if (random.integer(0, 1) != 0) routing.choice_bias = random.normal(sizes.experts, 0.3f);
    if (random.integer(0, 1) != 0 && backend.computes(Feature::kExpertNorms)) {
      routing.expert_scales = random.normal(sizes.experts);
      for (float& scale : routing.expert_scales) scale = std::abs(scale);
    }
    if (backend.computes(Feature::kWeighedInputs)) routing.weighs_inputs = random.integer(0, 2) == 0;
    draw_groups(random, sizes.experts, routing);
  }
  if (backend.computes(Feature::kExpertActivation)) {
    sizes.activation = {.function = static_cast<tensor::GatedFunction>(random.integer(0, 2)), .limit = 1.5f};
  }
  sizes.gated = !backend.computes(Feature::kReluSquared) || random.integer(0, 3) != 0;
  sizes.has_biases = sizes.gated && backend.computes(Feature::kExpertBiases) && random.integer(0, 1) != 0;
  return sizes;
}

std::vector<ExpertFormat> expert_formats_of(const tensor::Backend& backend) {
  if (!tensor::quantizes_inputs(backend)) return {ExpertFormat::kCompute, ExpertFormat::kW8, ExpertFormat::kW4};
  return {ExpertFormat::kCompute,  ExpertFormat::kW8,  ExpertFormat::kW8A8,
          ExpertFormat::kW8A8Int8, ExpertFormat::kFp8, ExpertFormat::kW4};
}

RandomExperts::RandomExperts(Random& random, tensor::Backend& backend, const ExpertSizes& sizes, ExpertFormat format,
                             DType w8_dtype, tensor::RankPosition position)
    : backend_(backend), sizes_(sizes), format_(format), w8_dtype_(w8_dtype) {
  const auto packer = backend.pack_experts(sizes.experts, sizes.options(), position);
  const tensor::TermRange owned = tensor::expert_shards(sizes.experts, position).owned();
  for (int32_t expert = 0; expert < sizes.experts; ++expert) {
    const HostMatrix gate = matrix(random, sizes.gated ? sizes.inner : 0, sizes.hidden);
    const HostMatrix up = matrix(random, sizes.inner, sizes.hidden);
    const HostMatrix down = matrix(random, sizes.hidden, sizes.inner);
    reference::Expert& own =
        values.emplace_back(reference::Expert{.gate = sizes.gated ? stood_for(gate.tensor()) : Values{},
                                              .up = stood_for(up.tensor()),
                                              .down = stood_for(down.tensor())});
    if (sizes.has_biases) {
      own.gate_bias = random.normal(sizes.inner, 0.5f);
      own.up_bias = random.normal(sizes.inner, 0.5f);
      own.down_bias = random.normal(sizes.hidden, 0.5f);
    }
    if (expert < owned.begin || expert >= owned.end) continue;
    pack(gate.tensor(), up.tensor(), down.tensor(), *packer);
    if (sizes.has_biases) packer->add_biases({.gate = own.gate_bias, .up = own.up_bias, .down = own.down_bias});
  }
  packed = packer->finish();
}

Values RandomExperts::mix(const Values& x, const Values& logits, const Values& before, int32_t padding) const {
  return run(x, logits, before, padding, [&](auto&&... given) { backend_.fused_moe(given...); });
}

Values RandomExperts::sums(const Values& x, const Values& logits, int32_t padding) const {
  const Values stale(x.size(), 1.0f);
  return run(x, logits, stale, padding, [&](auto&&... given) { backend_.fused_moe_sums(given...); });
}

RandomExperts::Inputs RandomExperts::random_inputs(Random& random, int64_t rows) const {
  return {reference::rounded(random.normal(rows * sizes_.hidden), backend_.compute_dtype()),
          random.normal(rows * sizes_.experts), random.normal(rows * sizes_.hidden)};
}

Values RandomExperts::round(const Values& rows, int64_t width) const {
  Values rounded = reference::rounded(rows, backend_.compute_dtype());
  if (!rounds_inputs()) return rounded;
  return reference::rounded_to_int8(rounded, width, format_ == ExpertFormat::kW8A8Int8 ? width : tensor::kW8Group);
}

void RandomExperts::check(Random& random, int64_t rows, float feature_error) const {
  const auto [x, logits, before] = random_inputs(random, rows);
  const auto [sums, jumps] = reference::fused_moe(
      x, logits, values, sizes_.options(), [&](const Values& of, int64_t n) { return round(of, n); }, feature_error);
  Values wanted = sums;
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] += before[i];
  check_close(mix(x, logits, before), wanted, unit(backend_.hidden_dtype()) + 1e-5, double{feature_error}, jumps);
}

HostMatrix RandomExperts::matrix(Random& random, int64_t rows, int64_t cols) const {
  const float deviation = 1.0f / std::sqrt(static_cast<float>(cols));
  return {random.normal(rows * cols, deviation), backend_.compute_dtype(), rows, cols};
}

void RandomExperts::pack(const tensor::HostTensor& gate, const tensor::HostTensor& up, const tensor::HostTensor& down,
                         tensor::ExpertPacker& packer) {
  if (format_ == ExpertFormat::kCompute) {
    packer.add(gate, up, down);
    if (sizes_.gated) dense.push_back({backend_.pack_gate_up(gate, up), backend_.pack({&down, 1})});
    return;
  }
  if (format_ == ExpertFormat::kFp8) {
    const Fp8Storage small_gate = sizes_.gated ? rounded_to_fp8(gate, kExpertBlock) : Fp8Storage{};
    const Fp8Storage small_up = rounded_to_fp8(up, kExpertBlock);
    const Fp8Storage small_down = rounded_to_fp8(down, kExpertBlock);
    packer.add_fp8(small_gate.matrix, small_up.matrix, small_down.matrix);
    if (sizes_.gated)
      dense.push_back(
          {backend_.pack_gate_up_fp8(small_gate.matrix, small_up.matrix), backend_.pack_fp8({&small_down.matrix, 1})});
    return;
  }
  if (format_ == ExpertFormat::kW4) {
    const tensor::CodeStorage small_gate = sizes_.gated ? tensor::quantize_w4(gate) : tensor::CodeStorage{};
    const tensor::CodeStorage small_up = tensor::quantize_w4(up);
    const tensor::CodeStorage small_down = tensor::quantize_w4(down);
    const tensor::CodeMatrix view = small_down.view();
    packer.add_codes(small_gate.view(), small_up.view(), view);
    if (sizes_.gated)
      dense.push_back(
          {backend_.pack_gate_up_codes(small_gate.view(), small_up.view()), backend_.pack_codes({&view, 1})});
    return;
  }
  const auto inputs = rounds_inputs() ? tensor::W8Activations::kInt8 : tensor::W8Activations::kUnquantized;
  const tensor::W8Storage small_gate =
      sizes_.gated ? tensor::quantize_w8(gate, scaling()) : tensor::W8Storage{.name = {}, .shape = {0, sizes_.hidden}};
  const tensor::W8Storage small_up = tensor::quantize_w8(up, scaling());
  const tensor::W8Storage small_down = tensor::quantize_w8(down, scaling());
  const tensor::W8Matrix view = small_down.view();
  packer.add_w8(small_gate.view(), small_up.view(), view, inputs);
  if (!sizes_.gated) return;
  dense.push_back(
      {backend_.pack_gate_up_w8(small_gate.view(), small_up.view(), inputs), backend_.pack_w8({&view, 1}, inputs)});
}

Values RandomExperts::stood_for(const tensor::HostTensor& tensor) const {
  if (format_ == ExpertFormat::kCompute) return reference::to_floats(tensor);
  if (format_ == ExpertFormat::kW4) {
    const Values exact = reference::to_floats(tensor::quantize_w4(tensor).view());
    return rounds_inputs() ? exact : reference::rounded(exact, DType::kBF16);
  }
  const Values exact = format_ == ExpertFormat::kFp8
                           ? tensor::decode(rounded_to_fp8(tensor, kExpertBlock).matrix)
                           : reference::to_floats(tensor::quantize_w8(tensor, scaling()).view());
  return rounds_inputs() ? exact : reference::rounded(exact, w8_dtype_);
}

template <class Op>
Values RandomExperts::run(const Values& x, const Values& logits, const Values& before, int32_t padding,
                          const Op& op) const {
  const auto rows = static_cast<int64_t>(logits.size()) / sizes_.experts;
  const std::vector<int32_t> row_begin{0, static_cast<int32_t>(rows) - padding};
  const std::vector<int32_t> zeros(2);
  const tensor::BatchLayout batch{.row_begin = row_begin,
                                  .prefix = std::span(zeros).first(1),
                                  .page_begin = zeros,
                                  .pages = {},
                                  .padded_rows = padding > 0 ? static_cast<int32_t>(rows) : 0,
                                  .padded_sequences = padding > 0 ? static_cast<int32_t>(rows) : 0};
  Values result;
  backend_.run_and_wait([&] {
    const DeviceMatrix left = make_matrix(backend_, backend_.compute_dtype(), rows, sizes_.hidden);
    const DeviceMatrix routed = make_matrix(backend_, DType::kF32, rows, sizes_.experts);
    const DeviceMatrix out = make_matrix(backend_, backend_.hidden_dtype(), rows, sizes_.hidden);
    upload(backend_, x, left);
    upload(backend_, logits, routed);
    upload(backend_, before, out);
    op(left.matrix, routed.matrix, *packed, backend_.upload(batch), out.matrix);
    result = download(backend_, out.matrix);
  });
  return result;
}

}  // namespace millrace::test
