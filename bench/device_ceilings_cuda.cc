#include "cuda_lt.h"
#include "device_ceilings.h"

namespace millrace::bench {
namespace {

double product_rate(const LtLibrary& lt, cudaStream_t stream) {
  constexpr int kSize = 8192;
  constexpr size_t kValues = size_t{kSize} * kSize;
  const DeviceBytes x = random_bf16(kValues);
  const DeviceBytes weight = random_bf16(kValues);
  const DeviceBytes out(kValues * sizeof(float));
  LtProduct product(lt, kSize, kSize, kSize);
  const double time = seconds(stream, [&](int) { product.run(stream, x.as<>(), weight.as<>(), out.as<>()); }, 5, 7);
  return 2.0 * static_cast<double>(kValues) * kSize / time;
}

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  Stream(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  [[nodiscard]] cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

DeviceCeilings measure_gpu() {
  DeviceCeilings found;
  try {
    check(cudaSetDevice(0), "cudaSetDevice");
    const Stream stream;
    found.bytes = copy_bandwidth(stream.get());
    if (const LtLibrary* lt = load_lt(found.missing)) found.operations = product_rate(*lt, stream.get());
  } catch (const std::exception& error) {
    found.missing = error.what();
  }
  return found;
}

}  // namespace millrace::bench
