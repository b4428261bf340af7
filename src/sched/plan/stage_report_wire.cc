#include "sched/plan/stage_report_wire.h"

namespace millrace::sched {

void put_reports(comm::ByteWriter& out, const std::vector<StageReport>& reports) {
  out.put(static_cast<uint32_t>(reports.size()));
  for (const StageReport& report : reports) {
    out.put(report.stage);
    out.put(report.plan);
    out.put(report.plan_ns);
    out.put(report.input_ns);
    out.put(report.begin_ns);
    out.put(report.end_ns);
    out.put(report.sent_bytes);
    out.put(report.rank);
  }
}

std::vector<StageReport> get_reports(comm::ByteReader& in) {
  std::vector<StageReport> reports(in.get_count(StageReport::kWireBytes));
  for (StageReport& report : reports) {
    report.stage = in.get<StageId>();
    report.plan = in.get<PlanId>();
    report.plan_ns = in.get<int64_t>();
    report.input_ns = in.get<int64_t>();
    report.begin_ns = in.get<int64_t>();
    report.end_ns = in.get<int64_t>();
    report.sent_bytes = in.get<uint64_t>();
    report.rank = in.get<uint32_t>();
  }
  return reports;
}

}  // namespace millrace::sched
