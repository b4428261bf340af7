#include "app/flags.h"

#include <catch2/catch.hpp>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

app::Command parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "millrace");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  return app::parse_command_line(static_cast<int>(pointers.size()), pointers.data());
}

app::Command parse_serve(std::vector<std::string> flags) {
  flags.insert(flags.begin(), {"serve", "--model-path", "m"});
  return parse(std::move(flags));
}

app::ServeFlags served(std::vector<std::string> flags) {
  const app::Command command = parse_serve(std::move(flags));
  if (const auto* exit = std::get_if<app::EarlyExit>(&command)) FAIL(exit->message);
  return std::get<app::ServeFlags>(command);
}

std::string refusal(std::vector<std::string> flags) {
  const app::Command command = parse_serve(std::move(flags));
  const auto* exit = std::get_if<app::EarlyExit>(&command);
  REQUIRE(exit != nullptr);
  REQUIRE(exit->code == 2);
  return exit->message;
}

}  // namespace

TEST_CASE("names arrive as enums") {
  const app::EngineOptions engine = served({"--dtype",
                                            "f32",
                                            "--cpu-isa",
                                            "avx2",
                                            "--quantization",
                                            "w8a8_int8",
                                            "--device",
                                            "cpu",
                                            "--nccl",
                                            "off",
                                            "--chunking",
                                            "published",
                                            "--schedule-policy",
                                            "lpm",
                                            "--speculative-algorithm",
                                            "NGRAM",
                                            "--enable-hierarchical-cache",
                                            "--hicache-write-policy",
                                            "write_back",
                                            "--pp-layer-partition",
                                            "3,2",
                                            "--dp-size",
                                            "3",
                                            "--enable-ep",
                                            "--dp-step-lookahead",
                                            "7",
                                            "--load-balance-method",
                                            "shortest_queue"})
                                        .engine;
  CHECK(engine.stage.dtype == tensor::DType::kF32);
  CHECK(engine.stage.isa == tensor::Isa::kAvx2);
  CHECK(engine.stage.quantization == model::Quantization::kW8A8Int8);
  CHECK(engine.node.device == app::DeviceChoice::kCpu);
  CHECK(engine.node.nccl == app::NcclMode::kOff);
  CHECK(engine.head.scheduler.chunking == sched::Chunking::kPublished);
  CHECK(engine.head.scheduler.policy == sched::QueuePolicy::kLpm);
  CHECK(engine.head.scheduler.write_policy == cache::WritePolicy::kWriteBack);
  CHECK(engine.draft_algorithm == app::DraftAlgorithm::kNgram);
  CHECK(engine.layer_partition.sizes == std::vector<int32_t>{3, 2});
  CHECK(engine.dp_size == 3);
  CHECK(engine.enable_ep);
  CHECK(engine.step_lookahead == 7);
  CHECK(engine.load_balance == sched::LoadBalanceMethod::kShortestQueue);
}

TEST_CASE("stages have one rank or a number or one per NUMA node") {
  CHECK(served({}).engine.tp_size == 1);
  CHECK(served({"--tp-size", "4"}).engine.tp_size == 4);
  CHECK(served({"--tensor-parallel-size", "2"}).engine.tp_size == 2);
  CHECK(served({"--tp-size", "auto"}).engine.tp_size == 0);
  CHECK(served({}).engine.stage.reduce_dtype == tensor::DType::kF32);
  CHECK(served({"--tp-reduce-dtype", "bf16"}).engine.stage.reduce_dtype == tensor::DType::kBF16);
}

TEST_CASE("the KV cache has the dtype of GEMMs or 8 bits") {
  CHECK(served({}).engine.stage.kv_dtype == tensor::KvDType::kAuto);
  CHECK(served({"--kv-cache-dtype", "auto"}).engine.stage.kv_dtype == tensor::KvDType::kAuto);
  CHECK(served({"--kv-cache-dtype", "int8"}).engine.stage.kv_dtype == tensor::KvDType::kInt8);
  CHECK(served({"--kv-cache-dtype", "fp8_e4m3"}).engine.stage.kv_dtype == tensor::KvDType::kFp8E4M3);
}

TEST_CASE("auto is no instruction set and bf16") {
  const app::EngineOptions engine = served({"--dtype", "auto", "--cpu-isa", "auto"}).engine;
  CHECK(engine.stage.dtype == tensor::DType::kBF16);
  CHECK_FALSE(engine.stage.isa.has_value());
}

TEST_CASE("times and sizes arrive in their units") {
  const app::ServeFlags flags = served({"--queue-timeout", "1.5", "--ring-timeout", "3", "--body-timeout", "0.25",
                                        "--max-body-mib", "2", "--max-header-kib", "4"});
  CHECK(flags.engine.head.queue_timeout == 1500ms);
  CHECK(flags.engine.node.ring_timeout == 3s);
  CHECK(flags.server.http.body_timeout == 250ms);
  CHECK(flags.server.http.max_body_bytes == 2u << 20);
  CHECK(flags.server.http.max_header_bytes == 4096);
}

TEST_CASE("a tool format may be detected or fixed or none") {
  CHECK(served({}).server.detect_tool_format);
  const server::ServerOptions hermes = served({"--tool-call-parser", "hermes"}).server;
  CHECK_FALSE(hermes.detect_tool_format);
  CHECK(hermes.tool_format == text::ToolFormat::kHermes);
  const server::ServerOptions none = served({"--tool-call-parser", "none"}).server;
  CHECK_FALSE(none.detect_tool_format);
  CHECK_FALSE(none.tool_format.has_value());
  CHECK(served({"--tool-call-parser", "qwen3_xml"}).server.tool_format == text::ToolFormat::kQwen3Coder);
  CHECK(served({"--tool-call-parser", "hf"}).server.uses_response_template);
}

TEST_CASE("a reasoning format may be detected or fixed or none") {
  CHECK(served({}).server.detect_reasoning_format);
  const server::ServerOptions harmony = served({"--reasoning-parser", "openai_gptoss"}).server;
  CHECK_FALSE(harmony.detect_reasoning_format);
  CHECK(harmony.reasoning_format == text::ReasoningFormat::kHarmony);
  const server::ServerOptions none = served({"--reasoning-parser", "none"}).server;
  CHECK_FALSE(none.detect_reasoning_format);
  CHECK_FALSE(none.reasoning_format.has_value());
}

TEST_CASE("what is not said of vectors and scores follows from files") {
  const app::PoolingOptions files = served({}).pooling;
  CHECK_FALSE((files.runner || files.conversion || files.mode || files.rerank_template || files.is_matryoshka));
  CHECK_FALSE(served({"--runner", "auto", "--pooling-type", "auto"}).pooling.runner);
  const app::PoolingOptions all = served({"--runner", "pooling", "--convert", "classify", "--pooling-type", "mean",
                                          "--rerank-template", "pair", "--is-matryoshka"})
                                      .pooling;
  CHECK(all.runner == app::Runner::kPooling);
  CHECK(all.conversion == app::Conversion::kClassify);
  CHECK(all.mode == model::PoolingMode::kMean);
  CHECK(all.rerank_template == server::RerankTemplate::kPair);
  CHECK(all.is_matryoshka);
}

TEST_CASE("a wrong value is refused with the flag and what was wanted") {
  CHECK_THAT(refusal({"--schedule-policy", "lifo"}),
             Catch::Contains("--schedule-policy") && Catch::Contains("fcfs, lpm, priority, shortest"));
  CHECK_THAT(refusal({"--ring-timeout", "nan"}),
             Catch::Contains("--ring-timeout") && Catch::Contains("from 1 to 3600"));
  CHECK_THAT(refusal({"--pp-layer-partition", "4,x"}),
             Catch::Contains("--pp-layer-partition") && Catch::Contains("'x'"));
  CHECK_THAT(refusal({"--port", "1.5"}), Catch::Contains("--port"));
  CHECK_THAT(refusal({"--dp-size", "2", "--nnodes", "2", "--dist-init-addr", "127.0.0.1:30100"}),
             Catch::Contains("--nnodes 2") && Catch::Contains("--dp-size 2") && Catch::Contains("--dp-size-local 1"));
  const app::ServeFlags ring = served({"--dp-rank", "1", "--dp-size", "2", "--dp-address", "h:1", "--enable-ep",
                                       "--nnodes", "2", "--dist-init-addr", "h:2"});
  CHECK(ring.cluster.rings.number == 1);
  CHECK(ring.cluster.node_count == 2);
  CHECK_THAT(refusal({"--schedule-low-priority-values-first"}), Catch::Contains("--schedule-policy priority"));
}

TEST_CASE("help shows the bounds and the default of a flag") {
  const app::Command command = parse({"serve", "--help"});
  const auto& exit = std::get<app::EarlyExit>(command);
  CHECK(exit.code == 0);
  CHECK_THAT(exit.message, Catch::Contains("--ring-timeout SECONDS") && Catch::Contains("[1 to 3600;") &&
                               Catch::Contains("default 10]"));
  CHECK_THAT(exit.message, Catch::Contains("[required]"));
}

TEST_CASE("flags of quantize") {
  const app::Command command = parse({"quantize", "--model-path", "m", "--output", "o", "--to", "w4a16", "--prompts",
                                      "text.txt", "--report", "errors.json"});
  const auto& flags = std::get<app::QuantizeFlags>(command);
  REQUIRE(flags.quantization == model::Quantization::kW4);
  REQUIRE(flags.prompts == "text.txt");
  REQUIRE(flags.report == "errors.json");
}
