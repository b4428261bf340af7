#include "app/pooling_setup.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "model/tensor_list.h"
#include "server/pooling_model.h"

namespace millrace::app {
namespace {

constexpr std::string_view kScoreName = "score.weight";
constexpr std::string_view kClassifies = "ForSequenceClassification";
/// The words whose logits make the score of a model that answers a question about a pair.
constexpr std::string_view kNo = "no";
constexpr std::string_view kYes = "yes";

server::Activation to_server(model::Activation activation) {
  switch (activation) {
    case model::Activation::kIdentity: return server::Activation::kIdentity;
    case model::Activation::kSigmoid: return server::Activation::kSigmoid;
    case model::Activation::kTanh: return server::Activation::kTanh;
    case model::Activation::kRelu: return server::Activation::kRelu;
    case model::Activation::kGelu: break;
  }
  return server::Activation::kGelu;
}

sched::Pooling to_sched(model::PoolingMode mode) {
  switch (mode) {
    case model::PoolingMode::kLast: return sched::Pooling::kLast;
    case model::PoolingMode::kMean: return sched::Pooling::kMean;
    case model::PoolingMode::kCls: break;
  }
  return sched::Pooling::kFirst;
}

std::vector<float> floats_of(const tensor::HostTensor& tensor, int64_t first, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  tensor::read_floats(tensor, first, count, values.data());
  return values;
}

Result<server::DenseLayer> load_dense(const model::DenseConfig& config) {
  const auto file = model::SafetensorsFile::open(config.folder / "model.safetensors");
  if (!file) return file.error();
  const auto weight = (*file)->find("linear.weight");
  if (!weight) return weight.error();
  if (weight->shape != tensor::Shape{config.outputs, config.inputs}) {
    return make_error(ErrorCode::kData, "{}: linear.weight has shape {}, config.json wants [{}, {}]", (*file)->path(),
                      weight->shape.to_string(), config.outputs, config.inputs);
  }
  server::DenseLayer layer{.weights = floats_of(*weight, 0, weight->shape.elements()),
                           .bias = {},
                           .activation = to_server(config.activation)};
  if (!config.has_bias) return layer;
  const auto bias = (*file)->find("linear.bias");
  if (!bias) return bias.error();
  if (bias->shape != tensor::Shape{config.outputs}) {
    return make_error(ErrorCode::kData, "{}: linear.bias has shape {}, config.json wants [{}]", (*file)->path(),
                      bias->shape.to_string(), config.outputs);
  }
  layer.bias = floats_of(*bias, 0, config.outputs);
  return layer;
}

/// Decides and loads step by step; what it needs to know of the folder is read first.
class Setup {
 public:
  Setup(const PoolingOptions& options, const std::filesystem::path& folder, const model::ModelConfig& config,
        const text::Tokenizer& tokenizer, const CheckpointOpener& open_weights, model::PoolingConfig modules,
        model::ScoreConfig scores)
      : options_(options),
        folder_(folder),
        config_(config),
        tokenizer_(tokenizer),
        open_weights_(open_weights),
        modules_(std::move(modules)),
        scores_(std::move(scores)) {}

  Result<PoolingSetup> make() {
    const bool pools = runner() == Runner::kPooling;
    const Conversion conversion = this->conversion(pools);
    if (pools && conversion == Conversion::kNone) {
      return make_error(ErrorCode::kInvalidArgument, "--runner pooling --convert none: wanted embed or classify");
    }
    PoolingSetup setup{.has_output_head = !pools};
    if (conversion == Conversion::kNone) return setup;
    setup.max_sequence_length = pools ? modules_.max_sequence_length : 0;
    auto model = std::make_shared<server::PoolingModel>();
    RETURN_IF_ERROR(conversion == Conversion::kEmbed ? set_up_vectors(*model) : set_up_scores(*model));
    setup.pooling = std::move(model);
    return setup;
  }

 private:
  [[nodiscard]] bool scores_tokens() const {
    return modules_.token_score.has_value() || !scores_.classifier_from_token.empty();
  }
  [[nodiscard]] bool is_classifier() const { return config_.architecture.ends_with(kClassifies); }
  [[nodiscard]] model::PoolingMode usual_mode() const {
    return config_.encoder ? model::PoolingMode::kCls : model::PoolingMode::kLast;
  }
  [[nodiscard]] Runner runner() const {
    if (options_.runner) return *options_.runner;
    const bool pools = !config_.has_output_head || modules_.has_modules || scores_tokens();
    return pools ? Runner::kPooling : Runner::kGenerate;
  }
  [[nodiscard]] Conversion conversion(bool pools) const {
    if (options_.conversion) return *options_.conversion;
    if (!pools) return Conversion::kNone;
    return is_classifier() || scores_tokens() ? Conversion::kClassify : Conversion::kEmbed;
  }

  Result<void> set_up_vectors(server::PoolingModel& model) const {
    if (modules_.has_modules && !modules_.mode && !options_.mode) {
      return make_error(ErrorCode::kInvalidArgument, "{}: modules.json has no Pooling module, wanted --pooling-type",
                        folder_.string());
    }
    model.pooling = to_sched(options_.mode.value_or(modules_.mode.value_or(usual_mode())));
    int32_t width = config_.hidden_size;
    if (modules_.input_width > 0 && modules_.input_width != width) {
      return make_error(ErrorCode::kData, "{}: the Pooling module wants vectors of {}, hidden_size is {}",
                        folder_.string(), modules_.input_width, width);
    }
    for (const model::DenseConfig& dense : modules_.dense) {
      if (dense.inputs != width) {
        return make_error(ErrorCode::kData, "{}: in_features {}, wanted {}", dense.folder.string(), dense.inputs,
                          width);
      }
      auto layer = load_dense(dense);
      if (!layer) return layer.error();
      model.layers.push_back(std::move(*layer));
      width = dense.outputs;
    }
    if (!modules_.pools_prompts) {
      log::warn(
          "{}: include_prompt is false, but instructions in texts are pooled, since a server cannot tell them apart",
          folder_.string());
    }
    if (!scores_.own_code.empty()) {
      log::warn(
          "{}: the model's own code ({}) is not run: its attention is computed as causal, and its vectors may differ",
          folder_.string(), scores_.own_code);
    }
    model.normalizes = modules_.normalizes;
    model.allows_dimensions = options_.is_matryoshka || scores_.is_matryoshka;
    if (!options_.is_matryoshka)
      model.dimensions.assign(scores_.matryoshka_dimensions.begin(), scores_.matryoshka_dimensions.end());
    return {};
  }

  Result<void> set_up_scores(server::PoolingModel& model) const {
    model.scores = true;
    model.pooling = to_sched(options_.mode.value_or(usual_mode()));
    model.score_activation = to_server(scores_.activation);
    model.rerank_template = options_.rerank_template.value_or(
        config_.architecture.starts_with("Qwen3") ? server::RerankTemplate::kQwen3 : server::RerankTemplate::kPair);
    const auto checkpoint = open_weights_ ? open_weights_() : model::Checkpoint::open(folder_);
    if (!checkpoint) return checkpoint.error();
    if (is_classifier() && config_.encoder) return load_encoder_classifier(**checkpoint, model);
    auto layer = is_classifier() ? load_classifier(**checkpoint) : load_token_score(**checkpoint);
    if (!layer) return layer.error();
    model.layers.push_back(std::move(*layer));
    return {};
  }

  /// Loads the two layers by which an encoder scores a pair: BERT's pooler and its classifier, or those of RoBERTa's
  /// head.
  Result<void> load_encoder_classifier(const model::Checkpoint& checkpoint, server::PoolingModel& model) const {
    const bool is_bert = config_.architecture.starts_with("Bert");
    auto dense = load_head_layer(checkpoint, is_bert ? "pooler.dense" : "classifier.dense", config_.hidden_size);
    if (!dense) return dense.error();
    dense->activation = server::Activation::kTanh;
    auto score = load_head_layer(checkpoint, is_bert ? "classifier" : "classifier.out_proj", 1);
    if (!score) return score.error();
    model.layers.push_back(std::move(*dense));
    model.layers.push_back(std::move(*score));
    return {};
  }

  Result<server::DenseLayer> load_head_layer(const model::Checkpoint& checkpoint, const std::string& name,
                                             int32_t outputs) const {
    const auto weight = checkpoint.find(name + ".weight", {outputs, config_.hidden_size});
    if (!weight) return weight.error();
    const auto bias = checkpoint.find(name + ".bias", {outputs});
    if (!bias) return bias.error();
    return server::DenseLayer{.weights = floats_of(*weight, 0, weight->shape.elements()),
                              .bias = floats_of(*bias, 0, outputs)};
  }

  Result<server::DenseLayer> load_classifier(const model::Checkpoint& checkpoint) const {
    const auto weight = checkpoint.find(kScoreName);
    if (!weight) return weight.error();
    if (weight->shape != tensor::Shape{1, config_.hidden_size}) {
      return make_error(ErrorCode::kData, "{}: {} has shape {}, wanted [1, {}], since a pair has one score",
                        folder_.string(), kScoreName, weight->shape.to_string(), config_.hidden_size);
    }
    server::DenseLayer layer{.weights = floats_of(*weight, 0, config_.hidden_size), .bias = {}};
    if (!checkpoint.contains("score.bias")) return layer;
    const auto bias = checkpoint.find("score.bias", {1});
    if (!bias) return bias.error();
    layer.bias = floats_of(*bias, 0, 1);
    return layer;
  }

  /// Returns a layer whose output is the logit of yes minus the logit of no, which softmax makes p(yes) of the two.
  Result<server::DenseLayer> load_token_score(const model::Checkpoint& checkpoint) const {
    const auto tokens = score_tokens();
    if (!tokens) return tokens.error();
    const bool has_head = checkpoint.contains(model::kHeadName);
    const std::string_view name = has_head ? model::kHeadName : model::head_name(config_);
    const auto head = checkpoint.find(name, {config_.vocab_size, config_.hidden_size});
    if (!head) return head.error();
    const auto row = [&](TokenId token) {
      return floats_of(*head, int64_t{token} * config_.hidden_size, config_.hidden_size);
    };
    server::DenseLayer layer{.weights = row(tokens->true_token), .bias = {}};
    if (!tokens->false_token) return layer;
    const std::vector<float> subtracted = row(*tokens->false_token);
    for (size_t i = 0; i < subtracted.size(); ++i) layer.weights[i] -= subtracted[i];
    return layer;
  }

  Result<model::TokenScoreConfig> score_tokens() const {
    model::TokenScoreConfig tokens;
    if (modules_.token_score) {
      tokens = *modules_.token_score;
    } else {
      const auto& words = scores_.classifier_from_token;
      const auto no = tokenizer_.token_to_id(words.empty() ? kNo : words.front());
      const auto yes = tokenizer_.token_to_id(words.empty() ? kYes : words.back());
      if (!no || !yes) {
        return make_error(ErrorCode::kInvalidArgument,
                          "--convert classify: {} scores pairs by the tokens '{}' and '{}', which its tokenizer lacks",
                          config_.architecture, words.empty() ? kNo : words.front(),
                          words.empty() ? kYes : words.back());
      }
      tokens = {.true_token = *yes, .false_token = *no};
    }
    const TokenId largest = std::max(tokens.true_token, tokens.false_token.value_or(0));
    if (largest < config_.vocab_size) return tokens;
    return make_error(ErrorCode::kData, "{}: a score of token {}, vocab_size is {}", folder_.string(), largest,
                      config_.vocab_size);
  }

  const PoolingOptions& options_;
  const std::filesystem::path& folder_;
  const model::ModelConfig& config_;
  const text::Tokenizer& tokenizer_;
  const CheckpointOpener& open_weights_;
  const model::PoolingConfig modules_;
  const model::ScoreConfig scores_;
};

}  // namespace

Result<PoolingSetup> set_up_pooling(const PoolingOptions& options, const std::filesystem::path& folder,
                                    const model::ModelConfig& config, const text::Tokenizer& tokenizer,
                                    const CheckpointOpener& open_weights) {
  // A model that only generates may have modules of any kind.
  if (options.runner == Runner::kGenerate && options.conversion.value_or(Conversion::kNone) == Conversion::kNone) {
    return PoolingSetup{};
  }
  auto modules = model::read_pooling_config(folder);
  if (!modules) return modules.error();
  auto scores = model::read_score_config(folder);
  if (!scores) return scores.error();
  return Setup(options, folder, config, tokenizer, open_weights, std::move(*modules), std::move(*scores)).make();
}

}  // namespace millrace::app
