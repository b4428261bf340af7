#include "sim/simulated_model.h"

namespace millrace::sim {

uint64_t SimulatedModel::mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b * 0x9E3779B97F4A7C15ull)) + 0xD1B54A32D192ED03ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

uint64_t SimulatedModel::key_value(int32_t layer, uint64_t hidden) {
  return mix(hidden, static_cast<uint64_t>(layer) + 1);
}

uint64_t SimulatedModel::attend(uint64_t context, uint64_t key_value) { return mix(context, key_value); }

uint64_t SimulatedModel::embed(TokenId token) { return mix(static_cast<uint64_t>(token), 17); }

TokenId SimulatedModel::token_of(uint64_t hidden) const { return static_cast<TokenId>(hidden % vocab_size); }

std::vector<TokenId> SimulatedModel::generate(std::span<const TokenId> prompt, size_t count) const {
  std::vector<uint64_t> contexts(static_cast<size_t>(layer_count), 0);
  uint64_t hidden = 0;
  const auto feed = [&](TokenId token) {
    hidden = embed(token);
    for (int32_t layer = 0; layer < layer_count; ++layer) {
      uint64_t& context = contexts[static_cast<size_t>(layer)];
      context = attend(context, key_value(layer, hidden));
      hidden = mix(hidden, context);
    }
  };
  for (const TokenId token : prompt) feed(token);
  std::vector<TokenId> output;
  while (output.size() < count) {
    output.push_back(token_of(hidden));
    feed(output.back());
  }
  return output;
}

}  // namespace millrace::sim
