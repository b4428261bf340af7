#include "cuda/partition.h"

#include <cuda.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver_calls.h"
#include "cuda/error.h"

namespace millrace::cuda {
namespace {

/// The parts of each GPU for each number of parts. Only parts of one division are disjoint, so all backends of a
/// process share it.
struct Divisions {
  std::mutex mutex;
  std::map<std::pair<CUdevice, int>, std::vector<CUdevResource>> parts;
};

Divisions& divisions() {
  static Divisions all;
  return all;
}

Error refused(const DriverCalls& driver, const char* call, CUresult outcome) {
  return make_error(ErrorCode::kUnavailable, "{}: {}", call, driver.describe(outcome));
}

/// Divides a device into `count` equal parts of the largest size that the driver allows; it rounds sizes up.
Result<std::vector<CUdevResource>> divide(const DriverCalls& driver, CUdevice device, int count) {
  CUdevResource whole{};
  CUresult outcome = driver.device_get_dev_resource(device, &whole, CU_DEV_RESOURCE_TYPE_SM);
  if (outcome != CUDA_SUCCESS) return refused(driver, "cuDeviceGetDevResource", outcome);
  const auto wanted = static_cast<unsigned>(count);
  for (unsigned least = whole.sm.smCount / wanted; least > 0; --least) {
    unsigned found = 0;
    outcome = driver.dev_sm_resource_split_by_count(nullptr, &found, &whole, nullptr, 0, least);
    if (outcome != CUDA_SUCCESS) return refused(driver, "cuDevSmResourceSplitByCount", outcome);
    if (found < wanted) continue;
    std::vector<CUdevResource> parts(wanted);
    found = wanted;
    outcome = driver.dev_sm_resource_split_by_count(parts.data(), &found, &whole, nullptr, 0, least);
    if (outcome != CUDA_SUCCESS) return refused(driver, "cuDevSmResourceSplitByCount", outcome);
    if (found == wanted) return parts;
  }
  return make_error(ErrorCode::kUnavailable, "{} multiprocessors cannot be divided into {} equal parts",
                    whole.sm.smCount, count);
}

Result<CUdevResource> part_of(const DriverCalls& driver, CUdevice device, int index, int count) {
  Divisions& all = divisions();
  const std::lock_guard lock(all.mutex);
  auto found = all.parts.find({device, count});
  if (found == all.parts.end()) {
    auto parts = divide(driver, device, count);
    if (parts.has_error()) return parts.error();
    found = all.parts.emplace(std::pair(device, count), std::move(*parts)).first;
  }
  return found->second[static_cast<size_t>(index)];
}

}  // namespace

Result<std::unique_ptr<const Partition>> Partition::make(int ordinal, int index, int count) {
  const auto calls = driver_calls();
  if (calls.has_error()) return calls.error();
  const DriverCalls& driver = **calls;
  CUdevice device = 0;
  CUresult outcome = driver.device_get(&device, ordinal);
  if (outcome != CUDA_SUCCESS) return refused(driver, "cuDeviceGet", outcome);
  auto part = part_of(driver, device, index, count);
  if (part.has_error()) return part.error();
  CUdevResourceDesc description = nullptr;
  outcome = driver.dev_resource_generate_desc(&description, &*part, 1);
  if (outcome != CUDA_SUCCESS) return refused(driver, "cuDevResourceGenerateDesc", outcome);
  CUgreenCtx context = nullptr;
  outcome = driver.green_ctx_create(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
  if (outcome != CUDA_SUCCESS) return refused(driver, "cuGreenCtxCreate", outcome);
  return std::unique_ptr<const Partition>(new Partition(context, static_cast<int>(part->sm.smCount)));
}

Partition::~Partition() {
  (void)(*driver_calls())->green_ctx_destroy(context_);
}

cudaStream_t Partition::make_stream(int priority) const {
  const DriverCalls& driver = **driver_calls();
  CUstream stream = nullptr;
  const CUresult outcome = driver.green_ctx_stream_create(&stream, context_, CU_STREAM_NON_BLOCKING, priority);
  if (outcome == CUDA_SUCCESS) return stream;
  fail("CUDA: cuGreenCtxStreamCreate: " + driver.describe(outcome));
}

}  // namespace millrace::cuda
