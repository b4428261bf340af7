#include "base/text_file.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

using namespace millrace;

TEST_CASE("an unreadable file is told apart from a missing one") {
  std::string name = (std::filesystem::temp_directory_path() / "millrace-base-XXXXXX").string();
  const std::filesystem::path folder = ::mkdtemp(name.data());
  const std::string text = std::string(100'000, 'x') + '\0' + "end\r\n";
  std::ofstream(folder / "file", std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
  std::filesystem::create_symlink("file", folder / "link");
  std::filesystem::create_symlink("nowhere", folder / "broken");
  CHECK(read_text_file(folder / "file").value() == text);
  CHECK(read_optional_text_file(folder / "link").value() == text);
  CHECK(read_text_file(folder / "nowhere").error().code == ErrorCode::kNotFound);
  CHECK(read_optional_text_file(folder / "nowhere").value().empty());
  for (const auto& wrong : {folder, folder / "broken", folder / "file/inside"}) {
    const Error error = read_optional_text_file(wrong).error();
    CHECK(error.code == ErrorCode::kData);
    CHECK_THAT(error.message, Catch::StartsWith(wrong.string() + ": cannot be read: "));
  }
  std::filesystem::remove_all(folder);
}
