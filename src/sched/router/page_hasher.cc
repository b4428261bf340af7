#include "sched/router/page_hasher.h"

#include "base/check.h"
#include "base/hash.h"

namespace millrace::sched {

PageHasher::PageHasher(uint32_t page_size, std::string_view salt)
    : page_size_(page_size), state_(hash_bytes(std::as_bytes(std::span(salt)))) {
  CHECK(page_size > 0, "pages have at least one token");
}

void PageHasher::append(std::span<const TokenId> tokens, std::vector<PageName>& pages) {
  for (const TokenId token : tokens) {
    // The step is not linear in the state, so two tokens that are swapped give another name.
    state_ = mix_bits(state_ + static_cast<uint32_t>(token) + 1);
    if (++filled_ < page_size_) continue;
    filled_ = 0;
    pages.push_back(state_);
  }
}

}  // namespace millrace::sched
