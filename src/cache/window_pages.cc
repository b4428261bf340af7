#include "cache/window_pages.h"

#include <utility>

#include "base/check.h"

namespace millrace::cache {

const WindowPages::Entry& WindowPages::at(NodeId node) const {
  static const Entry kNothing;
  return node.value() < entries_.size() ? entries_[node.value()] : kNothing;
}

WindowPages::Entry& WindowPages::entry(NodeId node) {
  if (entries_.size() <= node.value()) entries_.resize(node.value() + 1);
  return entries_[node.value()];
}

// The shallowest of pages last used at the same time goes first: prompts continue from the end of a prefix.
void WindowPages::refresh(NodeId node) {
  const Entry& found = at(node);
  const uint32_t order = UINT32_MAX - tree_.depth(node);
  if (found.is_evictable()) {
    device_order_.insert(node, found.used, order);
  } else {
    device_order_.erase(node);
  }
  if (found.is_host_evictable()) {
    host_order_.insert(node, found.used, order);
  } else {
    host_order_.erase(node);
  }
}

void WindowPages::set_device(NodeId node, PageId page) {
  CHECK(device_page(node) == kNoPage, "node {} has a window page already", node.value());
  CHECK(tree_.device_page(node) != kNoPage, "node {} gets a window page off the device", node.value());
  Entry& changed = entry(node);
  changed.device = page;
  changed.used = tree_.clock();
  ++device_page_count_;
  ++version_;
  refresh(node);
}

void WindowPages::set_host(NodeId node, HostPageId page) {
  CHECK(host_page(node) == kNoHostPage, "node {} has a window page on the host already", node.value());
  Entry& changed = entry(node);
  changed.host = page;
  if (changed.device == kNoPage) changed.used = tree_.clock();
  ++host_page_count_;
  ++version_;
  refresh(node);
}

void WindowPages::claim(NodeId node) {
  Entry& changed = entry(node);
  CHECK(changed.device != kNoPage, "node {} is claimed without a window page", node.value());
  ++changed.claims;
  changed.used = tree_.clock();
  refresh(node);
}

void WindowPages::unclaim(NodeId node, bool passed) {
  Entry& changed = entry(node);
  CHECK(changed.claims > 0, "node {} is unclaimed too often", node.value());
  --changed.claims;
  changed.used = passed && !changed.shared ? 0 : tree_.clock();
  refresh(node);
}

void WindowPages::pin(NodeId node) {
  CHECK(device_page(node) != kNoPage, "node {} is pinned without a window page", node.value());
  tree_.pin(node);
  ++entry(node).pins;
  refresh(node);
}

void WindowPages::unpin(NodeId node) {
  CHECK(at(node).pins > 0, "the window page of node {} was unpinned too often", node.value());
  --entry(node).pins;
  refresh(node);
  tree_.unpin(node);
}

void WindowPages::pin_host(NodeId node) {
  CHECK(host_page(node) != kNoHostPage, "node {} is pinned without a window page on the host", node.value());
  ++entry(node).host_pins;
  refresh(node);
}

void WindowPages::unpin_host(NodeId node) {
  CHECK(at(node).host_pins > 0, "the window page of node {} was unpinned too often on the host", node.value());
  --entry(node).host_pins;
  refresh(node);
}

PageId WindowPages::take_device(NodeId node) {
  if (device_page(node) == kNoPage) return kNoPage;
  Entry& changed = entry(node);
  CHECK(changed.claims == 0 && changed.pins == 0, "the window page of node {} goes while in use", node.value());
  --device_page_count_;
  ++version_;
  const PageId page = std::exchange(changed.device, kNoPage);
  refresh(node);
  return page;
}

HostPageId WindowPages::take_host(NodeId node) {
  if (host_page(node) == kNoHostPage) return kNoHostPage;
  Entry& changed = entry(node);
  changed.host_pins = 0;
  --host_page_count_;
  ++version_;
  const HostPageId page = std::exchange(changed.host, kNoHostPage);
  refresh(node);
  return page;
}

void WindowPages::forget(NodeId node) {
  if (node.value() < entries_.size()) entries_[node.value()] = {};
}

void WindowPages::evict_device(size_t count, std::vector<PageId>& device, std::vector<HostPageId>& /*host*/) {
  for (; count > 0 && !device_order_.empty(); --count) device.push_back(take_device(device_order_.next()));
}

void WindowPages::evict_host(size_t count, std::vector<HostPageId>& host) {
  for (; count > 0 && !host_order_.empty(); --count) host.push_back(take_host(host_order_.next()));
}

void WindowPages::clear_device() {
  for (uint32_t id = 0; id < entries_.size(); ++id) {
    Entry& changed = entries_[id];
    changed.device = kNoPage;
    changed.claims = changed.pins = changed.host_pins = 0;
    if (changed.host != kNoHostPage) refresh(NodeId(id));
  }
  device_order_.clear();
  device_page_count_ = 0;
  ++version_;
}

void WindowPages::clear(std::vector<PageId>& device, std::vector<HostPageId>& host) {
  const std::vector<PageId> pages = device_pages();
  const std::vector<HostPageId> on_host = host_pages();
  device.insert(device.end(), pages.begin(), pages.end());
  host.insert(host.end(), on_host.begin(), on_host.end());
  entries_.clear();
  device_order_.clear();
  host_order_.clear();
  device_page_count_ = host_page_count_ = 0;
  ++version_;
}

std::vector<PageId> WindowPages::device_pages() const {
  std::vector<PageId> pages;
  for (const Entry& one : entries_) {
    if (one.device != kNoPage) pages.push_back(one.device);
  }
  return pages;
}

std::vector<HostPageId> WindowPages::host_pages() const {
  std::vector<HostPageId> pages;
  for (const Entry& one : entries_) {
    if (one.host != kNoHostPage) pages.push_back(one.host);
  }
  return pages;
}

WindowPages::Counts WindowPages::counts() const {
  Counts counts;
  for (const Entry& one : entries_) {
    counts.claims += one.claims;
    counts.pins += one.pins;
    counts.host_pins += one.host_pins;
  }
  return counts;
}

void WindowPages::check_invariants() const {
  size_t evictable = 0;
  size_t host_evictable = 0;
  for (uint32_t id = 0; id < entries_.size(); ++id) {
    const Entry& one = entries_[id];
    evictable += one.is_evictable() ? 1 : 0;
    host_evictable += one.is_host_evictable() ? 1 : 0;
    CHECK(one.device == kNoPage || tree_.device_page(NodeId(id)) != kNoPage, "node {} has a window page only", id);
    CHECK(one.device != kNoPage || (one.claims == 0 && one.pins == 0), "node {} is in use without a page", id);
    CHECK(one.host != kNoHostPage || one.host_pins == 0, "node {} is pinned without a host page", id);
    CHECK(one.host == kNoHostPage || tree_.contains(NodeId(id)), "node {} is gone and has a window page", id);
  }
  CHECK(device_pages().size() == device_page_count_ && host_pages().size() == host_page_count_);
  CHECK(evictable == device_order_.size() && host_evictable == host_order_.size());
}

}  // namespace millrace::cache
