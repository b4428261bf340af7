#include "model/gguf_twins.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "support/gguf_text.h"
#include "weights/gguf_blocks.h"
#include "weights/stored_weight.h"

namespace millrace::test {
namespace {

constexpr int64_t kVocab = 512;
constexpr int64_t kHidden = 256;
constexpr int64_t kKvRows = 128;
constexpr int32_t kHeads = 8;
constexpr int32_t kKvHeads = 4;
constexpr int64_t kDenseWidth = 256;
constexpr int64_t kExpertWidth = 256;
constexpr int32_t kExperts = 8;
constexpr int32_t kExpertsPerRow = 2;
constexpr int32_t kLayers = 2;

/// Returns a number below 1 in f16, rounded towards zero.
uint16_t half_bits(float value) {
  constexpr float kLeastNormal = 0x1p-14f;
  const float magnitude = std::abs(value);
  const auto bits = magnitude < kLeastNormal ? static_cast<uint32_t>(magnitude * 0x1p24f)
                                             : (std::bit_cast<uint32_t>(magnitude) - (112u << 23)) >> 13;
  return static_cast<uint16_t>(bits | (value < 0 ? 0x8000u : 0u));
}

/// Draws the tensors of both files.
class Writer {
 public:
  Writer(const GgufMix& mix, bool is_sparse, uint32_t seed) : mix_(mix), is_sparse_(is_sparse), engine_(seed) {
    for (GgufText* text : {&stored, &plain}) add_metadata(*text);
    add_matrix("token_embd.weight", {kVocab, kHidden}, mix_.query);
    for (int32_t layer = 0; layer < kLayers; ++layer) add_layer("blk." + std::to_string(layer) + '.');
    add_vector("output_norm.weight", kHidden);
    add_matrix("output.weight", {kVocab, kHidden}, mix_.head);
  }

  GgufText stored;
  GgufText plain;

 private:
  void add_metadata(GgufText& text) const {
    text.add("general.architecture", "llama").add("llama.block_count", kLayers).add("llama.context_length", 512);
    text.add("llama.embedding_length", static_cast<int>(kHidden));
    text.add("llama.feed_forward_length", static_cast<int>(is_sparse_ ? kExpertWidth : kDenseWidth));
    text.add("llama.attention.head_count", kHeads).add("llama.attention.head_count_kv", kKvHeads);
    text.add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    if (is_sparse_) text.add("llama.expert_count", kExperts).add("llama.expert_used_count", kExpertsPerRow);
  }

  void add_layer(const std::string& layer) {
    add_vector(layer + "attn_norm.weight", kHidden);
    add_matrix(layer + "attn_q.weight", {kHidden, kHidden}, mix_.query);
    add_matrix(layer + "attn_k.weight", {kKvRows, kHidden}, mix_.key);
    add_matrix(layer + "attn_v.weight", {kKvRows, kHidden}, mix_.value);
    add_matrix(layer + "attn_output.weight", {kHidden, kHidden}, mix_.output);
    add_vector(layer + "ffn_norm.weight", kHidden);
    if (!is_sparse_) {
      add_matrix(layer + "ffn_gate.weight", {kDenseWidth, kHidden}, mix_.gate);
      add_matrix(layer + "ffn_up.weight", {kDenseWidth, kHidden}, mix_.up);
      add_matrix(layer + "ffn_down.weight", {kHidden, kDenseWidth}, mix_.down);
      return;
    }
    std::normal_distribution<float> noise(0.0f, 0.2f);
    std::vector<float> router(static_cast<size_t>(kExperts * kHidden));
    for (float& value : router) value = noise(engine_);
    for (GgufText* text : {&stored, &plain}) text->tensor(layer + "ffn_gate_inp.weight", {kExperts, kHidden}, router);
    add_matrix(layer + "ffn_gate_exps.weight", {kExperts, kExpertWidth, kHidden}, mix_.gate);
    add_matrix(layer + "ffn_up_exps.weight", {kExperts, kExpertWidth, kHidden}, mix_.up);
    add_matrix(layer + "ffn_down_exps.weight", {kExperts, kHidden, kExpertWidth}, mix_.down);
  }

  void add_vector(const std::string& name, int64_t size) {
    std::normal_distribution<float> noise(1.0f, 0.1f);
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) value = noise(engine_);
    for (GgufText* text : {&stored, &plain}) text->tensor(name, {size}, values);
  }

  void add_matrix(const std::string& name, const std::vector<int64_t>& shape, BlockType type) {
    const int64_t cols = shape.back();
    int64_t rows = 1;
    for (size_t axis = 0; axis + 1 < shape.size(); ++axis) rows *= shape[axis];
    const weights::GgmlType blocks = weights::find_ggml_type(static_cast<uint32_t>(type)).value();
    std::vector<std::byte> bytes(static_cast<size_t>(rows * cols) / blocks.block_weights * blocks.block_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(engine_());
    for (size_t at = 0; at < bytes.size(); at += blocks.block_bytes) put_scales(bytes.data() + at, type);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    stored.tensor(name, shape, static_cast<uint32_t>(type), text);
    std::vector<float> values(static_cast<size_t>(rows * cols));
    weights::decode_rows({.name = name,
                          .rows = rows,
                          .cols = cols,
                          .codes = {},
                          .scales = {},
                          .zeros = {},
                          .group_index = {},
                          .blocks = {.ggml_type = static_cast<uint32_t>(type), .bytes = bytes}},
                         0, rows, values.data());
    plain.tensor(name, shape, values);
  }

  /// Gives a block scales, and minimums, with which its weights are about 0.07 in size.
  void put_scales(std::byte* block, BlockType type) {
    switch (type) {
      case BlockType::kQ4_0: return put_half(block, 0.015f);
      case BlockType::kQ5_0: return put_half(block, 0.0075f);
      case BlockType::kQ8_0: return put_half(block, 0.001f);
      case BlockType::kQ4_1: return put_half(block, 0.015f), put_half(block + 2, -0.11f);
      case BlockType::kQ5_1: return put_half(block, 0.0075f), put_half(block + 2, -0.11f);
      case BlockType::kQ2K: return put_half(block + 80, 6e-3f), put_half(block + 82, 9e-3f);
      case BlockType::kQ3K: return put_half(block + 108, 1.5e-3f);
      case BlockType::kQ4K: return put_half(block, 6e-4f), put_half(block + 2, 4.5e-3f);
      case BlockType::kQ5K: return put_half(block, 3e-4f), put_half(block + 2, 4.5e-3f);
      case BlockType::kQ6K: return put_half(block + 208, 5e-5f);
      case BlockType::kIq4Nl: return put_half(block, 1e-3f);
      case BlockType::kIq4Xs: return put_half(block, 6e-5f);
      case BlockType::kMxfp4: *block = std::byte{127 - 6}; return;
      case BlockType::kNvfp4:
        for (size_t i = 0; i < 4; ++i) block[i] = static_cast<std::byte>(8 + engine_() % 12);
    }
  }

  /// Writes about that number: mantissas of many scales differ.
  void put_half(std::byte* to, float value) {
    std::uniform_real_distribution<float> factor(0.8f, 1.25f);
    const uint16_t half = half_bits(value * factor(engine_));
    std::memcpy(to, &half, sizeof half);
  }

  const GgufMix& mix_;
  const bool is_sparse_;
  std::mt19937 engine_;
};

}  // namespace

std::vector<GgufMix> gguf_mixes() {
  using enum BlockType;
  return {
      {"Q4_0", kQ4_0, kQ4_0, kQ4_0, kQ4_0, kQ4_0, kQ4_0, kQ4_1, kQ6K},
      {"Q8_0", kQ8_0, kQ8_0, kQ8_0, kQ8_0, kQ8_0, kQ8_0, kQ8_0, kQ8_0},
      {"Q2_K", kQ2K, kQ2K, kQ3K, kQ3K, kQ2K, kQ2K, kQ3K, kQ6K},
      {"Q3_K_M", kQ3K, kQ3K, kQ5K, kQ4K, kQ3K, kQ3K, kQ5K, kQ6K},
      {"Q2_K to Q6_K", kQ3K, kQ2K, kQ6K, kQ2K, kQ2K, kQ4K, kQ2K, kQ3K},
      {"Q4_K_M", kQ4K, kQ4K, kQ6K, kQ4K, kQ4K, kQ4K, kQ6K, kQ6K},
      {"Q5_K_M", kQ5K, kQ5K, kQ6K, kQ5K, kQ5K, kQ5K, kQ6K, kQ6K},
      {"Q5_0 and Q8_0", kQ5_0, kQ5_0, kQ8_0, kQ5_0, kQ5_0, kQ5_0, kQ5_1, kQ8_0},
      {"IQ4_XS", kIq4Xs, kIq4Xs, kQ5K, kIq4Xs, kIq4Xs, kIq4Xs, kIq4Nl, kQ6K},
      {"MXFP4 and Q8_0", kQ8_0, kQ8_0, kQ8_0, kQ8_0, kMxfp4, kMxfp4, kMxfp4, kQ8_0},
      {"NVFP4", kNvfp4, kNvfp4, kNvfp4, kNvfp4, kNvfp4, kNvfp4, kNvfp4, kQ8_0},
      {"NVFP4 and Q6_K", kNvfp4, kNvfp4, kQ6K, kQ6K, kNvfp4, kNvfp4, kQ5K, kQ6K},
      {"three kinds", kQ6K, kIq4Nl, kQ5_1, kQ4_1, kQ4K, kQ6K, kMxfp4, kQ4K},
  };
}

GgufTwins::GgufTwins(const GgufMix& mix, bool is_sparse, uint32_t seed) {
  const Writer files(mix, is_sparse, seed);
  stored_.write("m.gguf", files.stored.text());
  plain_.write("m.gguf", files.plain.text());
}

}  // namespace millrace::test
