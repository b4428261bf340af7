#pragma once

#include <cstdint>

namespace millrace::tensor {

class DeviceVector;

/// How rotary_store_kv normalises q and k where it has weights for them.
enum class HeadNorm : uint8_t {
  kRms,         ///< RMS norm before the rotation: of a head with weights [head_dim], of all with [heads·head_dim]
  kRotatedRms,  ///< RMS norm of a head after the rotation, with weights [head_dim]
  kLayer,       ///< LayerNorm of a head before the rotation, with weights [heads·head_dim]
};

/// The head counts and the mask of one layer's attention.
struct AttentionShape {
  int32_t head_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;
  float scale = 0.0f;          ///< usually head_dim^-0.5
  int32_t sliding_window = 0;  ///< 0: none; else key j is visible to query i iff i - window < j <= i
  int32_t chunk_size = 0;  ///< above 0, a multiple of 64: key j is visible to query i only where j and i, divided by
                           ///< it, give one integer
  bool causal = true;      ///< else every key of the sequence is visible, for an encoder; without a window
  float soft_cap = 0.0f;   ///< scaled scores s become soft_cap · tanh(s / soft_cap); 0: they do not
  /// A score per head that takes part in the softmax like that of a key without a value; null: none.
  const DeviceVector* sinks = nullptr;  // [head_count]
  HeadNorm head_norm = HeadNorm::kRms;
  // What rotary_store_kv makes of values.
  bool value_norm = false;       ///< values are divided by their root mean square per head
  bool values_are_keys = false;  ///< a value is its head's key before norm and rotation, and qkv has no v
  bool queries_only = false;     ///< qkv has no k and no v, since the cache has those of another layer
};

/// The rotary embedding of the first `rotary_dim` channels of a head, in pairs (i, i + rotary_dim/2).
struct RotaryTable {
  const DeviceVector* inverse_frequency = nullptr;  // [rotary_dim / 2]
  int32_t rotary_dim = 0;
  float attention_factor = 1.0f;  ///< multiplies cos and sin
  /// The rotated query at position p is multiplied by 1 + query_beta · ln(1 + floor((p + query_offset) /
  /// query_period)).
  float query_beta = 0.0f;
  int32_t query_period = 1;
  int32_t query_offset = 0;
};

}  // namespace millrace::tensor
