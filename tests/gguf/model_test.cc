#include <simdjson.h>

#include <catch2/catch.hpp>

#include "gguf/model.h"
#include "gguf/tensor_map.h"
#include "support/gguf_text.h"
#include "support/hex.h"
#include "support/mentions.h"
#include "support/paths.h"

using namespace millrace;
using test::GgufText;
using test::Mentions;

namespace {

/// A model whose files it keeps in memory.
struct Joined {
  std::vector<std::string> texts;
  Result<gguf::Model> model = gguf::Model();
};

std::unique_ptr<Joined> join(std::vector<std::string> texts) {
  auto joined = std::make_unique<Joined>();
  joined->texts = std::move(texts);
  std::vector<gguf::File> files;
  for (size_t i = 0; i < joined->texts.size(); ++i)
    files.push_back(gguf::parse_file(std::as_bytes(std::span(joined->texts[i])), "part" + std::to_string(i)).value());
  joined->model = gguf::Model::join(std::move(files));
  return joined;
}

GgufText part(uint16_t number, uint16_t count, int tensors) {
  GgufText text;
  text.add("split.no", number).add("split.count", count).add("split.tensors.count", tensors);
  return text;
}

const std::vector<float> kOne = {1};

/// Returns a model with what every mapping needs.
GgufText llama(int heads = 2) {
  GgufText text;
  return text.add("general.architecture", "llama").add("llama.attention.head_count", heads);
}

gguf::TensorMap map_of(const GgufText& text, std::unique_ptr<Joined>& keeper) {
  keeper = join({text.text()});
  return gguf::map_tensors(keeper->model.value()).value();
}

Error map_error(const GgufText& text) {
  const auto joined = join({text.text()});
  const auto map = gguf::map_tensors(joined->model.value());
  REQUIRE(map.has_error());
  REQUIRE(map.error().code == ErrorCode::kData);
  return map.error();
}

std::vector<float> counting(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
  return values;
}

float first_of(const gguf::MappedTensor& tensor) {
  float value = 0;
  std::memcpy(&value, tensor.bytes.data(), sizeof value);
  return value;
}

}  // namespace

TEST_CASE("names of parts are taken apart and put together") {
  const auto name = gguf::parse_part_name("a-b-00002-of-00010.gguf");
  REQUIRE(name);
  CHECK(name->prefix == "a-b");
  CHECK(name->part == 2);
  CHECK(name->count == 10);
  CHECK(name->to_string() == "a-b-00002-of-00010.gguf");
  for (const char* other : {"a.gguf", "a-00000-of-00002.gguf", "a-00003-of-00002.gguf", "a-0001-of-0002.gguf",
                            "a-00001-of-00002.bin", "a-0x001-of-00002.gguf", "00001-of-00002.gguf", ""}) {
    CAPTURE(other);
    CHECK_FALSE(gguf::parse_part_name(other));
  }
}

TEST_CASE("parts make one model") {
  const auto joined = join({part(0, 2, 2).add("general.architecture", "llama").tensor("a", {1}, kOne).text(),
                            part(1, 2, 2).tensor("b", {1}, kOne).text()});
  const gguf::Model& model = joined->model.value();
  CHECK(model.architecture() == "llama");
  CHECK(model.tensors().size() == 2);
  CHECK(model.find("a") != nullptr);
  CHECK(model.find("b") != nullptr);
  CHECK(model.find("c") == nullptr);
}

TEST_CASE("parts that do not belong together are refused") {
  const auto error = [](std::vector<std::string> texts) {
    const auto joined = join(std::move(texts));
    REQUIRE(joined->model.has_error());
    REQUIRE(joined->model.error().code == ErrorCode::kData);
    return joined->model.error().message;
  };
  const std::string first = part(0, 2, 2).tensor("a", {1}, kOne).text();
  CHECK_THAT(error({first, part(0, 2, 2).tensor("b", {1}, kOne).text()}), Mentions("part1", "split.no is 0", "1"));
  CHECK_THAT(error({first, part(1, 3, 2).tensor("b", {1}, kOne).text()}), Mentions("part1", "split.count is 3", "2"));
  CHECK_THAT(error({first, part(1, 2, 2).tensor("a", {1}, kOne).text()}), Mentions("part0", "'a'", "two files"));
  CHECK_THAT(error({first, part(1, 2, 2).text()}), Mentions("part0", "split.tensors.count is 2", "1 tensors"));
  CHECK_THAT(error({first}), Mentions("part0", "split.count is 2", "1 files"));
  CHECK_THAT(error({GgufText().text(), part(1, 2, 0).text()}), Mentions("part0", "split.count is 1", "2 files"));
}

TEST_CASE("parts of another writer are joined") {
  simdjson::dom::parser parser;
  const simdjson::dom::element vector =
      parser.load((test::source_dir() / "tests/gguf/vectors/gguf_split.json").string());
  std::vector<std::string> texts;
  for (const simdjson::dom::element each : vector["parts"].get_array()) {
    std::string_view hex;
    if (each["hex"].get(hex) != simdjson::SUCCESS) hex = each;
    texts.push_back(test::from_hex(hex));
  }
  REQUIRE(texts.size() == 2);
  const auto joined = join(texts);
  CHECK(joined->model.value().tensors().size() == 4);
}

TEST_CASE("tensors have the names of safetensors") {
  GgufText text = llama();
  for (const char* name :
       {"token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight", "blk.0.attn_norm.weight",
        "blk.0.attn_v.weight", "blk.0.attn_v.bias", "blk.0.attn_output.weight", "blk.0.ffn_norm.weight",
        "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.11.ffn_down.weight", "blk.0.attn_sinks.weight"})
    text.tensor(name, {1}, kOne);
  std::unique_ptr<Joined> keeper;
  const gguf::TensorMap map = map_of(text, keeper);
  CHECK(map.size() == 12);
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.v_proj.bias",
        "model.layers.0.self_attn.o_proj.weight", "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
        "model.layers.11.mlp.down_proj.weight", "model.layers.0.attn_sinks.weight"}) {
    CAPTURE(name);
    CHECK(map.contains(name));
  }
}

TEST_CASE("tensors without a meaning outside of layers are refused") {
  for (const char* name : {"token_embd_norm.weight", "cls.output.weight", "blk.-1.attn_v.weight", "blk.x.y.weight",
                           "rope_factors_long.weight"}) {
    CAPTURE(name);
    CHECK_THAT(map_error(llama().tensor(name, {1}, kOne)).message, Mentions(name, "llama"));
  }
  CHECK_THAT(map_error(GgufText().add("general.architecture", "mamba")).message,
             Mentions("general.architecture", "mamba", "llama", "qwen3moe"));
  CHECK_THAT(map_error(GgufText()).message, Mentions("general.architecture", "missing"));
}

TEST_CASE("rows of q and k of a llama are pairs of a head") {
  constexpr weights::StoredOrder kPairsOf4{.outer = 2, .inner = 2};
  GgufText text = llama(2).add("llama.attention.head_count_kv", 1);
  text.tensor("blk.0.attn_q.weight", {8, 1}, counting(8)).tensor("blk.0.attn_q.bias", {8}, counting(8));
  text.tensor("blk.0.attn_k.weight", {4, 1}, counting(4)).tensor("blk.0.attn_v.weight", {4, 1}, counting(4));
  std::unique_ptr<Joined> keeper;
  const gguf::TensorMap map = map_of(text, keeper);
  CHECK(map.at("model.layers.0.self_attn.q_proj.weight").row_order == kPairsOf4);
  CHECK(map.at("model.layers.0.self_attn.q_proj.bias").row_order == kPairsOf4);
  CHECK(map.at("model.layers.0.self_attn.k_proj.weight").row_order == kPairsOf4);
  CHECK(map.at("model.layers.0.self_attn.v_proj.weight").row_order == weights::StoredOrder());
  CHECK_THAT(map_error(llama(2).tensor("blk.0.attn_q.weight", {6, 1}, counting(6))).message,
             Mentions("blk.0.attn_q.weight", "6 rows", "2 heads"));
  GgufText qwen;
  qwen.add("general.architecture", "qwen2").add("qwen2.attention.head_count", 2);
  qwen.tensor("blk.0.attn_q.weight", {8, 1}, counting(8));
  CHECK(map_of(qwen, keeper).at("model.layers.0.self_attn.q_proj.weight").row_order == weights::StoredOrder());
}

TEST_CASE("stacked and fused tensors are taken apart") {
  GgufText text = llama(2).add("llama.attention.head_count_kv", 1).add("llama.expert_count", 3);
  text.tensor("blk.0.ffn_gate_exps.weight", {3, 2, 1}, counting(6));
  text.tensor("blk.0.ffn_down_exps.weight", {3, 1, 2}, counting(6));
  text.tensor("blk.1.ffn_gate_up_exps.weight", {3, 4, 1}, counting(12));
  text.tensor("blk.1.ffn_down.2.weight", {1, 2}, counting(2)).tensor("blk.0.ffn_gate_inp.weight", {3, 1}, counting(3));
  text.tensor("blk.0.attn_qkv.weight", {8, 1}, counting(8));
  std::unique_ptr<Joined> keeper;
  const gguf::TensorMap map = map_of(text, keeper);
  const auto check = [&map](const char* name, std::vector<int64_t> shape, float first) {
    CAPTURE(name);
    const gguf::MappedTensor& tensor = map.at(name);
    CHECK(tensor.shape == shape);
    CHECK(tensor.bytes.size() == static_cast<size_t>(shape[0] * shape[1]) * sizeof(float));
    CHECK(first_of(tensor) == first);
  };
  check("model.layers.0.block_sparse_moe.experts.0.w1.weight", {2, 1}, 0);
  check("model.layers.0.block_sparse_moe.experts.2.w1.weight", {2, 1}, 4);
  check("model.layers.0.block_sparse_moe.experts.1.w2.weight", {1, 2}, 2);
  check("model.layers.1.block_sparse_moe.experts.1.w1.weight", {2, 1}, 4);
  check("model.layers.1.block_sparse_moe.experts.1.w3.weight", {2, 1}, 6);
  check("model.layers.1.block_sparse_moe.experts.2.w2.weight", {1, 2}, 0);
  check("model.layers.0.block_sparse_moe.gate.weight", {3, 1}, 0);
  check("model.layers.0.self_attn.q_proj.weight", {4, 1}, 0);
  check("model.layers.0.self_attn.k_proj.weight", {2, 1}, 4);
  check("model.layers.0.self_attn.v_proj.weight", {2, 1}, 6);
  CHECK(map.at("model.layers.0.self_attn.q_proj.weight").row_order == weights::StoredOrder{.outer = 2, .inner = 1});
  CHECK_THAT(map_error(llama().tensor("blk.0.ffn_up_exps.weight", {3, 2}, counting(6))).message,
             Mentions("blk.0.ffn_up_exps.weight", "[3, 2]"));
  CHECK_THAT(map_error(llama(3).tensor("blk.0.attn_qkv.weight", {8, 1}, counting(8))).message, Mentions("8 rows"));
  GgufText twice = llama();
  twice.tensor("blk.0.ffn_up_exps.weight", {1, 2, 1}, counting(2)).tensor("blk.0.ffn_up.0.weight", {2, 1}, counting(2));
  CHECK_THAT(map_error(twice).message, Mentions("blk.0.ffn_up_exps.weight", "blk.0.ffn_up.0.weight"));
}

TEST_CASE("factors of weights are those of their experts") {
  GgufText text = llama().add("llama.expert_count", 2);
  text.tensor("blk.0.ffn_up_exps.weight", {2, 1, 1}, counting(2));
  text.tensor("blk.0.ffn_up_exps.scale", {2}, std::vector<float>{0.5f, 2.0f});
  text.tensor("output.weight", {1, 1}, kOne).tensor("output.scale", {1}, std::vector<float>{3.0f});
  // Scales of inputs stand beside weights in NVFP4.
  text.tensor("blk.0.ffn_up_exps.input_scale", {2}, counting(2)).tensor("output.input_scale", {1}, kOne);
  std::unique_ptr<Joined> keeper;
  const gguf::TensorMap map = map_of(text, keeper);
  CHECK(map.size() == 3);
  CHECK(map.at("model.layers.0.block_sparse_moe.experts.0.w3.weight").factor == 0.5f);
  CHECK(map.at("model.layers.0.block_sparse_moe.experts.1.w3.weight").factor == 2.0f);
  CHECK(map.at("lm_head.weight").factor == 3.0f);
  CHECK_THAT(map_error(llama().tensor("output.scale", {1}, kOne)).message, Mentions("output.scale"));
  GgufText few = llama().add("llama.expert_count", 3);
  few.tensor("blk.0.ffn_up_exps.weight", {3, 1, 1}, counting(3)).tensor("blk.0.ffn_up_exps.scale", {2}, counting(2));
  CHECK_THAT(map_error(few).message, Mentions("blk.0.ffn_up_exps.scale", "[2]"));
}

TEST_CASE("scales of Gemma 4 are tensors of their own") {
  GgufText text;
  text.add("general.architecture", "gemma4");
  text.tensor("blk.0.ffn_gate_inp.weight", {2, 3}, counting(6)).tensor("blk.0.ffn_gate_inp.scale", {3}, counting(3));
  text.tensor("blk.0.ffn_down_exps.weight", {2, 3, 1}, counting(6));
  text.tensor("blk.0.ffn_down_exps.scale", {2}, counting(2));
  text.tensor("blk.0.ffn_gate_up_exps.weight", {2, 2, 3}, counting(12));
  text.tensor("blk.0.ffn_gate_up_exps.scale", {2}, std::vector<float>{0.5f, 2.0f});
  text.tensor("v.blk.0.attn_q.weight", {1}, kOne).tensor("mm.input_projection.weight", {1}, kOne);
  std::unique_ptr<Joined> keeper;
  const gguf::TensorMap map = map_of(text, keeper);
  CHECK(map.size() == 9);
  CHECK(map.at("model.layers.0.router.scale").shape == std::vector<int64_t>{3});
  CHECK(map.at("model.layers.0.router.per_expert_scale").shape == std::vector<int64_t>{2});
  CHECK(map.at("model.layers.0.router.proj.weight").factor == 1.0f);
  CHECK(map.at("model.layers.0.experts.1.down_proj.weight").factor == 1.0f);
  CHECK(map.at("model.layers.0.experts.1.up_proj.weight").factor == 2.0f);
}

TEST_CASE("value heads of a delta net are put back in order") {
  const auto delta_net = [](const char* architecture) {
    GgufText text;
    const std::string prefix = std::string(architecture) + ".ssm.";
    text.add("general.architecture", architecture).add(prefix + "group_count", 2).add(prefix + "time_step_rank", 4);
    text.add(prefix + "inner_size", 12).add(prefix + "state_size", 5);
    text.tensor("blk.0.attn_qkv.weight", {32, 1}, counting(32)).tensor("blk.0.ssm_out.weight", {1, 12}, counting(12));
    text.tensor("blk.0.ssm_a", {4}, counting(4)).tensor("blk.0.ssm_dt", {4}, counting(4));
    return text.tensor("blk.0.ssm_conv1d.weight", {32, 4}, counting(128));
  };
  std::unique_ptr<Joined> keeper;
  const std::string layer = "model.layers.0.linear_attn.";
  const gguf::TensorMap map = map_of(delta_net("qwen35"), keeper);
  CHECK(map.at(layer + "in_proj_qkv.weight").row_order ==
        weights::StoredOrder{.first = 20, .outer = 2, .inner = 2, .block = 3});
  CHECK(map.at(layer + "out_proj.weight").column_order == weights::StoredOrder{.outer = 2, .inner = 2, .block = 3});
  CHECK(map.at(layer + "A_log").row_order == weights::StoredOrder{.outer = 2, .inner = 2});
  CHECK(map.at(layer + "dt_bias").row_order == weights::StoredOrder{.outer = 2, .inner = 2});
  CHECK(map.at(layer + "conv1d.weight").shape == std::vector<int64_t>{32, 1, 4});
  for (const GgufText& text :
       {delta_net("qwen3next"), delta_net("qwen35moe").add("qwen35moe.ssm.v_head_reordered", false)}) {
    CHECK(map_of(text, keeper).at(layer + "in_proj_qkv.weight").row_order.is_in_order());
    CHECK(map_of(text, keeper).at(layer + "out_proj.weight").column_order.is_in_order());
  }
  CHECK_THAT(map_error(delta_net("qwen35").tensor("blk.1.ssm_out.weight", {12, 1}, counting(12))).message,
             Mentions("blk.1.ssm_out.weight", "[12, 1]", "12 columns"));
  GgufText blocks;
  blocks.add("general.architecture", "qwen35").add("qwen35.ssm.group_count", 16);
  blocks.add("qwen35.ssm.time_step_rank", 32).add("qwen35.ssm.inner_size", 32);
  constexpr uint32_t kQ8_0 = 8;
  CHECK_THAT(map_error(blocks.tensor("blk.0.ssm_dt.bias", {32}, kQ8_0, std::string(34, '\0'))).message,
             Mentions("blk.0.ssm_dt.bias", "Q8_0"));
}

TEST_CASE("tensors that are joined need their partners") {
  GgufText latent;
  latent.add("general.architecture", "deepseek2").add("deepseek2.attention.head_count", 2);
  GgufText alone = latent;
  alone.tensor("blk.0.attn_k_b.weight", {2, 3, 4}, counting(24));
  CHECK_THAT(map_error(alone).message, Mentions("blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight"));
  GgufText other = alone;
  other.tensor("blk.0.attn_v_b.weight", {2, 5, 4}, counting(40));
  CHECK_THAT(map_error(other).message, Mentions("[2, 3, 4]", "[2, 5, 4]"));
  GgufText both = alone;
  both.tensor("blk.0.attn_v_b.weight", {2, 5, 3}, counting(30));
  std::unique_ptr<Joined> keeper;
  const gguf::MappedTensor joined = map_of(both, keeper).at("model.layers.0.self_attn.kv_b_proj.weight");
  CHECK(joined.shape == std::vector<int64_t>{18, 3});
  CHECK(joined.join == gguf::TensorJoin::kLatentExpansion);
  CHECK(joined.parts.size() == 2);
  both.tensor("blk.0.attn_kv_b.weight", {18, 3}, counting(54));
  CHECK(map_of(both, keeper).at("model.layers.0.self_attn.kv_b_proj.weight").join == gguf::TensorJoin::kNone);
  GgufText biases;
  biases.add("general.architecture", "gpt-oss").add("gpt-oss.attention.head_count", 2);
  biases.tensor("blk.0.ffn_up_exps.bias", {2, 3}, counting(6));
  CHECK_THAT(map_error(biases).message, Mentions("blk.0.ffn_up_exps.bias", "blk.0.ffn_gate_exps.bias"));
}
