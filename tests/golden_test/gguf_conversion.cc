#include "golden_test/gguf_conversion.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "golden_test/gguf_metadata.h"
#include "golden_test/gguf_raw.h"
#include "golden_test/gguf_renamings.h"

namespace millrace::test {
namespace {

uint32_t type_of(const std::string& dtype) {
  static const std::map<std::string, uint32_t> types = {
      {"F32", 0}, {"F16", 1}, {"BF16", 30}, {"MXFP4", 39}, {"Q8_0", 8}};
  return types.at(dtype);
}

/// Rounds blocks of 32 values to integers with a power of two.
RawTensor to_q8_0(const RawTensor& tensor) {
  constexpr size_t kBlock = 32;
  const RawTensor plain = to_f32(tensor);
  const auto* const values = reinterpret_cast<const float*>(plain.bytes.data());
  RawTensor blocks{.dtype = "Q8_0", .shape = tensor.shape, .bytes = {}};
  for (size_t first = 0; first < plain.bytes.size() / sizeof(float); first += kBlock) {
    float largest = 0x1p-14f;
    for (size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(values[first + i]));
    const int exponent = std::max(-14, static_cast<int>(std::ceil(std::log2(largest / 127))));
    const auto scale = static_cast<uint16_t>((exponent + 15) << 10);  // as f16
    blocks.bytes += {static_cast<char>(scale & 255), static_cast<char>(scale >> 8)};
    for (size_t i = 0; i < kBlock; ++i)
      blocks.bytes += static_cast<char>(std::lround(std::ldexp(values[first + i], -exponent)));
  }
  return blocks;
}

class Converter {
 public:
  Converter(const GgufConversion& conversion, const std::filesystem::path& folder)
      : conversion_(conversion), source_(folder, conversion.architecture) {}

  std::string convert() {
    add_gguf_metadata(source_, conversion_, text_);
    for (const auto& [name, tensor] : source_.tensors()) add_tensor(name, tensor);
    for (const auto& [name, parts] : stacks_) add(name, stack_of(parts));
    for (int32_t i = 0; i < conversion_.predicting_layers; ++i)
      text_.tensor(fmt::format("blk.{}.nextn.eh_proj.weight", source_.layer_count() + i), {1}, {1.0f});
    return text_.text();
  }

 private:
  [[nodiscard]] std::string stored_part(std::string_view module) const {
    for (const GgufRenaming& row : gguf_renamings()) {
      if (row.module == module &&
          (row.architectures.empty() || row.architectures.find(source_.architecture() + ' ') != std::string::npos))
        return std::string(row.stored);
    }
    throw std::runtime_error("no file has a name for " + std::string(module));
  }

  void add_tensor(const std::string& name, const RawTensor& tensor) {
    if (name == "model.embed_tokens.weight" || name == "backbone.embeddings.weight" ||
        name == "model.word_embeddings.weight")
      return add("token_embd.weight", with_factor(tensor, "embedding_multiplier"));
    if (name == "lm_head.weight") return add("output.weight", with_factor(tensor, "lm_head_multiplier"));
    if (name == "model.norm.weight" || name == "backbone.norm_f.weight" || name == "model.final_layernorm.weight")
      return add("output_norm.weight", tensor);
    if (name == "model.embedding_norm.weight") return add("token_embd_norm.weight", tensor);
    if (name == "model.embed_tokens_per_layer.weight") return add("per_layer_token_embd.weight", tensor);
    if (name == "model.per_layer_model_projection.weight") return add("per_layer_model_proj.weight", tensor);
    if (name == "model.per_layer_projection_norm.weight") return add("per_layer_proj_norm.weight", tensor);
    const std::string rest = name.substr(name.find(".layers.") + std::string(".layers.").size());
    const size_t dot = rest.find('.');
    const std::string prefix = "blk." + rest.substr(0, dot) + '.';
    std::string module = rest.substr(dot + 1);
    std::string ending;
    for (const char* each : {".weight", ".bias"}) {
      if (!module.ends_with(each)) continue;
      ending = each;
      module.resize(module.size() - ending.size());
    }
    if (add_packed_experts(name, prefix, module, tensor) || add_recurrent_tensor(prefix, module, ending, tensor))
      return;
    if (const size_t at = module.find("experts.");
        at != std::string::npos && module.find("shared_experts") == std::string::npos) {
      const size_t number = at + std::string("experts.").size();
      const size_t end = module.find('.', number);
      stacks_[prefix + stored_part(module.substr(end + 1)) + ending][std::stol(module.substr(number, end - number))] =
          tensor;
      return;
    }
    if (module == "self_attn.kv_b_proj") return add_latent_expansion(prefix, tensor);
    if (module == "self_attn.sinks" || module == "layer_scalar") ending = ".weight";
    if (module == "pre_ff_layernorm") ending.clear();
    add(prefix + stored_part(module) + ending, in_file(module, tensor));
  }

  /// Adds experts that safetensors have in one tensor for all, and their biases.
  bool add_packed_experts(const std::string& name, const std::string& prefix, const std::string& module,
                          const RawTensor& tensor) {
    if (module == "block_sparse_moe.input_linear") {
      const int64_t half = tensor.shape[1] / 2;
      add(prefix + "ffn_gate_exps.weight", rows_of(tensor, 0, half, 1));
      add(prefix + "ffn_up_exps.weight", rows_of(tensor, half, half, 1));
    } else if (module == "block_sparse_moe.output_linear") {
      add(prefix + "ffn_down_exps.weight", tensor);
    } else if (module == "shared_mlp.input_linear") {
      RawTensor planes = tensor;
      planes.shape.insert(planes.shape.begin(), 1);
      const int64_t half = tensor.shape[0] / 2;
      const std::string shared = source_.integer("num_local_experts") > 0 ? "_shexp.weight" : ".weight";
      add(prefix + "ffn_gate" + shared, plane_of(rows_of(planes, 0, half, 1)));
      add(prefix + "ffn_up" + shared, plane_of(rows_of(planes, half, half, 1)));
    } else if (module == "shared_mlp.output_linear") {
      add(prefix + (source_.integer("num_local_experts") > 0 ? "ffn_down_shexp.weight" : "ffn_down.weight"), tensor);
    } else if (module == "experts.gate_up_proj") {
      add(prefix + "ffn_gate_up_exps.weight", tensor);
    } else if (module == "experts.down_proj") {
      add(prefix + "ffn_down_exps.weight", tensor);
    } else if (module == "feed_forward.experts.gate_up_proj") {
      const RawTensor turned = transposed(tensor);
      const int64_t half = turned.shape[1] / 2;
      add(prefix + "ffn_gate_exps.weight", rows_of(turned, 0, half, 1));
      add(prefix + "ffn_up_exps.weight", rows_of(turned, half, half, 1));
    } else if (module == "feed_forward.experts.down_proj") {
      add(prefix + "ffn_down_exps.weight", transposed(tensor));
    } else if (module == "mlp.experts.gate_up_proj") {
      const RawTensor turned = transposed(tensor);
      add(prefix + "ffn_gate_exps.weight", rows_of(turned, 0, turned.shape[1] / 2, 2));
      add(prefix + "ffn_up_exps.weight", rows_of(turned, 1, turned.shape[1] / 2, 2));
    } else if (module == "mlp.experts.down_proj") {
      add(prefix + "ffn_down_exps.weight", transposed(tensor));
    } else if (module == "mlp.experts.gate_up_proj_bias") {
      RawTensor columns = tensor;
      columns.shape.push_back(1);
      RawTensor gate = rows_of(columns, 0, tensor.shape[1] / 2, 2);
      RawTensor up = rows_of(columns, 1, tensor.shape[1] / 2, 2);
      gate.shape.pop_back();
      up.shape.pop_back();
      add(prefix + "ffn_gate_exps.bias", to_f32(gate));
      add(prefix + "ffn_up_exps.bias", to_f32(up));
    } else if (module == "mlp.experts.down_proj_bias") {
      add(prefix + "ffn_down_exps.bias", to_f32(tensor));
    } else if (module.ends_with("_proj_blocks")) {
      std::string scales = name;
      scales.replace(scales.rfind("_blocks"), std::string::npos, "_scales");
      const RawTensor blocks = mxfp4_blocks(tensor, source_.tensors().at(scales));
      if (module == "mlp.experts.down_proj_blocks") {
        add(prefix + "ffn_down_exps.weight", blocks);
      } else {
        add(prefix + "ffn_gate_exps.weight", rows_of(blocks, 0, blocks.shape[1] / 2, 2));
        add(prefix + "ffn_up_exps.weight", rows_of(blocks, 1, blocks.shape[1] / 2, 2));
      }
    } else {
      return module.ends_with("_proj_scales");
    }
    return true;
  }

  static RawTensor plane_of(RawTensor planes) {
    planes.shape.erase(planes.shape.begin());
    return planes;
  }

  /// Returns where the value heads of a delta net are stored; `block`: rows or columns of each.
  [[nodiscard]] weights::StoredOrder value_order(int64_t block, bool after_keys = false) const {
    if (!source_.tiles_value_heads()) return {};
    const int64_t keys = source_.integer("linear_num_key_heads");
    return {.first = after_keys ? 2 * keys * source_.integer("linear_key_head_dim") : 0,
            .outer = keys,
            .inner = source_.integer("linear_num_value_heads") / keys,
            .block = block};
  }

  /// Splits rows q, k, v and z of each key head.
  void add_delta_projection(const std::string& prefix, const RawTensor& tensor) {
    RawTensor by_head = tensor;
    const int64_t heads = source_.integer("linear_num_key_heads");
    by_head.shape = {heads, tensor.shape[0] / heads, tensor.shape[1]};
    const int64_t key = source_.integer("linear_key_head_dim");
    const int64_t values = by_head.shape[1] / 2 - key;
    RawTensor joined{.dtype = tensor.dtype, .shape = {heads * (2 * key + values), tensor.shape[1]}, .bytes = {}};
    for (const auto& [first, count] : {std::pair(int64_t{0}, key), {key, key}, {2 * key, values}})
      joined.bytes += rows_of(by_head, first, count, 1).bytes;
    const int64_t channels = source_.integer("linear_value_head_dim");
    add(prefix + "attn_qkv.weight", ordered_rows(joined, value_order(channels, true)));
    RawTensor gate = rows_of(by_head, 2 * key + values, values, 1);
    gate.shape = {heads * values, tensor.shape[1]};
    add(prefix + "attn_gate.weight", ordered_rows(gate, value_order(channels)));
  }

  /// Splits rows b and a of each key head.
  void add_delta_steps(const std::string& prefix, const RawTensor& tensor) {
    RawTensor by_head = tensor;
    const int64_t heads = source_.integer("linear_num_key_heads");
    by_head.shape = {heads, tensor.shape[0] / heads, tensor.shape[1]};
    const int64_t each = by_head.shape[1] / 2;
    for (const bool is_alpha : {false, true}) {
      RawTensor part = rows_of(by_head, is_alpha ? each : 0, each, 1);
      part.shape = {heads * each, tensor.shape[1]};
      add(prefix + (is_alpha ? "ssm_alpha.weight" : "ssm_beta.weight"), ordered_rows(part, value_order(1)));
    }
  }

  /// Adds a tensor of a delta net or of Mamba-2.
  bool add_recurrent_tensor(const std::string& prefix, const std::string& module, const std::string& ending,
                            const RawTensor& tensor) {
    if (!source_.is_delta_net() && !source_.has_mamba()) return false;
    const std::string part = module.substr(module.find('.') + 1);
    const int64_t channels = source_.is_delta_net() ? source_.integer("linear_value_head_dim") : 0;
    if (part == "A_log") {
      RawTensor rates = to_f32(tensor);
      auto* values = reinterpret_cast<float*>(rates.bytes.data());
      for (int64_t i = 0; i < rates.shape[0]; ++i) values[i] = -std::exp(values[i]);
      if (source_.has_mamba()) rates.shape.push_back(1);
      add(prefix + "ssm_a", source_.is_delta_net() ? ordered_rows(rates, value_order(1)) : rates);
    } else if (part == "D") {
      RawTensor skip = to_f32(tensor);
      skip.shape.push_back(1);
      add(prefix + "ssm_d", skip);
    } else if (part == "dt_bias") {
      add(prefix + "ssm_dt.bias", ordered_rows(tensor, value_order(1)));
    } else if (part == "conv1d" && ending == ".weight") {
      RawTensor rows = to_f32(tensor);
      rows.shape = {tensor.shape[0], tensor.shape[2]};
      add(prefix + "ssm_conv1d.weight", ordered_rows(rows, value_order(channels, true)));
    } else if (module == "mamba.norm" || (module == "mixer.norm" && source_.has_mamba())) {
      RawTensor groups = to_f32(tensor);
      const int64_t count = source_.integer(source_.has("mamba_n_groups") ? "mamba_n_groups" : "n_groups");
      groups.shape = {count, tensor.shape[0] / count};
      add(prefix + "ssm_norm.weight", groups);
    } else if (module == "linear_attn.norm") {
      const RawTensor norm = to_f32(tensor);
      text_.tensor(prefix + "ssm_norm.weight", norm.shape, type_of(norm.dtype), norm.bytes);
    } else if (part == "in_proj_qkvz") {
      add_delta_projection(prefix, tensor);
    } else if (part == "in_proj_ba" && source_.tiles_value_heads()) {
      add_delta_steps(prefix, tensor);
    } else if (part == "in_proj_qkv") {
      add(prefix + "attn_qkv.weight", ordered_rows(tensor, value_order(channels, true)));
    } else if (part == "in_proj_z") {
      add(prefix + "attn_gate.weight", ordered_rows(tensor, value_order(channels)));
    } else if (part == "in_proj_a" || part == "in_proj_b") {
      add(prefix + (part == "in_proj_a" ? "ssm_alpha.weight" : "ssm_beta.weight"),
          ordered_rows(tensor, value_order(1)));
    } else if (module == "linear_attn.out_proj") {
      add(prefix + "ssm_out.weight", ordered_columns(tensor, value_order(channels)));
    } else {
      return false;
    }
    return true;
  }

  /// Returns a tensor of Falcon-H1 times one of its multipliers.
  [[nodiscard]] RawTensor with_factor(const RawTensor& tensor, const char* member) const {
    return source_.is("falcon-h1") && source_.has(member)
               ? scaled_rows(tensor, 0, tensor.shape[0], source_.number(member))
               : tensor;
  }
  /// Returns a matrix of a layer of Falcon-H1 as the product with its multipliers.
  [[nodiscard]] RawTensor product(const std::string& module, const RawTensor& tensor) const {
    const auto times = [&](float factor) { return scaled_rows(tensor, 0, tensor.shape[0], factor); };
    if (module == "feed_forward.gate_proj") return times(source_.number_of("mlp_multipliers", 0));
    if (module == "feed_forward.down_proj") return times(source_.number_of("mlp_multipliers", 1));
    if (module == "self_attn.q_proj" || module == "self_attn.v_proj")
      return times(source_.number("attention_in_multiplier"));
    if (module == "self_attn.k_proj")
      return times(source_.number("key_multiplier") * source_.number("attention_in_multiplier"));
    if (module == "self_attn.o_proj") return times(source_.number("attention_out_multiplier"));
    if (module == "mamba.out_proj") return times(source_.number("ssm_out_multiplier"));
    if (module != "mamba.in_proj") return tensor;
    const int64_t inner = source_.integer("mamba_d_ssm");
    const int64_t group = source_.integer("mamba_n_groups") * source_.integer("mamba_d_state");
    RawTensor scaled = times(source_.number("ssm_in_multiplier"));
    int64_t first = 0;
    size_t index = 0;
    for (const int64_t count : {inner, inner, group, group, source_.integer("mamba_n_heads")}) {
      scaled = scaled_rows(scaled, first, count, source_.number_of("ssm_multipliers", index++));
      first += count;
    }
    return scaled;
  }

  /// Returns a tensor in the order, shape and type that files have.
  [[nodiscard]] RawTensor in_file(const std::string& module, const RawTensor& tensor) const {
    RawTensor stored = source_.is("falcon-h1") ? product(module, tensor) : tensor;
    if (module == "conv.conv") stored.shape = {tensor.shape[0], tensor.shape[2]};
    if (source_.pairs_rows() && (module.ends_with(".q_proj") || module.ends_with(".k_proj")))
      stored =
          paired(stored, source_.integer(module.ends_with(".q_proj") ? "num_attention_heads" : "num_key_value_heads"));
    const bool is_plain = stored.shape.size() == 1 || module == "conv.conv" || stored_part(module) == "ffn_gate_inp";
    return is_plain ? to_f32(stored) : stored;
  }

  void add(const std::string& name, RawTensor tensor) {
    if (tensor.shape.size() == 1) {
      tensor = to_f32(tensor);
      if ((source_.is("gemma2") || source_.is("gemma3") || source_.is_delta_net()) && name.ends_with("norm.weight")) {
        auto* values = reinterpret_cast<float*>(tensor.bytes.data());
        for (int64_t i = 0; i < tensor.shape[0]; ++i) values[i] += 1.0f;
      }
    }
    text_.tensor(name, tensor.shape, type_of(tensor.dtype), tensor.bytes);
  }

  /// Splits [heads · (key + value), latents] into keys, turned, and values.
  void add_latent_expansion(const std::string& prefix, const RawTensor& tensor) {
    const int64_t heads = source_.integer("num_attention_heads");
    const int64_t key_rows = source_.integer("qk_nope_head_dim");
    RawTensor by_head = tensor;
    by_head.shape = {heads, tensor.shape[0] / heads, tensor.shape[1]};
    const auto add_part = [&](const char* name, const RawTensor& part) {
      add(prefix + name, conversion_.quantizes_latents ? to_q8_0(part) : part);
    };
    add_part("attn_k_b.weight", transposed(rows_of(by_head, 0, key_rows, 1)));
    add_part("attn_v_b.weight", rows_of(by_head, key_rows, by_head.shape[1] - key_rows, 1));
  }

  const GgufConversion& conversion_;
  const GgufSource source_;
  std::map<std::string, std::map<int64_t, RawTensor>> stacks_;  // by name and expert
  GgufText text_;
};

}  // namespace

const std::vector<GgufConversion>& gguf_conversions() {
  const std::pair<std::string, std::string> one_mscale = {"\"mscale\": 0.7", "\"mscale\": 1.0"};
  static const std::vector<GgufConversion> all = {
      {.folder = "qwen3", .architecture = "qwen3"},
      {.folder = "qwen2moe", .architecture = "qwen2moe"},
      {.folder = "gemma2",
       .architecture = "gemma2",
       .changes = {{"\"query_pre_attn_scalar\": 24", "\"query_pre_attn_scalar\": 32"}}},
      {.folder = "gemma3",
       .architecture = "gemma3",
       .changes = {{"\"query_pre_attn_scalar\": 24", "\"query_pre_attn_scalar\": 32"}}},
      {.folder = "glm4", .architecture = "glm4"},
      {.folder = "glm4moe", .architecture = "glm4moe", .predicting_layers = 1},
      {.folder = "gpt_oss", .architecture = "gpt-oss"},
      {.folder = "gpt_oss-mxfp4", .architecture = "gpt-oss"},
      {.folder = "olmo2", .architecture = "olmo2"},
      {.folder = "olmo3", .architecture = "olmo2"},
      {.folder = "phi3", .architecture = "phi3"},
      {.folder = "granite", .architecture = "granite"},
      {.folder = "granitemoe", .architecture = "granitemoe"},
      {.folder = "cohere2", .architecture = "cohere2"},
      {.folder = "ernie4_5moe", .architecture = "ernie4_5-moe"},
      {.folder = "minimax_m2", .architecture = "minimax-m2"},
      {.folder = "lfm2", .architecture = "lfm2"},
      {.folder = "lfm2moe", .architecture = "lfm2moe"},
      {.folder = "qwen3next", .architecture = "qwen3next"},
      {.folder = "qwen3next", .architecture = "qwen35moe"},  // the same arithmetic in another layout
      {.folder = "qwen3_5", .architecture = "qwen35", .predicting_layers = 1},
      {.folder = "glm4-moe-lite", .architecture = "deepseek2"},
      {.folder = "gemma4", .architecture = "gemma4"},
      {.folder = "gemma4-moe", .architecture = "gemma4"},
      {.folder = "gemma4-e", .architecture = "gemma4"},
      {.folder = "granitemoehybrid", .architecture = "granitehybrid"},
      {.folder = "granite4-dense",
       .architecture = "granitehybrid",
       .changes = {{"\"position_embedding_type\": \"rope\"", "\"position_embedding_type\": \"nope\""}}},
      {.folder = "nemotronh", .architecture = "nemotron_h"},
      {.folder = "nemotronh-moe", .architecture = "nemotron_h_moe"},
      {.folder = "nemotronh-latent", .architecture = "nemotron_h_moe", .predicting_layers = 1},
      {.folder = "falcon-h1", .architecture = "falcon-h1", .multiplies_weights = true},
      {.folder = "ministral3", .architecture = "mistral3"},
      {.folder = "llama4",
       .architecture = "llama4",
       .changes = {{"\"attention_chunk_size\": 64", "\"attention_chunk_size\": 8192"},
                   {"\"floor_scale\": 32", "\"floor_scale\": 8192"}}},
      {.folder = "hyv3", .architecture = "hy_v3"},
      {.folder = "afmoe", .architecture = "afmoe"},
      {.folder = "bailing", .architecture = "bailingmoe2", .predicting_layers = 1},
      {.folder = "dots1", .architecture = "dots1"},
      {.folder = "exaone4",
       .architecture = "exaone4",
       .changes = {{"\"high_freq_factor\": 4.0", "\"high_freq_factor\": 1.0"}}},
      {.folder = "exaone-moe", .architecture = "exaone-moe", .predicting_layers = 1},
      {.folder = "seed-oss", .architecture = "seed_oss"},
      {.folder = "smollm3", .architecture = "smollm3"},
      {.folder = "deepseek-v32", .architecture = "deepseek32", .changes = {one_mscale}, .predicting_layers = 1},
      {.folder = "glm-moe-dsa", .architecture = "glm-dsa"},
      {.folder = "deepseek-v2-lite", .architecture = "deepseek2", .changes = {one_mscale}},
      {.folder = "deepseek-v2", .architecture = "deepseek2", .changes = {one_mscale}},
      {.folder = "deepseek-v3", .architecture = "deepseek2", .changes = {one_mscale}, .predicting_layers = 1},
  };
  return all;
}

std::string convert_to_gguf(const GgufConversion& conversion, const std::filesystem::path& folder) {
  return Converter(conversion, folder).convert();
}

}  // namespace millrace::test
