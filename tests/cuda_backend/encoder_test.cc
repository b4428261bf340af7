// Encoders on the CUDA backend against the vectors of another implementation.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "base/json_value.h"
#include "base/text_file.h"
#include "cuda/cuda_backend.h"
#include "cuda_backend/tested_gemm.h"
#include "model/families/read_config.h"
#include "model/stage_model.h"
#include "support/paths.h"
#include "tensor/dtype.h"

using namespace millrace;

namespace {

constexpr int32_t kPageSize = 16;
constexpr int32_t kPagesEach = 12;  // the longest text has 179 tokens

/// A text of a golden file and its vector of unit length.
struct Golden {
  std::vector<TokenId> ids;
  std::vector<float> vector;
};

template <class Number>
std::vector<Number> numbers(const JsonValue& list) {
  std::vector<Number> all;
  JsonArray items;
  REQUIRE(list.get(items));
  for (const JsonValue item : items) {
    double number = 0.0;
    REQUIRE(item.get(number));
    all.push_back(static_cast<Number>(number));
  }
  return all;
}

std::vector<Golden> read_golden(const std::filesystem::path& folder) {
  const std::string text = read_text_file(folder / "golden.json").value();
  const JsonDocument document = JsonDocument::parse(text).value();
  JsonArray texts;
  REQUIRE(document.root()["texts"].get(texts));
  std::vector<Golden> all;
  for (const JsonValue each : texts)
    all.push_back({.ids = numbers<TokenId>(each["ids"]), .vector = numbers<float>(each["vector"])});
  return all;
}

/// A whole encoder on a GPU.
class Encoder {
 public:
  explicit Encoder(const std::filesystem::path& folder)
      : checkpoint_(model::Checkpoint::open(folder).value()),
        config_(without_head(model::read_config(folder).value())),
        backend_(cuda::make_backend({.products = test::tested_gemm()})) {
    const auto ranges = model::divide_layers(config_.layer_count(), 1).value();
    model_ = model::StageModel::load(*checkpoint_, config_, model::stage_spans(ranges).front(), *backend_,
                                     {.max_batch_tokens = 1024, .max_logit_rows = 37})
                 .value();
    hidden_ = model_->allocate_hidden();
  }

  /// Returns the rows [tokens, hidden] of the last norm of each text, of all texts in one batch.
  std::vector<std::vector<float>> rows(const std::vector<Golden>& texts) {
    std::vector<TokenId> tokens;
    std::vector<int32_t> row_begin{0};
    std::vector<int32_t> page_begin{0};
    std::vector<PageId> pages;
    for (const Golden& text : texts) {
      tokens.insert(tokens.end(), text.ids.begin(), text.ids.end());
      row_begin.push_back(static_cast<int32_t>(tokens.size()));
      for (int32_t i = 0; i < kPagesEach; ++i) pages.emplace_back(static_cast<uint32_t>(pages.size()));
      page_begin.push_back(static_cast<int32_t>(pages.size()));
    }
    model_->allocate_cache(kPageSize, static_cast<int32_t>(pages.size()));
    const std::vector<int32_t> prefix(texts.size(), 0);
    const std::vector<float> all =
        normed(tokens, {.row_begin = row_begin, .prefix = prefix, .page_begin = page_begin, .pages = pages});
    std::vector<std::vector<float>> of_texts;
    for (size_t s = 0; s < texts.size(); ++s)
      of_texts.emplace_back(all.begin() + row_begin[s] * config_.hidden_size,
                            all.begin() + row_begin[s + 1] * config_.hidden_size);
    return of_texts;
  }
  [[nodiscard]] size_t width() const { return static_cast<size_t>(config_.hidden_size); }

 private:
  static model::ModelConfig without_head(model::ModelConfig config) {
    config.has_output_head = false;
    return config;
  }

  std::vector<float> normed(const std::vector<TokenId>& tokens, const tensor::BatchLayout& batch) {
    std::vector<int32_t> numbers;
    for (int32_t row = 0; row < batch.row_count(); ++row) numbers.push_back(row);
    std::vector<tensor::BFloat16> halves(tokens.size() * width());
    backend_->run_and_wait([&] {
      const tensor::Matrix out = model_->forward(
          {.tokens = tokens, .batch = batch, .hidden = model_->hidden_view(hidden_, batch.row_count())});
      model_->normed_rows(out, numbers, [&](size_t first, tensor::Matrix block) {
        backend_->copy_to_host(block.data,
                               std::as_writable_bytes(std::span(halves)).subspan(first * width() * 2, block.bytes()));
      });
    });
    std::vector<float> values;
    for (const tensor::BFloat16 half : halves) values.push_back(half.to_float());
    return values;
  }

  std::unique_ptr<model::Checkpoint> checkpoint_;
  model::ModelConfig config_;
  std::unique_ptr<tensor::Backend> backend_;
  std::unique_ptr<model::StageModel> model_;
  tensor::Buffer hidden_;
};

/// Returns the first of the rows, or their mean, as a vector of unit length.
std::vector<double> pooled(const std::vector<float>& rows, size_t width, bool first) {
  std::vector<double> vector(width, 0.0);
  for (size_t i = 0; i < (first ? width : rows.size()); ++i) vector[i % width] += static_cast<double>(rows[i]);
  double squares = 0.0;
  for (const double value : vector) squares += value * value;
  for (double& value : vector) value /= std::sqrt(squares);
  return vector;
}

}  // namespace

TEST_CASE("CUDA encoders give vectors near those of the reference") {
  const auto& [name, first] = GENERATE(std::pair("embed-bert", false), std::pair("embed-xlm-roberta", true));
  const std::filesystem::path folder = test::source_dir() / "tests/golden/pooling" / name;
  const std::vector<Golden> texts = read_golden(folder);
  Encoder encoder(folder);
  const auto together = encoder.rows(texts);
  for (size_t s = 0; s < texts.size(); ++s) {
    CAPTURE(name, s, texts[s].ids.size());
    REQUIRE(encoder.rows({texts[s]})[0] == together[s]);
    const std::vector<double> found = pooled(together[s], encoder.width(), first);
    REQUIRE(found.size() == texts[s].vector.size());
    double cosine = 0.0;
    for (size_t i = 0; i < found.size(); ++i) cosine += found[i] * static_cast<double>(texts[s].vector[i]);
    REQUIRE(cosine > 0.9995);
  }
}
