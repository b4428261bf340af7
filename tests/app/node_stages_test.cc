#include "app/node_stages.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "app/stage_backend.h"
#include "base/machine.h"
#include "cache/pool_division.h"
#include "model/cache_groups.h"
#include "model/checkpoint.h"
#include "model/checkpoint_files.h"
#include "model/families/read_config.h"
#include "model/random_model.h"
#include "sched/stage/ring_config.h"
#include "support/captured_log.h"
#include "support/mentions.h"
#include "support/paths.h"

using namespace millrace;
using namespace std::chrono_literals;

namespace {

app::NodeStagesOptions two_stages(const model::ModelConfig& config) {
  app::NodeStagesOptions options;
  options.spans = model::stage_spans(model::divide_layers(config.layer_count(), 2).value());
  options.node.threads = 1;
  options.stage.max_batch_tokens = 64;
  options.stage.page_size = 16;
  options.context_length = 128;
  options.stage.max_running = 2;
  options.stage.has_store = true;
  return options;
}

/// Returns, for each thread of this process with that name, the CPUs that it may use, as the kernel lists them.
std::vector<std::string> cpus_of_threads(const std::string& name) {
  std::vector<std::string> lists;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream comm(thread.path() / "comm");
    std::string word;
    std::getline(comm, word);
    if (word != name) continue;
    std::ifstream status(thread.path() / "status");
    while (status >> word && word != "Cpus_allowed_list:") continue;
    status >> lists.emplace_back();
  }
  std::ranges::sort(lists);
  return lists;
}

}  // namespace

TEST_CASE("page identity tells weights and layers and formats apart") {
  const char* const family = GENERATE("qwen2", "deepseek-v2-lite", "deepseek-v32-sparse");
  const auto checkpoint = model::Checkpoint::open(test::source_dir() / "tests/golden" / family).value();
  const model::ModelConfig config = model::read_config(checkpoint->folder()).value();
  const auto contents = [&](const app::NodeStagesOptions& options) {
    return app::NodeStages::load(*checkpoint, config, options).value()->contents().ranks;
  };
  app::NodeStagesOptions options = two_stages(config);
  options.stage.dtype = tensor::DType::kF32;
  const auto exact = contents(options);
  REQUIRE(exact.size() == 2);
  REQUIRE(exact[0] != exact[1]);
  REQUIRE(contents(options) == exact);

  options.stage.dtype = tensor::DType::kBF16;
  const auto rounded = contents(options);
  REQUIRE(rounded[0] != exact[0]);
  REQUIRE(rounded[1] != exact[1]);

  options.stage.kv_dtype = tensor::KvDType::kInt8;
  const auto int8 = contents(options);
  options.stage.kv_dtype = tensor::KvDType::kFp8E4M3;
  const auto fp8 = contents(options);
  for (size_t stage = 0; stage < 2; ++stage) {
    REQUIRE(int8[stage] != rounded[stage]);
    REQUIRE(fp8[stage] != rounded[stage]);
    REQUIRE(fp8[stage] != int8[stage]);
  }

  options.stage.has_store = false;
  REQUIRE(contents(options).empty());
}

TEST_CASE("stages load in parallel and the first error names its tensor") {
  const auto checkpoint = model::Checkpoint::open(test::source_dir() / "tests/golden/qwen2").value();
  const model::ModelConfig config = model::read_config(checkpoint->folder()).value();
  app::NodeStagesOptions options = two_stages(config);
  options.stage.has_store = false;
  const auto stages = app::NodeStages::load(*checkpoint, config, options);
  REQUIRE(stages.has_value());

  model::ModelConfig longer = config;
  longer.layers.push_back(longer.layers.back());
  options.spans = model::stage_spans(model::divide_layers(longer.layer_count(), 2).value());
  const auto missing = app::NodeStages::load(*checkpoint, longer, options);
  REQUIRE(missing.has_error());
  REQUIRE_THAT(missing.error().message, Catch::Contains(fmt::format("model.layers.{}.", config.layer_count())));

  const std::atomic<bool> interrupted = true;
  options = two_stages(config);
  options.interrupted = &interrupted;
  const auto ended = app::NodeStages::load(*checkpoint, config, options);
  REQUIRE(ended.has_error());
  REQUIRE(ended.error().code == ErrorCode::kAborted);
}

TEST_CASE("pinned threads have a CPU each or are refused") {
  const auto checkpoint = model::Checkpoint::open(test::source_dir() / "tests/golden/qwen2").value();
  const model::ModelConfig config = model::read_config(checkpoint->folder()).value();
  app::NodeStagesOptions options = two_stages(config);
  options.stage.has_store = false;
  options.node.pin_threads = true;
  const std::vector<int> allowed = Machine::allowed_processors();
  REQUIRE(std::ranges::is_sorted(allowed));
  REQUIRE(std::ranges::adjacent_find(allowed) == allowed.end());

  // A thread has its name and its CPU a little after it has been started.
  const auto await_cpus = [](const std::string& name, std::vector<std::string> wanted) {
    std::ranges::sort(wanted);
    for (int look = 0; look < 1000 && cpus_of_threads(name) != wanted; ++look) std::this_thread::sleep_for(10ms);
    REQUIRE(cpus_of_threads(name) == wanted);
  };
  if (allowed.size() >= 2) {
    options.node.threads = 2;
    const auto stages = app::NodeStages::load(*checkpoint, config, options);
    REQUIRE(stages.has_value());
    await_cpus("compute", {std::to_string(allowed[0]), std::to_string(allowed[1])});
    await_cpus("compute 1", {});
  }
  const std::vector<model::StageSpan> two = options.spans;
  options.spans = model::stage_spans({{0, config.layer_count()}});
  options.node.threads = static_cast<int32_t>(std::min<size_t>(2, allowed.size()));
  {
    const auto stages = app::NodeStages::load(*checkpoint, config, options);
    REQUIRE(stages.has_value());
    await_cpus("compute", {std::to_string(allowed[0])});
    if (allowed.size() >= 2) await_cpus("compute 1", {std::to_string(allowed[1])});
  }
  options.spans = two;
  REQUIRE(cpus_of_threads("compute").empty());

  options.node.threads = static_cast<int32_t>(2 * allowed.size() + 2);
  const auto refused = app::NodeStages::load(*checkpoint, config, options);
  REQUIRE(refused.has_error());
  REQUIRE_THAT(refused.error().message, Catch::StartsWith("--pin-threads: ") &&
                                            Catch::Contains(std::to_string(2 * allowed.size() + 2)) &&
                                            Catch::EndsWith(' ' + std::to_string(allowed.size())));
}

TEST_CASE("room for pages counts real sizes and refusals name the stage") {
  model::ModelConfig config = model::read_config(test::source_dir() / "tests/golden/qwen2").value();
  for (model::LayerConfig& layer : config.layers) layer.attention.head_dim = 8;  // less than any kernel takes
  const test::TemporaryFolder folder;
  folder.write("model.safetensors", test::safetensors_text(test::RandomModel(config, 19).tensors()));
  const auto checkpoint = model::Checkpoint::open(folder.path()).value();
  app::NodeStagesOptions options = two_stages(config);
  options.stage.has_store = false;
  const auto stages = app::NodeStages::load(*checkpoint, config, options).value();
  const auto backend = app::make_rank_backend(options.device, options.stage, options.node, {.stage_count = 2}).value();
  const auto cache = backend->make_kv_cache(
      {config.layer_count(), config.layer(0).attention.kv_head_count, config.layer(0).attention.head_dim, 16, 1});
  REQUIRE(stages->memory().page_bytes() == static_cast<double>(cache->page_bytes()));

  async::IoThread control("control");
  sched::RingConfig shape;
  shape.stage_count = 2;
  shape.bounds = {.slot_count = 2, .page_size = 1024, .page_count = INT32_MAX, .max_batch_tokens = 64};
  const test::CapturedLog log;
  const auto made = stages->make_stages(control.runtime(), shape, "");
  REQUIRE(made.has_error());
  REQUIRE(made.error().code == ErrorCode::kExhausted);
  REQUIRE_THAT(made.error().message, test::Mentions("stage 0", "2147483647 pages", "1024 tokens", "MB", "mmap"));
  REQUIRE(log.count("a KV cache of 2147483647 pages of 16 tokens takes ") == 1);

  // What failed has left the weights, and each attempt measures the memory.
  shape.bounds.page_size = 16;
  shape.bounds.page_count = 3;
  for (const uint32_t host_pages : {UINT32_MAX, 0U, 2U}) {
    CAPTURE(host_pages);
    REQUIRE_FALSE(stages->made());
    REQUIRE(app::loaded_report(*stages, {.memory_fraction = 0.5}).page_capacity > 3);
    shape.bounds.host_page_count = host_pages;
    const auto again = stages->make_stages(control.runtime(), shape, "");
    REQUIRE(again.has_error() == (host_pages == UINT32_MAX));
    if (again.has_error()) {
      REQUIRE(again.error().code == ErrorCode::kExhausted);
      REQUIRE_THAT(again.error().message, test::Mentions("4294967295 pages", "16 tokens"));
      continue;
    }
    REQUIRE(app::loaded_report(*stages, {.memory_fraction = 0.5}).page_capacity == 0);
    stages->destroy_stages();
  }
  control.join();
}

TEST_CASE("windows and states of a node fit beside the wanted pages") {
  const std::string family = GENERATE("gemma3", "qwen3next");
  INFO(family);
  const auto checkpoint = model::Checkpoint::open(test::source_dir() / "tests/golden" / family).value();
  const model::ModelConfig config = model::read_config(checkpoint->folder()).value();
  app::NodeStagesOptions options = two_stages(config);
  options.stage.has_store = false;
  const auto stages = app::NodeStages::load(*checkpoint, config, options).value();
  const app::NodeMemory memory = stages->memory();
  REQUIRE(memory.sequence_capacity(0, 0.5) == INT32_MAX);  // pages follow from the memory
  // Processes beside the test use memory meanwhile, so that what fits is known roughly.
  const uint32_t some = 1000;
  const uint32_t many = memory.sequence_capacity(some, 0.25);
  const uint32_t few = memory.sequence_capacity(some, 0.0025);
  REQUIRE(few > 2);
  REQUIRE(few < many);
  REQUIRE(memory.sequence_capacity(some, 0.25, 100) < many);
  // Pages that take more than the fraction have room for the sequences that they suggest.
  const auto all = static_cast<uint32_t>(std::min<uint64_t>(2 * memory.page_capacity(0.5), INT32_MAX));
  const auto windows = model::CacheGroups(config).windows();
  REQUIRE(memory.sequence_capacity(all, 0.5) ==
          cache::expected_sequences(windows, all, sched::pool_needs(options.stage)));
  REQUIRE(app::loaded_report(*stages, {.wanted_pages = some, .memory_fraction = 0.25}).sequence_capacity < INT32_MAX);
}
