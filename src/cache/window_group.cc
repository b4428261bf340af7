#include "cache/window_group.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::cache {

namespace {

bool lacks_page(const WindowTable::Entry& entry) {
  return entry.node == kNoNode || entry.loads;
}

}  // namespace

WindowGroup::WindowGroup(const Options& options, RadixTree& tree, const NodeKeys& keys, CopyTracker& copies)
    : options_(options),
      tree_(tree),
      copies_(copies),
      pages_(tree),
      account_(options.group, options.sizes, options.write_policy, pages_, keys, copies) {}

// What is found is kept before room is made, which would evict it.
bool WindowGroup::acquire(WindowTable& table, NodeId node, uint32_t matched, uint32_t page_count) {
  CHECK(table.entries.empty(), "a holder acquires window pages twice");
  table.first = first_page(size_t{matched} * options_.page_size);
  for (uint32_t index = matched; index > table.first; --index, node = tree_.parent(node)) {
    const PageId page = pages_.device_page(node);
    if (page == kNoPage) {
      pages_.pin_host(node);
    } else {
      pages_.claim(node);
    }
    table.entries.push_back({.page = page, .node = node, .loads = page == kNoPage});
  }
  std::ranges::reverse(table.entries);
  table.entries.resize(std::max(page_count, matched) - table.first);
  std::vector<PageId> pages;
  const auto wanted = static_cast<size_t>(std::ranges::count_if(table.entries, lacks_page));
  const bool has_room = account_.make_room(wanted) && account_.pool().allocate(wanted, pages);
  if (has_room) {
    for (WindowTable::Entry& one : table.entries) {
      if (!lacks_page(one)) continue;
      one.page = pages.back();
      pages.pop_back();
    }
    return true;
  }
  for (const WindowTable::Entry& one : table.entries) {
    if (one.node != kNoNode) keep_no_more(one, false);
  }
  table = {};
  return false;
}

void WindowGroup::keep_no_more(const WindowTable::Entry& entry, bool passed) {
  if (entry.loads) {
    pages_.unpin_host(entry.node);
  } else {
    pages_.unclaim(entry.node, passed);
  }
}

void WindowGroup::load(WindowTable& table) {
  PendingCopy request{.copy = {.kind = CopyKind::kLoad, .group = options_.group}};
  size_t found = 0;
  for (WindowTable::Entry& one : table.entries) {
    if (one.node == kNoNode) break;
    ++found;
    pages_.mark_shared(one.node);
    if (!std::exchange(one.loads, false)) continue;
    pages_.set_device(one.node, one.page);
    pages_.claim(one.node);
    pages_.pin(one.node);
    pages_.unpin_host(one.node);
    request.copy.device.push_back(one.page);
    request.copy.host.push_back(pages_.host_page(one.node));
    request.nodes.push_back(one.node);
  }
  PrefixCacheCounts& counts = account_.counts();
  counts.device_hit_pages += found - request.nodes.size();
  counts.host_hit_pages += request.nodes.size();
  counts.missed_pages += table.entries.size() - found;
  if (!request.nodes.empty()) copies_.request(std::move(request));
}

bool WindowGroup::extend(WindowTable& table, uint32_t page_count) {
  if (page_count <= table.end()) return true;
  const size_t wanted = page_count - table.end();
  std::vector<PageId> pages;
  if (!account_.make_room(wanted) || !account_.pool().allocate(wanted, pages)) return false;
  for (const PageId page : pages) table.entries.push_back({.page = page});
  return true;
}

void WindowGroup::publish(WindowTable& table, uint32_t index, NodeId node, bool shared) {
  if (shared) pages_.mark_shared(node);
  if (index < table.first) return;
  WindowTable::Entry& one = table.entries[index - table.first];
  if (pages_.device_page(node) != kNoPage) return;  // the sequence keeps its own
  pages_.set_device(node, one.page);
  pages_.claim(node);
  one.node = node;
  if (options_.write_policy == WritePolicy::kWriteThrough) account_.writer().note(node);
}

void WindowGroup::advance(WindowTable& table, size_t tokens) {
  const uint32_t first = std::min(first_page(tokens), table.end());
  if (first <= table.first) return;
  const auto passed = table.entries.begin() + (first - table.first);
  std::vector<PageId> own;
  for (auto one = table.entries.begin(); one != passed; ++one) {
    if (one->node == kNoNode) {
      own.push_back(one->page);
    } else {
      pages_.unclaim(one->node, true);
    }
  }
  account_.pool().release(own);
  table.entries.erase(table.entries.begin(), passed);
  table.first = first;
}

void WindowGroup::release(WindowTable& table) {
  std::vector<PageId> own;
  for (const WindowTable::Entry& one : table.entries) {
    if (lacks_page(one)) own.push_back(one.page);
    if (one.node != kNoNode) keep_no_more(one, false);
  }
  account_.pool().release(own);
  table = {};
}

void WindowGroup::on_off_device(NodeId node) {
  const PageId page = pages_.take_device(node);
  if (page == kNoPage) return;
  ++account_.counts().evicted_device_pages;
  account_.release({&page, 1}, {});
}

void WindowGroup::on_removed(NodeId node) {
  on_off_device(node);
  const HostPageId page = pages_.take_host(node);
  pages_.forget(node);
  if (page == kNoHostPage) return;
  ++account_.counts().evicted_host_pages;
  account_.release({}, {&page, 1});
}

void WindowGroup::clear() {
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  pages_.clear(device, host);
  account_.release(device, host);
}

void WindowGroup::on_ring_lost() {
  account_.on_ring_lost();
  pages_.clear_device();
}

}  // namespace millrace::cache
