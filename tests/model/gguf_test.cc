#include <simdjson.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "base/text_file.h"
#include "cpu/cpu_backend.h"
#include "model/checkpoint.h"
#include "model/families/read_config.h"
#include "model/generation_config.h"
#include "model/gguf_files.h"
#include "model/rope.h"
#include "model/tensor_list.h"
#include "model/weight_packer.h"
#include "support/gguf_text.h"
#include "support/mentions.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "weights/weight_codes.h"

using namespace millrace;
using test::GgufText;
using test::Mentions;
using test::TemporaryFolder;

namespace {

std::vector<float> ramp(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  return values;
}

/// Adds what every family has, under its name.
GgufText& add_sizes(GgufText& text, const std::string& family, int context = 512) {
  text.add("general.architecture", family.c_str());
  const auto key = [&family](const char* name) { return family + '.' + name; };
  text.add(key("block_count"), 2).add(key("context_length"), context).add(key("embedding_length"), 16);
  text.add(key("feed_forward_length"), 24).add(key("attention.head_count"), 2);
  return text.add(key("attention.layer_norm_rms_epsilon"), 1e-5f);
}

GgufText sized(const std::string& family = "llama", int context = 512) {
  GgufText text;
  add_sizes(text, family, context).tensor("token_embd.weight", {10, 16}, ramp(160));
  return text;
}

Result<model::ModelConfig> config_of(const GgufText& text) {
  const TemporaryFolder folder;
  folder.write("m.gguf", text.text());
  return model::read_config(folder.path() / "m.gguf");
}

std::string gguf_config_error(const GgufText& text) {
  const auto config = config_of(text);
  REQUIRE(config.has_error());
  REQUIRE(config.error().code == ErrorCode::kData);
  return config.error().message;
}

}  // namespace

TEST_CASE("metadata of a llama gives its config") {
  GgufText text = sized();
  text.add("llama.rope.freq_base", 5e5f).add("llama.attention.head_count_kv", 1).add("llama.vocab_size", 12);
  text.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "<s>", "</s>", "<|im_end|>", "<|eot_id|>"});
  text.add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 3, 3, 3, 1});
  text.add("tokenizer.ggml.bos_token_id", 1).add("tokenizer.ggml.eos_token_id", 2);
  const model::ModelConfig config = config_of(text).value();
  CHECK(config.architecture == "LlamaForCausalLM");
  CHECK(config.vocab_size == 10);  // what the embedding has
  CHECK(config.hidden_size == 16);
  CHECK(config.layer(0).feed_forward.width == 24);
  CHECK(config.layer_count() == 2);
  CHECK(config.layer(0).attention.head_count == 2);
  CHECK(config.layer(0).attention.kv_head_count == 1);
  CHECK(config.layer(0).attention.head_dim == 8);
  CHECK(config.max_position == 512);
  CHECK(config.norm_epsilon == 1e-5f);
  CHECK(config.ropes.at(0).theta == 5e5);
  CHECK(config.tied_embeddings);
  CHECK_FALSE(config.layer(0).attention.qkv_bias);
  CHECK(config.bos_token_id == 1);
  // Some files call delimiters of turns normal tokens.
  CHECK(config.eos_token_ids == std::vector<TokenId>{2, 3, 4});
  CHECK(config.weight_format.method == weights::QuantMethod::kGguf);
}

TEST_CASE("messages of harmony do not end an output") {
  GgufText text = sized();
  text.add("tokenizer.ggml.tokens", std::vector<std::string>{"<|end|>", "<|return|>", "<|call|>"});
  text.add("tokenizer.ggml.token_type", std::vector<int32_t>{3, 3, 3});
  CHECK(config_of(text).value().eos_token_ids == std::vector<TokenId>{1, 2});
}

TEST_CASE("tensors decide biases and whether the head is tied") {
  GgufText text = sized("qwen2");
  text.tensor("output.weight", {10, 16}, ramp(160));
  const model::ModelConfig qwen = config_of(text).value();
  CHECK(qwen.architecture == "Qwen2ForCausalLM");
  CHECK_FALSE(qwen.tied_embeddings);
  CHECK(qwen.layer(0).attention.qkv_bias);
  const model::ModelConfig llama = config_of(sized().tensor("blk.0.attn_q.bias", {16}, ramp(16))).value();
  CHECK(llama.layer(0).attention.qkv_bias);
  CHECK(config_of(sized("qwen3").add("qwen3.attention.key_length", 32)).value().layer(0).attention.head_dim == 32);
}

TEST_CASE("Falcon-H1 without its multipliers") {
  CHECK_THAT(gguf_config_error(sized("falcon-h1")), Mentions("output.weight", "head"));
  for (const char* bias : {"attn_q.bias", "attn_qkv.bias"}) {
    GgufText text = sized("falcon-h1");
    text.tensor("output.weight", {10, 16}, ramp(160)).tensor("blk.0." + std::string(bias), {16}, ramp(16));
    CHECK_THAT(gguf_config_error(text), Mentions(bias, "falcon-h1", "attention_bias"));
  }
}

TEST_CASE("metadata of experts") {
  GgufText mixtral = sized();
  mixtral.add("llama.expert_count", 4).add("llama.expert_used_count", 2);
  const model::ModelConfig mixed = config_of(mixtral).value();
  CHECK(mixed.architecture == "MixtralForCausalLM");
  CHECK(mixed.layer(0).feed_forward.moe->expert_count == 4);
  CHECK(mixed.layer(0).feed_forward.moe->experts_per_token == 2);
  CHECK(mixed.layer(0).feed_forward.moe->intermediate_size == 24);
  CHECK(mixed.layer(0).feed_forward.moe->renormalize);
  GgufText qwen = sized("qwen3moe");
  qwen.add("qwen3moe.expert_count", 4).add("qwen3moe.expert_used_count", 3);
  qwen.add("qwen3moe.expert_feed_forward_length", 8).tensor("blk.1.ffn_gate_inp.weight", {4, 16}, ramp(64));
  const model::ModelConfig config = config_of(qwen).value();
  CHECK_FALSE(config.is_sparse(0));
  REQUIRE(config.is_sparse(1));
  const model::MoeConfig& moe = *config.layer(1).feed_forward.moe;
  CHECK(moe.intermediate_size == 8);
  CHECK(moe.experts_per_token == 3);
  CHECK(moe.renormalize);
  CHECK_THAT(gguf_config_error(qwen.add("qwen3moe.expert_gating_func", 2)), Mentions("expert_gating_func", "2"));
}

TEST_CASE("what files of single families leave out is the usual") {
  const model::ModelConfig gemma = config_of(sized("gemma2", 8192)).value();
  CHECK(gemma.layer(0).attention.window == 4096);
  CHECK(gemma.layer(1).attention.window == 0);
  CHECK(gemma.layer(0).attention.soft_cap == 50.0f);
  CHECK(gemma.ropes.at(0).theta == 1e4);
  CHECK_THAT(gguf_config_error(sized("gemma3")), Mentions("gemma3.attention.sliding_window", "missing"));
  GgufText qwen = sized("qwen2moe");
  qwen.add("qwen2moe.expert_count", 4).add("qwen2moe.expert_used_count", 2);
  qwen.tensor("blk.0.ffn_gate_inp.weight", {4, 16}, ramp(64));
  const model::MoeConfig moe = *config_of(qwen).value().layer(0).feed_forward.moe;
  CHECK(moe.intermediate_size == 12);
  CHECK(moe.shared->width == 24);
  CHECK_FALSE(moe.renormalize);
}

TEST_CASE("keys of other families that change the arithmetic are named") {
  CHECK_THAT(gguf_config_error(sized("qwen2").add("qwen2.final_logit_softcapping", 30.0f)),
             Mentions("qwen2.final_logit_softcapping", "30"));
  CHECK_THAT(gguf_config_error(sized().add("llama.attention.sliding_window_pattern", 6)),
             Mentions("sliding_window_pattern", "6"));
  CHECK_THAT(gguf_config_error(sized("glm4").add("glm4.nextn_predict_layers", 2)),
             Mentions("nextn_predict_layers", "2", "2 layers"));
}

TEST_CASE("keys of experts mean nothing in a file without experts") {
  GgufText dense = sized("granite");
  dense.add("granite.expert_count", 0).add("granite.expert_shared_feed_forward_length", 24);
  CHECK_FALSE(config_of(dense).value().is_sparse(0));
  GgufText mixed = sized("granitemoe");
  mixed.add("granitemoe.expert_count", 4).add("granitemoe.expert_used_count", 2);
  CHECK(config_of(mixed).value().is_sparse(0));
  CHECK_THAT(gguf_config_error(mixed.add("granitemoe.expert_shared_feed_forward_length", 24)),
             Mentions("granitemoe.expert_shared_feed_forward_length", "24"));
}

TEST_CASE("sections of a rotation are allowed where texts ignore them") {
  const auto with_sections = [](GgufText text, const std::string& family) {
    return text.add(family + ".rope.dimension_sections", std::vector<int32_t>{1, 1, 2, 0});
  };
  GgufText experts = sized("glm4moe");
  experts.add("glm4moe.expert_count", 4).add("glm4moe.expert_used_count", 2);
  experts.add("glm4moe.expert_feed_forward_length", 8).add("glm4moe.rope.dimension_count", 4);
  CHECK(config_of(with_sections(experts, "glm4moe")).value().ropes == config_of(experts).value().ropes);
  // Converters turn such rows of GLM-4 from pairs into halves.
  CHECK_THAT(gguf_config_error(with_sections(sized("glm4"), "glm4")), Mentions("glm4.rope.dimension_sections"));
}

TEST_CASE("longrope of a file has its own factor of attention") {
  GgufText text = sized("phi3");
  text.add("phi3.rope.scaling.original_context_length", 64).add("phi3.rope.scaling.attn_factor", 1.25f);
  text.tensor("rope_factors_long.weight", {4}, {2, 3, 4, 5}).tensor("rope_factors_short.weight", {4}, {1, 1, 1, 2});
  const model::RopeConfig rope = config_of(text).value().ropes.at(0);
  CHECK(rope.kind == model::RopeKind::kLongrope);
  CHECK(rope.attention_factor == 1.25);
  CHECK(rope.divisors == std::vector<double>{2, 3, 4, 5});
  CHECK(rope.near_divisors == std::vector<double>{1, 1, 1, 2});
}

TEST_CASE("experts of Nemotron 3 Super work on a latent") {
  GgufText text = sized("nemotron_h_moe");
  const auto add = [&text](const char* name, auto value) { text.add(std::string("nemotron_h_moe.") + name, value); };
  for (const char* name : {"ssm.time_step_rank", "ssm.group_count", "ssm.conv_kernel"}) add(name, 2);
  add("ssm.inner_size", 8);
  add("ssm.state_size", 8);
  add("expert_count", 4);
  add("expert_used_count", 2);
  add("expert_feed_forward_length", 8);
  add("expert_shared_count", 1);
  add("expert_shared_feed_forward_length", 12);
  text.tensor("blk.0.ffn_gate_inp.weight", {4, 16}, ramp(64));
  CHECK(config_of(text).value().layer(0).feed_forward.moe->latent_size == 0);
  add("moe_latent_size", 6);
  const model::ModelConfig config = config_of(text).value();
  CHECK(config.layer(0).feed_forward.moe->latent_size == 6);
  CHECK(config.layer(0).feed_forward.moe->shared->width == 12);
}

TEST_CASE("scaled rotation in metadata") {
  const auto rope_of = [](const GgufText& text) { return config_of(text).value().ropes.at(0); };
  CHECK(rope_of(sized().add("llama.rope.scaling.type", "none")).kind == model::RopeKind::kDefault);
  CHECK(rope_of(sized().add("llama.rope.scale_linear", 1.0f)).kind == model::RopeKind::kDefault);
  const auto linear = rope_of(sized().add("llama.rope.scale_linear", 4.0f));
  CHECK(linear.kind == model::RopeKind::kLinear);
  CHECK(linear.factor == 4.0);
  const auto typed = rope_of(sized().add("llama.rope.scaling.type", "linear").add("llama.rope.scaling.factor", 2.0f));
  CHECK(typed.kind == model::RopeKind::kLinear);
  CHECK(typed.factor == 2.0);
  GgufText yarn = sized().add("llama.rope.scaling.type", "yarn").add("llama.rope.scaling.factor", 4.0f);
  yarn.add("llama.rope.scaling.original_context_length", 128);
  CHECK(rope_of(yarn).kind == model::RopeKind::kYarn);
  CHECK(rope_of(yarn).original_max_position == 128);
  CHECK_THAT(gguf_config_error(yarn.add("llama.rope.scaling.attn_factor", 2.0f)), Mentions("attn_factor", "2"));
  CHECK_THAT(gguf_config_error(sized().add("llama.rope.scaling.type", "longrope")), Mentions("longrope", "yarn"));
  CHECK_THAT(gguf_config_error(sized().add("llama.rope.dimension_count", 4)), Mentions("dimension_count", "4", "8"));
}

TEST_CASE("frequencies are divided by rope_freqs") {
  const std::vector<float> divisors = {1, 1, 4, 8};
  const model::ModelConfig config = config_of(sized().tensor("rope_freqs.weight", {4}, divisors)).value();
  CHECK(config.ropes.at(0).kind == model::RopeKind::kDivided);
  const auto plain = model::rotary_frequencies({}, 8).inverse;
  const auto divided = model::rotary_frequencies(config.ropes.at(0), 8).inverse;
  for (size_t i = 0; i < divisors.size(); ++i) CHECK(divided[i] == Approx(plain[i] / divisors[i]));
  CHECK_THAT(gguf_config_error(sized().tensor("rope_freqs.weight", {5}, ramp(5))),
             Mentions("rope_freqs", "[5]", "[4]"));
  CHECK_THAT(gguf_config_error(sized().tensor("rope_freqs.weight", {4}, ramp(4))), Mentions("rope_freqs", "factor 0"));
}

TEST_CASE("metadata that is missing or means other arithmetic is named") {
  CHECK_THAT(gguf_config_error(GgufText().add("general.architecture", "mamba2")),
             Mentions("m.gguf", "mamba2", "llama"));
  GgufText without_embedding;
  CHECK_THAT(gguf_config_error(add_sizes(without_embedding, "llama")), Mentions("token_embd.weight"));
  GgufText without_sizes;
  without_sizes.add("general.architecture", "llama").tensor("token_embd.weight", {10, 16}, ramp(160));
  CHECK_THAT(gguf_config_error(without_sizes), Mentions("llama.embedding_length", "missing"));
  for (const char* key : {"llama.attention.clamp_kqv", "llama.logit_scale", "llama.attention.scale"}) {
    CAPTURE(key);
    CHECK_THAT(gguf_config_error(sized().add(key, 0.5f)), Mentions(key, "0.5"));
    CHECK(config_of(sized().add(key, 0.0f)).has_value());
  }
  CHECK_THAT(gguf_config_error(sized().add("llama.use_parallel_residual", true)), Mentions("use_parallel_residual"));
  CHECK_THAT(gguf_config_error(sized().add("llama.attention.causal", false)), Mentions("attention.causal"));
  CHECK_THAT(gguf_config_error(sized().add("llama.attention.sliding_window", 128)), Mentions("sliding_window", "128"));
  CHECK(config_of(sized().add("llama.attention.sliding_window", 4096)).has_value());
  CHECK_THAT(gguf_config_error(sized().add("llama.attention.value_length", 4)), Mentions("key_length 8", "4"));
  CHECK_THAT(gguf_config_error(sized().add("llama.attention.head_count_kv", std::vector<int32_t>{1, 2})),
             Mentions("head_count_kv", "1, 2"));
  CHECK(config_of(sized().add("llama.attention.head_count_kv", std::vector<int32_t>{2, 2}))
            ->layer(0)
            .attention.kv_head_count == 2);
}

TEST_CASE("a config.json in the same folder goes before metadata") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "m.gguf";
  folder.write("m.gguf", sized().text());
  const auto config_json = [](int hidden) {
    return R"({"architectures":["MistralForCausalLM"],"hidden_size":)" + std::to_string(hidden) +
           R"(,"vocab_size":99,"intermediate_size":24,"num_hidden_layers":2,"num_attention_heads":2,)"
           R"("max_position_embeddings":512,"sliding_window":64,"quantization_config":{"quant_method":"fp8"}})";
  };
  folder.write("config.json", config_json(16));
  const model::ModelConfig config = model::read_config(path).value();
  CHECK(config.architecture == "MistralForCausalLM");
  CHECK(config.layer(0).attention.window == 64);
  CHECK(config.layer(1).attention.window == 64);
  CHECK(config.vocab_size == 10);
  CHECK(config.tied_embeddings);
  CHECK(config.weight_format.method == weights::QuantMethod::kGguf);
  folder.write("config.json", config_json(32));
  CHECK_THAT(model::read_config(path).error().message, Mentions("config.json", "hidden_size", "32", "16", "m.gguf"));
  folder.write("config.json", R"({"model_type":"llama"})");
  CHECK(model::read_config(path).value().architecture == "LlamaForCausalLM");
  folder.write("generation_config.json", R"({"top_k": 7})");
  CHECK(model::read_generation_config(path).value().top_k == 7);
}

TEST_CASE("the GGUF model of a folder is found") {
  const TemporaryFolder folder;
  CHECK(model::find_gguf(folder.path()).value() == std::nullopt);
  folder.write("mmproj-x.gguf", "");
  folder.write("imatrix.gguf", "");
  folder.write("notes.txt", "");
  folder.write("m-00001-of-00002.GGUF", "");
  folder.write("b-00002-of-00002.gguf", "");
  folder.write("b-00001-of-00002.gguf", "");
  CHECK_THAT(model::find_gguf(folder.path()).error().message, Mentions("2 models", "b-00001", "m-00001"));
  std::filesystem::remove(folder.path() / "m-00001-of-00002.GGUF");
  CHECK(model::find_gguf(folder.path()).value() == folder.path() / "b-00001-of-00002.gguf");
  folder.write("model.safetensors", "");
  CHECK(model::find_gguf(folder.path()).value() == std::nullopt);
  CHECK(model::is_gguf_path("a/b.gguf"));
  CHECK(model::is_gguf_path("B.GGUF"));
  CHECK_FALSE(model::is_gguf_path("a/gguf"));
  folder.write("sha256-0123", "GGUF....");
  CHECK(model::is_gguf_path(folder.path() / "sha256-0123"));
  CHECK_FALSE(model::is_gguf_path(folder.path() / "notes.txt"));
  CHECK(model::description_folder("a/b.gguf") == "a");
  CHECK(model::description_folder("b.gguf") == ".");
  CHECK(model::description_folder("a") == "a");
}

TEST_CASE("a missing or misplaced part is named") {
  const TemporaryFolder folder;
  const auto part = [](uint16_t number) {
    return GgufText()
        .add("general.architecture", "llama")
        .add("split.no", number)
        .add("split.count", uint16_t{2})
        .text();
  };
  folder.write("m-00001-of-00002.gguf", part(0));
  const auto missing = model::GgufFiles::open(folder.path() / "m-00001-of-00002.gguf");
  CHECK(missing.error().code == ErrorCode::kNotFound);
  CHECK_THAT(missing.error().message, Mentions("m-00002-of-00002.gguf"));
  folder.write("m-00002-of-00002.gguf", part(1));
  // Any part stands for the model.
  CHECK(model::GgufFiles::open(folder.path() / "m-00002-of-00002.gguf").has_value());
  folder.write("single.gguf", part(0));
  CHECK_THAT(model::GgufFiles::open(folder.path() / "single.gguf").error().message, Mentions("split.count is 2"));
}

TEST_CASE("a checkpoint finds the tensors of a GGUF file") {
  const TemporaryFolder folder;
  GgufText text = sized();
  std::string block(2, '\0');
  block[1] = 0x3C;  // 1.0 as f16
  for (int i = 0; i < 16; ++i) block += static_cast<char>(0x80 + i);
  text.tensor("blk.0.ffn_gate.weight", {1, 32}, 2, block).tensor("blk.0.attn_q.weight", {16, 1}, ramp(16));
  text.tensor("blk.0.attn_q.bias", {16}, ramp(16)).tensor("blk.0.attn_norm.weight", {16}, ramp(16));
  folder.write("m.gguf", text.text());
  const auto checkpoint = model::Checkpoint::open(folder.path() / "m.gguf").value();
  CHECK(checkpoint->names().size() == 5);
  CHECK(checkpoint->contains("model.embed_tokens.weight"));
  CHECK_FALSE(checkpoint->contains("lm_head.weight"));
  CHECK(checkpoint->find("lm_head.weight").error().code == ErrorCode::kNotFound);

  const auto embedding = checkpoint->find("model.embed_tokens.weight", {10, 16}).value();
  CHECK(embedding.dtype == tensor::DType::kF32);
  CHECK_FALSE(checkpoint->find_weight("model.embed_tokens.weight", {10, 16}, {}).value().has_value());

  const std::string gate = "model.layers.0.mlp.gate_proj.weight";
  CHECK(checkpoint->find_stored(gate)->dtype == "Q4_0");
  CHECK_THAT(checkpoint->find(gate).error().message, Mentions("m.gguf", "blk.0.ffn_gate.weight", "Q4_0"));
  CHECK_THAT(checkpoint->find_weight(gate, {2, 16}, {}).error().message,
             Mentions("m.gguf", "blk.0.ffn_gate.weight", "[1, 32]", "[2, 16]"));
  std::vector<float> values(32);
  weights::decode_rows(**checkpoint->find_weight(gate, {1, 32}, {}), 0, 1, values.data());
  CHECK(values[0] == -8.0f);
  CHECK(values[5] == -3.0f);
  CHECK(values[16] == 0.0f);

  // Rows of a head are pairs in the file.
  const std::vector<float> wanted = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
  std::vector<float> rows(16);
  weights::decode_rows(**checkpoint->find_weight("model.layers.0.self_attn.q_proj.weight", {16, 1}, {}), 0, 16,
                       rows.data());
  CHECK(rows == wanted);
  const auto bias = checkpoint->find("model.layers.0.self_attn.q_proj.bias", {16}).value();
  CHECK(std::memcmp(bias.data, wanted.data(), sizeof(float) * wanted.size()) == 0);
  checkpoint->release(gate);
  checkpoint->release("unknown");
}

TEST_CASE("rows of heads are undone as another implementation does them") {
  simdjson::dom::parser parser;
  const auto path = test::source_dir() / "tests/gguf/vectors/gguf_llama_qk_permutation.json";
  const simdjson::dom::element vector = parser.load(path.string());
  std::vector<float> wanted;
  for (const simdjson::dom::element row : vector["gguf_of_hf"].get_array())
    wanted.push_back(static_cast<float>(int64_t(row)));
  const auto stored = ramp(static_cast<int64_t>(wanted.size()));
  const weights::StoredWeight weight{
      .name = "q",
      .rows = 16,
      .cols = 1,
      .codes = {},
      .scales = {},
      .zeros = {},
      .group_index = {},
      .blocks = {.ggml_type = 0, .bytes = std::as_bytes(std::span(stored)), .row_order = {.outer = 2, .inner = 4}}};
  std::vector<float> rows(wanted.size());
  weights::decode_rows(weight, 0, 16, rows.data());
  CHECK(rows == wanted);
  std::vector<float> part(5);
  weights::decode_rows(weight, 9, 5, part.data());
  CHECK(std::equal(part.begin(), part.end(), wanted.begin() + 9));
}

TEST_CASE("rows and columns of value heads are decoded in order") {
  // Two key heads of three value heads with two rows or columns each, after a row that stays.
  const weights::StoredOrder order{.first = 1, .outer = 2, .inner = 3, .block = 2};
  const std::vector<float> wanted = {0, 1, 2, 5, 6, 9, 10, 3, 4, 7, 8, 11, 12};
  const auto stored = ramp(13);
  weights::StoredWeight weight{
      .name = "v",
      .rows = 13,
      .cols = 1,
      .codes = {},
      .scales = {},
      .zeros = {},
      .group_index = {},
      .blocks = {.ggml_type = 0, .bytes = std::as_bytes(std::span(stored)), .row_order = order}};
  std::vector<float> found(13);
  weights::decode_rows(weight, 0, 13, found.data());
  CHECK(found == wanted);
  weight.rows = 1;
  weight.cols = 13;
  weight.blocks.row_order = {};
  weight.blocks.column_order = order;
  weights::decode_rows(weight, 0, 1, found.data());
  CHECK(found == wanted);
  // Blocks of 4 bits have columns of several heads.
  constexpr uint32_t kQ4_0 = 2;
  weight.blocks.ggml_type = kQ4_0;
  CHECK_FALSE(weights::code_layout(weight));
  weight.blocks.column_order = {};
  CHECK(weights::code_layout(weight));
}

TEST_CASE("a tensor that the family has not is refused by name") {
  const TemporaryFolder folder;
  GgufText text = sized();
  text.tensor("blk.1.attn_sinks.weight", {2}, ramp(2)).tensor("blk.2.extra.weight", {2}, ramp(2));
  folder.write("m.gguf", text.text());
  const auto path = folder.path() / "m.gguf";
  const auto checkpoint = model::Checkpoint::open(path).value();
  const model::ModelConfig config = model::read_config(path).value();
  const auto refused =
      model::reject_unknown_tensors(*checkpoint, config, {.layers = {1, 2}, .first = false, .last = true});
  CHECK_THAT(refused.error().message, Mentions("attn_sinks.weight"));
  CHECK(
      model::reject_unknown_tensors(*checkpoint, config, {.layers = {0, 1}, .first = true, .last = false}).has_value());
}

TEST_CASE("rows of a quantized table are decoded in parts") {
  constexpr uint32_t kQ8 = 8;
  constexpr int64_t kRows = 10;
  constexpr int64_t kCols = 512;
  std::string blocks;
  for (int64_t block = 0; block < kRows * kCols / 32; ++block) {
    blocks += {static_cast<char>(block % 256), '\x2c'};  // a scale in f16
    for (int64_t i = 0; i < 32; ++i) blocks += static_cast<char>((block * 7 + i * 5) % 255 - 127);
  }
  GgufText text;
  text.add("general.architecture", "llama").add("llama.block_count", 2).add("llama.context_length", 512);
  text.add("llama.embedding_length", 512).add("llama.feed_forward_length", 24).add("llama.attention.head_count", 2);
  text.add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  text.tensor("token_embd.weight", {kRows, kCols}, kQ8, blocks);
  const TemporaryFolder folder;
  folder.write("m.gguf", text.text());
  const model::ModelConfig config = model::read_config(folder.path() / "m.gguf").value();
  const auto checkpoint = model::Checkpoint::open(folder.path() / "m.gguf").value();
  const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = tensor::DType::kBF16});
  const model::LoadOptions options;
  model::WeightPacker packer(*checkpoint, *backend, config, options);
  const std::string name = "model.embed_tokens.weight";
  REQUIRE(packer.resolve({{.name = name, .shape = {kRows, kCols}}}).has_value());
  std::unique_ptr<model::DecodedMatrix> memory;
  const tensor::HostTensor whole = packer.host_table(name, memory);
  std::vector<float> wanted(static_cast<size_t>(kRows * kCols));
  tensor::read_floats(whole, 0, kRows * kCols, wanted.data());
  const auto table = packer.make_decoding_table(name, 2);
  REQUIRE(table != nullptr);
  std::vector<int32_t> rows;
  for (int32_t row = 0; row < 2 * kRows; ++row) rows.push_back(row);
  std::vector<float> found(wanted.size());
  backend->run_and_wait([&] {
    backend->embed(*table, backend->upload(rows),
                   {.data = reinterpret_cast<std::byte*>(found.data()),
                    .dtype = tensor::DType::kF32,
                    .rows = 2 * kRows,
                    .cols = kCols / 2});
  });
  REQUIRE(found == wanted);
  REQUIRE(packer.make_decoding_table(name, 4) == nullptr);  // half a block of the largest type
}
