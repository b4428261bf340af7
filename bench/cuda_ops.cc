// The CUDA ops on one device beside what bounds them in the same run: the copy bandwidth of its memory and cuBLASLt's
// products. Shapes are by default those of Llama-3.1-8B; weights of 4 and 8 bits are in cuda_ops_coded.cc; experts, in
// cuda_ops_experts.cc, those of Qwen3-30B-A3B; latents and states are in cuda_ops_mixers.cc, pages in
// cuda_ops_pages.cc.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "cuda/kernels.h"
#include "cuda_lt.h"
#include "cuda_ops_parts.h"

using namespace millrace;
using namespace millrace::bench;

namespace {

/// Formats a GEMM's figures: bytes of weights per second, and operations per second.
std::string product_figure(int rows, int inputs, int outputs, double time) {
  const double weights = static_cast<double>(inputs) * outputs;
  return fmt::format("{:8.1f} us {:6.0f} GB/s {:6.1f} TFLOP/s", time * 1e6, 2.0 * weights / time * 1e-9,
                     2.0 * weights * rows / time * 1e-12);
}

void measure_products(cudaStream_t stream, const OpsOptions& options) {
  struct Shape {
    const char* name;
    int inputs, outputs;
  };
  const int q_width = options.heads * options.head_dim;
  const Shape shapes[] = {{"qkv", options.hidden, q_width + 2 * options.kv_heads * options.head_dim},
                          {"o", q_width, options.hidden},
                          {"gate_up", options.hidden, 2 * options.intermediate},
                          {"down", options.intermediate, options.hidden},
                          {"lm_head", options.hidden, options.vocab}};
  std::string missing;
  const LtLibrary* lt = load_lt(missing);
  fmt::print("\nproducts: ours by mma | by wgmma | cuBLASLt{}\n", lt == nullptr ? ", not measured: " + missing : "");
  for (const Shape& shape : shapes) {
    const size_t bytes = cuda::packed_weight_bytes(shape.outputs, shape.inputs, false);
    const size_t copies = options.cold_copies(bytes);
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
    for (const int rows : options.rows) {
      const DeviceBytes x = random_bf16(static_cast<size_t>(rows) * static_cast<size_t>(shape.inputs));
      const DeviceBytes out(static_cast<size_t>(rows) * static_cast<size_t>(shape.outputs) * sizeof(float));
      const DeviceBytes workspace(
          cuda::matmul_workspace_bytes({.out_features = shape.outputs, .in_features = shape.inputs}, rows));
      const auto ours = [&](cuda::MatrixInstruction by) -> std::string {
        if (by == cuda::MatrixInstruction::kWgmma && !options.has_wgmma()) return "-";
        const double time = seconds(stream, [&](int i) {
          const cuda::DeviceWeight weight{.data = packed[static_cast<size_t>(i) % copies].as<>(),
                                          .out_features = shape.outputs,
                                          .in_features = shape.inputs,
                                          .gate_up = false,
                                          .by = by};
          cuda::matmul(stream, x.as<>(), weight, nullptr, rows, out.as<>(), cuda::OutputType::kF32, workspace.as<>());
        });
        return product_figure(rows, shape.inputs, shape.outputs, time);
      };
      fmt::print("{:<8} rows {:>4}: {} | {} | {}\n", shape.name, rows, ours(cuda::MatrixInstruction::kMma),
                 ours(cuda::MatrixInstruction::kWgmma), theirs(rows));
    }
  }
}

/// Sequences of one length over pages in order, with `rows` new rows each.
struct AttentionRun {
  AttentionRun(const OpsOptions& options, cuda::KvElement element, int32_t sequences, int32_t context, int32_t rows)
      : sizes{options.heads, 1.0f / std::sqrt(static_cast<float>(options.head_dim)), 0},
        cache{.layer_count = 1,
              .kv_head_count = options.kv_heads,
              .head_dim = options.head_dim,
              .page_size = 16,
              .element = element},
        pages((static_cast<size_t>(context) + 15) / 16 * static_cast<size_t>(sequences)),
        bytes(cuda::kv_page_bytes(cache) * pages),
        copies(options.cold_copies(bytes)),
        kv(random_bf16(bytes / 2 * copies)),
        count(std::vector<int32_t>{sequences}),
        row_begin(steps(sequences, rows)),
        prefix(std::vector<int32_t>(static_cast<size_t>(sequences), context - rows)),
        split_begin(steps(sequences, cuda::splits_of(rows, context))),
        page_begin(steps(sequences, static_cast<int32_t>(pages) / sequences)),
        page_table(page_list(pages)),
        bounds{.rows = sequences * rows,
               .sequences = sequences,
               .sequence_rows = rows,
               .splits = sequences * cuda::splits_of(rows, context)},
        q(random_bf16(static_cast<size_t>(sequences * rows) * static_cast<size_t>(options.heads * options.head_dim))),
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
    const cuda::DeviceBatch batch{.sequence_count = count.as<int32_t>(),
                                  .row_begin = row_begin.as<int32_t>(),
                                  .prefix = prefix.as<int32_t>(),
                                  .split_begin = split_begin.as<int32_t>(),
                                  .page_begin = page_begin.as<int32_t>(),
                                  .pages = page_table.as<uint32_t>()};
    return seconds(stream, [&](int i) {
      cuda::DeviceKvCache turn = cache;
      turn.data = kv.as<std::byte>() + static_cast<size_t>(i) % copies * bytes;
      cuda::attention(stream, q.as<>(), sizes, batch, bounds, turn, 0, out.as<>(), workspace.as<>());
    });
  }
  cuda::AttentionSizes sizes;
  cuda::DeviceKvCache cache;
  size_t pages;
  size_t bytes;
  size_t copies;
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

void measure_attention(cudaStream_t stream, const OpsOptions& options, cuda::KvElement element, const char* name) {
  fmt::print("\nattention over {}, one layer, {} heads over {} of {} channels\n", name, options.heads, options.kv_heads,
             options.head_dim);
  for (const int32_t sequences : options.sequences) {
    for (const int32_t context : options.contexts) {
      if (int64_t{sequences} * context > int64_t{4} << 20) continue;
      const AttentionRun run(options, element, sequences, context, 1);
      const double time = run.run(stream);
      const double bytes =
          static_cast<double>(cuda::kv_layer_bytes(run.cache)) / run.cache.page_size * sequences * context;
      fmt::print("decode, {:>3} sequences of {:>5}: {:8.1f} us {:6.0f} GB/s\n", sequences, context, time * 1e6,
                 bytes / time * 1e-9);
    }
  }
  for (const int32_t prefix : options.prefixes) {
    const int32_t rows = options.prompt_rows;
    const AttentionRun run(options, element, 1, prefix + rows, rows);
    const double time = run.run(stream);
    const double keys = rows * (static_cast<double>(prefix) + (rows + 1) / 2.0);
    fmt::print("prefill, {} rows after {:>5}: {:8.1f} us {:6.1f} TFLOP/s\n", rows, prefix, time * 1e6,
               4.0 * keys * options.heads * options.head_dim / time * 1e-12);
  }
}

void measure_rows(cudaStream_t stream, const OpsOptions& options) {
  const int32_t norm_rows = options.prompt_rows;
  const auto vocab = static_cast<size_t>(options.vocab);
  fmt::print("\nrow ops, {} rows; sampling of {} logits\n", norm_rows, vocab);
  const size_t elements = static_cast<size_t>(norm_rows) * static_cast<size_t>(options.hidden);
  const size_t copies = options.cold_copies(elements * (sizeof(float) + sizeof(uint16_t)));
  const DeviceBytes hidden(copies * elements * sizeof(float));
  const DeviceBytes weight(static_cast<size_t>(options.hidden) * sizeof(float));
  const DeviceBytes out(copies * elements * sizeof(uint16_t));
  const double norm = seconds(stream, [&](int i) {
    const size_t turn = static_cast<size_t>(i) % copies * elements;
    cuda::rms_norm(stream, hidden.as<float>() + turn, weight.as<float>(), 1e-5f, norm_rows, options.hidden,
                   out.as<uint16_t>() + turn);
  });
  fmt::print("rms_norm: {:8.1f} us {:6.0f} GB/s\n", norm * 1e6, 6.0 * static_cast<double>(elements) / norm * 1e-9);
  std::minstd_rand engine(1);
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> row(vocab);
  for (float& logit : row) logit = normal(engine);
  for (const int32_t rows : options.drawn_rows) {
    const size_t logit_count = static_cast<size_t>(rows) * vocab;
    const size_t turns = options.cold_copies(logit_count * sizeof(float));
    std::vector<float> all;  // [turns, rows, vocabulary]
    all.reserve(turns * logit_count);
    for (size_t i = 0; i < turns * static_cast<size_t>(rows); ++i) all.insert(all.end(), row.begin(), row.end());
    const DeviceBytes logits(all);
    const DeviceBytes outputs(static_cast<size_t>(rows) * sizeof(cuda::SampleOutput));
    const DeviceBytes workspace(cuda::sample_workspace_bytes(rows, options.vocab));
    const cuda::SampleRow kinds[] = {{.temperature = 0.0f},
                                     {.temperature = 0.8f},
                                     {.temperature = 0.8f, .top_p = 0.95f},
                                     {.temperature = 0.8f, .top_k = 50}};
    const char* names[] = {"greedy", "temperature", "top_p", "top_k"};
    for (size_t kind = 0; kind < std::size(kinds); ++kind) {
      const DeviceBytes specs(std::vector<cuda::SampleRow>(static_cast<size_t>(rows), kinds[kind]));
      const double time = seconds(stream, [&](int i) {
        const float* turn = logits.as<float>() + static_cast<size_t>(i) % turns * logit_count;
        cuda::sample(stream, turn, options.vocab, options.vocab, rows, {.rows = specs.as<cuda::SampleRow>()},
                     {.rows = outputs.as<cuda::SampleOutput>()}, workspace.as<>());
      });
      fmt::print("sample {:<12} rows {:>3}: {:8.1f} us\n", names[kind], rows, time * 1e6);
    }
  }
}

void measure_all(const OpsOptions& options) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    throw std::runtime_error(
        fmt::format("no CUDA device ({})", status == cudaSuccess ? "none found" : cudaGetErrorString(status)));
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0), "cudaStreamCreateWithPriority");
  const double copy_rate = copy_bandwidth(stream, options.cold_bytes);
  fmt::print("{}, {} multiprocessors\ncopy {:.0f} GB/s (read and written)\n", properties.name,
             properties.multiProcessorCount, copy_rate * 1e-9);
  const auto wants = [&](const char* part) { return std::ranges::find(options.parts, part) != options.parts.end(); };
  if (wants("gemm")) measure_products(stream, options);
  if (wants("coded")) measure_coded(stream, options, copy_rate);
  if (wants("experts")) measure_experts(stream, options, copy_rate);
  if (wants("attention")) {
    measure_attention(stream, options, cuda::KvElement::kBf16, "bf16");
    measure_attention(stream, options, cuda::KvElement::kInt8, "int8");
    measure_attention(stream, options, cuda::KvElement::kE4M3, "fp8_e4m3");
  }
  if (wants("latents")) measure_latents(stream, options, copy_rate);
  if (wants("indexers")) measure_indexers(stream, options, copy_rate);
  if (wants("states")) measure_states(stream, options, copy_rate);
  if (wants("rows")) measure_rows(stream, options);
  if (wants("pages")) measure_pages(stream, options);
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

}  // namespace

int main(int argc, char** argv) {
  OpsOptions options;
  size_t cold_mib = options.cold_bytes >> 20;
  CLI::App app("The speed of the CUDA ops on device 0, beside copy bandwidth and, where it is installed, cuBLASLt");
  const auto number = [&](const char* name, auto& value, const char* what) {
    app.add_option(name, value, what)->check(CLI::PositiveNumber)->capture_default_str();
  };
  number("--hidden", options.hidden, "Of products and norms");
  number("--intermediate", options.intermediate, "Of products");
  number("--heads", options.heads, "Of queries");
  number("--kv-heads", options.kv_heads, "Of keys and values");
  number("--head-dim", options.head_dim, "Channels of a head");
  number("--layers", options.layers, "Of a page that is copied to the host");
  number("--vocab", options.vocab, "Logits of a row");
  number("--expert-hidden", options.expert_hidden, "Of a mixture of experts");
  number("--expert-intermediate", options.expert_intermediate, "Of one expert");
  number("--experts", options.experts, "Of a layer");
  number("--experts-per-row", options.experts_per_row, "That a row chooses");
  number("--rows", options.rows, "Of products");
  number("--latent-heads", options.latent_heads, "Of latent attention, with latents of 4 head-dims");
  number("--expert-rows", options.expert_rows, "Of a mixture");
  number("--sequences", options.sequences, "That decode");
  number("--contexts", options.contexts, "Of each sequence that decodes");
  app.add_option("--prefixes", options.prefixes, "Tokens before a prompt's rows")->capture_default_str();
  number("--prompt-rows", options.prompt_rows, "Of attention in a prompt, and of norms");
  app.add_option("--parts", options.parts, "What is measured")
      ->check(CLI::IsMember(options.parts))
      ->capture_default_str();
  number("--drawn-rows", options.drawn_rows, "That are sampled");
  number("--cold-mib", cold_mib, "Operands that take turns, together: more than any cache holds");
  app.add_flag("--mma-only{false}", options.wgmma, "No products by wgmma");
  CLI11_PARSE(app, argc, argv);
  options.cold_bytes = cold_mib << 20;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // whoever ends it early keeps what has been measured
  try {
    measure_all(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
