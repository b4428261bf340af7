#include "sched/stage/stage_runner.h"

#include "base/check.h"
#include "base/result.h"

namespace millrace::sched {

std::span<std::byte> StageRunner::input_memory(size_t bytes, Memory) {
  CHECK(false, "this stage has no memory for {} bytes of activations", bytes);
  return {};
}

async::Event StageRunner::begin_load(std::vector<cache::PageCopy>) {
  CHECK(false, "a load on a stage without a host tier");
}

asio::awaitable<void> StageRunner::step_without_rows(uint64_t step) {
  throw ErrorException(
      make_error(ErrorCode::kData, "step {} of rings that share experts, on a stage that shares none", step));
  co_return;
}

asio::awaitable<void> StageRunner::store_pages(const cache::PageCopy&) {
  CHECK(false, "a store on a stage without a host tier");
  co_return;
}

std::span<std::byte> StageRunner::host_page(uint32_t group, HostPageId page) {
  CHECK(false, "host page {} of group {} of a stage without a host tier", page.value(), group);
  return {};
}

}  // namespace millrace::sched
