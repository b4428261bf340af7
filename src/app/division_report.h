#pragma once

#include <string>
#include <vector>

#include "model/layer_balance.h"
#include "model/part_timing.h"

namespace millrace::app {

/// Returns the reference load of a ring of `stage_count` stages in which `max_running` sequences run at once.
[[nodiscard]] model::ReferenceLoad reference_load(uint32_t max_running, int32_t stage_count);

/// Returns the costs for which `--pp-layer-partition auto`, `auto:prefill` and `auto:decode` balance the stages.
[[nodiscard]] model::PartCosts costs_under(const model::WorkCosts& costs, const model::ReferenceLoad& load,
                                           model::LayerPartition::Load kind);

/// Returns the layers of each stage as --pp-layer-partition takes them: "16,8".
[[nodiscard]] std::string division_text(const std::vector<model::LayerRange>& ranges);

/// Returns how long each stage is expected to be busy, of the slowest one's time: "prefill 100, 57 %, decode 94, 100
/// %".
[[nodiscard]] std::string busy_text(const model::WorkCosts& costs, const std::vector<model::LayerRange>& ranges);

/// Logs the shares that the stages of an even division or one by hand are expected to be busy, by the sizes of their
/// weights. Warns if each of the divisions by auto is over 1.15 times as fast as this one, under the load that it is
/// for.
void report_division(const model::WorkCosts& estimate, const model::ReferenceLoad& load,
                     const std::vector<model::LayerRange>& ranges);

}  // namespace millrace::app
