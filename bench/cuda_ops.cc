// The CUDA ops on one device beside what bounds them in the same run: the copy bandwidth of its memory and cuBLASLt's
// products. Shapes are those of Llama-3.1-8B; experts, in cuda_ops_experts.cc, those of Qwen3-30B-A3B.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cuda/kernels.h"
#include "cuda_lt.h"
#include "cuda_ops_parts.h"

using namespace millrace;
using namespace millrace::bench;

namespace {

constexpr int32_t kHidden = 4096;
constexpr int32_t kHeads = 32;
constexpr int32_t kKvHeads = 8;
constexpr int32_t kHeadDim = 128;
constexpr int32_t kVocab = 128256;

double copy_bandwidth(cudaStream_t stream) {
  const DeviceBytes from(kColdBytes);
  const DeviceBytes to(kColdBytes);
  const double time = seconds(stream, [&](int) {
    check(cudaMemcpyAsync(to.as<>(), from.as<>(), kColdBytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  });
  return 2.0 * static_cast<double>(kColdBytes) / time;
}

/// A product's figures: bytes of weights per second, and operations per second.
std::string product_figure(int rows, int inputs, int outputs, double time) {
  const double weights = static_cast<double>(inputs) * outputs;
  return fmt::format("{:8.1f} us {:6.0f} GB/s {:6.1f} TFLOP/s", time * 1e6, 2.0 * weights / time * 1e-9,
                     2.0 * weights * rows / time * 1e-12);
}

void measure_products(cudaStream_t stream) {
  struct Shape {
    const char* name;
    int inputs, outputs;
  };
  constexpr Shape kShapes[] = {{"qkv", kHidden, 6144},
                               {"o", kHidden, kHidden},
                               {"gate_up", kHidden, 28672},
                               {"down", 14336, kHidden},
                               {"lm_head", kHidden, kVocab}};
  std::string missing;
  const LtLibrary* lt = load_lt(missing);
  fmt::print("\nproducts: ours | cuBLASLt{}\n", lt == nullptr ? ", not measured: " + missing : "");
  for (const Shape& shape : kShapes) {
    const size_t bytes = cuda::packed_weight_bytes(shape.outputs, shape.inputs, false);
    const size_t copies = cold_copies(bytes);
    std::vector<DeviceBytes> packed;
    std::vector<DeviceBytes> plain;
    for (size_t i = 0; i < copies; ++i) {
      plain.push_back(random_bf16(static_cast<size_t>(shape.inputs) * static_cast<size_t>(shape.outputs)));
      packed.emplace_back(bytes);
      cuda::pack_weight(stream, plain.back().as<>(), cuda::SourceType::kBF16, shape.outputs, shape.inputs, 0,
                        cuda::PackAs::kRows, packed.back().as<>());
    }
    const auto theirs = [&](int rows) -> std::string {
      if (lt == nullptr) return "-";
      const DeviceBytes x = random_bf16(static_cast<size_t>(rows) * static_cast<size_t>(shape.inputs));
      const DeviceBytes out(static_cast<size_t>(rows) * static_cast<size_t>(shape.outputs) * sizeof(float));
      try {
        LtProduct baseline(*lt, rows, shape.inputs, shape.outputs);
        const double time = seconds(stream, [&](int i) {
          baseline.run(stream, x.as<>(), plain[static_cast<size_t>(i) % copies].as<>(), out.as<>());
        });
        return product_figure(rows, shape.inputs, shape.outputs, time);
      } catch (const std::exception& error) {
        return fmt::format("- ({})", error.what());  // ours is what is measured
      }
    };
    for (const int rows : {1, 8, 16, 32, 64, 128, 512, 2048}) {
      const DeviceBytes x = random_bf16(static_cast<size_t>(rows) * static_cast<size_t>(shape.inputs));
      const DeviceBytes out(static_cast<size_t>(rows) * static_cast<size_t>(shape.outputs) * sizeof(float));
      const DeviceBytes workspace(cuda::matmul_workspace_bytes(shape.outputs, shape.inputs, false, rows));
      const double own = seconds(stream, [&](int i) {
        const cuda::DeviceWeight weight{packed[static_cast<size_t>(i) % copies].as<>(), shape.outputs, shape.inputs,
                                        false};
        cuda::matmul(stream, x.as<>(), weight, nullptr, rows, out.as<>(), cuda::OutputType::kF32, workspace.as<>());
      });
      fmt::print("{:<8} rows {:>4}: {} | {}\n", shape.name, rows,
                 product_figure(rows, shape.inputs, shape.outputs, own), theirs(rows));
    }
  }
}

/// Sequences of one length over pages in order, with `rows` new rows each.
struct AttentionRun {
  AttentionRun(int32_t sequences, int32_t context, int32_t rows)
      : cache{nullptr, 1, kKvHeads, kHeadDim, 16},
        pages((static_cast<size_t>(context) + 15) / 16 * static_cast<size_t>(sequences)),
        bytes(cuda::kv_page_bytes(cache) * pages),
        kv(random_bf16(bytes / 2 * cold_copies(bytes))),
        count(std::vector<int32_t>{sequences}),
        row_begin(steps(sequences, rows)),
        prefix(std::vector<int32_t>(static_cast<size_t>(sequences), context - rows)),
        split_begin(steps(sequences, cuda::splits_of(rows, context))),
        page_begin(steps(sequences, static_cast<int32_t>(pages) / sequences)),
        page_table(page_list(pages)),
        bounds{sequences * rows, sequences, rows, sequences * cuda::splits_of(rows, context)},
        q(random_bf16(static_cast<size_t>(sequences * rows) * kHeads * kHeadDim)),
        out(q.bytes()),
        workspace(cuda::attention_workspace_bytes(sizes, cache, bounds)) {}
  static std::vector<int32_t> steps(int32_t count, int32_t step) {
    std::vector<int32_t> values;
    for (int32_t i = 0; i <= count; ++i) values.push_back(i * step);
    return values;
  }
  static std::vector<uint32_t> page_list(size_t count) {
    std::vector<uint32_t> values;
    for (size_t i = 0; i < count; ++i) values.push_back(static_cast<uint32_t>(i));
    return values;
  }
  double run(cudaStream_t stream) const {
    const cuda::DeviceBatch batch{count.as<int32_t>(),       row_begin.as<int32_t>(),  prefix.as<int32_t>(),
                                  split_begin.as<int32_t>(), page_begin.as<int32_t>(), page_table.as<uint32_t>()};
    return seconds(stream, [&](int i) {
      cuda::DeviceKvCache turn = cache;
      turn.data = kv.as<std::byte>() + static_cast<size_t>(i) % cold_copies(bytes) * bytes;
      cuda::attention(stream, q.as<>(), sizes, batch, bounds, turn, 0, out.as<>(), workspace.as<>());
    });
  }
  cuda::AttentionSizes sizes{kHeads, 1.0f / std::sqrt(static_cast<float>(kHeadDim)), 0};
  cuda::DeviceKvCache cache;
  size_t pages;
  size_t bytes;
  DeviceBytes kv;  // [copies] of `bytes`
  DeviceBytes count;
  DeviceBytes row_begin;
  DeviceBytes prefix;
  DeviceBytes split_begin;
  DeviceBytes page_begin;
  DeviceBytes page_table;
  cuda::BatchBounds bounds;
  DeviceBytes q;
  DeviceBytes out;
  DeviceBytes workspace;
};

void measure_attention(cudaStream_t stream) {
  fmt::print("\nattention, one layer, 32 heads over 8 of 128 channels\n");
  for (const int32_t sequences : {1, 16, 64, 256}) {
    for (const int32_t context : {1024, 4096, 32768}) {
      if (int64_t{sequences} * context > int64_t{4} << 20) continue;
      const AttentionRun run(sequences, context, 1);
      const double time = run.run(stream);
      const double bytes = 4.0 * kKvHeads * kHeadDim * sequences * context;
      fmt::print("decode, {:>3} sequences of {:>5}: {:8.1f} us {:6.0f} GB/s\n", sequences, context, time * 1e6,
                 bytes / time * 1e-9);
    }
  }
  for (const int32_t prefix : {0, 6144, 30720}) {
    constexpr int32_t kRows = 2048;
    const AttentionRun run(1, prefix + kRows, kRows);
    const double time = run.run(stream);
    const double keys = kRows * (static_cast<double>(prefix) + (kRows + 1) / 2.0);
    fmt::print("prefill, {} rows after {:>5}: {:8.1f} us {:6.1f} TFLOP/s\n", kRows, prefix, time * 1e6,
               4.0 * keys * kHeads * kHeadDim / time * 1e-12);
  }
}

void measure_rows(cudaStream_t stream) {
  fmt::print("\nrow ops, 2048 rows; sampling of {} logits\n", kVocab);
  constexpr int32_t kRows = 2048;
  constexpr size_t kElements = size_t{kRows} * kHidden;
  const size_t copies = cold_copies(kElements * (sizeof(float) + sizeof(uint16_t)));
  const DeviceBytes hidden(copies * kElements * sizeof(float));
  const DeviceBytes weight(kHidden * sizeof(float));
  const DeviceBytes out(copies * kElements * sizeof(uint16_t));
  const double norm = seconds(stream, [&](int i) {
    const size_t turn = static_cast<size_t>(i) % copies * kElements;
    cuda::rms_norm(stream, hidden.as<float>() + turn, weight.as<float>(), 1e-5f, kRows, kHidden,
                   out.as<uint16_t>() + turn);
  });
  fmt::print("rms_norm: {:8.1f} us {:6.0f} GB/s\n", norm * 1e6, 6.0 * kElements / norm * 1e-9);
  std::minstd_rand engine(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> row(kVocab);
  for (float& logit : row) logit = normal(engine);
  for (const int32_t rows : {1, 64, 256}) {
    const size_t elements = static_cast<size_t>(rows) * kVocab;
    const size_t turns = cold_copies(elements * sizeof(float));
    std::vector<float> all;  // [turns, rows, vocabulary]
    all.reserve(turns * elements);
    for (size_t i = 0; i < turns * static_cast<size_t>(rows); ++i) all.insert(all.end(), row.begin(), row.end());
    const DeviceBytes logits(all);
    const DeviceBytes outputs(static_cast<size_t>(rows) * sizeof(cuda::SampleOutput));
    const DeviceBytes workspace(cuda::sample_workspace_bytes(rows, kVocab));
    const cuda::SampleRow kinds[] = {{.temperature = 0.0f},
                                     {.temperature = 0.8f},
                                     {.temperature = 0.8f, .top_p = 0.95f},
                                     {.temperature = 0.8f, .top_k = 50}};
    const char* names[] = {"greedy", "temperature", "top_p", "top_k"};
    for (size_t kind = 0; kind < std::size(kinds); ++kind) {
      const DeviceBytes specs(std::vector<cuda::SampleRow>(static_cast<size_t>(rows), kinds[kind]));
      const double time = seconds(stream, [&](int i) {
        const float* turn = logits.as<float>() + static_cast<size_t>(i) % turns * elements;
        cuda::sample(stream, turn, kVocab, kVocab, rows, {.rows = specs.as<cuda::SampleRow>()},
                     {.rows = outputs.as<cuda::SampleOutput>()}, workspace.as<>());
      });
      fmt::print("sample {:<12} rows {:>3}: {:8.1f} us\n", names[kind], rows, time * 1e6);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    fmt::print(
        "{}: prints the speed of the CUDA ops on device 0, beside copy bandwidth and, where it is\n"
        "installed, cuBLASLt; no options\n",
        argv[0]);
    return std::strcmp(argv[1], "--help") == 0 ? 0 : 1;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // whoever ends it early keeps what has been measured
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    fmt::print(stderr, "no CUDA device ({})\n", status == cudaSuccess ? "none found" : cudaGetErrorString(status));
    return 1;
  }
  try {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    cudaStream_t stream = nullptr;
    check(cudaStreamCreate(&stream), "cudaStreamCreate");
    const double copy_rate = copy_bandwidth(stream);
    fmt::print("{}, {} multiprocessors\ncopy {:.0f} GB/s (read and written)\n", properties.name,
               properties.multiProcessorCount, copy_rate * 1e-9);
    measure_products(stream);
    measure_experts(stream, copy_rate);
    measure_attention(stream);
    measure_rows(stream);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
