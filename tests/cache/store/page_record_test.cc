#include "cache/store/page_record.h"

#include <catch2/catch.hpp>
#include <set>

#include "cache/store/store_support.h"

using namespace millrace;
using namespace millrace::cache;
using namespace millrace::test;

TEST_CASE("every field of an identity changes the folder name") {
  std::vector<StoreIdentity> identities(12, make_identity());
  identities[1].model_fingerprint = "model b";
  identities[2].layer_begin = 1;
  identities[3].layer_end = 5;
  identities[4].kv_dtype = "f16";
  identities[5].page_size = 32;
  identities[6].page_bytes = kPageBytes + 1;
  identities[7] = {"m", 1, 2, "u8", 34, 5};
  identities[8] = {"m\n1-2\n2:u8", 1, 2, "u", 3, 45};
  identities[9].head_end = 2;
  identities[10].head_begin = 1;
  identities[10].head_end = 2;
  identities[11].window = 128;
  std::set<std::string> names;
  for (const StoreIdentity& identity : identities) names.insert(hash_of(identity).hex());
  REQUIRE(names.size() == identities.size());
}

TEST_CASE("a record is valid only for its own identity and key and data") {
  const RecordFormat form(make_identity());
  auto page = make_page(1);
  const auto header = form.make_header(make_key(1), page);
  REQUIRE(form.check(*header, make_key(1), page, kRecordBytes) == RecordStatus::kValid);
  REQUIRE(form.check(*header, make_key(2), page, kRecordBytes) == RecordStatus::kForeign);
  REQUIRE(RecordFormat(make_identity("model b")).check(*header, make_key(1), page, kRecordBytes) ==
          RecordStatus::kForeign);
  for (const uint64_t found : {uint64_t{0}, uint64_t{100}, uint64_t{4096}, kRecordBytes - 1, kRecordBytes + 1}) {
    REQUIRE(form.check(*header, make_key(1), page, found) == RecordStatus::kCorrupt);
  }
  const auto shorter = form.make_header(make_key(1), std::span(page).first(100));
  REQUIRE(form.check(*shorter, make_key(1), page, sizeof(PageHeader) + 100) == RecordStatus::kForeign);
  page.back() ^= std::byte{1};
  REQUIRE(form.check(*header, make_key(1), page, kRecordBytes) == RecordStatus::kCorrupt);
}
