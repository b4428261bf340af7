#pragma once

#include <cstdint>

namespace millrace::sched {

/// Bounds of every plan: the head plans within them, and stages check them.
struct StageBounds {
  uint32_t slot_count = 0;
  uint32_t page_size = 0;
  uint32_t page_count = 0;
  uint32_t max_batch_tokens = 0;
  uint32_t vocab_size = 0;
  uint32_t host_page_count = 0;
  uint32_t sampling_vocab = 0;  ///< ids that have logits: those that are sampled and scored
  bool has_output_head = true;  ///< the last stage can sample and score
};

}  // namespace millrace::sched
