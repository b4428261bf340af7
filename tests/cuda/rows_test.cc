#include "cuda/device_array.h"

using namespace millrace;
using namespace millrace::test;

TEST_CASE("embed reads table rows and zeros outside the table") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 100);
  for (const int32_t width : {1, 7, 64, 2312}) {
    INFO("width " << width);
    constexpr int32_t kVocab = 11;
    const Values table = rounded_bf16(random.normal(int64_t{kVocab} * width));
    const std::vector<int32_t> tokens = {3, -1, 10, 11, 0, 3};
    const HostMatrix host(table, tensor::DType::kBF16, kVocab, width);
    const DeviceArray<uint16_t> device_table(bf16_bits(table));
    const DeviceArray<int32_t> device_tokens(tokens);
    const DeviceArray<float> hidden(tokens.size() * static_cast<size_t>(width), 0xFF);
    cuda::embed(nullptr, device_table.get(), kVocab, width, device_tokens.get(), static_cast<int32_t>(tokens.size()),
                hidden.get());
    REQUIRE(hidden.values() == reference::embed(host.tensor(), tokens));
  }
}

TEST_CASE("rms_norm agrees with the reference and rows are independent") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 101);
  for (const int32_t width : {1, 6, 96, 257, 4100}) {
    INFO("width " << width);
    constexpr int32_t kRows = 5;
    constexpr float kNormEpsilon = 1e-5f;
    const Values in = random.normal(int64_t{kRows} * width, 3.0f);
    const Values weight = random.normal(width);
    const DeviceArray<float> device_in(in);
    const DeviceArray<float> device_weight(weight);
    const DeviceArray<uint16_t> out(in.size(), 0xFF);
    cuda::rms_norm(nullptr, device_in.get(), device_weight.get(), kNormEpsilon, kRows, width, out.get());
    check_close(bf16_values(out.values()), reference::rms_norm(in, weight, double{kNormEpsilon}), 0x1p-8, 1e-6);
    for (int32_t row = 0; row < kRows; ++row) {
      const auto first = static_cast<size_t>(row * width);
      const DeviceArray<float> one(Values(in.begin() + row * width, in.begin() + (row + 1) * width));
      const DeviceArray<uint16_t> alone(static_cast<size_t>(width), 0xFF);
      cuda::rms_norm(nullptr, one.get(), device_weight.get(), kNormEpsilon, 1, width, alone.get());
      REQUIRE(std::memcmp(alone.get(), out.get() + first, static_cast<size_t>(width) * 2) == 0);
    }
  }
}

TEST_CASE("gather_rows copies rows of any even size and zeros for none") {
  INFO("seed " << test_seed());
  Random random(test_seed() + 102);
  for (const size_t row_bytes : {size_t{2}, size_t{16}, size_t{50}, size_t{8208}}) {
    INFO(row_bytes << " bytes");
    std::vector<uint8_t> in(7 * row_bytes);
    for (uint8_t& byte : in) byte = static_cast<uint8_t>(random.integer(0, 255));
    const std::vector<int32_t> rows = {6, 0, -1, 3, 3};
    const DeviceArray<uint8_t> device_in(in);
    const DeviceArray<int32_t> device_rows(rows);
    const DeviceArray<uint8_t> out(rows.size() * row_bytes, 0xFF);
    cuda::gather_rows(nullptr, device_in.get(), row_bytes, device_rows.get(), static_cast<int32_t>(rows.size()),
                      out.get());
    std::vector<uint8_t> wanted;
    for (const int32_t row : rows) {
      const std::vector<uint8_t> zeros(row_bytes);
      const auto* from = row < 0 ? zeros.data() : in.data() + static_cast<size_t>(row) * row_bytes;
      wanted.insert(wanted.end(), from, from + row_bytes);
    }
    REQUIRE(out.values() == wanted);
  }
  const DeviceArray<uint8_t> byte(3);
  REQUIRE_THROWS_WITH(cuda::gather_rows(nullptr, byte.get(), 3, nullptr, 1, byte.get()),
                      "gather_rows: rows of 3 bytes, wanted an even number");
}

TEST_CASE("add_values adds any count of values and no others") {
  Random random(9);
  for (const int64_t count : {1, 3, 1023, 1024, 1025, 5000}) {
    CAPTURE(count);
    Values values = random.normal(count + 2);
    Values into = random.normal(count + 2);
    DeviceArray<float> device_values(values);
    DeviceArray<float> device_into(into);
    cuda::add_values(nullptr, device_values.get() + 1, count, device_into.get() + 1);
    const Values got = device_into.values();
    for (int64_t i = 0; i < count + 2; ++i) {
      const auto at = static_cast<size_t>(i);
      REQUIRE(got[at] == (i >= 1 && i <= count ? into[at] + values[at] : into[at]));
    }
  }
}
