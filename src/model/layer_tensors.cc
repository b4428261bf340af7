#include "model/layer_tensors.h"

#include <array>
#include <span>
#include <string_view>

namespace millrace::model {
namespace {

/// Lists the weights of one layer.
class LayerLister {
 public:
  LayerLister(const ModelConfig& config, int32_t index, std::vector<TensorSpec>& specs)
      : config_(config), names_(config.names), layer_(config.layer(index)), index_(index), specs_(specs) {}

  void list() {
    const LayerNorms& norms = layer_.norms;
    if (norms.before_attention) add_norm_before_layer(config_, index_, specs_);
    list_attention();
    if (norms.after_attention) add_norm(names_.attention_output_norm);
    if (norms.before_feed_forward && !layer_.parallel) add_norm(names_.feed_forward_norm);
    if (layer_.feed_forward.moe)
      list_experts(*layer_.feed_forward.moe);
    else
      list_feed_forward();
    if (norms.after_feed_forward) add_norm(names_.feed_forward_output_norm);
  }

 private:
  /// A matrix of the layer with its division.
  struct Rows {
    std::string_view name;
    int64_t count = 0;
    Division division = Division::kNone;
    PairedRows paired = {};
  };

  TensorSpec& add(std::string name, tensor::Shape shape, Division division = Division::kNone) {
    const bool projection = shape.rank() == 2;
    return specs_.emplace_back(TensorSpec{
        .name = std::move(name), .shape = shape, .projection = projection, .division = division, .layer = index_});
  }

  void add_norm(std::string_view name) {
    add(names_.weight(index_, name), {config_.hidden_size});
    if (config_.norm == NormKind::kLayerInPlace) add(names_.bias(index_, name), {config_.hidden_size});
  }

  /// Adds weights [count, hidden], and then their biases. With a `fused` name one tensor has the rows of all.
  void add_rows(std::span<const Rows> parts, std::string_view fused, bool bias) {
    const int64_t hidden = config_.hidden_size;
    int64_t all = 0;
    for (const Rows& part : parts) all += part.count;
    for (const bool is_bias : {false, true}) {
      if (is_bias && !bias) continue;
      const auto name = [&](std::string_view part) {
        return is_bias ? names_.bias(index_, part) : names_.weight(index_, part);
      };
      const auto shape = [&](int64_t rows) { return is_bias ? tensor::Shape{rows} : tensor::Shape{rows, hidden}; };
      int64_t first = 0;
      for (const Rows& part : parts) {
        TensorSpec& spec = add(name(part.name), shape(part.count), part.division);
        spec.paired = part.paired;
        if (!fused.empty()) spec.part = TensorPart{.tensor = name(fused), .shape = shape(all), .first_row = first};
        first += part.count;
      }
    }
  }

  void list_attention() {
    const AttentionConfig& attention = layer_.attention;
    const int64_t query = attention.query_width();
    const int64_t kv = attention.kv_width();
    PairedRows paired;
    if (attention.rope && config_.ropes[static_cast<size_t>(*attention.rope)].interleaved)
      paired = {.head_rows = attention.head_dim, .first = 0, .count = rotary_dim(config_, attention)};
    add_rows(
        std::array{Rows{names_.query, query, Division::kHeadRows, paired},
                   Rows{names_.key, kv, Division::kKvHeadRows, paired}, Rows{names_.value, kv, Division::kKvHeadRows}},
        names_.fused_qkv, attention.qkv_bias);
    if (attention.qk_norm != QkNorm::kNone) {
      const bool per_head = attention.qk_norm == QkNorm::kPerHead;
      add(names_.weight(index_, names_.query_norm), {per_head ? attention.head_dim : query});
      add(names_.weight(index_, names_.key_norm), {per_head ? attention.head_dim : kv});
    }
    if (attention.sinks) add(names_.plain(index_, names_.sinks), {attention.head_count}, Division::kHeads);
    add(names_.weight(index_, names_.output), {config_.hidden_size, query}, Division::kHeadColumns);
    if (attention.output_bias) add(names_.bias(index_, names_.output), {config_.hidden_size});
  }

  void list_feed_forward() {
    const FeedForwardConfig& feed_forward = layer_.feed_forward;
    const Rows up{names_.up, feed_forward.width, Division::kFeatureRows};
    if (feed_forward.gated) {
      const Rows gate{names_.gate, feed_forward.width, Division::kFeatureRows};
      add_rows(std::array{gate, up}, names_.fused_gate_up, feed_forward.bias);
    } else {
      add_rows(std::array{up}, {}, feed_forward.bias);
    }
    add(names_.weight(index_, names_.down), {config_.hidden_size, feed_forward.width}, Division::kFeatureColumns);
    if (feed_forward.bias) add(names_.bias(index_, names_.down), {config_.hidden_size});
  }

  void list_experts(const MoeConfig& moe) {
    const int64_t hidden = config_.hidden_size;
    add(router_name(config_, index_), {moe.expert_count, hidden}).projection = false;
    for (int32_t expert = 0; expert < moe.expert_count; ++expert) {
      const auto add_part = [&](ExpertPart part, tensor::Shape shape) {
        add(expert_tensor_name(config_, index_, expert, part), shape).expert = expert;
      };
      add_part(ExpertPart::kGate, {moe.intermediate_size, hidden});
      add_part(ExpertPart::kUp, {moe.intermediate_size, hidden});
      add_part(ExpertPart::kDown, {hidden, moe.intermediate_size});
    }
  }

  const ModelConfig& config_;
  const TensorNames& names_;
  const LayerConfig& layer_;
  int32_t index_;
  std::vector<TensorSpec>& specs_;
};

}  // namespace

void add_layer_tensors(const ModelConfig& config, int32_t layer, std::vector<TensorSpec>& specs) {
  LayerLister(config, layer, specs).list();
}

void add_norm_before_layer(const ModelConfig& config, int32_t layer, std::vector<TensorSpec>& specs) {
  const std::string name = config.names.norm_before_layer(layer, config.layer_count());
  specs.push_back({.name = name + ".weight", .shape = {config.hidden_size}});
  if (config.norm == NormKind::kLayerInPlace) specs.push_back({.name = name + ".bias", .shape = {config.hidden_size}});
}

}  // namespace millrace::model
