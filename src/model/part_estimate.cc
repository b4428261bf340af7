#include "model/part_estimate.h"

#include <algorithm>
#include <cmath>

#include "model/tensor_list.h"

namespace millrace::model {
namespace {

/// Rows whose arithmetic takes about as long as reading the weights for them.
constexpr double kRowsPerRead = 8;

double matrix_cost(double parameters, double rows) {
  return parameters * std::max(rows, kRowsPerRead);
}

double layer_cost(const ModelConfig& config, int32_t layer, double rows) {
  const auto parameters = static_cast<double>(layer_parameter_count(config, layer));
  if (!config.is_sparse(layer)) return matrix_cost(parameters, rows);
  const MoeConfig& moe = *config.layer(layer).feed_forward.moe;
  const double matrices = config.layer(layer).feed_forward.gated ? 3 : 2;
  const double expert = matrices * moe.input_size(config.hidden_size) * moe.intermediate_size;
  const double expert_count = moe.expert_count;
  const double used_by_row = moe.experts_per_token / expert_count;
  const double used = expert_count * (1 - std::pow(1 - used_by_row, rows));  // where rows choose independently
  const double rows_each = rows * moe.experts_per_token / used;
  return matrix_cost(parameters - expert_count * expert, rows) + matrix_cost(used * expert, rows_each);
}

PartCosts costs_of(const ModelConfig& config, double rows, double sampled_rows) {
  const double head = static_cast<double>(config.vocab_size) * config.hidden_size;
  PartCosts costs{.layers = {}, .embedding = 0, .head = matrix_cost(head, sampled_rows)};
  for (int32_t layer = 0; layer < config.layer_count(); ++layer)
    costs.layers.push_back(layer_cost(config, layer, rows));
  return costs;
}

}  // namespace

WorkCosts estimate_parts(const ModelConfig& config, const ReferenceLoad& load) {
  return {.prefill = costs_of(config, load.prompt_tokens, 1),
          .decode = costs_of(config, load.decode_rows, load.decode_rows)};
}

}  // namespace millrace::model
