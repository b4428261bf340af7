#include "sched/stage_runner.h"

#include "base/check.h"

namespace millrace::sched {

std::span<std::byte> StageRunner::input_memory(size_t bytes) {
  CHECK(false, "this stage has no memory for {} bytes of activations", bytes);
  return {};
}

asio::awaitable<void> StageRunner::copy_pages(CopyDirection, std::span<const PageId>, std::span<const HostPageId>) {
  CHECK(false, "this stage has no host tier");
  co_return;
}

std::span<std::byte> StageRunner::host_page(HostPageId page) {
  CHECK(false, "host page {} of a stage without a host tier", page.value());
  return {};
}

}  // namespace millrace::sched
