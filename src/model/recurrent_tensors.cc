#include "model/recurrent_tensors.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace millrace::model {
namespace {

/// Lists the weights of one layer's mixer.
class MixerLister {
 public:
  MixerLister(const ModelConfig& config, int32_t index) : config_(config), names_(config.names), index_(index) {}

  RecurrentTensors list() {
    std::visit([this](const auto& mixer) { list(mixer); }, *config_.layer(index_).recurrent);
    return std::move(tensors_);
  }

 private:
  /// Some rows of a tensor, by whose name they are called.
  struct Rows {
    std::string_view name;
    int64_t count = 0;
  };

  [[nodiscard]] TensorSpec spec(std::string name, tensor::Shape shape, Division division) const {
    return {.name = std::move(name), .shape = shape, .division = division, .layer = index_};
  }

  [[nodiscard]] TensorSpec matrix(std::string name, int64_t rows) const {
    TensorSpec made = spec(std::move(name), {rows, config_.hidden_size}, Division::kMixerRows);
    made.projection = true;
    return made;
  }

  /// Returns the rows of one stored tensor, one after another. `shape_of` gives a tensor's shape by its rows.
  template <class ShapeOf>
  [[nodiscard]] std::vector<TensorSpec> split(const std::string& stored, std::initializer_list<Rows> parts,
                                              const ShapeOf& shape_of) const {
    int64_t all = 0;
    for (const Rows& part : parts) all += part.count;
    std::vector<TensorSpec> specs;
    int64_t first = 0;
    for (const Rows& part : parts) {
      TensorSpec& made =
          specs.emplace_back(spec(part_name(stored, part.name), shape_of(part.count), Division::kMixerRows));
      made.part = TensorPart{.tensor = stored, .shape = shape_of(all), .first_row = first};
      first += part.count;
    }
    return specs;
  }

  [[nodiscard]] static std::string part_name(const std::string& stored, std::string_view part) {
    return stored + ":" + std::string(part);
  }

  [[nodiscard]] std::vector<TensorSpec> split_matrix(const std::string& stored,
                                                     std::initializer_list<Rows> parts) const {
    auto specs = split(stored, parts, [this](int64_t rows) { return tensor::Shape{rows, config_.hidden_size}; });
    for (TensorSpec& each : specs) each.projection = true;
    return specs;
  }

  [[nodiscard]] std::vector<TensorSpec> split_vector(const std::string& stored,
                                                     std::initializer_list<Rows> parts) const {
    return split(stored, parts, [](int64_t rows) { return tensor::Shape{rows}; });
  }

  void list_convolution(std::initializer_list<Rows> channels, int32_t width, bool bias) {
    const std::string stored = names_.weight(index_, names_.mixer_conv);
    tensors_.conv = split(stored, channels, [width](int64_t rows) { return tensor::Shape{rows, width}; });
    for (TensorSpec& each : tensors_.conv) {
      each.part->shape = {each.part->shape[0], 1, width};
      each.part->joined = true;
    }
    if (bias) tensors_.conv_bias = split_vector(names_.bias(index_, names_.mixer_conv), channels);
  }

  void list_output(int64_t width, bool bias) {
    tensors_.output =
        spec(names_.weight(index_, names_.mixer_output), {config_.hidden_size, width}, Division::kMixerColumns);
    tensors_.output.projection = true;
    if (bias)
      tensors_.output_bias = spec(names_.bias(index_, names_.mixer_output), {config_.hidden_size}, Division::kNone);
  }

  /// Returns a vector with elements of each head.
  [[nodiscard]] TensorSpec per_head(std::string_view name, int64_t elements) const {
    return spec(names_.plain(index_, name), {elements}, Division::kMixerRows);
  }

  /// Lists Kimi Delta Attention, whose q, k and v have projections and convolutions of their own.
  void list_channel_net(const DeltaNetConfig& net) {
    const int64_t width = net.value_width();
    const int64_t rank = net.gate_rank;
    for (const std::string_view name : {names_.query, names_.key, names_.value})
      tensors_.input.push_back(matrix(names_.weight(index_, name), width));
    for (const std::string_view name : {names_.query_conv, names_.key_conv, names_.value_conv}) {
      const std::string stored = names_.weight(index_, name);
      TensorSpec& made = tensors_.conv.emplace_back(
          spec(part_name(stored, "channels"), {width, net.conv_width}, Division::kMixerRows));
      made.part = TensorPart{.tensor = stored, .shape = {width, 1, net.conv_width}, .joined = true};
    }
    tensors_.steps = {matrix(names_.weight(index_, names_.delta_b), net.value_head_count)};
    tensors_.steps.front().keeps_precision = true;
    const auto factor = [&](std::string_view name, tensor::Shape shape, Division division) {
      TensorSpec made = spec(names_.weight(index_, name), shape, division);
      made.projection = made.keeps_precision = true;
      return made;
    };
    tensors_.decay_a = factor(names_.decay_a, {rank, config_.hidden_size}, Division::kNone);
    tensors_.decay_b = factor(names_.decay_b, {width, rank}, Division::kMixerRows);
    tensors_.gate_a = factor(names_.gate_a, {rank, config_.hidden_size}, Division::kNone);
    tensors_.gate_b = factor(names_.gate_b, {width, rank}, Division::kMixerRows);
    const std::string decay = names_.plain(index_, names_.mixer_decay);
    tensors_.decay = spec(part_name(decay, "heads"), {net.value_head_count}, Division::kMixerRows);
    tensors_.decay->part = TensorPart{.tensor = decay, .shape = {1, 1, net.value_head_count, 1}};
    tensors_.step_bias = per_head(names_.mixer_step_bias, width);
    tensors_.norm = spec(names_.weight(index_, names_.mixer_norm), {net.value_dim}, Division::kNone);
    list_output(width, false);
  }

  void list(const DeltaNetConfig& net) {
    if (net.channel_decay) return list_channel_net(net);
    const int64_t heads = net.value_head_count;
    if (names_.fused_delta_qkvz.empty()) {
      tensors_.input = split_matrix(names_.weight(index_, names_.delta_qkv),
                                    {{"q", net.key_width()}, {"k", net.key_width()}, {"v", net.value_width()}});
      tensors_.input.push_back(matrix(names_.weight(index_, names_.delta_z), net.value_width()));
    } else {
      const int64_t values = net.value_width() / net.key_head_count;
      tensors_.input = interleaved(net, names_.fused_delta_qkvz,
                                   {{"q", net.key_dim}, {"k", net.key_dim}, {"v", values}, {"z", values}});
    }
    if (names_.fused_delta_ba.empty()) {
      tensors_.steps = {matrix(names_.weight(index_, names_.delta_b), heads),
                        matrix(names_.weight(index_, names_.delta_a), heads)};
    } else {
      const int64_t each = heads / net.key_head_count;
      tensors_.steps = interleaved(net, names_.fused_delta_ba, {{"b", each}, {"a", each}});
    }
    for (TensorSpec& each : tensors_.steps) each.keeps_precision = true;
    list_convolution({{"q", net.key_width()}, {"k", net.key_width()}, {"v", net.value_width()}}, net.conv_width, false);
    tensors_.decay = per_head(names_.mixer_decay, heads);
    tensors_.step_bias = per_head(names_.mixer_step_bias, heads);
    tensors_.norm = spec(names_.weight(index_, names_.mixer_norm), {net.value_dim}, Division::kNone);
    list_output(net.value_width(), false);
  }

  /// Returns the parts of a tensor whose rows are stored per key head, [key heads][parts].
  [[nodiscard]] std::vector<TensorSpec> interleaved(const DeltaNetConfig& net, std::string_view name,
                                                    std::initializer_list<Rows> of_head) const {
    const std::string stored = names_.weight(index_, name);
    int64_t step = 0;
    for (const Rows& part : of_head) step += part.count;
    std::vector<TensorSpec> specs;
    int64_t first = 0;
    for (const Rows& part : of_head) {
      TensorSpec& made = specs.emplace_back(matrix(part_name(stored, part.name), part.count * net.key_head_count));
      made.part = TensorPart{.tensor = stored,
                             .shape = {step * net.key_head_count, config_.hidden_size},
                             .first_row = first,
                             .row_step = step,
                             .row_block = part.count};
      first += part.count;
    }
    return specs;
  }

  void list(const MambaConfig& mamba) {
    const int64_t inner = mamba.inner_width();
    const int64_t group = mamba.group_width();
    const int64_t heads = mamba.head_count;
    const std::initializer_list<Rows> parts = {{"z", inner}, {"x", inner}, {"B", group}, {"C", group}, {"dt", heads}};
    std::tie(tensors_.input, tensors_.steps) =
        mamba_input(split_matrix(names_.weight(index_, names_.mixer_input), parts));
    tensors_.steps.front().keeps_precision = true;
    if (mamba.input_bias)
      std::tie(tensors_.input_bias, tensors_.steps_bias) =
          mamba_input(split_vector(names_.bias(index_, names_.mixer_input), parts));
    list_convolution({{"x", inner}, {"B", group}, {"C", group}}, mamba.conv_width, mamba.conv_bias);
    tensors_.decay = per_head(names_.mixer_decay, heads);
    tensors_.step_bias = per_head(names_.mixer_step_bias, heads);
    tensors_.skip = per_head(names_.mixer_skip, heads);
    if (mamba.norm != MambaNorm::kNone)
      tensors_.norm = spec(names_.weight(index_, names_.mixer_norm), {inner}, Division::kMixerRows);
    list_output(inner, mamba.output_bias);
  }

  /// Brings the parts z, x, B, C and dt into the order x, B, C, z, and dt alone.
  static std::pair<std::vector<TensorSpec>, std::vector<TensorSpec>> mamba_input(std::vector<TensorSpec> parts) {
    std::vector<TensorSpec> steps = {std::move(parts.back())};
    parts.pop_back();
    std::rotate(parts.begin(), parts.begin() + 1, parts.end());
    return {std::move(parts), std::move(steps)};
  }

  void list(const ShortConvConfig& conv) {
    const std::initializer_list<Rows> parts = {{"B", conv.width}, {"C", conv.width}, {"x", conv.width}};
    tensors_.input = split_matrix(names_.weight(index_, names_.mixer_input), parts);
    if (conv.bias) tensors_.input_bias = split_vector(names_.bias(index_, names_.mixer_input), parts);
    list_convolution({{"u", conv.width}}, conv.conv_width, conv.bias);
    list_output(conv.width, conv.bias);
  }

  const ModelConfig& config_;
  const TensorNames& names_;
  int32_t index_;
  RecurrentTensors tensors_;
};

}  // namespace

void RecurrentTensors::add_to(std::vector<TensorSpec>& specs) const {
  for (const auto* list : {&input, &input_bias, &steps, &steps_bias, &conv, &conv_bias})
    specs.insert(specs.end(), list->begin(), list->end());
  for (const auto* one : {&decay_a, &decay_b, &gate_a, &gate_b, &decay, &step_bias, &skip, &norm}) {
    if (*one) specs.push_back(**one);
  }
  specs.push_back(output);
  if (output_bias) specs.push_back(*output_bias);
}

RecurrentTensors recurrent_tensors(const ModelConfig& config, int32_t layer) {
  return MixerLister(config, layer).list();
}

std::vector<std::string> names_of(const std::vector<TensorSpec>& specs) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : specs) names.push_back(spec.name);
  return names;
}

}  // namespace millrace::model
