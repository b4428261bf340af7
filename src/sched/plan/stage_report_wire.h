#pragma once

#include <vector>

#include "comm/wire.h"
#include "sched/plan/stage_report.h"

namespace millrace::sched {

/// Appends the reports to a message: plans and outputs carry them in the same bytes.
void put_reports(comm::ByteWriter& out, const std::vector<StageReport>& reports);
/// Reads what put_reports() has appended.
[[nodiscard]] std::vector<StageReport> get_reports(comm::ByteReader& in);

}  // namespace millrace::sched
