#include "cache/store/record_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "cache/store/store_support.h"

using namespace millrace;
using namespace millrace::cache;
using namespace millrace::test;

namespace {

IoRoot write_one(FileIo& io, int file, const PageHeader& header, std::span<const std::byte> page, int64_t& result) {
  result = co_await write_record(io, file, header, page);
}

IoRoot read_one(FileIo& io, int file, PageHeader& header, std::span<std::byte> into, int64_t& result) {
  result = co_await read_record(io, file, header, into);
}

}  // namespace

TEST_CASE("a record comes back as it was written, and another length is reported unread") {
  const TempFolder folder;
  const RecordFormat format(make_identity());
  const auto page = make_page(3);
  const auto io = make_blocking_io();
  const int file = open((folder.path() + "/record").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(file >= 0);
  int64_t result = -1;
  write_one(*io, file, *format.make_header(make_key(3), page), page, result);
  REQUIRE(result == 0);
  const auto header = std::make_unique<PageHeader>();
  std::vector<std::byte> into(kPageBytes);
  read_one(*io, file, *header, into, result);
  REQUIRE(result == static_cast<int64_t>(kRecordBytes));
  REQUIRE(into == page);
  REQUIRE(format.check(*header, make_key(3), into, kRecordBytes) == RecordStatus::kValid);
  REQUIRE(ftruncate(file, 100) == 0);
  read_one(*io, file, *header, into, result);
  REQUIRE(result == 100);
  close(file);
  write_one(*io, file, *header, page, result);
  REQUIRE(result == -EBADF);
}
