#include "golden_test/gguf_conversion.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <stdexcept>

#include "golden_test/gguf_renamings.h"
#include "model/checkpoint.h"
#include "support/gguf_text.h"
#include "tensor/dtype.h"

namespace millrace::test {
namespace {

using simdjson::dom::element;

/// A tensor as the converter holds it.
struct Raw {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
  [[nodiscard]] size_t row_bytes() const { return bytes.size() / static_cast<size_t>(shape.front()); }
};

uint32_t type_of(const std::string& dtype) {
  static const std::map<std::string, uint32_t> types = {{"F32", 0}, {"F16", 1}, {"BF16", 30}, {"MXFP4", 39}};
  return types.at(dtype);
}

class Converter {
 public:
  Converter(const GgufConversion& conversion, const std::filesystem::path& folder)
      : conversion_(conversion), architecture_(conversion.architecture) {
    config_ = parser_.load((folder / "config.json").string());
    const auto checkpoint = model::Checkpoint::open(folder).value();
    for (const std::string& name : checkpoint->names()) {
      const auto stored = checkpoint->find_stored(name).value();
      tensors_[name] = {.dtype = std::string(stored.dtype),
                        .shape = {stored.shape.begin(), stored.shape.end()},
                        .bytes = std::string(reinterpret_cast<const char*>(stored.bytes.data()), stored.bytes.size())};
    }
  }

  std::string convert() {
    add_metadata();
    for (const auto& [name, tensor] : tensors_) add_tensor(name, tensor);
    for (const auto& [name, parts] : stacks_) add(name, stack_of(parts));
    for (int32_t i = 0; i < conversion_.predicting_layers; ++i)
      text_.tensor(fmt::format("blk.{}.nextn.eh_proj.weight", integer("num_hidden_layers") + i), {1}, {1.0f});
    return text_.text();
  }

 private:
  [[nodiscard]] bool has(const char* member) const {
    element found;
    return config_[member].get(found) == simdjson::SUCCESS && !found.is_null();
  }
  [[nodiscard]] int64_t integer(const char* member) const { return config_[member].get_int64().value(); }
  [[nodiscard]] float number(const char* member) const { return static_cast<float>(double(config_[member])); }
  [[nodiscard]] bool is(std::string_view architecture) const { return architecture_ == architecture; }
  [[nodiscard]] bool pairs_rows() const { return is("granite") || is("granitemoe"); }

  [[nodiscard]] std::string key(std::string_view name) const { return fmt::format("{}.{}", architecture_, name); }
  void add_integer(std::string_view name, const char* member) {
    if (has(member)) text_.add(key(name), static_cast<uint32_t>(integer(member)));
  }
  void add_number(std::string_view name, const char* member) {
    if (has(member)) text_.add(key(name), number(member));
  }

  void add_metadata() {
    text_.add("general.architecture", std::string_view(architecture_));
    text_.add(key("block_count"), static_cast<uint32_t>(integer("num_hidden_layers") + conversion_.predicting_layers));
    if (conversion_.predicting_layers > 0) text_.add(key("nextn_predict_layers"), conversion_.predicting_layers);
    add_integer("context_length", "max_position_embeddings");
    add_integer("embedding_length", "hidden_size");
    if (is("lfm2")) {
      text_.add(key("feed_forward_length"),
                static_cast<uint32_t>(tensors_.at("model.layers.0.feed_forward.w1.weight").shape[0]));
    } else {
      add_integer("feed_forward_length", "intermediate_size");
    }
    add_integer("attention.head_count", "num_attention_heads");
    add_number("attention.layer_norm_rms_epsilon", has("norm_eps") ? "norm_eps" : "rms_norm_eps");
    add_number("attention.layer_norm_epsilon", "layer_norm_eps");
    const element rotation = has("rope_parameters") ? element(config_["rope_parameters"]) : config_;
    text_.add(key("rope.freq_base"), static_cast<float>(double(rotation["rope_theta"])));
    add_heads();
    add_windows();
    add_experts();
    add_rope();
    add_number("attn_logit_softcapping", "attn_logit_softcapping");
    add_number("final_logit_softcapping", "final_logit_softcapping");
    add_number("attention.scale", "attention_multiplier");
    add_number("embedding_scale", "embedding_multiplier");
    add_number("residual_scale", "residual_multiplier");
    add_number("logit_scale", is("cohere2") ? "logit_scale" : "logits_scaling");
    add_integer("shortconv.l_cache", "conv_L_cache");
  }

  void add_heads() {
    const int64_t heads = integer("num_attention_heads");
    const int64_t head_dim = has("head_dim") ? integer("head_dim") : integer("hidden_size") / heads;
    if (is("deepseek2")) {
      const int64_t latents = integer("kv_lora_rank");
      const int64_t rotated = integer("qk_rope_head_dim");
      text_.add(key("attention.head_count_kv"), 1);
      text_.add(key("attention.key_length"), static_cast<uint32_t>(latents + rotated));
      text_.add(key("attention.value_length"), static_cast<uint32_t>(latents));
      text_.add(key("attention.key_length_mla"), static_cast<uint32_t>(integer("qk_nope_head_dim") + rotated));
      add_integer("attention.value_length_mla", "v_head_dim");
      add_integer("attention.kv_lora_rank", "kv_lora_rank");
      add_integer("attention.q_lora_rank", "q_lora_rank");
      add_integer("rope.dimension_count", "qk_rope_head_dim");
      return;
    }
    if (is("lfm2") || is("lfm2moe")) {
      std::vector<int32_t> kv_heads;
      for (int64_t layer = 0; layer < integer("num_hidden_layers"); ++layer) {
        const bool attends = tensors_.contains(fmt::format("model.layers.{}.self_attn.q_proj.weight", layer));
        kv_heads.push_back(attends ? static_cast<int32_t>(integer("num_key_value_heads")) : 0);
      }
      text_.add(key("attention.head_count_kv"), kv_heads);
      return;
    }
    add_integer("attention.head_count_kv", "num_key_value_heads");
    if (has("head_dim")) text_.add(key("attention.key_length"), static_cast<uint32_t>(head_dim));
    if (has("head_dim")) text_.add(key("attention.value_length"), static_cast<uint32_t>(head_dim));
    if (has("partial_rotary_factor"))
      text_.add(key("rope.dimension_count"),
                static_cast<uint32_t>(static_cast<float>(head_dim) * number("partial_rotary_factor")));
    add_integer("rope.dimension_count", "rotary_dim");
  }

  void add_windows() {
    if (is("phi3")) text_.add(key("attention.sliding_window"), 0);
    if (!has("sliding_window") || is("qwen2moe")) return;
    add_integer("attention.sliding_window", "sliding_window");
    if (!is("olmo2")) return;
    constexpr uint32_t kBool = 7;
    constexpr uint32_t kArray = 9;
    const auto count = static_cast<uint64_t>(integer("num_hidden_layers"));
    std::string array(reinterpret_cast<const char*>(&kBool), sizeof kBool);
    array.append(reinterpret_cast<const char*>(&count), sizeof count);
    for (uint64_t layer = 0; layer < count; ++layer) array += static_cast<char>((layer + 1) % 4 != 0);
    text_.add_raw(key("attention.sliding_window_pattern"), kArray, array);
  }

  void add_experts() {
    for (const char* member : {"num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"})
      add_integer("expert_count", member);
    add_integer("expert_used_count", has("moe_k") ? "moe_k" : "num_experts_per_tok");
    const bool is_width_of_experts = is("gpt-oss") || is("minimax-m2");
    add_integer("expert_feed_forward_length", is_width_of_experts ? "intermediate_size" : "moe_intermediate_size");
    add_integer("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
    add_integer("expert_shared_count", has("n_shared_experts") ? "n_shared_experts" : "moe_num_shared_experts");
    for (const char* member : {"first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"})
      add_integer("leading_dense_block_count", member);
    add_integer("interleave_moe_layer_step", "moe_layer_interval");
    add_integer("expert_group_count", "n_group");
    add_integer("expert_group_used_count", "topk_group");
    add_number("expert_weights_scale", "routed_scaling_factor");
    if (has("norm_topk_prob") && bool(config_["norm_topk_prob"])) text_.add(key("expert_weights_norm"), true);
    const bool is_sigmoid = is("glm4moe") || is("lfm2moe") || is("minimax-m2");
    if (has("scoring_func") && std::string_view(config_["scoring_func"]) == "softmax") {
      text_.add(key("expert_gating_func"), 1);
    } else if (is_sigmoid || has("scoring_func")) {
      text_.add(key("expert_gating_func"), 2);
    }
  }

  void add_rope() {
    add_number("rope.freq_base_swa", "rope_local_base_freq");
    if (!has("rope_scaling")) return;
    const element scaling = config_["rope_scaling"];
    std::string_view type;
    if (scaling["rope_type"].get(type) != simdjson::SUCCESS) type = scaling["type"];
    text_.add(key("rope.scaling.type"), type);
    const auto add_scalar = [&](const char* name, const char* member, float factor = 1.0f) {
      double value = 0;
      if (scaling[member].get(value) == simdjson::SUCCESS) text_.add(key(name), factor * static_cast<float>(value));
    };
    add_scalar("rope.scaling.factor", "factor");
    add_scalar("rope.scaling.yarn_attn_factor", "attention_factor");
    add_scalar("rope.scaling.yarn_beta_fast", "beta_fast");
    add_scalar("rope.scaling.yarn_beta_slow", "beta_slow");
    add_scalar("rope.scaling.yarn_log_multiplier", "mscale_all_dim", 0.1f);
    int64_t original = 0;
    if (scaling["original_max_position_embeddings"].get(original) != simdjson::SUCCESS &&
        has("original_max_position_embeddings"))
      original = integer("original_max_position_embeddings");
    if (original > 0) text_.add(key("rope.scaling.original_context_length"), static_cast<uint32_t>(original));
    for (const auto& [member, name] : {std::pair("long_factor", "rope_factors_long.weight"),
                                       std::pair("short_factor", "rope_factors_short.weight")}) {
      simdjson::dom::array list;
      if (scaling[member].get(list) != simdjson::SUCCESS) continue;
      std::vector<float> factors;
      for (const element factor : list) factors.push_back(static_cast<float>(double(factor)));
      text_.tensor(name, {static_cast<int64_t>(factors.size())}, factors);
    }
  }

  [[nodiscard]] std::string stored_part(std::string_view module) const {
    for (const GgufRenaming& row : gguf_renamings()) {
      if (row.module == module &&
          (row.architectures.empty() || row.architectures.find(architecture_ + ' ') != std::string::npos))
        return row.stored;
    }
    throw std::runtime_error("no file has a name for " + std::string(module));
  }

  void add_tensor(const std::string& name, const Raw& tensor) {
    if (name == "model.embed_tokens.weight") return add("token_embd.weight", tensor);
    if (name == "lm_head.weight") return add("output.weight", tensor);
    if (name == "model.norm.weight") return add("output_norm.weight", tensor);
    if (name == "model.embedding_norm.weight") return add("token_embd_norm.weight", tensor);
    const std::string rest = name.substr(std::string("model.layers.").size());
    const size_t dot = rest.find('.');
    const std::string prefix = "blk." + rest.substr(0, dot) + '.';
    std::string module = rest.substr(dot + 1);
    std::string ending;
    for (const char* each : {".weight", ".bias"}) {
      if (!module.ends_with(each)) continue;
      ending = each;
      module.resize(module.size() - ending.size());
    }
    if (add_packed_experts(name, prefix, module, tensor)) return;
    if (const size_t at = module.find("experts.");
        at != std::string::npos && module.find("shared_experts") == std::string::npos) {
      const size_t number = at + std::string("experts.").size();
      const size_t end = module.find('.', number);
      stacks_[prefix + stored_part(module.substr(end + 1)) + ending][std::stol(module.substr(number, end - number))] =
          tensor;
      return;
    }
    if (module == "self_attn.kv_b_proj") return add_latent_expansion(prefix, tensor);
    if (ending.empty() && module == "self_attn.sinks") ending = ".weight";
    add(prefix + stored_part(module) + ending, in_file(module, tensor));
  }

  /// Adds experts that safetensors have in one tensor for all, and their biases.
  bool add_packed_experts(const std::string& name, const std::string& prefix, const std::string& module,
                          const Raw& tensor) {
    if (module == "block_sparse_moe.input_linear") {
      const int64_t half = tensor.shape[1] / 2;
      add(prefix + "ffn_gate_exps.weight", rows_of(tensor, 0, half, 1));
      add(prefix + "ffn_up_exps.weight", rows_of(tensor, half, half, 1));
    } else if (module == "block_sparse_moe.output_linear") {
      add(prefix + "ffn_down_exps.weight", tensor);
    } else if (module == "mlp.experts.gate_up_proj") {
      const Raw turned = transposed(tensor);
      add(prefix + "ffn_gate_exps.weight", rows_of(turned, 0, turned.shape[1] / 2, 2));
      add(prefix + "ffn_up_exps.weight", rows_of(turned, 1, turned.shape[1] / 2, 2));
    } else if (module == "mlp.experts.down_proj") {
      add(prefix + "ffn_down_exps.weight", transposed(tensor));
    } else if (module == "mlp.experts.gate_up_proj_bias") {
      Raw columns = tensor;
      columns.shape.push_back(1);
      Raw gate = rows_of(columns, 0, tensor.shape[1] / 2, 2);
      Raw up = rows_of(columns, 1, tensor.shape[1] / 2, 2);
      gate.shape.pop_back();
      up.shape.pop_back();
      add(prefix + "ffn_gate_exps.bias", to_f32(gate));
      add(prefix + "ffn_up_exps.bias", to_f32(up));
    } else if (module == "mlp.experts.down_proj_bias") {
      add(prefix + "ffn_down_exps.bias", to_f32(tensor));
    } else if (module.ends_with("_proj_blocks")) {
      std::string scales = name;
      scales.replace(scales.rfind("_blocks"), std::string::npos, "_scales");
      const Raw blocks = mxfp4_blocks(tensor, tensors_.at(scales));
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

  /// Returns a tensor in the order, shape and type that files have.
  [[nodiscard]] Raw in_file(const std::string& module, const Raw& tensor) const {
    Raw stored = tensor;
    if (module == "conv.conv") stored.shape = {tensor.shape[0], tensor.shape[2]};
    if (stored.shape.size() == 2 && stored.shape[0] == 1) stored.shape.erase(stored.shape.begin());
    if (pairs_rows() && (module == "self_attn.q_proj" || module == "self_attn.k_proj"))
      stored = paired(stored, integer(module == "self_attn.q_proj" ? "num_attention_heads" : "num_key_value_heads"));
    const bool is_plain = stored.shape.size() == 1 || module == "conv.conv" || stored_part(module) == "ffn_gate_inp";
    return is_plain ? to_f32(stored) : stored;
  }

  void add(const std::string& name, Raw tensor) {
    if (tensor.shape.size() == 1) {
      tensor = to_f32(tensor);
      if ((is("gemma2") || is("gemma3")) && name.ends_with("norm.weight")) {
        auto* values = reinterpret_cast<float*>(tensor.bytes.data());
        for (int64_t i = 0; i < tensor.shape[0]; ++i) values[i] += 1.0f;
      }
    }
    text_.tensor(name, tensor.shape, type_of(tensor.dtype), tensor.bytes);
  }

  static Raw to_f32(const Raw& tensor) {
    if (tensor.dtype == "F32") return tensor;
    Raw wide{.dtype = "F32", .shape = tensor.shape, .bytes = {}};
    if (tensor.dtype != "BF16") throw std::runtime_error("dtype " + tensor.dtype);
    for (size_t at = 0; at < tensor.bytes.size(); at += 2)
      wide.bytes += std::string(2, '\0') + tensor.bytes.substr(at, 2);
    return wide;
  }

  /// Returns `count` rows of each plane of a tensor [planes, rows, columns], from `first` on, `step` apart.
  static Raw rows_of(const Raw& tensor, int64_t first, int64_t count, int64_t step) {
    Raw part{.dtype = tensor.dtype, .shape = tensor.shape, .bytes = {}};
    part.shape[1] = count;
    const size_t row = tensor.row_bytes() / static_cast<size_t>(tensor.shape[1]);
    for (int64_t plane = 0; plane < tensor.shape[0]; ++plane) {
      for (int64_t i = 0; i < count; ++i)
        part.bytes += tensor.bytes.substr(static_cast<size_t>(plane * tensor.shape[1] + first + i * step) * row, row);
    }
    return part;
  }

  /// Swaps the last two dimensions of a tensor of 16-bit numbers.
  static Raw transposed(const Raw& tensor) {
    const int64_t planes = tensor.shape[0];
    const int64_t rows = tensor.shape[1];
    const int64_t cols = tensor.shape[2];
    Raw turned{.dtype = tensor.dtype, .shape = {planes, cols, rows}, .bytes = {}};
    for (int64_t plane = 0; plane < planes; ++plane) {
      for (int64_t col = 0; col < cols; ++col) {
        for (int64_t row = 0; row < rows; ++row)
          turned.bytes += tensor.bytes.substr(static_cast<size_t>((plane * rows + row) * cols + col) * 2, 2);
      }
    }
    return turned;
  }

  /// Returns rows of which 2i and 2i + 1 are rows i and i + half of their head.
  static Raw paired(const Raw& tensor, int64_t heads) {
    Raw rows{.dtype = tensor.dtype, .shape = tensor.shape, .bytes = {}};
    const int64_t head = tensor.shape[0] / heads;
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      const int64_t in_head = row % head;
      const int64_t source = row - in_head + in_head / 2 + in_head % 2 * head / 2;
      rows.bytes += tensor.bytes.substr(static_cast<size_t>(source) * tensor.row_bytes(), tensor.row_bytes());
    }
    return rows;
  }

  /// Splits [heads · (key + value), latents] into keys, turned, and values.
  void add_latent_expansion(const std::string& prefix, const Raw& tensor) {
    const int64_t heads = integer("num_attention_heads");
    const int64_t key_rows = integer("qk_nope_head_dim");
    Raw by_head = tensor;
    by_head.shape = {heads, tensor.shape[0] / heads, tensor.shape[1]};
    add(prefix + "attn_k_b.weight", transposed(rows_of(by_head, 0, key_rows, 1)));
    add(prefix + "attn_v_b.weight", rows_of(by_head, key_rows, by_head.shape[1] - key_rows, 1));
  }

  /// Returns blocks of a byte of scale and 16 bytes of codes. Byte i of safetensors has codes 2i and 2i + 1, of files
  /// codes i and i + 16.
  static Raw mxfp4_blocks(const Raw& codes, const Raw& scales) {
    constexpr size_t kBytes = 16;
    Raw blocks{.dtype = "MXFP4", .shape = {codes.shape[0], codes.shape[1], codes.shape[2] * 32}, .bytes = {}};
    for (size_t block = 0; block < scales.bytes.size(); ++block) {
      blocks.bytes += scales.bytes[block];
      const auto code = [&](size_t i) {
        const auto byte = static_cast<uint8_t>(codes.bytes[block * kBytes + i / 2]);
        return i % 2 == 0 ? byte & 15 : byte >> 4;
      };
      for (size_t i = 0; i < kBytes; ++i) blocks.bytes += static_cast<char>(code(i) | code(i + kBytes) << 4);
    }
    return blocks;
  }

  static Raw stack_of(const std::map<int64_t, Raw>& parts) {
    Raw stack = parts.begin()->second;
    stack.shape.insert(stack.shape.begin(), static_cast<int64_t>(parts.size()));
    stack.bytes.clear();
    for (const auto& [number, part] : parts) stack.bytes += part.bytes;
    return stack;
  }

  const GgufConversion& conversion_;
  const std::string architecture_;
  simdjson::dom::parser parser_;
  element config_;
  std::map<std::string, Raw> tensors_;
  std::map<std::string, std::map<int64_t, Raw>> stacks_;  // by name and expert
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
