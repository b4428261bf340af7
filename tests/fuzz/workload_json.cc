#include "base/check.h"
#include "fuzz/memory_file.h"
#include "fuzz/targets.h"
#include "sim/workload.h"

namespace millrace::fuzz {

void workload_json(std::string_view input) {
  const MemoryFile memory(input);
  const auto workload = sim::load_workload(memory.path());
  if (workload.has_error()) {
    CHECK(workload.error().code == ErrorCode::kData && workload.error().message.starts_with(memory.path()));
    return;
  }
  CHECK(!workload->arrivals.empty());
  double last_s = 0;
  for (const sim::RequestArrival& arrival : workload->arrivals) {
    CHECK(arrival.input_length > 0 && arrival.output_length > 0);
    CHECK(arrival.at_s >= last_s && arrival.at_s <= 1e7);
    last_s = arrival.at_s;
  }
}

}  // namespace millrace::fuzz
