#include "cache/prefix_cache_audit.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <functional>

#include "cache/tier_support.h"

using namespace millrace;
using namespace millrace::cache;
using millrace::test::TierParts;

namespace {

/// Runs `action` in a child process; whether it aborts.
bool aborts(const std::function<void()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    const int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    action();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/// Parts with two computed pages, one of them noted for the host, and an account that knows of them.
struct Audited {
  Audited() {
    std::vector<PageId> taken;
    REQUIRE(account.pool().allocate(2, taken));
    account.writer().note(parts.compute({1, 2})[0]);
  }
  void check(std::span<const PageTable* const> holders = {}) {
    const PrefixCacheAudit audit({.tree = parts.tree,
                                  .keys = parts.keys,
                                  .copies = parts.copies,
                                  .first = account,
                                  .windows = {},
                                  .prefetcher = prefetcher});
    audit.check(holders);
  }

  TierParts parts{0};
  GroupAccount account{0, {.device = 4, .host = 4}, WritePolicy::kWriteThrough, parts.tree, parts.keys, parts.copies};
  Prefetcher prefetcher{parts.tree, parts.keys, account.host(), parts.copies, account.counts(), 1};
};

}  // namespace

TEST_CASE("a consistent account passes the audit") {
  Audited world;
  world.check();
  world.account.writer().request_noted();
  world.check();
  (void)world.account.writer().finish(world.parts.end_copy(1));
  world.check();
}

TEST_CASE("the audit finds lost and doubled pages and ownerless claims") {
  Audited world;
  const auto spoil = [&](const std::function<void()>& change) {
    return aborts([&] {
      change();
      world.check();
    });
  };
  REQUIRE_FALSE(spoil([] {}));
  std::vector<PageId> pages;
  REQUIRE(spoil([&] { (void)world.account.pool().allocate(1, pages); }));                     // lost
  REQUIRE(spoil([&] { (void)world.account.host().allocate(); }));                             // lost on the host
  REQUIRE(spoil([&] { world.account.pool().release(std::vector{PageId(0)}); }));              // free and known
  REQUIRE(spoil([&] { world.parts.tree.pin(world.parts.tree.next_device_victim()); }));       // a pin of nobody's
  REQUIRE(spoil([&] { world.parts.tree.lock(world.parts.tree.root("")); }));                  // a lock of nobody's
  REQUIRE(spoil([&] { world.parts.copies.request({.copy = {.kind = CopyKind::kProbe}}); }));  // for no prefetch
  PageTable table;
  table.pages = {PageId(3)};
  const PageTable* holders[] = {&table};
  REQUIRE(aborts([&] { world.check(holders); }));  // held and free
}
