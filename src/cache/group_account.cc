#include "cache/group_account.h"

#include "base/check.h"

namespace millrace::cache {

GroupAccount::GroupAccount(uint32_t group, PoolSizes sizes, WritePolicy write_policy, GroupPages& pages,
                           const NodeKeys& keys, CopyTracker& copies)
    : group_(group),
      write_policy_(write_policy),
      pages_(pages),
      pool_(sizes.device),
      host_(sizes.host, pages, counts_),
      writer_(pages, host_, copies, counts_, group),
      persister_(pages, keys, host_, copies, counts_, group) {}

bool GroupAccount::make_room(size_t count) {
  while (pool_.free_count() + writer_.write_back_pages() < count) {
    const NodeId victim = pages_.next_device_victim();
    if (victim == kNoNode) break;
    if (write_policy_ == WritePolicy::kWriteBack && pages_.host_page(victim) == kNoHostPage) {
      if (writer_.write_back(victim, count - pool_.free_count() - writer_.write_back_pages())) continue;
      // What is being saved is colder than this one and will make way for it on the host.
      if (writer_.write_back_pages() > 0) break;
    }
    std::vector<PageId> device;
    std::vector<HostPageId> host;
    pages_.evict_device(1, device, host);
    counts_.evicted_device_pages += device.size();
    counts_.evicted_host_pages += host.size();
    release(device, host);
  }
  return pool_.free_count() >= count;
}

void GroupAccount::release(std::span<const PageId> device, std::span<const HostPageId> host) {
  pool_.release(device);
  host_.release(host);
}

std::vector<NodeId> GroupAccount::finish_store(const PendingCopy& ended) {
  for (const NodeId node : ended.nodes) pages_.unpin(node);
  return writer_.finish(ended);
}

void GroupAccount::on_ring_lost() {
  host_.abandon_persists();
  pool_ = PagePool(pool_.page_count());
  writer_.clear();
}

void GroupAccount::resize(PoolSizes sizes) {
  CHECK(pool_.free_count() == pool_.page_count(), "the pools are resized while {} of {} pages are free",
        pool_.free_count(), pool_.page_count());
  pool_ = PagePool(sizes.device);
  host_.resize(sizes.host);
}

}  // namespace millrace::cache
