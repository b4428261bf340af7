#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <future>

#include "app/local_engine.h"
#include "app/pooling_setup.h"
#include "base/json_value.h"
#include "base/random.h"
#include "base/text_file.h"
#include "model/families/read_config.h"
#include "sched/head/engine_status.h"
#include "sched/plan/finish_reason.h"
#include "sched/plan/generate_event.h"
#include "sched/plan/pooling.h"
#include "sched/plan/request.h"
#include "server/pooling_model.h"
#include "support/mentions.h"
#include "app/engine_client.h"
#include "support/paths.h"

using namespace millrace;
using namespace std::chrono_literals;
using test::Mentions;

namespace {

using Vectors = std::vector<std::vector<float>>;

std::filesystem::path pooling_folder(std::string_view name) {
  return test::source_dir() / "tests/golden/pooling" / name;
}

/// A model of tests/golden/pooling with what sentence-transformers computes of it.
struct GoldenPooling {
  explicit GoldenPooling(std::string_view name) : folder(pooling_folder(name)) {
    config = model::read_config(folder).value();
    tokenizer = text::Tokenizer::load(folder).value();
    setup = app::set_up_pooling({}, folder, config, *tokenizer).value();
    text = read_text_file(folder / "golden.json").value();
    document = JsonDocument::parse(text).value();
  }
  [[nodiscard]] std::vector<std::vector<TokenId>> prompts() const {
    std::vector<std::vector<TokenId>> all;
    JsonArray texts;
    REQUIRE(document.root()["texts"].get(texts));
    for (const JsonValue each : texts) all.push_back(numbers<TokenId>(each["ids"]));
    return all;
  }
  [[nodiscard]] Vectors vectors() const {
    Vectors all;
    JsonArray texts;
    REQUIRE(document.root()["texts"].get(texts));
    for (const JsonValue each : texts) all.push_back(numbers<float>(each["vector"]));
    return all;
  }
  template <class Number>
  [[nodiscard]] static std::vector<Number> numbers(JsonValue list) {
    std::vector<Number> all;
    JsonArray items;
    REQUIRE(list.get(items));
    for (const JsonValue item : items) {
      double number = 0;
      REQUIRE(item.get(number));
      all.push_back(static_cast<Number>(number));
    }
    return all;
  }

  std::filesystem::path folder;
  model::ModelConfig config;
  std::shared_ptr<const text::Tokenizer> tokenizer;
  app::PoolingSetup setup;
  std::string text;
  JsonDocument document;
};

asio::awaitable<void> pool_one(async::Runtime& runtime, sched::Engine& engine, sched::GenerateRequest request,
                               sched::GenerateEvent& event) {
  auto stream = engine.submit(std::move(request), runtime);
  REQUIRE(stream.has_value());
  event = co_await (*stream)->next();
}

asio::awaitable<void> pool_each(async::Runtime& runtime, sched::Engine& engine,
                                const std::vector<sched::GenerateRequest>& requests,
                                std::vector<sched::GenerateEvent>& events, std::promise<void>& done) {
  async::TaskGroup tasks(runtime);
  for (size_t i = 0; i < requests.size(); ++i) {
    tasks.spawn("client", pool_one(runtime, engine, requests[i], events[i]));
  }
  co_await tasks.join();
  done.set_value();
}

/// Sends all prompts at once, or one after another.
std::vector<sched::GenerateEvent> pool_requests(sched::Engine& engine,
                                                const std::vector<sched::GenerateRequest>& requests, bool at_once) {
  std::vector<sched::GenerateEvent> events;
  async::IoThread thread("clients");
  async::TaskGroup tasks(thread.runtime());
  const size_t group = at_once ? requests.size() : 1;
  for (size_t begin = 0; begin < requests.size(); begin += group) {
    const std::vector<sched::GenerateRequest> part(requests.begin() + static_cast<ptrdiff_t>(begin),
                                                   requests.begin() + static_cast<ptrdiff_t>(begin + group));
    std::vector<sched::GenerateEvent> found(part.size());
    std::promise<void> done;
    asio::post(thread.context(),
               [&] { tasks.spawn("clients", pool_each(thread.runtime(), engine, part, found, done)); });
    done.get_future().get();
    for (auto& event : found) events.push_back(std::move(event));
  }
  thread.join();
  for (const auto& event : events) {
    INFO((event.error ? event.error->message : "no error"));
    REQUIRE(event.finish == sched::FinishReason::kStop);
  }
  return events;
}

sched::GenerateRequest pooling_request(size_t number, std::vector<TokenId> prompt, sched::Pooling pooling) {
  return {.id = std::to_string(number), .prompt = std::move(prompt), .max_tokens = 0, .pooling = pooling};
}

std::vector<sched::GenerateEvent> pool_prompts(sched::Engine& engine, const std::vector<std::vector<TokenId>>& prompts,
                                               sched::Pooling pooling, bool at_once) {
  std::vector<sched::GenerateRequest> requests;
  for (const auto& prompt : prompts) requests.push_back(pooling_request(requests.size(), prompt, pooling));
  return pool_requests(engine, requests, at_once);
}

app::EngineOptions pooling_engine(const std::filesystem::path& folder, int32_t pp_size, uint32_t chunk) {
  app::EngineOptions options;
  options.model_path = folder;
  options.pp_size = pp_size;
  options.node.threads = 1;
  options.stage.page_size = 16;
  options.stage.dtype = tensor::DType::kF32;
  options.stage.has_output_head = false;
  options.max_total_tokens = 4096;
  options.head.scheduler.chunked_prefill_size = chunk;
  return options;
}

std::unique_ptr<app::LocalEngine> start_pooling(const app::EngineOptions& options) {
  return test::start_engine(options, 288);
}

Vectors pooled_of(const std::vector<sched::GenerateEvent>& events) {
  Vectors vectors;
  for (const auto& event : events) vectors.push_back(event.pooled);
  return vectors;
}

/// Texts of many lengths over the vocabulary's bytes; every other one begins like the one before.
std::vector<std::vector<TokenId>> random_prompts(size_t count) {
  std::vector<std::vector<TokenId>> prompts(count);
  for (size_t i = 0; i < count; ++i) {
    if (i % 2 == 1) prompts[i].assign(prompts[i - 1].begin(), prompts[i - 1].end());
    const auto length = 1 + static_cast<size_t>(uniform_at(i, 0) * 90);
    for (size_t at = 0; at < length; ++at) prompts[i].push_back(static_cast<TokenId>(uniform_at(i, 1 + at) * 256));
  }
  return prompts;
}

}  // namespace

TEST_CASE("vectors are those of sentence-transformers") {
  const std::string name =
      GENERATE(as<std::string>{}, "embed-last", "embed-mean", "embed-cls", "embed-bert", "embed-xlm-roberta");
  const GoldenPooling golden(name);
  const int32_t pp_size = GENERATE(1, 2, 4);
  CAPTURE(name, pp_size);
  REQUIRE_FALSE(golden.setup.has_output_head);
  const auto engine = start_pooling(pooling_engine(golden.folder, pp_size, pp_size == 2 ? 16 : 512));
  const server::PoolingModel& pooling = *golden.setup.pooling;
  const Vectors pooled = pooled_of(pool_prompts(engine->engine(), golden.prompts(), pooling.pooling, true));
  const Vectors wanted = golden.vectors();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::vector<float> found = pooling.embed(pooled[i], 0, true);
    REQUIRE(found.size() == wanted[i].size());
    for (size_t at = 0; at < found.size(); ++at) REQUIRE(found[at] == Approx(wanted[i][at]).margin(5e-6));
  }
}

TEST_CASE("the tokenizer adds what sentence-transformers adds") {
  const GoldenPooling golden(GENERATE(as<std::string>{}, "embed-last", "embed-mean", "embed-cls", "embed-bert"));
  JsonArray texts;
  REQUIRE(golden.document.root()["texts"].get(texts));
  const auto prompts = golden.prompts();
  size_t i = 0;
  for (const JsonValue each : texts) {
    std::string_view text;
    REQUIRE(each["text"].get(text));
    REQUIRE(golden.tokenizer->encode(text, true) == prompts[i++]);
  }
}

TEST_CASE("vectors have equal bits for all stages chunks and batches") {
  const auto prompts = random_prompts(24);
  const auto pooling = GENERATE(sched::Pooling::kLast, sched::Pooling::kMean, sched::Pooling::kFirst);
  const auto folder = pooling_folder("embed-last");
  const Vectors wanted =
      pooled_of(pool_prompts(start_pooling(pooling_engine(folder, 1, 512))->engine(), prompts, pooling, false));
  for (const int32_t stages : {1, 2, 4}) {
    for (const uint32_t chunk : {8u, 37u, 512u}) {
      CAPTURE(static_cast<int>(pooling), stages, chunk);
      const auto engine = start_pooling(pooling_engine(folder, stages, chunk));
      const auto once = pool_prompts(engine->engine(), prompts, pooling, true);
      REQUIRE(pooled_of(once) == wanted);
      const auto again = pool_prompts(engine->engine(), prompts, pooling, true);
      REQUIRE(pooled_of(again) == wanted);
      // Only the last row can follow from cached pages.
      uint32_t cached = 0;
      for (const auto& event : again) cached += event.cached_tokens;
      REQUIRE((cached > 0) == (pooling == sched::Pooling::kLast));
    }
  }
}

TEST_CASE("an encoder gives equal bits on all pipelines and batches") {
  const auto prompts = random_prompts(16);
  const auto pooling = GENERATE(sched::Pooling::kLast, sched::Pooling::kMean, sched::Pooling::kFirst);
  const auto folder = pooling_folder("embed-xlm-roberta");
  const Vectors wanted =
      pooled_of(pool_prompts(start_pooling(pooling_engine(folder, 1, 512))->engine(), prompts, pooling, false));
  for (const int32_t stages : {1, 2, 4}) {
    for (const uint32_t chunk : {8u, 512u}) {
      CAPTURE(static_cast<int>(pooling), stages, chunk);
      const auto engine = start_pooling(pooling_engine(folder, stages, chunk));
      for (int repetition = 0; repetition < 2; ++repetition) {
        const auto events = pool_prompts(engine->engine(), prompts, pooling, true);
        REQUIRE(pooled_of(events) == wanted);
        for (const auto& event : events) REQUIRE(event.cached_tokens == 0);
      }
    }
  }
}

TEST_CASE("an encoder sees the whole text from its first token on") {
  const auto engine = start_pooling(pooling_engine(pooling_folder("embed-bert"), 2, 512));
  std::vector<TokenId> text = random_prompts(4).back();
  const std::vector<TokenId> before = text;
  text.back() = text.back() == 5 ? 6 : 5;
  const Vectors first = pooled_of(pool_prompts(engine->engine(), {before, text}, sched::Pooling::kFirst, true));
  REQUIRE(first[0] != first[1]);
}

TEST_CASE("an encoder keeps no prefixes on a host tier") {
  auto options = pooling_engine(pooling_folder("embed-bert"), 1, 16);
  options.hierarchical_cache = true;
  const auto engine = app::LocalEngine::create(options, {}, 288);
  REQUIRE_THAT(engine.error().message, Mentions("--enable-hierarchical-cache", "BertModel"));
}

TEST_CASE("a generating ring pools between its outputs") {
  auto options = pooling_engine(test::source_dir() / "tests/golden/qwen3", 2, 16);
  options.stage.has_output_head = true;
  const auto engine = start_pooling(options);
  const auto prompts = random_prompts(12);
  const Vectors alone = pooled_of(pool_prompts(engine->engine(), prompts, sched::Pooling::kMean, false));
  options.stage.has_output_head = false;
  const auto headless = start_pooling(options);
  REQUIRE(pooled_of(pool_prompts(headless->engine(), prompts, sched::Pooling::kMean, true)) == alone);
  REQUIRE_FALSE(headless->engine().model_info().generates);
  async::IoThread thread("clients");
  auto refused = headless->engine().submit({.id = "g", .prompt = {1}}, thread.runtime());
  REQUIRE(refused.has_error());
  REQUIRE(refused.error().code == ErrorCode::kInvalidArgument);
  thread.join();
}

TEST_CASE("scores are those of the reference") {
  const std::string name = GENERATE(as<std::string>{}, "score-head", "score-bert", "score-xlm-roberta", "score-tokens");
  const GoldenPooling golden(name);
  const server::PoolingModel& model = *golden.setup.pooling;
  REQUIRE(model.scores);
  REQUIRE(model.rerank_template ==
          (name == "score-tokens" ? server::RerankTemplate::kQwen3 : server::RerankTemplate::kPair));
  std::vector<sched::GenerateRequest> requests;
  const auto add = [&](std::vector<TokenId> prompt, uint32_t second_text) {
    requests.push_back(pooling_request(requests.size(), std::move(prompt), model.pooling));
    requests.back().second_text = second_text;
  };
  if (JsonArray given; golden.document.root()["prompts"].get(given)) {
    for (const JsonValue each : given) add(GoldenPooling::numbers<TokenId>(each), 0);
  } else {
    REQUIRE(golden.document.root()["pairs"].get(given));
    for (const JsonValue each : given) {
      const auto types =
          each["types"].is_missing() ? std::vector<uint32_t>() : GoldenPooling::numbers<uint32_t>(each["types"]);
      const auto second = static_cast<size_t>(std::ranges::find(types, 1u) - types.begin());
      add(GoldenPooling::numbers<TokenId>(each["ids"]), static_cast<uint32_t>(second == types.size() ? 0 : second));
    }
  }
  const auto wanted = GoldenPooling::numbers<float>(golden.document.root()["scores"]);
  const auto engine = start_pooling(pooling_engine(golden.folder, GENERATE(1, 4), 64));
  const auto events = pool_requests(engine->engine(), requests, true);
  for (size_t i = 0; i < wanted.size(); ++i) {
    REQUIRE(model.score(events[i].pooled, true) == Approx(wanted[i]).margin(5e-6));
  }
}

TEST_CASE("a pair is encoded as the reference encodes it") {
  const GoldenPooling golden(GENERATE(as<std::string>{}, "score-head", "score-bert", "score-xlm-roberta"));
  JsonArray documents;
  JsonArray pairs;
  std::string_view query;
  REQUIRE((golden.document.root()["documents"].get(documents) && golden.document.root()["query"].get(query)));
  REQUIRE(golden.document.root()["pairs"].get(pairs));
  for (size_t i = 0; i < pairs.size(); ++i) {
    std::string_view document;
    REQUIRE(documents.at(i).get(document));
    const auto pair = golden.tokenizer->encode_pair(query, document, true);
    REQUIRE(pair.ids == GoldenPooling::numbers<TokenId>(pairs.at(i)["ids"]));
    // The reference gives no types where the model has none.
    if (!pairs.at(i)["types"].is_missing())
      REQUIRE(pair.type_ids == GoldenPooling::numbers<uint32_t>(pairs.at(i)["types"]));
  }
}

TEST_CASE("types of a pair of texts count in the score of an encoder") {
  const GoldenPooling golden("score-bert");
  const auto engine = start_pooling(pooling_engine(golden.folder, 2, 512));
  const auto pair = golden.tokenizer->encode_pair("what is a harpoon?", "no", true);
  std::vector<sched::GenerateRequest> requests;
  for (const uint32_t second : {0u, 4u, 19u}) {
    requests.push_back(pooling_request(requests.size(), pair.ids, sched::Pooling::kFirst));
    requests.back().second_text = second;
  }
  const Vectors vectors = pooled_of(pool_requests(engine->engine(), requests, true));
  REQUIRE(vectors[0] != vectors[1]);
  REQUIRE(vectors[1] != vectors[2]);
  const auto alone = pool_requests(engine->engine(), requests, false);
  REQUIRE(pooled_of(alone) == vectors);
}

TEST_CASE("what a server does follows from flags and files") {
  const auto set_up = [](std::string_view name, const app::PoolingOptions& options) {
    const auto folder = std::filesystem::exists(pooling_folder(name)) ? pooling_folder(name)
                                                                      : test::source_dir() / "tests/golden" / name;
    const auto tokenizer = text::Tokenizer::load(pooling_folder("score-tokens")).value();
    return app::set_up_pooling(options, folder, model::read_config(folder).value(), *tokenizer);
  };
  SECTION("a model that generates is asked to embed") {
    REQUIRE(set_up("qwen3", {})->pooling == nullptr);
    const auto both =
        set_up("qwen3", {.runner = app::Runner::kGenerate, .conversion = app::Conversion::kEmbed}).value();
    REQUIRE(both.has_output_head);
    REQUIRE(both.pooling->pooling == sched::Pooling::kLast);
    REQUIRE(both.pooling->normalizes);
    const auto mean = set_up("qwen3", {.runner = app::Runner::kPooling, .mode = model::PoolingMode::kMean}).value();
    REQUIRE_FALSE(mean.has_output_head);
    REQUIRE(mean.pooling->pooling == sched::Pooling::kMean);
  }
  SECTION("a model that embeds") {
    const auto cls = set_up("embed-cls", {}).value();
    REQUIRE(cls.pooling->pooling == sched::Pooling::kFirst);
    REQUIRE_FALSE(cls.pooling->normalizes);
    REQUIRE(cls.pooling->dimensions == std::vector<uint32_t>{16, 32, 64});
    REQUIRE(set_up("embed-mean", {})->pooling->layers.size() == 2);
    REQUIRE_FALSE(set_up("embed-last", {})->pooling->allows_dimensions);
    REQUIRE(set_up("embed-last", {.is_matryoshka = true})->pooling->allows_dimensions);
  }
  SECTION("contradictions are errors") {
    const auto none = set_up("embed-last", {.conversion = app::Conversion::kNone});
    REQUIRE_THAT(none.error().message, Mentions("--runner pooling", "none", "embed", "classify"));
    // The score needs the tokens of an output head, which these files lack.
    REQUIRE(set_up("embed-last", {.conversion = app::Conversion::kClassify}).has_error());
  }
  SECTION("an architecture without a head cannot generate") {
    auto options = pooling_engine(pooling_folder("embed-mean"), 1, 16);
    options.stage.has_output_head = true;
    const auto engine = app::LocalEngine::create(options, {}, 288);
    REQUIRE_THAT(engine.error().message, Mentions("--runner generate", "LlamaModel"));
  }
}
