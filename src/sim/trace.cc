#include "sim/trace.h"

#include <fmt/core.h>

#include "base/json.h"

namespace millrace::sim {

double Trace::busy_s(async::TimePoint since) const {
  double busy = 0;
  for (const TraceSpan& span : spans_) {
    if (span.start >= since) busy += std::chrono::duration<double>(span.end - span.start).count();
  }
  return busy;
}

std::string Trace::to_json() const {
  std::string out;
  JsonWriter json(out);
  json.begin_object().key("traceEvents").begin_array();
  for (const TraceSpan& span : spans_) {
    json.begin_object();
    json.member("name", fmt::format("plan {} ({} tokens)", span.plan.value(), span.token_count)).member("ph", "X");
    json.member("pid", 0).member("tid", span.stage.value());
    json.member("ts", std::chrono::duration<double, std::micro>(span.start.time_since_epoch()).count());
    json.member("dur", std::chrono::duration<double, std::micro>(span.end - span.start).count());
    json.end_object();
  }
  json.end_array().end_object();
  return out;
}

}  // namespace millrace::sim
