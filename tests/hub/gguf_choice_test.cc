#include "hub/gguf_choice.h"

#include <catch2/catch.hpp>

#include "hub/model_files.h"
#include "support/mentions.h"

namespace millrace::hub {
namespace {

using test::Mentions;

RepoListing listing_of(const std::vector<std::string>& paths) {
  RepoListing listing;
  for (const std::string& path : paths) listing.files.push_back({.path = path, .size_bytes = 1, .etag = {}});
  return listing;
}

std::vector<std::string> chosen(const RepoListing& listing, std::string_view wanted) {
  std::vector<std::string> paths;
  for (const RepoFile& file : choose_gguf(listing, wanted).value()) paths.push_back(file.path);
  return paths;
}

using Paths = std::vector<std::string>;

}  // namespace

TEST_CASE("Types of GGUF files are told from revisions") {
  for (const char* text : {"Q4_K_M", "q4_k_m", "Q8_0", "IQ2_XXS", "iq4_nl", "TQ2_0", "Q4_0_4_4", "UD-Q4_K_XL", "BF16",
                           "f16", "F32", "MXFP4", "mxfp4_moe", "Qwen3-4B.gguf", "x/Y.GGUF"}) {
    CAPTURE(text);
    CHECK(names_gguf(text));
  }
  for (const char* text : {"", "main", "v1.0", "gptq-4bit-32g", "4.0bpw", "Q4", "q", "refs/pr/1", "Q4_K M", "awq",
                           ".gguf", "0123456789abcdef0123456789abcdef01234567", "fp8", "w4a16", "Q_4"}) {
    CAPTURE(text);
    CHECK_FALSE(names_gguf(text));
  }
}

TEST_CASE("A GGUF model is chosen by its type") {
  const RepoListing repo = listing_of({"README.md", "config.json", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf",
                                       "m.IQ4_XS.gguf", "mmproj-F16.gguf", "imatrix.gguf", "mtp-m-Q8_0.gguf"});
  CHECK(chosen(repo, "q8_0") == Paths{"m-Q8_0.gguf"});
  CHECK(chosen(repo, "IQ4_XS") == Paths{"m.IQ4_XS.gguf"});
  CHECK(chosen(repo, "Q4_K_XL") == Paths{"m-UD-Q4_K_XL.gguf"});
  CHECK(chosen(repo, "UD-Q4_K_XL") == Paths{"m-UD-Q4_K_XL.gguf"});
  CHECK(chosen(repo, "m-Q8_0.gguf") == Paths{"m-Q8_0.gguf"});
  CHECK(chosen(repo, "") == Paths{"m-Q4_K_M.gguf"});
  const auto absent = choose_gguf(repo, "Q5_0");
  CHECK(absent.error().code == ErrorCode::kNotFound);
  CHECK_THAT(absent.error().message, Mentions("'Q5_0'", "m-Q4_K_M.gguf", "m.IQ4_XS.gguf"));
  CHECK(choose_gguf(repo, "F16").error().code == ErrorCode::kNotFound);  // that of the vision part alone
}

TEST_CASE("A type that fits two GGUF models needs the name of a file") {
  const RepoListing repo = listing_of({"a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "c-UD-Q5_K_M.gguf", "c-Q5_K_M.gguf"});
  CHECK(choose_gguf(repo, "Q4_K_M").error().code == ErrorCode::kInvalidArgument);
  CHECK_THAT(choose_gguf(repo, "Q4_K_M").error().message, Mentions("2 GGUF models", "a-Q4_K_M.gguf", "b-Q4_K_M.gguf"));
  CHECK(chosen(repo, "b-Q4_K_M.gguf") == Paths{"b-Q4_K_M.gguf"});
  CHECK(chosen(repo, "Q5_K_M") == Paths{"c-Q5_K_M.gguf"});
  CHECK(chosen(repo, "UD-Q5_K_M") == Paths{"c-UD-Q5_K_M.gguf"});
  const auto unsaid = choose_gguf(listing_of({"m-Q8_0.gguf", "m-Q6_K.gguf"}), "");
  CHECK(unsaid.error().code == ErrorCode::kInvalidArgument);
  CHECK_THAT(unsaid.error().message, Mentions("2 GGUF models", "m-Q8_0.gguf", "m-Q6_K.gguf", "ORG/NAME:TYPE"));
}

TEST_CASE("All parts of a GGUF model in folders are chosen") {
  const RepoListing repo = listing_of({"BF16/m-BF16-00002-of-00002.gguf", "BF16/m-BF16-00001-of-00002.gguf",
                                       "Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf"});
  CHECK(chosen(repo, "bf16") == Paths{"BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"});
  CHECK(chosen(repo, "Q8_0") == Paths{"Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf"});
  CHECK(chosen(repo, "Q8_0/m-00002-of-00002.gguf").front() == "Q8_0/m-00001-of-00002.gguf");
  const auto broken = choose_gguf(listing_of({"m-00002-of-00002.gguf"}), "");
  CHECK(broken.error().code == ErrorCode::kData);
  CHECK_THAT(broken.error().message, Mentions("m-00001-of-00002.gguf"));
}

TEST_CASE("Safetensors go before GGUF files unless a type is named") {
  const RepoListing both = listing_of({"config.json", "model.safetensors", "m-Q8_0.gguf"});
  CHECK(weight_files(both, "").value().front().path == "model.safetensors");
  CHECK(weight_files(both, "", "Q8_0").value().front().path == "m-Q8_0.gguf");
  CHECK(weight_files(listing_of({"m-Q8_0.gguf"}), "").value().front().path == "m-Q8_0.gguf");
  const auto none = weight_files(listing_of({"mmproj-F16.gguf", "pytorch_model.bin"}), "");
  CHECK(none.error().code == ErrorCode::kNotFound);
  CHECK_THAT(none.error().message, Mentions("model.safetensors", "pytorch_model.bin"));
  CHECK(weight_files(listing_of({"model.safetensors"}), "", "Q8_0").error().code == ErrorCode::kNotFound);
}

}  // namespace millrace::hub
