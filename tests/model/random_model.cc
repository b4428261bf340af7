#include "model/random_model.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "model/rope.h"
#include "model/tensor_list.h"

namespace millrace::test {

RandomModel::RandomModel(const model::ModelConfig& config, uint32_t seed) : config_(config) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> noise;
  const model::StageSpan whole{.layers = {0, config.layer_count()}};
  for (const model::TensorSpec& spec : model::stage_tensors(config, whole)) {
    TensorToWrite tensor{.name = spec.name, .shape = {}, .values = {}};
    for (size_t axis = 0; axis < spec.shape.rank(); ++axis) tensor.shape.push_back(spec.shape[axis]);
    const bool norm = spec.name.find("norm") != std::string::npos;
    for (int64_t i = 0; i < spec.shape.elements(); ++i)
      tensor.values.push_back(norm ? 1.0f + 0.1f * noise(generator) : 0.2f * noise(generator));
    tensors_.emplace(spec.name, std::move(tensor));
  }
}

std::vector<TensorToWrite> RandomModel::tensors() const {
  std::vector<TensorToWrite> all;
  for (const auto& [name, tensor] : tensors_) all.push_back(tensor);
  return all;
}

RandomModel::Row RandomModel::linear(const Row& x, const std::string& name) const {
  const TensorToWrite& weight = tensor(name + ".weight");
  const auto bias = tensors_.find(name + ".bias");
  Row out;
  for (size_t row = 0; row < static_cast<size_t>(weight.shape[0]); ++row) {
    double sum = bias == tensors_.end() ? 0.0 : static_cast<double>(bias->second.values[row]);
    for (size_t i = 0; i < x.size(); ++i) sum += x[i] * static_cast<double>(weight.values[row * x.size() + i]);
    out.push_back(sum);
  }
  return out;
}

RandomModel::Row RandomModel::norm(const Row& x, const std::string& name) const {
  double squares = 0.0;
  for (const double value : x) squares += value * value;
  const double mean = squares / static_cast<double>(x.size());
  const double scale = 1.0 / std::sqrt(mean + static_cast<double>(config_.norm_epsilon));
  Row out;
  for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * scale * static_cast<double>(tensor(name).values[i]));
  return out;
}

/// Applies to each head the norm, if the model has one, then the rotation to `position`.
void RandomModel::prepare_head(Row& heads, const model::AttentionConfig& attention, const std::string& norm_name,
                               size_t position) const {
  const auto dim = static_cast<size_t>(attention.head_dim);
  const model::RopeConfig& config = config_.ropes.at(static_cast<size_t>(attention.rope.value()));
  const model::RotaryFrequencies rope = model::rotary_frequencies(config, attention.head_dim);
  for (size_t begin = 0; begin < heads.size(); begin += dim) {
    const auto at = heads.begin() + static_cast<std::ptrdiff_t>(begin);
    Row head(at, at + static_cast<std::ptrdiff_t>(dim));
    if (attention.qk_norm == model::QkNorm::kPerHead) head = norm(head, norm_name);
    for (size_t i = 0; i < dim / 2; ++i) {
      const double angle = static_cast<double>(position) * static_cast<double>(rope.inverse[i]);
      const double cos = std::cos(angle) * static_cast<double>(rope.attention_factor);
      const double sin = std::sin(angle) * static_cast<double>(rope.attention_factor);
      heads[begin + i] = head[i] * cos - head[i + dim / 2] * sin;
      heads[begin + i + dim / 2] = head[i + dim / 2] * cos + head[i] * sin;
    }
  }
}

void RandomModel::attend(std::vector<Row>& hidden, int32_t layer) const {
  const std::string place = model::layer_tensor_name(layer, "");
  const model::AttentionConfig& attention = config_.layer(layer).attention;
  const auto dim = static_cast<size_t>(attention.head_dim);
  const auto heads = static_cast<size_t>(attention.head_count);
  const auto group = heads / static_cast<size_t>(attention.kv_head_count);
  const auto window = static_cast<size_t>(attention.window);
  std::vector<Row> keys;
  std::vector<Row> values;
  for (size_t row = 0; row < hidden.size(); ++row) {
    const Row x = norm(hidden[row], place + "input_layernorm.weight");
    Row query = linear(x, place + "self_attn.q_proj");
    keys.push_back(linear(x, place + "self_attn.k_proj"));
    values.push_back(linear(x, place + "self_attn.v_proj"));
    prepare_head(query, attention, place + "self_attn.q_norm.weight", row);
    prepare_head(keys.back(), attention, place + "self_attn.k_norm.weight", row);
    const size_t oldest = window > 0 && row + 1 > window ? row + 1 - window : 0;
    Row out(query.size(), 0.0);
    for (size_t head = 0; head < heads; ++head) {
      Row weights;
      double total = 0.0;
      for (size_t key = oldest; key <= row; ++key) {
        double score = 0.0;
        for (size_t i = 0; i < dim; ++i) score += query[head * dim + i] * keys[key][head / group * dim + i];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
        total += weights.back();
      }
      for (size_t key = oldest; key <= row; ++key)
        for (size_t i = 0; i < dim; ++i)
          out[head * dim + i] += weights[key - oldest] / total * values[key][head / group * dim + i];
    }
    const Row added = linear(out, place + "self_attn.o_proj");
    for (size_t i = 0; i < added.size(); ++i) hidden[row][i] += added[i];
  }
}

RandomModel::Row RandomModel::feed_forward(const Row& x, const std::string& gate, const std::string& up,
                                           const std::string& down) const {
  Row activated = linear(x, gate);
  const Row factor = linear(x, up);
  for (size_t i = 0; i < activated.size(); ++i) activated[i] *= factor[i] / (1.0 + std::exp(-activated[i]));
  return linear(activated, down);
}

/// Adds the most probable experts one by one, by their definition.
RandomModel::Row RandomModel::fused_moe(const Row& x, int32_t layer) const {
  const model::MoeConfig& moe = config_.layer(layer).feed_forward.moe.value();
  const bool qwen = config_.names.router == model::TensorNames{}.router;
  const std::string place = model::layer_tensor_name(layer, qwen ? "mlp." : "block_sparse_moe.");
  Row weights = linear(x, place + "gate");
  double all = 0.0;
  for (double& weight : weights) all += weight = std::exp(weight);
  std::vector<std::pair<double, size_t>> ranked;
  for (size_t expert = 0; expert < weights.size(); ++expert) ranked.emplace_back(-weights[expert], expert);
  std::sort(ranked.begin(), ranked.end());
  ranked.resize(static_cast<size_t>(moe.experts_per_token));
  double kept = 0.0;
  for (const auto& [negative, expert] : ranked) kept -= negative;
  Row out(x.size(), 0.0);
  for (const auto& [negative, expert] : ranked) {
    const std::string own = place + "experts." + std::to_string(expert) + ".";
    const Row result = qwen ? feed_forward(x, own + "gate_proj", own + "up_proj", own + "down_proj")
                            : feed_forward(x, own + "w1", own + "w3", own + "w2");
    const double share = -negative / (moe.renormalize ? kept : all);
    for (size_t i = 0; i < out.size(); ++i) out[i] += share * result[i];
  }
  return out;
}

void RandomModel::feed_forward(std::vector<Row>& hidden, int32_t layer) const {
  const std::string place = model::layer_tensor_name(layer, "");
  for (Row& row : hidden) {
    const Row x = norm(row, place + "post_attention_layernorm.weight");
    const std::string mlp = place + "mlp.";
    const Row added = config_.is_sparse(layer) ? fused_moe(x, layer)
                                               : feed_forward(x, mlp + "gate_proj", mlp + "up_proj", mlp + "down_proj");
    for (size_t i = 0; i < added.size(); ++i) row[i] += added[i];
  }
}

std::vector<double> RandomModel::logits(const std::vector<TokenId>& tokens) const {
  std::vector<Row> hidden;
  const TensorToWrite& table = tensor(std::string(model::kEmbeddingName));
  const auto width = static_cast<std::ptrdiff_t>(config_.hidden_size);
  for (const TokenId token : tokens) {
    const auto row = table.values.begin() + token * width;
    hidden.emplace_back(row, row + width);
  }
  for (int32_t layer = 0; layer < config_.layer_count(); ++layer) {
    attend(hidden, layer);
    feed_forward(hidden, layer);
  }
  const std::string head(model::head_name(config_));
  std::vector<double> all;
  for (const Row& row : hidden) {
    const Row x = norm(row, std::string(model::kFinalNormName));
    const Row logits = linear(x, head.substr(0, head.size() - std::string(".weight").size()));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

}  // namespace millrace::test
