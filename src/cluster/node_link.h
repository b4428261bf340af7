#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "cluster/messages.h"
#include "comm/tcp_link.h"
#include "model/config.h"
#include "model/cache_groups.h"
#include "sched/stage/local_stages.h"

namespace millrace::cluster {

/// Returns how long the ends of a channel wait for each other, given the longest transfer.
[[nodiscard]] inline std::chrono::milliseconds open_timeout(std::chrono::milliseconds transfer_timeout) {
  return std::min<std::chrono::milliseconds>(std::chrono::seconds(30), transfer_timeout);
}

/// Returns the hello of the link from stage `from` to `to` in one epoch; both ends derive it from what they have.
[[nodiscard]] inline comm::LinkHello link_hello(const Assignment& assignment, const model::ModelConfig& config,
                                                RingEpoch epoch, StageId from, StageId to) {
  const model::Fingerprint fingerprint = model::fingerprint(config);
  comm::LinkHello hello;
  hello.ring = assignment.ring_id;
  hello.epoch = epoch;
  hello.from = from;
  hello.to = to;
  hello.fingerprint_high = fingerprint.high;
  hello.fingerprint_low = fingerprint.low;
  hello.page_size = assignment.stage.page_size;
  hello.layer_count = static_cast<uint32_t>(config.layer_count());
  hello.hidden_row_bytes = static_cast<uint32_t>(config.hidden_size) * sizeof(float);
  return hello;
}

/// Returns the limits of a link, which follow from the assignment and this node's limit of silence.
[[nodiscard]] inline comm::TcpLinkOptions link_options(const Assignment& assignment, const model::ModelConfig& config,
                                                       async::Duration silence_limit) {
  comm::TcpLinkOptions options;
  options.silence = silence_limit;
  options.window = assignment.stage.window + 1;
  options.max_activation_bytes =
      uint64_t{assignment.stage.max_batch_tokens} * static_cast<uint64_t>(config.hidden_size) * sizeof(float);
  return options;
}

/// Returns the options of the channel from stage `from` to `to`. Its ends load libraries and find each other, which
/// takes longer than a TCP link.
[[nodiscard]] inline sched::DeviceLinkOptions channel_options(RingEpoch epoch, StageId from, StageId to,
                                                              std::chrono::milliseconds transfer_timeout) {
  return {.epoch = epoch,
          .from = from,
          .to = to,
          .open_timeout = open_timeout(transfer_timeout),
          .transfer_timeout = transfer_timeout};
}

/// Returns the ring configuration of an assignment, once the sizes of the pools are known.
[[nodiscard]] inline sched::RingConfig ring_shape(const Assignment& assignment, const model::ModelConfig& config,
                                                  cache::PoolSizes pages) {
  return sched::ring_config(assignment.stage, assignment.stage_count, static_cast<uint32_t>(config.vocab_size), pages,
                            model::CacheGroups(config).windows());
}

}  // namespace millrace::cluster
