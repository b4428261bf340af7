#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensor/expert_exchange.h"

/// The exchange of experts between rings of one process, in host memory.
namespace millrace::comm {

/// The exchanges of all stages of some rings, for one epoch of theirs. They end together. The ends share ownership.
/// Thread-safe.
class SharedExperts {
 public:
  struct Shape {
    int32_t ring_count = 1;
    int32_t rank_count = 1;  ///< of each stage; together at most tensor::kSumShards per stage
    int32_t stage_count = 1;
  };
  /// Receives the first abort before any rank does, on the thread that aborts.
  using AbortFn = std::function<void(int32_t ring, const std::string& reason)>;

  explicit SharedExperts(const Shape& shape, AbortFn on_abort = {});
  ~SharedExperts();
  SharedExperts(const SharedExperts&) = delete;
  SharedExperts& operator=(const SharedExperts&) = delete;

  /// Returns the end of a rank, each of which is taken once. It uses the threads of `backend`, which outlives it, and
  /// host copies of matrices on a device (stage_experts). Its destructor aborts and returns when no rank reads
  /// another's memory any more.
  [[nodiscard]] static std::unique_ptr<tensor::ExpertExchange> join(const std::shared_ptr<SharedExperts>& experts,
                                                                    int32_t stage, int32_t ring, int32_t rank,
                                                                    tensor::Backend& backend);
  /// Ends all exchanges: ranks of `ring` get `reason`, and those of other rings get it with the ring's name.
  void abort(int32_t ring, const std::string& reason);

 private:
  friend class SharedExpertsEnd;
  class Stage;
  struct Fate;
  const Shape shape_;
  const std::unique_ptr<Fate> fate_;
  std::vector<std::unique_ptr<Stage>> stages_;
};

}  // namespace millrace::comm
