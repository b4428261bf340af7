#pragma once

#include <initializer_list>
#include <utility>
#include <vector>

#include "cache/copy_tracker.h"
#include "cache/host_tier.h"
#include "cache/host_writer.h"
#include "cache/node_keys.h"
#include "cache/persister.h"
#include "cache/prefetcher.h"

namespace millrace::test {

/// The parts of a prefix cache without it, over pages of one token each.
struct TierParts {
  explicit TierParts(uint32_t host_pages) : host(host_pages, tree, counts) {}

  /// Puts pages of these tokens on the device, in the order of their numbers; returns their nodes.
  std::vector<cache::NodeId> compute(std::initializer_list<TokenId> tokens) {
    std::vector<cache::NodeId> nodes;
    cache::NodeId node = keys.root("");
    for (const TokenId token : tokens) {
      const cache::PageTable empty;
      const cache::NodeId next = tree.insert(node, std::span(&token, 1), PageId(next_page++));
      keys.set_computed(next, empty, std::span(&token, 1));
      nodes.push_back(node = next);
    }
    return nodes;
  }
  /// Ends the only pending copy, of which `done` pages are good; unpins as a PrefixCache does.
  cache::PendingCopy end_copy(uint32_t done) {
    const auto taken = copies.take();
    cache::PendingCopy ended = copies.acknowledge({taken.at(0).id, done}).value();
    if (ended.copy.kind == cache::CopyKind::kStore) {
      for (const cache::NodeId node : ended.nodes) tree.unpin(node);
    }
    return ended;
  }

  cache::PrefixCacheCounts counts;
  cache::RadixTree tree{1};
  cache::NodeKeys keys{tree, 1, true};
  cache::HostTier host;
  cache::CopyTracker copies{1};
  cache::HostWriter writer{tree, host, copies, counts};
  cache::Persister persister{tree, keys, host, copies, counts};
  cache::Prefetcher prefetcher{tree, keys, host, copies, counts, 1};
  uint32_t next_page = 0;
};

}  // namespace millrace::test
