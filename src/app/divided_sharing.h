#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "app/expert_sharing.h"
#include "sched/steps/remote_step_group.h"

namespace millrace::app {

/// The sharing of rings in several processes: their ranks meet over TCP, also those of one process. A ring of this
/// process may have further nodes, whose ranks its Coordinator connects.
class DividedSharing final : public ExpertSharing {
 public:
  /// Makes the sharing in the front's process, which has the step coordinator and the first `local` rings.
  DividedSharing(const comm::SharedExperts::Shape& shape, int32_t local, uint64_t lookahead,
                 std::chrono::milliseconds silence);
  /// Makes the sharing in the process of ring number `ring`.
  DividedSharing(const comm::SharedExperts::Shape& shape, int32_t ring, std::chrono::milliseconds silence);
  ~DividedSharing() override;

  [[nodiscard]] sched::StepEpochs& epochs() override;
  [[nodiscard]] sched::EpochExchange& exchange(int32_t ring, cluster::Coordinator* nodes,
                                               std::optional<model::RingContents> contents) override;
  [[nodiscard]] std::string page_fingerprint(int32_t ring) override;
  [[nodiscard]] std::unique_ptr<tensor::ExpertExchange> join(int32_t ring, StageId stage, uint32_t rank,
                                                             tensor::Backend& backend) override;
  /// Returns the epochs of the front's process; null in another one.
  [[nodiscard]] sched::StepGroup* front_steps() { return group_.get(); }
  /// Returns the epochs of a ring's process; null in the front's.
  [[nodiscard]] sched::RemoteStepGroup* ring_steps() { return remote_.get(); }

 private:
  class Part;
  [[nodiscard]] sched::StepEpochs::EndFn end_parts();
  [[nodiscard]] Part& part(int32_t ring) { return *parts_[static_cast<size_t>(ring - first_ring_)]; }

  const int32_t first_ring_;
  std::vector<std::unique_ptr<Part>> parts_;        // of the rings here
  std::unique_ptr<sched::StepGroup> group_;         // in the front's process
  std::unique_ptr<sched::RemoteStepGroup> remote_;  // in another one
};

}  // namespace millrace::app
