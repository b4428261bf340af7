#include "cache/radix_tree.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <optional>

#include "base/random.h"

using namespace millrace;
using namespace millrace::cache;

namespace {

std::vector<TokenId> sequence_of(std::initializer_list<TokenId> tokens) {
  return tokens;
}

/// Inserts whole pages of `tokens` on the device, numbered from `first_page` on. The last page's node.
NodeId insert_all(RadixTree& tree, std::string_view salt, std::span<const TokenId> tokens, uint32_t page_size,
                  uint32_t first_page) {
  NodeId node = tree.root(salt);
  for (; tokens.size() >= page_size; tokens = tokens.subspan(page_size)) {
    node = tree.insert(node, tokens.first(page_size), PageId(first_page++));
  }
  return node;
}

std::vector<PageId> evicted(RadixTree& tree, size_t count) {
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  tree.evict_device(count, device, host);
  return device;
}

}  // namespace

TEST_CASE("the longest prefix of whole pages matches") {
  RadixTree tree(2);
  (void)insert_all(tree, "", sequence_of({1, 2, 3, 4, 5, 6}), 2, 10);
  (void)insert_all(tree, "", sequence_of({1, 2, 3, 9}), 2, 20);
  REQUIRE(tree.node_count() == 4);
  REQUIRE(tree.match("", sequence_of({1, 2, 3, 4, 5})).pages == 2);
  REQUIRE(tree.match("", sequence_of({1, 2, 3, 4, 5, 6, 7})).pages == 3);
  const auto branch = tree.match("", sequence_of({1, 2, 3, 9}));
  REQUIRE(branch.pages == 2);
  REQUIRE(tree.device_page(branch.node) == PageId(21));
  REQUIRE(tree.device_page(tree.parent(branch.node)) == PageId(10));
  REQUIRE(tree.match("", sequence_of({2, 1})).pages == 0);
  REQUIRE(tree.match("", sequence_of({1})).pages == 0);
  tree.check_invariants();
}

TEST_CASE("salts share no page and an unused salt leaves no node") {
  RadixTree tree(1);
  (void)insert_all(tree, "a", sequence_of({1, 2}), 1, 0);
  REQUIRE(tree.match("b", sequence_of({1, 2})).node == kNoNode);
  REQUIRE(tree.match("a", sequence_of({1, 2})).pages == 2);
  REQUIRE(evicted(tree, 9).size() == 2);
  REQUIRE(tree.match("a", sequence_of({1, 2})).node == kNoNode);
  tree.lock(tree.root("c"));
  tree.unlock(tree.root("c"));
  REQUIRE(tree.match("c", sequence_of({1})).node == kNoNode);
  tree.check_invariants();
}

TEST_CASE("eviction takes unlocked leaves in least recently used order") {
  RadixTree tree(1);
  const NodeId old_leaf = insert_all(tree, "", sequence_of({1, 2, 3}), 1, 10);
  const NodeId new_leaf = insert_all(tree, "", sequence_of({1, 4}), 1, 20);
  tree.lock(new_leaf);
  tree.lock(old_leaf);
  tree.unlock(old_leaf);
  REQUIRE(tree.evictable_device_pages() == 2);
  REQUIRE(evicted(tree, 9) == std::vector{PageId(12), PageId(11)});
  tree.unlock(new_leaf);
  REQUIRE(tree.next_device_victim() == new_leaf);
  REQUIRE(evicted(tree, 1) == std::vector{PageId(21)});
  REQUIRE(evicted(tree, 1) == std::vector{PageId(10)});
  REQUIRE(tree.node_count() == 0);
}

TEST_CASE("a known page keeps its id and a host page returns to device") {
  RadixTree tree(1);
  const NodeId leaf = insert_all(tree, "", sequence_of({1, 2}), 1, 10);
  const NodeId again = tree.insert(tree.parent(leaf), sequence_of({2}), PageId(30));
  REQUIRE(again == leaf);
  REQUIRE(tree.device_page(leaf) == PageId(11));
  tree.set_host(leaf, HostPageId(5));
  REQUIRE(evicted(tree, 1) == std::vector{PageId(11)});
  const auto match = tree.match("", sequence_of({1, 2}));
  REQUIRE(match.pages == 2);
  REQUIRE(match.device_pages == 1);
  REQUIRE(tree.host_page(match.node) == HostPageId(5));
  REQUIRE(tree.insert(match.device_node, sequence_of({2}), PageId(30)) == leaf);
  REQUIRE(tree.device_page(leaf) == PageId(30));
  REQUIRE(tree.host_page(leaf) == HostPageId(5));
  std::vector<HostPageId> host;
  tree.evict_host(9, host);
  REQUIRE(host == std::vector{HostPageId(5)});
  tree.check_invariants();
}

TEST_CASE("a page that leaves every tier takes what is below it along") {
  RadixTree tree(1);
  const NodeId first = insert_all(tree, "", sequence_of({1}), 1, 10);
  const NodeId second = tree.insert_host(first, sequence_of({2}), HostPageId(1));
  (void)tree.insert_host(second, sequence_of({3}), HostPageId(2));
  (void)tree.insert_host(first, sequence_of({4}), HostPageId(3));
  std::vector<PageId> device;
  std::vector<HostPageId> host;
  tree.evict_device(1, device, host);
  std::ranges::sort(host);
  REQUIRE(device == std::vector{PageId(10)});
  REQUIRE(host == std::vector{HostPageId(1), HostPageId(2), HostPageId(3)});
  REQUIRE(tree.node_count() == 0);
  REQUIRE(tree.host_page_count() == 0);
  tree.check_invariants();
}

TEST_CASE("host pages of one access are evicted last page first") {
  RadixTree tree(1);
  const NodeId leaf = insert_all(tree, "", sequence_of({1, 2, 3, 4}), 1, 10);
  std::vector<NodeId> path;
  for (NodeId node = leaf; tree.depth(node) > 0; node = tree.parent(node)) path.push_back(node);
  for (const NodeId node : path) tree.set_host(node, HostPageId(tree.depth(node)));
  tree.lock(leaf);
  tree.unlock(leaf);
  REQUIRE(evicted(tree, 2) == std::vector{PageId(13), PageId(12)});
  std::vector<HostPageId> host;
  tree.evict_host(3, host);
  REQUIRE(host == std::vector{HostPageId(4), HostPageId(3), HostPageId(2)});
  REQUIRE(tree.match("", sequence_of({1, 2, 3, 4})).pages == 2);
  tree.check_invariants();
}

TEST_CASE("evictable pages above a node are those that its lock keeps") {
  RadixTree tree(1);
  const NodeId leaf = insert_all(tree, "", sequence_of({1, 2, 3, 4}), 1, 10);
  const NodeId branch = insert_all(tree, "", sequence_of({1, 2, 9}), 1, 20);
  REQUIRE(tree.evictable_above(leaf) == 4);
  tree.pin(tree.parent(leaf));
  REQUIRE(tree.evictable_above(leaf) == 3);
  tree.lock(branch);
  REQUIRE(tree.evictable_above(leaf) == 1);
  REQUIRE(tree.evictable_above(branch) == 0);
  const size_t before = tree.evictable_device_pages();
  tree.lock(leaf);
  REQUIRE(tree.evictable_device_pages() == before - 1);
}

TEST_CASE("the parent of a victim follows it unless it is still needed") {
  RadixTree tree(1);
  const NodeId leaf = insert_all(tree, "", sequence_of({1, 2, 3}), 1, 10);
  const NodeId middle = tree.parent(leaf);
  const NodeId sibling = insert_all(tree, "", sequence_of({1, 9}), 1, 20);
  REQUIRE(tree.device_victim_above(leaf) == middle);
  REQUIRE(tree.device_victim_above(middle) == kNoNode);
  REQUIRE(tree.device_victim_above(sibling) == kNoNode);
  tree.pin(middle);
  REQUIRE(tree.device_victim_above(leaf) == kNoNode);
  tree.unpin(middle);
  tree.set_host(sibling, HostPageId(1));
  tree.lock(leaf);
  REQUIRE(evicted(tree, 9) == std::vector{PageId(21)});  // and the sibling stays on the host
  tree.unlock(leaf);
  REQUIRE(tree.device_victim_above(middle) == tree.parent(middle));
  REQUIRE(tree.device_victim_above(tree.parent(middle)) == kNoNode);
}

TEST_CASE("tokens lead from a page to the last that is known behind it") {
  RadixTree tree(2);
  const NodeId leaf = insert_all(tree, "", sequence_of({1, 2, 3, 4}), 2, 10);
  const NodeId below = tree.insert_host(leaf, sequence_of({5, 6}), HostPageId(1));
  const NodeId first = tree.parent(leaf);
  REQUIRE(tree.follow(first, sequence_of({3, 4, 5, 6, 7, 8})) == below);
  REQUIRE(tree.follow(first, sequence_of({3, 4, 5})) == leaf);
  REQUIRE(tree.follow(first, sequence_of({4, 3, 5, 6})) == first);
}

namespace {

/// The tree, and beside it the plainest account of the same: which prefixes have which pages.
class Mirror {
 public:
  explicit Mirror(uint64_t seed) : seed_(seed), page_size_(1 + dice(3)), tree_(page_size_) {}

  void step() {
    switch (dice(8)) {
      case 0:
      case 1:
      case 2: run_sequence(); break;
      case 3: add_host(); break;
      case 4: evict_device(); break;
      case 5: evict_host(); break;
      case 6: unlock(); break;
      default:
        if (dice(10) == 0) clear_device();
        break;
    }
    compare();
    tree_.check_invariants();
  }
  void finish() {
    while (!locks_.empty()) unlock();
    REQUIRE(tree_.evictable_device_pages() == tree_.device_page_count());
    std::vector<PageId> device;
    std::vector<HostPageId> host;
    tree_.evict_device(1000000, device, host);
    tree_.evict_host(1000000, host);
    REQUIRE(tree_.node_count() == 0);
    tree_.check_invariants();
  }

 private:
  using Key = std::pair<std::string, std::vector<TokenId>>;
  struct Place {
    std::optional<PageId> device;
    std::optional<HostPageId> host;
  };
  uint32_t dice(uint32_t sides) { return static_cast<uint32_t>(uniform_at(seed_, draws_++) * sides); }
  std::vector<TokenId> random_tokens() {
    std::vector<TokenId> tokens(dice(6 * page_size_) + 1);
    for (TokenId& token : tokens) token = static_cast<TokenId>(dice(2));
    return tokens;
  }
  std::string random_salt() { return dice(4) == 0 ? "s" : ""; }

  /// Acts as the scheduler does: match, lock, insert the rest, and keep the lock for a while.
  void run_sequence() {
    const std::string salt = random_salt();
    const auto tokens = random_tokens();
    const auto match = tree_.match(salt, tokens);
    NodeId node = match.device_pages > 0 ? match.device_node : tree_.root(salt);
    tree_.lock(node);
    for (size_t end = (size_t{match.device_pages} + 1) * page_size_; end <= tokens.size(); end += page_size_) {
      const PageId page(next_page_++);
      const NodeId next = tree_.insert(node, std::span(tokens).subspan(end - page_size_, page_size_), page);
      tree_.extend_lock(node, next);
      node = next;
      Place& place = places_[{salt, {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end)}}];
      if (tree_.device_page(node) == page) place.device = page;
    }
    locks_.push_back(node);
    if (dice(2) == 0) unlock();
  }
  void add_host() {
    const std::string salt = random_salt();
    const auto tokens = random_tokens();
    const auto match = tree_.match(salt, tokens);
    const size_t end = (size_t{match.pages} + 1) * page_size_;
    const HostPageId page(next_page_++);
    const Key key(salt, {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(std::min(end, tokens.size()))});
    if (match.pages > 0 && tree_.host_page(match.node) == kNoHostPage) {
      Key known = key;
      known.second.resize(size_t{match.pages} * page_size_);
      tree_.set_host(match.node, page);
      places_.at(known).host = page;
    } else if (match.pages > 0 && end <= tokens.size()) {
      (void)tree_.insert_host(match.node, std::span(tokens).subspan(end - page_size_, page_size_), page);
      places_[key].host = page;
    }
  }
  void forget(const std::vector<PageId>& device, const std::vector<HostPageId>& host) {
    for (const PageId page : device) {
      const auto place = std::ranges::find_if(places_, [&](const auto& entry) { return entry.second.device == page; });
      REQUIRE(place != places_.end());
      place->second.device.reset();
    }
    for (const HostPageId page : host) {
      const auto place = std::ranges::find_if(places_, [&](const auto& entry) { return entry.second.host == page; });
      REQUIRE(place != places_.end());
      place->second.host.reset();
    }
    std::erase_if(places_, [](const auto& entry) { return !entry.second.device && !entry.second.host; });
  }
  void evict_device() {
    std::vector<PageId> device;
    std::vector<HostPageId> host;
    const size_t wanted = dice(5);
    const size_t possible = tree_.evictable_device_pages();
    tree_.evict_device(wanted, device, host);
    REQUIRE(device.size() == std::min(wanted, possible));
    forget(device, host);
  }
  void evict_host() {
    std::vector<HostPageId> host;
    tree_.evict_host(dice(4), host);
    forget({}, host);
  }
  void unlock() {
    if (locks_.empty()) return;
    const size_t which = dice(static_cast<uint32_t>(locks_.size()));
    tree_.unlock(locks_[which]);
    locks_.erase(locks_.begin() + static_cast<std::ptrdiff_t>(which));
  }
  void clear_device() {
    while (!locks_.empty()) unlock();
    std::map<Key, Place> kept;
    for (const auto& [key, place] : places_) {  // prefixes come before what they begin
      Key before = key;
      before.second.resize(key.second.size() - page_size_);
      if (place.host && (before.second.empty() || kept.contains(before))) kept[key] = {{}, place.host};
    }
    std::vector<PageId> device;
    std::vector<HostPageId> host;
    const size_t device_before = tree_.device_page_count();
    const size_t host_before = tree_.host_page_count();
    tree_.clear_device(device, host);
    REQUIRE(device.size() == device_before);
    REQUIRE(host.size() == host_before - kept.size());
    places_ = std::move(kept);
    REQUIRE(tree_.node_count() == places_.size());
    std::vector<HostPageId> left = tree_.host_pages();
    for (const auto& [key, place] : places_) REQUIRE(std::erase(left, *place.host) == 1);
    REQUIRE(left.empty());
  }
  void compare() {
    const std::string salt = random_salt();
    const auto tokens = random_tokens();
    const auto match = tree_.match(salt, tokens);
    uint32_t pages = 0;
    uint32_t device = 0;
    for (size_t end = page_size_; end <= tokens.size(); end += page_size_) {
      const auto found = places_.find({salt, {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end)}});
      if (found == places_.end()) break;
      ++pages;
      if (found->second.device) ++device;
    }
    REQUIRE(match.pages == pages);
    REQUIRE(match.device_pages == device);
  }

  uint64_t seed_;
  uint64_t draws_ = 0;
  uint32_t page_size_;
  RadixTree tree_;
  uint32_t next_page_ = 0;
  std::vector<NodeId> locks_;
  std::map<Key, Place> places_;
};

}  // namespace

TEST_CASE("random histories agree with a plain account of prefixes") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    Mirror mirror(seed);
    for (int i = 0; i < 300; ++i) mirror.step();
    mirror.finish();
  }
}
