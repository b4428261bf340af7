#include "model/layer_tensors.h"

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "model/recurrent_tensors.h"

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
    if (layer_.recurrent) recurrent_tensors(config_, index_).add_to(specs_);
    if (layer_.attends) list_attention();
    if (norms.after_attention) add_norm(names_.attention_output_norm);
    if (norms.before_feed_forward && !layer_.parallel) add_norm(names_.feed_forward_norm);
    if (layer_.feed_forward.moe)
      list_experts(*layer_.feed_forward.moe);
    else if (layer_.has_feed_forward())
      list_feed_forward();
    if (norms.after_feed_forward) add_norm(names_.feed_forward_output_norm);
    if (layer_.input_width > 0) list_own_input();
    if (layer_.output_scale) add(names_.plain(index_, names_.output_scale), {1});
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

  /// Lists an indexer, which every rank has as a whole. Its matrices keep their precision, so that quantization does
  /// not change what is chosen.
  void list_indexer(const IndexerConfig& indexer, const LatentConfig& latent) {
    const int64_t dim = indexer.head_dim;
    const PairedRows paired =
        indexer.interleaved ? PairedRows{.head_rows = dim, .first = 0, .count = latent.rope_dim} : PairedRows{};
    const auto add_matrix = [&](std::string_view name, int64_t rows, int64_t cols) -> TensorSpec& {
      TensorSpec& spec = add(names_.weight(index_, name), {rows, cols});
      spec.keeps_precision = true;
      return spec;
    };
    add_matrix(names_.index_query, indexer.head_count * dim, latent.query_rank).paired = paired;
    add_matrix(names_.index_key, dim, config_.hidden_size).paired = paired;
    add(names_.weight(index_, names_.index_norm), {dim}).paired = paired;
    add(names_.bias(index_, names_.index_norm), {dim}).paired = paired;
    add_matrix(names_.index_weights, indexer.head_count, config_.hidden_size);
  }

  [[nodiscard]] PairedRows paired_rows(int64_t head_rows, int64_t first, int64_t count) const {
    const std::optional<int32_t>& rope = layer_.attention.rope;
    if (!rope || !config_.ropes[static_cast<size_t>(*rope)].interleaved) return {};
    return {.head_rows = head_rows, .first = first, .count = count};
  }

  void list_attention() {
    const AttentionConfig& attention = layer_.attention;
    if (attention.latent)
      list_latent_projections(*attention.latent);
    else
      list_projections();
    if (attention.sinks) add(names_.plain(index_, names_.sinks), {attention.head_count}, Division::kHeads);
    add(names_.weight(index_, names_.output), {config_.hidden_size, attention.query_width()}, Division::kHeadColumns);
    if (attention.output_bias) add(names_.bias(index_, names_.output), {config_.hidden_size});
  }

  void list_latent_projections(const LatentConfig& latent) {
    const AttentionConfig& attention = layer_.attention;
    const int64_t hidden = config_.hidden_size;
    const int64_t head_rows = latent.nope_dim + latent.rope_dim;
    const int64_t key_rows = latent.latent_dim + latent.rope_dim;
    const bool low_rank = latent.query_rank > 0;
    if (low_rank) {
      add(names_.weight(index_, names_.query_a), {latent.query_rank, hidden});
      if (latent.bias) add(names_.bias(index_, names_.query_a), {latent.query_rank});
      add(names_.weight(index_, names_.query_a_norm), {latent.query_rank});
    }
    add(names_.weight(index_, low_rank ? names_.query_b : names_.query),
        {attention.head_count * head_rows, low_rank ? latent.query_rank : hidden}, Division::kHeadRows)
        .paired = paired_rows(head_rows, latent.nope_dim, latent.rope_dim);
    const PairedRows paired = paired_rows(key_rows, latent.latent_dim, latent.rope_dim);
    add(names_.weight(index_, names_.latent), {key_rows, hidden}).paired = paired;
    if (latent.bias) add(names_.bias(index_, names_.latent), {key_rows}).paired = paired;
    add(names_.weight(index_, names_.latent_norm), {latent.latent_dim});
    add(names_.weight(index_, names_.latent_expansion),
        {int64_t{attention.head_count} * (latent.nope_dim + attention.head_dim), latent.latent_dim},
        Division::kHeadRows)
        .keeps_precision = true;
    if (latent.indexer && !latent.indexer->is_shared) list_indexer(*latent.indexer, latent);
  }

  void list_projections() {
    const AttentionConfig& attention = layer_.attention;
    const int64_t query = attention.query_width();
    const int64_t kv = attention.kv_width();
    const PairedRows paired = paired_rows(attention.head_dim, 0, rotary_dim(config_, attention));
    if (attention.output_gate) return list_gated_projections();
    std::vector<Rows> parts{{names_.query, query, Division::kHeadRows, paired}};
    if (!attention.keys_of) parts.push_back({names_.key, kv, Division::kKvHeadRows, paired});
    if (!attention.keys_of && !attention.values_are_keys) parts.push_back({names_.value, kv, Division::kKvHeadRows});
    add_rows(parts, names_.fused_qkv, attention.qkv_bias);
    list_head_norms();
  }

  /// Lists q, k, v and the output gate. Without a tensor of its own its rows follow each head's rows of q.
  void list_gated_projections() {
    const AttentionConfig& attention = layer_.attention;
    const int64_t head = attention.head_dim;
    const int64_t hidden = config_.hidden_size;
    const std::string stored = names_.weight(index_, names_.query);
    for (const int64_t part : {0, 1}) {
      TensorSpec& spec =
          add(part == 0 ? stored : gate_name(config_, index_), {attention.query_width(), hidden}, Division::kHeadRows);
      if (names_.attention_gate.empty())
        spec.part = TensorPart{.tensor = stored,
                               .shape = {2 * attention.query_width(), hidden},
                               .first_row = part * head,
                               .row_step = 2 * head,
                               .row_block = head};
    }
    for (const std::string_view name : {names_.key, names_.value})
      add(names_.weight(index_, name), {attention.kv_width(), hidden}, Division::kKvHeadRows);
    list_head_norms();
  }

  /// Adds the weights of a norm of each head, which are stored as a matrix.
  void add_norms_of_heads(std::string_view name, int64_t heads, Division division) {
    const int64_t dim = layer_.attention.head_dim;
    const std::string stored = names_.weight(index_, name);
    TensorSpec& spec = add(stored, {heads * dim}, division);
    spec.part = TensorPart{.tensor = stored, .shape = {heads, dim}};
    spec.paired = paired_rows(dim, 0, rotary_dim(config_, layer_.attention));
  }

  void list_head_norms() {
    const AttentionConfig& attention = layer_.attention;
    if (attention.qk_norm == QkNorm::kNone || attention.qk_norm == QkNorm::kUnit) return;
    if (attention.qk_norm == QkNorm::kLayerPerHead) {
      add_norms_of_heads(names_.query_norm, attention.head_count, Division::kHeadRows);
      add_norms_of_heads(names_.key_norm, attention.kv_head_count, Division::kKvHeadRows);
      return;
    }
    const bool per_head = attention.qk_norm != QkNorm::kAllHeads;
    add(names_.weight(index_, names_.query_norm), {per_head ? attention.head_dim : attention.query_width()});
    if (attention.keys_of) return;
    add(names_.weight(index_, names_.key_norm), {per_head ? attention.head_dim : attention.kv_width()});
  }

  /// Lists what takes the layer's own input, which every rank has as a whole.
  void list_own_input() {
    add(names_.weight(index_, names_.input_gate), {layer_.input_width, config_.hidden_size});
    add(names_.weight(index_, names_.input_projection), {config_.hidden_size, layer_.input_width});
    add_norm(names_.input_output_norm);
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

  /// Adds a tensor of a router, which is never quantized.
  void add_plain(std::string name, tensor::Shape shape) { add(std::move(name), shape).projection = false; }

  void list_experts(const MoeConfig& moe) {
    const int64_t hidden = config_.hidden_size;
    const int64_t count = moe.expert_count;
    add_plain(router_name(config_, index_), {count, hidden});
    if (moe.router_bias) add_plain(names_.bias(index_, names_.router), {count});
    if (moe.choice_bias)
      add_plain(names_.plain(index_, names_.choice_bias),
                names_.choice_bias_is_row ? tensor::Shape{1, count} : tensor::Shape{count});
    if (moe.own_norms) {
      for (const std::string_view name : {names_.shared_output_norm, names_.experts_norm, names_.experts_output_norm})
        add_norm(name);
      add(names_.plain(index_, names_.router_scale), {hidden});
    }
    if (moe.expert_scales) add(names_.plain(index_, names_.expert_scales), {count});
    if (moe.latent_size > 0) {
      add(names_.weight(index_, names_.experts_input), {moe.latent_size, hidden});
      add(names_.weight(index_, names_.experts_output), {hidden, moe.latent_size});
    }
    for (int32_t expert = 0; expert < moe.expert_count; ++expert) {
      for (const ExpertPart part : expert_parts(layer_.feed_forward)) list_expert_part(moe, expert, part);
    }
    if (moe.biases) {
      add_plain(fused_bias_name(config_, index_, ExpertPart::kGate), {count, 2 * int64_t{moe.intermediate_size}});
      add_plain(fused_bias_name(config_, index_, ExpertPart::kDown), {count, moe.input_size(config_.hidden_size)});
    }
    if (moe.shared) list_shared_expert(*moe.shared);
  }

  void list_expert_part(const MoeConfig& moe, int32_t expert, ExpertPart part) {
    const int64_t hidden = moe.input_size(config_.hidden_size);
    const int64_t inner = moe.intermediate_size;
    const bool is_down = part == ExpertPart::kDown;
    const tensor::Shape shape = is_down ? tensor::Shape{hidden, inner} : tensor::Shape{inner, hidden};
    TensorSpec& spec = add(expert_tensor_name(config_, index_, expert, part), shape);
    spec.expert = expert;
    if (names_.expert_storage == ExpertStorage::kSeparate) return;
    const bool is_halved =
        names_.expert_storage == ExpertStorage::kRows || names_.expert_storage == ExpertStorage::kColumnHalves;
    const bool in_columns =
        names_.expert_storage == ExpertStorage::kColumns || names_.expert_storage == ExpertStorage::kColumnHalves;
    const bool in_turn = !is_down && !is_halved;
    const bool is_up = part == ExpertPart::kUp;
    const int64_t rows = is_down ? hidden : 2 * inner;
    TensorPart& stored = spec.part.emplace();
    stored.tensor = names_.plain(index_, is_down ? names_.fused_experts_down : names_.fused_experts_gate_up);
    stored.plane = expert;
    stored.transposed = in_columns;
    stored.shape = stored.transposed ? tensor::Shape{moe.expert_count, shape[1], rows}
                                     : tensor::Shape{moe.expert_count, rows, shape[1]};
    if (is_up) stored.first_row = in_turn ? 1 : inner;
    if (in_turn) stored.row_step = 2;
    if (names_.expert_storage == ExpertStorage::kMxfp4) {
      stored.scales = stored.tensor + "_scales";
      stored.tensor += "_blocks";
    }
  }

  void list_shared_expert(const SharedExpertConfig& shared) {
    const Rows up{names_.shared_up, shared.width, Division::kFeatureRows};
    if (layer_.feed_forward.gated)
      add_rows(std::array{Rows{names_.shared_gate, shared.width, Division::kFeatureRows}, up},
               names_.fused_shared_gate_up, false);
    else
      add_rows(std::array{up}, {}, false);
    add(names_.weight(index_, names_.shared_down), {config_.hidden_size, shared.width}, Division::kFeatureColumns);
    if (shared.has_gate) add_plain(names_.weight(index_, names_.shared_expert_gate), {1, config_.hidden_size});
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
