#include "app/local_engine.h"

#include <catch2/catch.hpp>
#include <fstream>

#include "app/engine_client.h"
#include "model/cache_groups.h"
#include "model/checkpoint.h"
#include "model/checkpoint_files.h"
#include "model/families/read_config.h"
#include "model/random_model.h"
#include "model/tensor_list.h"
#include "sched/head/engine_status.h"
#include "sched/plan/draft_counts.h"
#include "sched/scheduler/pool_room.h"
#include "support/captured_log.h"
#include "support/mentions.h"

using namespace millrace;
using namespace millrace::test;
using namespace std::chrono_literals;

namespace {

model::LayerPartition partition(std::string_view text) {
  return model::parse_layer_partition(text).value();
}

std::unique_ptr<app::LocalEngine> start(const app::EngineOptions& options) {
  return start_engine(options, 512);
}

/// A copy of a golden model whose embedding of one token is NaN.
void write_spoilt_model(const std::string& family, TokenId spoilt, const std::filesystem::path& folder) {
  const std::filesystem::path source = test::source_dir() / "tests/golden" / family;
  std::filesystem::copy(source, folder, std::filesystem::copy_options::recursive);
  const auto checkpoint = model::Checkpoint::open(source).value();
  const auto config = model::read_config(source).value();
  REQUIRE_FALSE(config.tied_embeddings);  // or every sequence would have a NaN among its logits
  const auto table = checkpoint->find(model::kEmbeddingName, {config.vocab_size, config.hidden_size}).value();
  const size_t row_bytes = table.bytes() / static_cast<size_t>(config.vocab_size);
  const std::string row(reinterpret_cast<const char*>(table.data) + static_cast<size_t>(spoilt) * row_bytes, row_bytes);
  std::ifstream in(source / "model.safetensors", std::ios::binary);
  std::string file{std::istreambuf_iterator<char>(in), {}};
  const size_t at = file.find(row);
  REQUIRE(at != std::string::npos);
  REQUIRE(file.find(row, at + 1) == std::string::npos);
  file.replace(at, row_bytes, row_bytes, '\xFF');  // a NaN in every dtype
  std::ofstream(folder / "model.safetensors", std::ios::binary) << file;
}

/// An id that occurs neither in the prompts nor in the replies.
TokenId unused_token(const std::vector<sched::GenerateRequest>& requests, const std::vector<Reply>& replies) {
  std::vector<bool> used(512, false);
  for (const auto& request : requests) {
    for (const TokenId token : request.prompt) used[static_cast<size_t>(token)] = true;
  }
  for (const Reply& reply : replies) {
    for (const TokenId token : reply.tokens) used[static_cast<size_t>(token)] = true;
  }
  return static_cast<TokenId>(std::find(used.begin(), used.end(), false) - used.begin());
}

std::vector<Reply> ask_one_by_one(sched::Engine& engine, const std::vector<sched::GenerateRequest>& requests) {
  std::vector<Reply> replies;
  for (const auto& request : requests) replies.push_back(ask(engine, {request}).front());
  return replies;
}

}  // namespace

namespace {

/// The requests, most of which predict their replies, two of three with some tokens that are others.
std::vector<sched::GenerateRequest> with_predictions(std::vector<sched::GenerateRequest> requests,
                                                     const std::vector<Reply>& replies) {
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 5 == 0) continue;
    requests[i].prediction = replies[i].tokens;
    for (size_t at = 0; at < requests[i].prediction.size(); ++at) {
      if (uniform_at(i, at) < 0.1 * static_cast<double>(i % 3)) requests[i].prediction[at] = 7;
    }
  }
  return requests;
}

}  // namespace

TEST_CASE("replies have equal bits for any stages and chunks and batch") {
  const std::string family = GENERATE("llama-untied", "mistral", "gemma3", "gemma4", "llama4", "qwen3", "qwen3moe",
                                      "qwen3next", "lfm2", "nemotronh", "falcon-h1");
  const auto requests = mixed_requests(24);
  auto reference_options = options_for(family, 1);
  reference_options.head.scheduler.chunked_prefill_size = 512;
  reference_options.head.scheduler.draft_tokens = 0;
  const auto wanted = ask_one_by_one(start(reference_options)->engine(), requests);
  const auto predicted = with_predictions(requests, wanted);
  for (const int32_t pp_size : {1, 2, 4}) {
    auto options = options_for(family, pp_size);
    options.head.scheduler.chunked_prefill_size = static_cast<uint32_t>(7 + 20 * pp_size);
    options.async_batch_depth = pp_size - 1;
    options.layer_partition = partition(pp_size == 2 ? "auto" : "even");
    options.head.scheduler.chunking = pp_size == 1   ? sched::Chunking::kFixed
                                      : pp_size == 2 ? sched::Chunking::kBalanced
                                                     : sched::Chunking::kPublished;
    options.stage.page_size = static_cast<uint32_t>(8 * pp_size);
    options.max_total_tokens = 384;      // too few for all at once: some are retracted
    options.stage.expected_tokens = 64;  // states for more sequences than keys and values
    options.head.scheduler.draft_tokens = static_cast<uint32_t>(6 * (pp_size - 1));
    options.draft_algorithm = pp_size == 2 ? app::DraftAlgorithm::kNone : app::DraftAlgorithm::kNgram;
    const auto engine = start(options);
    const auto replies = ask(engine->engine(), predicted);
    for (size_t i = 0; i < requests.size(); ++i) {
      INFO(family << " pp " << pp_size << " request " << i);
      require_same(replies[i], wanted[i]);
    }
    const sched::EngineStatus status = engine->engine().status();
    REQUIRE(status.free_pages == status.total_pages);
    const auto groups = model::CacheGroups(model::read_config(options.model_path).value()).count();
    REQUIRE(status.windows.size() + 1 == groups);
    for (const sched::WindowStatus& window : status.windows) REQUIRE(window.free_pages == window.total_pages);
    if (pp_size == 1) {
      REQUIRE(status.preemptions > 0);
      continue;
    }
    REQUIRE(status.drafts.accepted[static_cast<size_t>(sched::DraftSource::kPrediction)] > 100);
  }
}

TEST_CASE("a small cache runs as many short requests as its tokens hold") {
  const std::string family = GENERATE("gemma3", "qwen3next", "lfm2", "nemotronh", "falcon-h1");
  INFO(family);
  const CapturedLog log;
  auto options = options_for(family, 1);
  options.stage.page_size = 8;
  options.stage.max_running = 6;
  options.head.scheduler.chunked_prefill_size = 64;
  options.max_total_tokens = 6 * 256;
  const auto engine = start(options);
  const auto concurrency = engine->engine().model_info().concurrency;
  REQUIRE_FALSE(concurrency.empty());
  REQUIRE(concurrency.back().tokens == engine->engine().model_info().context_length);
  REQUIRE(log.count("room for requests at once: ") == 1);
  REQUIRE(log.count("of --max-running-requests: there is no room") == 0);
  const model::ModelConfig config = model::read_config(options.model_path).value();
  const cache::PoolSizes first{
      .device = 6 * 32,
      .sequences = app::window_sequences(options, model::CacheGroups(config).windows(), 6 * 32, INT32_MAX)};
  const uint32_t context = engine->engine().model_info().context_length;
  const sched::SchedulerOptions scheduler = app::head_options(options, config, first, context).scheduler;
  REQUIRE(sched::concurrency_at(scheduler, 200).requests == 6);
  REQUIRE(concurrency == sched::concurrency(scheduler));
  // The pools of the engine are those, so that all run and none is sent back.
  const auto windows = engine->engine().status().windows;
  const auto pools = sched::window_pools(scheduler, sched::first_pools(scheduler));
  REQUIRE(windows.size() == pools.size());
  for (size_t i = 0; i < pools.size(); ++i) REQUIRE(windows[i].total_pages == pools[i].pages.device);
  const auto requests = mixed_requests(12);
  const auto replies = ask(engine->engine(), requests);
  for (const Reply& reply : replies) REQUIRE_FALSE(reply.error.has_value());
  REQUIRE(engine->engine().status().preemptions == 0);
}

TEST_CASE("next turns of hybrids hit the cache and keep their bits") {
  const std::string family = GENERATE("qwen3next", "qwen3_5", "lfm2", "granitemoehybrid", "nemotronh", "falcon-h1");
  auto requests = mixed_requests(8);
  auto options = options_for(family, 1);
  options.max_total_tokens = 65536;  // room for the snapshots of all requests
  const auto engine = start(options);
  const auto replies = ask(engine->engine(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    INFO(family << " request " << i);
    REQUIRE_FALSE(replies[i].error.has_value());
    std::vector<TokenId>& prompt = requests[i].prompt;
    prompt.insert(prompt.end(), replies[i].tokens.begin(), replies[i].tokens.end());
    for (size_t at = 0; at < 5; ++at) prompt.push_back(static_cast<TokenId>(uniform_at(i, 1000 + at) * 512));
  }
  const auto wanted = ask_one_by_one(start(options)->engine(), requests);
  const auto warm = ask_one_by_one(engine->engine(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    INFO(family << " request " << i << " of " << requests[i].prompt.size());
    REQUIRE(wanted[i].cached_tokens == 0);
    // Snapshots stand at the last page boundaries of the prompt before, and of its output.
    const size_t before = requests[i].prompt.size() - 5;
    REQUIRE(warm[i].cached_tokens + 2 * options.stage.page_size >= before);
    require_same(warm[i], wanted[i]);
  }
  for (const sched::WindowStatus& states : engine->engine().status().windows)
    REQUIRE(states.free_pages == states.total_pages);
}

TEST_CASE("replies do not depend on how many ranks a stage has") {
  const std::string family = GENERATE("llama-untied", "qwen2", "qwen3", "qwen3moe", "qwen3next", "lfm2");
  const auto requests = mixed_requests(12);
  auto reference_options = options_for(family, 1);
  reference_options.head.scheduler.chunked_prefill_size = 512;
  const auto wanted = ask_one_by_one(start(reference_options)->engine(), requests);
  for (const int32_t pp_size : {1, 2}) {
    for (const int32_t tp_size : {2, 4}) {
      auto options = options_for(family, pp_size);
      options.tp_size = tp_size;
      options.head.scheduler.chunked_prefill_size = static_cast<uint32_t>(16 * pp_size + tp_size);
      options.async_batch_depth = 1;
      const auto refused = app::LocalEngine::create(options, {}, 512);
      if (refused.has_error()) {
        REQUIRE_THAT(refused.error().message, test::Mentions("--tp-size 4", "counts of ranks that work: 1, 2"));
        continue;
      }
      const auto engine = start(options);
      REQUIRE(engine->engine().model_info().rank_count == static_cast<uint32_t>(tp_size));
      const auto replies = ask(engine->engine(), requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        INFO(family << " pp " << pp_size << " tp " << tp_size << " request " << i);
        require_same(replies[i], wanted[i]);
      }
    }
  }
}

TEST_CASE("counts of nodes that ranks do not fill are refused") {
  auto options = options_for("qwen2", 2);
  options.tp_size = 2;
  const auto refused = app::LocalEngine::create(options, {.node_count = 3, .node_rank = 0, .address = {}}, 512);
  REQUIRE(refused.has_error());
  REQUIRE_THAT(refused.error().message, test::Mentions("--nnodes 3", "--pp-size 2", "--tp-size 2", "2, 4"));
}

TEST_CASE("prompt scores come whole and equal however the prompt is cut") {
  sched::GenerateRequest request;
  request.id = "score";
  for (TokenId token = 0; token < 100; ++token) request.prompt.push_back(token * 5 % 512);
  request.max_tokens = 0;
  request.prompt_top_logprobs = 2;
  auto whole = options_for("qwen2", 1);
  const Reply wanted = ask(start(whole)->engine(), {request}).front();
  REQUIRE(wanted.finish == sched::FinishReason::kLength);
  REQUIRE(wanted.tokens.empty());
  REQUIRE(wanted.prompt_logprobs.size() == request.prompt.size());
  REQUIRE(std::isnan(wanted.prompt_logprobs[0].logprob));
  for (size_t i = 1; i < request.prompt.size(); ++i) {
    REQUIRE(wanted.prompt_logprobs[i].token == request.prompt[i]);
    REQUIRE(wanted.prompt_logprobs[i].logprob <= 0.0f);
    REQUIRE(wanted.prompt_logprobs[i].top.size() == 2);
  }
  auto cut = options_for("qwen2", 4);
  cut.head.scheduler.chunked_prefill_size = 9;
  const Reply got = ask(start(cut)->engine(), {request}).front();
  REQUIRE(std::equal(got.prompt_logprobs.begin() + 1, got.prompt_logprobs.end(), wanted.prompt_logprobs.begin() + 1,
                     same_bits));
}

TEST_CASE("a sequence without a distribution fails and others go on") {
  const std::string family = GENERATE("llama-untied", "qwen3moe", "qwen3next");
  auto requests = mixed_requests(5);
  for (auto& request : requests) request.prompt.resize(std::min<size_t>(request.prompt.size(), 40));
  auto options = options_for(family, 1);
  const auto wanted = ask_one_by_one(start(options)->engine(), requests);
  const TokenId spoilt = unused_token(requests, wanted);
  REQUIRE(spoilt < 512);
  const test::TemporaryFolder folder;
  write_spoilt_model(family, spoilt, folder.path() / family);

  auto in_prompt = requests[3];
  in_prompt.id = "spoilt in the prompt";
  in_prompt.prompt[in_prompt.prompt.size() / 2] = spoilt;
  auto drawn = requests[4];
  drawn.id = "spoilt when drawn";
  drawn.sampling.logit_bias = {{spoilt, 1000.0f}};
  drawn.max_tokens = 5;
  auto scored = in_prompt;
  scored.id = "spoilt and scored";
  scored.max_tokens = 0;
  scored.prompt_top_logprobs = 1;
  auto everything = requests;
  everything.insert(everything.begin() + 2, {in_prompt, drawn, scored});
  for (const int32_t pp_size : {1, 4}) {
    options = options_for(family, pp_size);
    options.model_path = folder.path() / family;
    options.head.scheduler.chunked_prefill_size = 64;
    options.stage.page_size = pp_size == 1 ? 16 : 10;
    options.max_total_tokens = 320;  // pages change hands: what a spoilt sequence leaves there must not be seen
    const auto engine = start(options);
    for (int round = 0; round < 2; ++round) {
      auto replies = ask(engine->engine(), everything);
      for (size_t i = 2; i < 5; ++i) {
        REQUIRE(replies[i].error->code == ErrorCode::kInternal);
        REQUIRE_THAT(replies[i].error->message, Catch::Contains("its logits hold a NaN"));
        REQUIRE(replies[i].tokens == (i == 3 ? std::vector<TokenId>{spoilt} : std::vector<TokenId>{}));
      }
      replies.erase(replies.begin() + 2, replies.begin() + 5);
      for (size_t i = 0; i < requests.size(); ++i) {
        INFO("pp " << pp_size << " round " << round << " request " << i);
        require_same(replies[i], wanted[i]);
      }
    }
    const sched::EngineStatus status = engine->engine().status();
    REQUIRE(status.ready);
    REQUIRE(status.free_pages == status.total_pages);
  }
}

TEST_CASE("a model of three ids is profiled and split and served") {
  const std::string config = R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 3, "hidden_size": 24,
    "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
    "hidden_act": "silu", "torch_dtype": "float32"})";
  const test::TemporaryFolder folder;
  folder.write("config.json", config);
  const test::RandomModel model(model::parse_config(config).value(), 1);
  folder.write("model.safetensors", test::safetensors_text(model.tensors()));
  sched::GenerateRequest request;
  request.prompt = {0, 2, 1, 1};
  request.max_tokens = 20;
  std::vector<Reply> replies;
  for (const int32_t pp_size : {1, 2}) {
    app::EngineOptions options = options_for("", pp_size);
    options.model_path = folder.path();
    options.head.scheduler.chunking = sched::Chunking::kBalanced;
    options.layer_partition = partition("auto");
    replies.push_back(ask(start(options)->engine(), {request}).front());
    REQUIRE(replies.back().tokens.size() == request.max_tokens);
  }
  require_same(replies[1], replies[0]);
}

TEST_CASE("a tied head is served whole and on two stages") {
  const test::TemporaryFolder folder;
  const std::filesystem::path source = test::source_dir() / "tests/golden/llama-untied";
  std::filesystem::copy(source, folder.path(), std::filesystem::copy_options::recursive);
  std::ifstream in(source / "config.json");
  std::string config{std::istreambuf_iterator<char>(in), {}};
  const std::string untied = R"("tie_word_embeddings": false)";
  config.replace(config.find(untied), untied.size(), R"("tie_word_embeddings": true)");
  folder.write("config.json", config);
  const auto requests = mixed_requests(4);
  const auto quantization = GENERATE(model::Quantization::kNone, model::Quantization::kW8);
  const auto division = GENERATE("even", "auto");
  for (const int32_t pp_size : {1, 2}) {
    CAPTURE(model::to_string(quantization), division, pp_size);
    auto options = options_for("llama-untied", pp_size);
    options.stage.quantization = quantization;
    options.layer_partition = partition(division);
    const auto whole = start(options);
    options.model_path = folder.path();
    const test::CapturedLog log;
    const auto engine = start(options);
    REQUIRE(log.count("lm_head.weight differs from model.embed_tokens.weight and is the output head") == 1);
    REQUIRE(engine->engine().model_info().parameter_count == whole->engine().model_info().parameter_count);
    const auto wanted = ask(whole->engine(), requests);
    const auto replies = ask(engine->engine(), requests);
    for (size_t i = 0; i < requests.size(); ++i) require_same(replies[i], wanted[i]);
  }
}

TEST_CASE("loading and profiling end when interrupted") {
  auto options = options_for("llama-tied", 2);
  options.layer_partition = partition(GENERATE("even", "auto"));
  auto engine = app::LocalEngine::create(options, {}, 512).value();
  engine->interrupt();
  const test::CapturedLog log;
  REQUIRE(engine->start().error().code == ErrorCode::kAborted);
  REQUIRE(log.count("--pp-layer-partition auto: ") == 0);  // what it would have chosen
  REQUIRE_FALSE(engine->engine().status().ready);
}

TEST_CASE("a head that is interrupted before it listens ends") {
  auto engine = app::LocalEngine::create(options_for("llama-tied", 2), {2, 0, {"127.0.0.1", 0}}, 512).value();
  engine->interrupt();
  REQUIRE(engine->start().error().code == ErrorCode::kAborted);
}

TEST_CASE("what cannot be served is refused with the reason") {
  auto options = options_for("llama-tied", 1);
  options.context_length = 64;
  const auto engine = start(options);
  sched::GenerateRequest request;
  request.id = "long";
  request.prompt.assign(64, 1);
  auto reply = ask(engine->engine(), {request}).front();
  REQUIRE(reply.error->code == ErrorCode::kInvalidArgument);
  REQUIRE_THAT(reply.error->message, test::Mentions("64 tokens", "context of 64", "63"));
  request.prompt.clear();
  reply = ask(engine->engine(), {request}).front();
  REQUIRE(reply.error->code == ErrorCode::kInvalidArgument);
  request.prompt.assign(60, 1);
  request.max_tokens = 100;
  reply = ask(engine->engine(), {request}).front();
  REQUIRE(reply.finish == sched::FinishReason::kLength);
  REQUIRE(reply.tokens.size() == 4);
}

TEST_CASE("a bad model folder or division is one clear error") {
  const auto message = [](const app::EngineOptions& options) {
    const auto engine = app::LocalEngine::create(options, {}, 512);
    if (engine.has_error()) return engine.error().message;
    const auto started = (*engine)->start();
    REQUIRE(started.has_error());
    return started.error().message;
  };
  auto options = options_for("no-such-model", 1);
  REQUIRE_THAT(message(options), Catch::Contains("config.json"));
  options = options_for("llama-tied", 5);
  REQUIRE_THAT(message(options), Catch::Contains("5") && Catch::Contains("4"));
  options = options_for("llama-tied", 2);
  options.layer_partition = partition("3,2");
  REQUIRE_THAT(message(options), Catch::Contains("3,2"));
  options = options_for("llama-tied", 1);
  options.context_length = 100000;
  REQUIRE_THAT(message(options), Catch::Contains("--context-length 100000"));
}
