#include "model/weight_memory.h"

#include <algorithm>

namespace millrace::model {
namespace {

constexpr double kPlainBits = 16;
constexpr double kScaleBits = 16;
constexpr double kZeroPointBits = 8;
constexpr double kFp8ScaleBits = 32;
constexpr double kFp8Group = 128;  // inputs that share a scale in memory, whatever the stored blocks are
constexpr double kMxfp4Group = 32;

/// Returns the bits of a weight that is computed as `--quantization` says.
double bits_of(Quantization quantization) {
  switch (quantization) {
    case Quantization::kW8:
    case Quantization::kW8A8:
    case Quantization::kMxInt8: return 8 + kScaleBits / static_cast<double>(tensor::kW8Group);
    case Quantization::kW8A8Int8: return 8;
    case Quantization::kW4: return 4 + kScaleBits / static_cast<double>(tensor::kW8Group);
    case Quantization::kNone: break;
  }
  return kPlainBits;
}

/// Returns the bits of a stored integer in memory, an upper bound: CPUs hold 5 and 6 bits in as many.
double code_bits(int bits) {
  return bits > 4 ? 8 : 4;
}

/// The bits of a stored weight, and what its scales and zero points add.
struct StoredBits {
  double bits = kPlainBits;
  double overhead = 0;
};

StoredBits stored_bits(const weights::WeightFormat& format, const TensorSpec& spec) {
  using weights::QuantMethod;
  if (spec.part && !spec.part->scales.empty()) return {.bits = 4, .overhead = kScaleBits / kMxfp4Group};
  // A head that stays in FP8 is counted as bf16 too: an upper bound.
  if (!spec.projection || spec.layer < 0) return {};
  const double group = static_cast<double>(format.group_size);
  const double scales = group > 0 ? kScaleBits / group : 0;
  const double zeros = group > 0 ? kZeroPointBits / group : 0;
  switch (format.method) {
    case QuantMethod::kInt4Fp8:
      if (spec.expert >= 0) return {.bits = code_bits(format.bits), .overhead = scales};
      return {.bits = 8, .overhead = kFp8ScaleBits / kFp8Group};
    case QuantMethod::kInt8Blocks:
    case QuantMethod::kFp8: return {.bits = 8, .overhead = kFp8ScaleBits / kFp8Group};
    case QuantMethod::kQuark:
    case QuantMethod::kGptq:
    case QuantMethod::kAwq: return {.bits = format.has_wider ? 8 : code_bits(format.bits), .overhead = scales + zeros};
    case QuantMethod::kCompressedTensors:
      return {.bits = format.bits > 0 ? code_bits(format.bits) : 8, .overhead = scales};
    // The experts of MXFP4 have returned above. Of the first and the third, knows_stored_bits() says no.
    case QuantMethod::kModelOpt:
    case QuantMethod::kMxfp4:
    case QuantMethod::kGguf:
    case QuantMethod::kNone: break;
  }
  return {};
}

/// Returns the parameters of a weight that a rank has.
double parameters_of(const TensorSpec& spec, const RankLayout& layout) {
  if (!layout.owns_expert(spec.layer, spec.expert)) return 0;
  const int64_t whole = spec.shape[divides_columns(spec.division) ? 1 : 0];
  const int64_t own = layout.part(spec.division, spec.layer, whole).size();
  return static_cast<double>(spec.shape.elements()) * static_cast<double>(own) / static_cast<double>(whole);
}

/// Adds one weight of a layer, or the final norm.
void add_weight(const ModelConfig& config, const TensorSpec& spec, const RankLayout& layout, int32_t kept_bits,
                WeightMemory& memory) {
  const double parameters = parameters_of(spec, layout);
  const double bytes = parameters * bits_in_memory(config, spec, kept_bits) / 8;
  double share = 1;
  memory.bytes += bytes;
  if (spec.expert >= 0) {
    const MoeConfig& moe = *config.layer(spec.layer).feed_forward.moe;
    share = static_cast<double>(moe.experts_per_token) / moe.expert_count;
    memory.expert_bytes += bytes;
  }
  memory.read_bytes += share * bytes;
  if (spec.shape.rank() > 1) memory.active_parameters += share * parameters;
}

WeightMemory memory_of_rank(const ModelConfig& config, StageSpan span, const std::vector<TensorSpec>& specs,
                            const RankLayout& layout, int32_t kept_bits) {
  WeightMemory memory;
  const double table = static_cast<double>(config.vocab_size) * config.hidden_size;
  TensorSpec head{.name = std::string(head_name(config)),
                  .shape = {config.vocab_size, config.hidden_size},
                  .projection = !config.tied_embeddings,
                  .division = Division::kVocabularyRows};
  for (const TensorSpec& spec : specs) {
    const bool is_table = spec.name == config.names.embedding || spec.name == config.names.layer_input_embedding;
    if (!is_table && spec.name != head.name) {
      add_weight(config, spec, layout, kept_bits, memory);
    }
  }
  if (config.embeds(span.first)) memory.embedding_bytes = table * kPlainBits / 8;
  if (config.layer_inputs) {
    const double inputs = static_cast<double>(config.layer_inputs->width) * span.layers.size();
    memory.embedding_bytes += inputs * config.vocab_size * kPlainBits / 8;
  }
  memory.bytes += memory.embedding_bytes;
  // A backend packs the head for itself, also where it is the embedding.
  if (span.last && config.has_output_head) add_weight(config, head, layout, kept_bits, memory);
  return memory;
}

}  // namespace

WeightMemory& WeightMemory::operator+=(const WeightMemory& other) {
  bytes += other.bytes;
  embedding_bytes += other.embedding_bytes;
  expert_bytes += other.expert_bytes;
  read_bytes += other.read_bytes;
  active_parameters += other.active_parameters;
  return *this;
}

bool knows_stored_bits(const ModelConfig& config) {
  using weights::QuantMethod;
  const QuantMethod method = config.weight_format.method;
  return method != QuantMethod::kGguf && method != QuantMethod::kModelOpt && !config.weight_format.has_wider;
}

double bits_in_memory(const ModelConfig& config, const TensorSpec& spec, int32_t kept_bits) {
  if (spec.keeps_precision) return kPlainBits;
  const StoredBits stored = stored_bits(config.weight_format, spec);
  if (config.quantization != Quantization::kNone && spec.projection) {
    const bool keeps_codes = config.quantization == Quantization::kW4 && stored.bits <= 4;
    return keeps_codes ? stored.bits + stored.overhead : bits_of(config.quantization);
  }
  return stored.bits <= kept_bits ? stored.bits + stored.overhead : kPlainBits;
}

WeightMemory weight_memory(const ModelConfig& config, StageSpan span, int32_t rank_count, int32_t kept_bits) {
  const std::vector<TensorSpec> specs = stage_tensors(config, span);
  WeightMemory most;
  for (int32_t rank = 0; rank < rank_count; ++rank) {
    const WeightMemory own =
        memory_of_rank(config, span, specs, rank_layout(config, {.rank = rank, .size = rank_count}), kept_bits);
    if (own.bytes > most.bytes) most = own;
  }
  return most;
}

WeightMemory weight_memory(const ModelConfig& config, StageSpan span, const RankLayout& layout, int32_t kept_bits) {
  return memory_of_rank(config, span, stage_tensors(config, span), layout, kept_bits);
}

double cache_bytes_per_token(const ModelConfig& config, int32_t layer, int32_t rank_count, tensor::KvDType stored) {
  if (!config.layer(layer).attends || config.layer(layer).attention.keys_of) return 0;
  const AttentionConfig& attention = config.layer(layer).attention;
  constexpr double kBytes = kPlainBits / 8;
  const auto stored_bytes = [&](int32_t channels, int32_t fp8_channels) {
    if (stored == tensor::KvDType::kAuto) return kBytes * channels;
    const int32_t per_scale = stored == tensor::KvDType::kInt8 ? tensor::kInt8ScaleChannels : fp8_channels;
    return channels + kBytes * ((channels + per_scale - 1) / per_scale);
  };
  if (attention.latent) {
    const LatentConfig& latent = *attention.latent;
    return stored_bytes(latent.latent_dim, tensor::kLatentScaleChannels) +
           kBytes * (latent.rope_dim + (latent.indexer ? latent.indexer->head_dim : 0));
  }
  const int32_t heads = std::max(1, attention.kv_head_count / rank_count);
  return 2 * heads * stored_bytes(attention.head_dim, attention.head_dim);
}

}  // namespace millrace::model
