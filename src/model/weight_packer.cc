#include "model/weight_packer.h"

#include <fmt/core.h>

#include <array>
#include <set>
#include <stdexcept>

#include "base/check.h"
#include "tensor/slices.h"

namespace millrace::model {

using tensor::CodeMatrix;
using tensor::Fp8Matrix;
using tensor::HostTensor;
using tensor::W8Matrix;

namespace {

PackingRules packing_rules(const tensor::Backend& backend, const ModelConfig& config) {
  const bool is_bf16 = backend.compute_dtype() == tensor::DType::kBF16;
  return {.quantization = config.quantization,
          .quantizes_all = !config.keeps_unquantized_projections,
          .keeps_fp8 = backend.packs_fp8() && is_bf16,
          .keeps_codes = backend.packs_codes() && is_bf16,
          .keeps_latents = backend.packs_latent_codes() && is_bf16 && config.quantization == Quantization::kNone,
          .keeps_half_minimums = backend.packs_half_minimums(),
          .mixes_codes = backend.mixes_codes()};
}

}  // namespace

WeightPacker::WeightPacker(const Checkpoint& checkpoint, tensor::Backend& backend, const ModelConfig& config,
                           const LoadOptions& options)
    : checkpoint_(checkpoint),
      backend_(backend),
      config_(config),
      activations_(activations_of(config.quantization)),
      options_(options),
      // Rounding to bf16 before bf16 arithmetic, or to 8 bits, would round twice.
      parts_(checkpoint, config, rank_layout(config, options.position, options.experts),
             {.rounds_to_bf16 =
                  backend.compute_dtype() == tensor::DType::kBF16 && config.quantization == Quantization::kNone,
              .rules = packing_rules(backend, config),
              .threads = options.threads}) {}

Result<void> WeightPacker::resolve(std::vector<TensorSpec> specs) {
  RETURN_IF_ERROR(parts_.resolve(std::move(specs)));
  for (const auto& [name, part] : parts_.all()) state_.bytes_total += part.bytes;
  state_.tensors_total = parts_.all().size();
  report();
  return {};
}

PackedBits WeightPacker::packed_bits(std::span<const std::string> names, PackedTogether together) const {
  return parts_.packed_bits(names, nullptr, together);
}

std::unique_ptr<tensor::EmbeddingTable> WeightPacker::make_embedding(std::string_view name,
                                                                     std::unique_ptr<DecodedMatrix>& decoded) {
  auto table = make_decoding_table(name, 1);
  if (!table) table = backend_.make_embedding(host_table(name, decoded));
  count(name);
  return table;
}

std::unique_ptr<tensor::EmbeddingTable> WeightPacker::make_decoding_table(std::string_view name, int64_t parts) const {
  constexpr int64_t kLargestBlock = 256;
  const WeightPart& found = part(name);
  if (!found.stored || !backend_.decodes_embeddings()) return nullptr;
  weights::StoredWeight stored = *found.stored;
  if (parts > 1) {
    const bool is_in_order = stored.blocks.row_order.is_in_order() && stored.blocks.column_order.is_in_order();
    if (!stored.has_blocks() || !is_in_order || stored.cols % (parts * kLargestBlock) != 0) return nullptr;
    stored.rows *= parts;
    stored.cols /= parts;
  }
  const bool to_bf16 = backend_.compute_dtype() == tensor::DType::kBF16;
  const int64_t begin = found.rows.begin * parts;
  const auto read = [stored, begin, to_bf16](int64_t first, int64_t rows, float* out) {
    weights::decode_rows(stored, begin + first, rows, out);
    if (!to_bf16) return;
    for (int64_t i = 0; i < rows * stored.cols; ++i) out[i] = tensor::BFloat16::from_float(out[i]).to_float();
  };
  return backend_.make_decoding_embedding(found.rows.size() * parts, stored.cols, read);
}

HostTensor WeightPacker::host_table(std::string_view name, std::unique_ptr<DecodedMatrix>& decoded) const {
  const WeightPart& found = part(name);
  if (!found.stored) return found.tensor;
  const bool to_bf16 = backend_.compute_dtype() == tensor::DType::kBF16;
  decoded = std::make_unique<DecodedMatrix>(*found.stored, found.rows, to_bf16, options_.threads);
  return decoded->view();
}

std::vector<float> WeightPacker::values(const std::string& name) {
  const WeightPart& found = part(name);
  const bool is_coded = found.stored || found.matrix;
  PackingMemory memory;
  std::vector<float> decoded;
  const HostTensor source = is_coded ? unquantized(found, memory, decoded) : found.tensor;
  std::vector<float> stored(static_cast<size_t>(source.shape.elements()));
  tensor::read_floats(source, 0, source.shape.elements(), stored.data());
  if (is_coded) {
    count(name);
    return stored;
  }
  std::vector<float> ordered;
  for (const int64_t row : found.order) ordered.push_back(stored[static_cast<size_t>(row)]);
  count(name);
  return found.order.empty() ? stored : ordered;
}

std::unique_ptr<tensor::DeviceVector> WeightPacker::vector(const std::vector<std::string>& names, VectorChange change) {
  std::vector<float> all;
  for (const std::string& name : names) {
    for (const float value : values(name)) all.push_back((value + change.addend) * change.factor);
  }
  return backend_.make_vector(all);
}

std::unique_ptr<tensor::PackedWeight> WeightPacker::pack(const std::vector<std::string>& names) {
  std::unique_ptr<tensor::PackedWeight> weight;
  PackingMemory memory;
  const PackedBits bits = packed_bits(names);
  std::vector<W8Matrix> matrices;
  std::vector<Fp8Matrix> fp8_parts;
  std::vector<HostTensor> plain_parts;
  for (const std::string& name : names) {
    if (bits == PackedBits::k8) matrices.push_back(matrix(name, memory));
    if (bits == PackedBits::kFp8) fp8_parts.push_back(parts_.fp8_matrix(name));
    if (bits == PackedBits::kCompute) plain_parts.push_back(plain(part(name), memory));
  }
  switch (bits) {
    case PackedBits::k4: weight = backend_.pack_codes(code_matrices(names, PackedTogether::kStacked, memory)); break;
    case PackedBits::k8: weight = backend_.pack_w8(matrices, activations_); break;
    case PackedBits::kFp8: weight = backend_.pack_fp8(fp8_parts); break;
    case PackedBits::kCompute: weight = backend_.pack(plain_parts); break;
  }
  weight->set_whole_features(whole_rows(names));
  for (const std::string& name : names) count(name);
  return weight;
}

std::unique_ptr<tensor::PackedWeight> WeightPacker::pack_sharded(const std::string& name,
                                                                 const tensor::SumShards& shards) {
  if (config_.encoder) return pack({name});
  std::unique_ptr<tensor::PackedWeight> weight;
  PackingMemory memory;
  switch (parts_.packed_bits({&name, 1}, &shards, PackedTogether::kStacked)) {
    case PackedBits::k4:
      weight = backend_.pack_sharded_codes(code_matrices({&name, 1}, PackedTogether::kStacked, memory).front(), shards);
      break;
    case PackedBits::k8: weight = backend_.pack_sharded_w8(matrix(name, memory), activations_, shards); break;
    case PackedBits::kFp8: weight = backend_.pack_sharded_fp8(parts_.fp8_matrix(name), shards); break;
    case PackedBits::kCompute: weight = backend_.pack_sharded(columns(part(name), memory), shards); break;
  }
  count(name);
  return weight;
}

std::unique_ptr<tensor::PackedWeight> WeightPacker::pack_head(const std::string& name) {
  const int64_t rows = layout().logit_columns;
  PackingMemory memory;
  std::unique_ptr<tensor::PackedWeight> weight;
  // A tied head is the embedding, of which the rank has all rows.
  switch (packed_bits({&name, 1})) {
    case PackedBits::k4: {
      CodeMatrix head = code_matrices({&name, 1}, PackedTogether::kStacked, memory).front();
      if (head.rows > layout().vocabulary.size()) head = tensor::row_slice(head, layout().vocabulary);
      if (head.rows < rows) head = memory.codes.emplace_back(tensor::padded_rows(head, rows)).view();
      weight = backend_.pack_codes({&head, 1});
      break;
    }
    case PackedBits::k8: {
      W8Matrix head = matrix(name, memory);
      if (head.rows > layout().vocabulary.size()) head = tensor::row_slice(head, layout().vocabulary);
      if (head.rows < rows) head = memory.w8_slices.emplace_back(tensor::padded_rows(head, 0, rows)).matrix;
      weight = backend_.pack_w8({&head, 1}, activations_);
      break;
    }
    case PackedBits::kFp8: {
      std::vector<Fp8Matrix> head{parts_.fp8_matrix(name)};
      const int64_t missing = rows - head.front().rows;
      CHECK(missing >= 0, "{}: {} rows, wanted at most {}", name, head.front().rows, rows);
      const tensor::Fp8Zeros zeros = tensor::zero_rows(head.front(), missing);
      if (missing > 0) head.push_back(zeros.matrix);
      weight = backend_.pack_fp8(head);
      break;
    }
    case PackedBits::kCompute: {
      HostTensor head = plain(part(name), memory);
      if (head.shape[0] > layout().vocabulary.size()) head = tensor::row_slice(head, layout().vocabulary);
      if (head.shape[0] < rows) head = memory.slices.emplace_back(tensor::padded_rows(head, 0, rows)).tensor;
      weight = backend_.pack({&head, 1});
      break;
    }
  }
  weight->set_whole_features(whole_rows({&name, 1}));
  return weight;
}

std::unique_ptr<tensor::PackedWeight> WeightPacker::pack_plain(const std::vector<std::string>& names, bool keeps_f32) {
  PackingMemory memory;
  std::vector<std::vector<float>> decoded(names.size());
  std::vector<HostTensor> sources;
  for (size_t i = 0; i < names.size(); ++i) sources.push_back(unquantized(part(names[i]), memory, decoded[i]));
  const bool is_f32 = keeps_f32 && sources.front().dtype == tensor::DType::kF32;
  auto weight = is_f32 ? backend_.pack_f32(sources.front()) : backend_.pack(sources);
  weight->set_whole_features(whole_rows(names));
  for (const std::string& name : names) count(name);
  return weight;
}

HostTensor WeightPacker::unquantized(const WeightPart& part, PackingMemory& memory, std::vector<float>& decoded) const {
  if (!part.matrix) return plain(part, memory);
  const W8Matrix matrix = parts_.matrix(part, memory);
  decoded = tensor::dequantize(matrix);
  return {.name = part.spec->name,
          .dtype = tensor::DType::kF32,
          .shape = {matrix.rows, matrix.cols},
          .data = reinterpret_cast<const std::byte*>(decoded.data())};
}

std::unique_ptr<tensor::LatentExpansion> WeightPacker::pack_latent_expansion(const std::string& name,
                                                                             const tensor::LatentShape& shape) {
  PackingMemory memory;
  const WeightPart& found = part(name);
  std::vector<float> decoded;
  std::unique_ptr<tensor::LatentExpansion> expansion;
  const PackedBits bits = packed_bits({&name, 1});
  if (found.latents) {
    if (found.latents->key_dim() != shape.nope_dim || found.latents->value_dim() != shape.value_dim)
      throw std::runtime_error(fmt::format("{}: heads of {} + {} rows, wanted {} + {}", name, found.latents->key_dim(),
                                           found.latents->value_dim(), shape.nope_dim, shape.value_dim));
    const LatentCodes codes = parts_.latent_codes(found);
    expansion = backend_.pack_latent_codes(codes.queries.view(), codes.values.view(), shape);
  } else if (bits == PackedBits::kFp8 && backend_.packs_fp8_latents()) {
    expansion = backend_.pack_fp8_latent_expansion(parts_.fp8_matrix(name), shape);
  } else if (found.matrix && found.matrix->per_channel_scales && backend_.packs_latent_codes() &&
             backend_.compute_dtype() == tensor::DType::kBF16) {
    expansion = backend_.pack_latent_code_rows(tensor::to_codes(parts_.matrix(found, memory)).view(), shape);
  } else if (bits == PackedBits::k4 && parts_.keeps_latents()) {
    const CodeMatrix kv_b = code_matrices({&name, 1}, PackedTogether::kStacked, memory).front();
    expansion = backend_.pack_latent_code_rows(kv_b, shape);
  }
  if (expansion == nullptr) expansion = backend_.pack_latent_expansion(unquantized(found, memory, decoded), shape);
  count(name);
  return expansion;
}

std::unique_ptr<tensor::PackedWeight> WeightPacker::pack_gate_up(const std::string& gate, const std::string& up) {
  std::unique_ptr<tensor::PackedWeight> weight;
  PackingMemory memory;
  const std::array pair{gate, up};
  switch (packed_bits(pair, PackedTogether::kPaired)) {
    case PackedBits::k4: {
      const std::vector<CodeMatrix> parts = code_matrices(pair, PackedTogether::kPaired, memory);
      weight = backend_.pack_gate_up_codes(parts[0], parts[1]);
      break;
    }
    case PackedBits::k8: {
      const W8Matrix gate_matrix = matrix(gate, memory);
      weight = backend_.pack_gate_up_w8(gate_matrix, matrix(up, memory), activations_);
      break;
    }
    case PackedBits::kFp8: weight = backend_.pack_gate_up_fp8(parts_.fp8_matrix(gate), parts_.fp8_matrix(up)); break;
    case PackedBits::kCompute:
      weight = backend_.pack_gate_up(plain(part(gate), memory), plain(part(up), memory));
      break;
  }
  weight->set_whole_features(whole_rows({&gate, 1}));
  count(gate);
  count(up);
  return weight;
}

ExpertPacking WeightPacker::expert_packing(int32_t layer, std::span<const std::string> names) const {
  ExpertPacking packing{.formats = parts_.expert_formats(layer)};
  if (packing.formats.bits() != PackedBits::k4 || backend_.mixes_codes()) return packing;
  std::vector<std::string> inputs;
  std::vector<std::string> downs;
  const size_t parts = expert_parts(config_.layer(layer).feed_forward).size();
  for (size_t i = 0; i < names.size(); ++i) ((i + 1) % parts == 0 ? downs : inputs).push_back(names[i]);
  // The type changes no value, so that ranks need not agree on it.
  if (packing.formats.keeps_inputs()) packing.input_scales = parts_.narrowest_scales(inputs);
  if (packing.formats.keeps_downs()) packing.down_scales = parts_.narrowest_scales(downs);
  return packing;
}

void WeightPacker::pack_expert(tensor::ExpertPacker& experts, const ExpertPacking& packing,
                               std::span<const std::string> names) {
  PackingMemory memory;
  const bool gated = names.size() == 3;
  const std::string& up = names[names.size() - 2];
  const std::string& down = names.back();
  switch (packing.formats.bits()) {
    case PackedBits::k4: {
      const std::vector<CodeMatrix> inputs = parts_.expert_codes(
          names.first(names.size() - 1), packing.formats.keeps_inputs(), packing.input_scales, memory);
      const std::vector<CodeMatrix> outputs =
          parts_.expert_codes({&down, 1}, packing.formats.keeps_downs(), packing.down_scales, memory);
      experts.add_codes(gated ? inputs.front() : CodeMatrix{}, inputs.back(), outputs.front());
      break;
    }
    case PackedBits::k8: {
      const W8Matrix gate_matrix = gated ? matrix(names.front(), memory) : W8Matrix{};
      const W8Matrix up_matrix = matrix(up, memory);
      experts.add_w8(gate_matrix, up_matrix, matrix(down, memory), activations_);
      break;
    }
    case PackedBits::kFp8:
      experts.add_fp8(gated ? parts_.fp8_matrix(names.front()) : tensor::Fp8Matrix{}, parts_.fp8_matrix(up),
                      parts_.fp8_matrix(down));
      break;
    case PackedBits::kCompute: {
      const HostTensor gate_tensor = gated ? plain(part(names.front()), memory) : HostTensor{};
      const HostTensor up_tensor = plain(part(up), memory);
      experts.add(gate_tensor, up_tensor, plain(part(down), memory));
      break;
    }
  }
  for (const std::string& name : names) count(name);
}

void WeightPacker::count(std::string_view name) {
  const WeightPart& done = part(name);
  if (options_.with_fingerprint) add_to_fingerprint(done);
  if (!done.spec->part || done.spec->expert < 0) release(done.spec->stored_name());
  ++state_.tensors_done;
  state_.bytes_done += done.bytes;
  report();
}

void WeightPacker::release_shared(std::span<const std::string> names) const {
  std::set<std::string> stored;
  for (const std::string& name : names) {
    const TensorSpec& spec = *part(name).spec;
    if (!spec.part) continue;
    stored.insert(spec.part->tensor);
    stored.insert(spec.part->scales);
  }
  for (const std::string& name : stored) release(name);
}

int64_t WeightPacker::whole_rows(std::span<const std::string> names) const {
  int64_t rows = 0;
  for (const std::string& name : names) rows += part(name).spec->shape[0];
  return rows;
}

void WeightPacker::add_to_fingerprint(const WeightPart& part) {
  // The weight's name is the key, since one stored tensor may have several weights.
  const auto add = [&](auto values) {
    values.name = part.spec->name;
    fingerprint_.add(values, part.spec->expert >= 0);
  };
  PackingMemory memory;
  if (part.latents) {
    fingerprint_.add(part.latents->queries, false);
    fingerprint_.add(part.latents->values, false);
  } else if (part.matrix)
    add(parts_.matrix(part, memory));
  else if (part.stored)
    add(*part.stored);
  else if (part.spec->shape.rank() == 2)
    add(columns(part, memory));
  else
    add(part.tensor);
}

void WeightPacker::report() const {
  if (options_.progress) options_.progress(state_);
}

}  // namespace millrace::model
