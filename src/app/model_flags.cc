#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "app/flag_types.h"
#include "app/serve_flags.h"
#include "text/tool_calls/reasoning_formats.h"
#include "text/tool_calls/tool_formats.h"

namespace millrace::app {
namespace {

/// Names the model's own description of its outputs, for which other servers have the second name.
constexpr std::array<std::string_view, 2> kResponseTemplateNames = {"response_template", "hf"};

/// Returns the names that a flag takes: those of the help, and aliases.
std::vector<std::string> all_names(std::vector<std::string> names, const std::vector<std::string>& aliases) {
  names.insert(names.end(), aliases.begin(), aliases.end());
  names.insert(names.end(), {"auto", "none"});
  return names;
}

void add_format_flags(CLI::App& serve, server::ServerOptions& server) {
  const auto set_tools = [&server](const std::string& name) {
    server.uses_response_template = std::ranges::find(kResponseTemplateNames, name) != kResponseTemplateNames.end();
    server.detect_tool_format = name == "auto";
    server.tool_format = text::parse_tool_format(name);
  };
  std::vector<std::string> formats = text::tool_format_names();
  formats.emplace_back(kResponseTemplateNames[0]);
  const std::string tool_list = fmt::format("{}", fmt::join(formats, ", "));
  formats.emplace_back(kResponseTemplateNames[1]);
  add_name(serve, "--tool-call-parser", all_names(std::move(formats), text::tool_format_aliases()), set_tools,
           "Selects the format of tool calls in outputs: auto (from the chat template), none, " + tool_list + ".")
      ->default_str("auto");
  const auto set_reasoning = [&server](const std::string& name) {
    server.detect_reasoning_format = name == "auto";
    server.reasoning_format = text::parse_reasoning_format(name);
  };
  const std::string list = fmt::format("{}", fmt::join(text::reasoning_format_names(), ", "));
  add_name(serve, "--reasoning-parser", all_names(text::reasoning_format_names(), text::reasoning_format_aliases()),
           set_reasoning,
           "Selects the format of reasoning in outputs: auto (from the chat template), none, " + list + ".")
      ->default_str("auto");
}

void add_conversation_flags(CLI::App& serve, ServeFlags& flags) {
  serve
      .add_option("--chat-template", flags.chat_template,
                  "Replaces the model's chat template by a file with a Jinja template.")
      ->type_name("FILE");
  serve
      .add_option("--default-chat-template-kwargs", flags.server.default_chat_template_kwargs,
                  "Sets variables of the chat template, as a JSON object, for requests that do not set them.")
      ->check(json_object())
      ->type_name("JSON");
  serve
      .add_option("--override-generation-config", flags.generation_config,
                  "Replaces members of generation_config.json by those of a JSON object.")
      ->check(json_object())
      ->type_name("JSON");
  add_format_flags(serve, flags.server);
}

void add_pooling_flags(CLI::App& serve, PoolingOptions& pooling) {
  add_optional_choice(serve, "--runner", pooling.runner,
                      "Selects what the ring computes: generate (outputs), pooling (vectors only, without the output "
                      "head), or auto (pooling for a model that was made for it).");
  add_optional_choice(serve, "--convert", pooling.conversion,
                      "Selects what becomes of pooled rows: embed (/v1/embeddings), classify (/rerank and /score by a "
                      "score head, or by the tokens yes and no), none, or auto (from the model's files).");
  add_optional_choice(serve, "--pooling-type", pooling.mode,
                      "Selects the rows that make the vector of a text: last, mean, cls (the first), or auto (from "
                      "modules.json, else last).");
  add_optional_choice(serve, "--rerank-template", pooling.rerank_template,
                      "Selects how a query and a document become a prompt: pair (one after the other), qwen3 (the chat "
                      "of Qwen3-Reranker), or auto (qwen3 for Qwen3 models).");
  serve.add_flag("--is-matryoshka", pooling.is_matryoshka,
                 "Accepts dimensions in requests for vectors, although config.json does not say is_matryoshka.");
}

}  // namespace

void add_download_dir_flag(CLI::App& command, ModelRef& model) {
  command.add_option("--download-dir", model.download_dir, "Keeps downloaded models in this folder.")
      ->type_name("DIR")
      ->default_str("HF_HUB_CACHE, or hub in HF_HOME, or ~/.cache/huggingface/hub");
}

void add_hub_flags(CLI::App& command, ModelRef& model) {
  command.add_option("--revision", model.revision, "Takes this branch, tag or commit of a model from a hub.")
      ->type_name("NAME")
      ->default_str("main");
  add_download_dir_flag(command, model);
  command.add_option("--hf-token", model.token, "Authorizes downloads of gated and private models.")
      ->type_name("TOKEN")
      ->default_str("HF_TOKEN, or the file token in HF_HOME");
}

void add_model_flags(CLI::App& serve, ServeFlags& flags, UnresolvedFlags& unresolved) {
  EngineOptions& engine = flags.engine;
  serve.option_defaults()->group("Model");
  serve
      .add_option("--model-path,MODEL", flags.model.model,
                  "Serves the model in this folder, which has config.json, safetensors and tokenizer.json, or in this "
                  "GGUF file. A name as ORG/NAME, ORG/NAME:REVISION or ORG/NAME:Q4_K_M is downloaded from a hub; of "
                  "several nodes each downloads its own layers.")
      ->required()
      ->type_name("MODEL");
  add_hub_flags(serve, flags.model);
  serve
      .add_option("--served-model-name", unresolved.served_model_names,
                  "Names the model in the API; responses to requests that name no model carry the first name.")
      ->type_name("NAME")
      ->default_str("the name of the folder or file, or ORG/NAME");
  add_number(serve, "--context-length", engine.context_length, {1, 1 << 24},
             "Limits the tokens of prompt and output together.")
      ->default_str("the model's");
  add_name(
      serve, "--dtype", {"auto", "bf16", "f32"},
      [&engine](const std::string& name) {
        engine.stage.dtype = parse_enum<tensor::DType>(name).value_or(tensor::DType::kBF16);
      },
      "Selects the arithmetic of GEMMs and the dtype of the KV cache: auto (bf16), bf16, or f32 (CPU only).")
      ->default_str("auto");
  add_choice(serve, "--kv-cache-dtype", engine.stage.kv_dtype,
             "Stores keys, values and latents in 8 bits, so that a pool has room for nearly twice the tokens: "
             "auto (as --dtype), fp8_e4m3 (a scale per token and KV head), int8 (a scale per 32 channels, the more "
             "precise).");
  add_choice(serve, "--quantization", engine.stage.quantization,
             "Rounds weights to 8 or 4 bits: none (as stored), w8 (a scale per 32 weights), w8a8 (w8 "
             "with inputs of 8 bits), w8a8_int8 (a scale per channel, the fastest for prompts on AMX and VNNI), mxint8 "
             "(scales that are powers of two), w4 (4 bits, a scale per 32 weights; inputs of 8 bits on CPUs). GPUs "
             "take w8, mxint8 and w4.");
  add_conversation_flags(serve, flags);
  add_pooling_flags(serve, flags.pooling);
}

void add_device_flags(CLI::App& serve, ServeFlags& flags) {
  NodeOptions& node = flags.engine.node;
  serve.option_defaults()->group("Devices");
  add_choice(serve, "--device", node.device,
             "Selects the backend of this node's stages: cpu, cuda (ranks take GPUs in order, modulo their number), or "
             "auto (cuda where a GPU is usable).");
  add_number(serve, "--threads", node.threads, {0, 4096},
             "Sets the number of compute threads over all stages of this node; 0: one per CPU.");
  serve.add_flag("--pin-threads", node.pin_threads,
                 "Binds each compute thread to a CPU of its own, for a machine that runs nothing else.");
  add_optional_choice(
      serve, "--cpu-isa", flags.engine.stage.isa,
      "Selects the instruction set of the CPU kernels, on node 0 for all nodes: auto (each node's best), " +
          joined_enum_names<tensor::Isa>() + ".");
  serve.add_flag_callback(
      "--disable-cuda-graph", [&node] { node.cuda_graphs = false; },
      "Launches the ops of decode steps one by one on a GPU.");
  add_choice(
      serve, "--cuda-products", node.gemm,
      "Selects the instruction of GEMMs and latent attention on a GPU: wgmma, mma, or auto (wgmma where it exists and "
      "agrees with mma at the start).");
  add_choice(serve, "--cuda-fp8-products", node.fp8_products,
             "Rounds the inputs of weights that are stored in FP8 to FP8 on a GPU with wgmma, which is faster and less "
             "exact: auto (where the GPU has wgmma), on (with a warning where it lacks wgmma), off.");
  serve.add_flag("--divide-gpu", node.divide_gpu,
                 "Gives equal parts of the multiprocessors to stages and ranks that share a GPU, where "
                 "driver and GPU can.");
  add_choice(serve, "--nccl", node.nccl,
             "Sends activations between nodes, and sums between ranks, from GPU to GPU over NCCL: auto (where it "
             "connects), on "
             "(or the start fails), off.");
  add_seconds(serve, "--nccl-timeout", node.nccl_timeout, {0.001, 1e6},
              "Breaks the ring when one such transfer takes longer; use the same value on every node.");
}

}  // namespace millrace::app
