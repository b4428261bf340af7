#include "cache/window_group.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::cache {

namespace {

/// Returns whether the sequence alone has the entry's page.
bool is_own(const WindowTable::Entry& entry) {
  return entry.page != kNoPage && (entry.node == kNoNode || entry.loads);
}

}  // namespace

WindowGroup::WindowGroup(const Options& options, RadixTree& tree, const NodeKeys& keys, CopyTracker& copies)
    : options_(options),
      tree_(tree),
      copies_(copies),
      pages_(tree),
      account_(options.group, options.sizes, options.write_policy, pages_, keys, copies) {}

// What is found is kept before room is made, which would evict it.
bool WindowGroup::acquire(WindowTable& table, NodeId node, uint32_t matched, uint32_t page_count,
                          uint32_t branch_pages) {
  CHECK(table.entries.empty(), "a holder acquires window pages twice");
  table.first = first_page(size_t{matched} * options_.page_size);
  table.branch_pages = branch_pages;
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
  if (add_pages(table, std::max(page_count, matched))) return true;
  for (const WindowTable::Entry& one : table.entries) keep_no_more(one);
  table = {};
  return false;
}

/// Gives pages to the entries that load theirs, and adds entries up to `page_count`.
bool WindowGroup::add_pages(WindowTable& table, uint32_t page_count) {
  const uint32_t begin = table.end();
  const size_t added = page_count - begin;
  const auto loading = static_cast<size_t>(std::ranges::count_if(table.entries, &WindowTable::Entry::loads));
  const size_t wanted = loading + (has_states() ? std::min<size_t>(added, 1) : added);
  std::vector<PageId> pages;
  if (!account_.make_room(wanted) || !account_.pool().allocate(wanted, pages)) return false;
  table.entries.resize(table.entries.size() + added, {.page = kNoPage});
  for (WindowTable::Entry& one : table.entries) {
    if (one.page != kNoPage || pages.empty()) continue;
    if (has_states() && !one.loads && &one != &table.entries.back()) continue;
    one.page = pages.back();
    pages.pop_back();
  }
  if (has_states() && options_.takes_snapshots) add_snapshots(table, begin);
  return true;
}

// A sequence goes on without the pages of snapshots.
void WindowGroup::add_snapshots(WindowTable& table, uint32_t begin) {
  for (uint32_t index = begin; index + 1 < table.end(); ++index) {
    if (index + 2 < table.end() && !wants_snapshot(table, index)) continue;
    std::vector<PageId> page;
    if (!account_.make_room(1) || !account_.pool().allocate(1, page)) return;
    table.entries[index - table.first].page = page.front();
  }
}

bool WindowGroup::wants_snapshot(const WindowTable& table, uint32_t index) const {
  const bool is_periodic = options_.snapshot_pages > 0 && (index + 1) % options_.snapshot_pages == 0;
  return is_periodic || index + 1 == table.branch_pages;
}

void WindowGroup::keep_no_more(const WindowTable::Entry& entry) {
  if (entry.loads) {
    pages_.unpin_host(entry.node);
  } else if (entry.node != kNoNode) {
    pages_.unclaim(entry.node, false);
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
  counts.missed_pages += static_cast<size_t>(std::ranges::count_if(table.entries, is_own));
  if (!request.nodes.empty()) copies_.request(std::move(request));
}

bool WindowGroup::extend(WindowTable& table, uint32_t page_count, size_t tokens) {
  if (page_count <= table.end()) return true;
  if (has_states() && tokens > 0) give_up_before(table, static_cast<uint32_t>((tokens - 1) / options_.page_size));
  return add_pages(table, page_count);
}

void WindowGroup::publish(WindowTable& table, uint32_t index, NodeId node, bool shared) {
  if (shared) pages_.mark_shared(node);
  if (index < table.first || (has_states() && !wants_snapshot(table, index))) return;
  share(table.entries[index - table.first], node, has_states());
}

void WindowGroup::publish_latest(WindowTable& table, NodeId node, uint32_t page_count, bool is_fresh) {
  const uint32_t last_two = table.end() - std::min(table.end(), 2u);
  const uint32_t begin = std::max(table.first, last_two);
  for (uint32_t index = page_count; index > begin; --index, node = tree_.parent(node)) {
    share(table.entries[index - 1 - table.first], node, is_fresh);
  }
}

/// Gives the page of an entry to a node that has none.
void WindowGroup::share(WindowTable::Entry& entry, NodeId node, bool is_fresh) {
  if (!is_own(entry) || pages_.device_page(node) != kNoPage) return;  // a second copy stays the sequence's own
  pages_.set_device(node, entry.page);
  pages_.claim(node);
  entry.node = node;
  if (is_fresh) fresh_.push_back(node);
  if (options_.write_policy == WritePolicy::kWriteThrough) account_.writer().note(node);
}

void WindowGroup::advance(WindowTable& table, size_t tokens) {
  give_up_before(table, std::min(first_page(tokens), table.end()));
}

// Snapshots were taken for others, so that they are as good as used when the sequence has passed them.
void WindowGroup::give_up_before(WindowTable& table, uint32_t first) {
  if (first <= table.first) return;
  const auto passed = table.entries.begin() + (first - table.first);
  std::vector<PageId> own;
  for (auto one = table.entries.begin(); one != passed; ++one) {
    if (one->node != kNoNode) {
      pages_.unclaim(one->node, !has_states());
    } else if (one->page != kNoPage) {
      own.push_back(one->page);
    }
  }
  account_.pool().release(own);
  table.entries.erase(table.entries.begin(), passed);
  table.first = first;
}

void WindowGroup::release(WindowTable& table) {
  std::vector<PageId> own;
  for (const WindowTable::Entry& one : table.entries) {
    if (is_own(one)) own.push_back(one.page);
    keep_no_more(one);
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
  fresh_.clear();
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  pages_.clear(device, host);
  account_.release(device, host);
}

void WindowGroup::on_ring_lost() {
  fresh_.clear();
  account_.on_ring_lost();
  pages_.clear_device();
}

}  // namespace millrace::cache
