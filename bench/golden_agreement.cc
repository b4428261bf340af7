// Prints, as Markdown, how far each golden model's logits are from the reference implementation's f32 logits.

#include <fmt/core.h>

#include <algorithm>

#include "base/result.h"
#include "cpu/cpu_backend.h"
#include "golden_test/agreement.h"
#include "golden_test/golden_file.h"
#include "model/families/read_config.h"
#include "model/test_pipeline.h"

using namespace millrace;

namespace {

struct Rounding {
  model::Quantization weights = model::Quantization::kNone;
  tensor::KvDType kv = tensor::KvDType::kAuto;
  [[nodiscard]] std::string suffix() const {
    return (weights == model::Quantization::kNone ? "" : fmt::format(", {}", model::to_string(weights))) +
           (kv == tensor::KvDType::kAuto ? "" : fmt::format(", kv {}", enum_name(kv)));
  }
};

void print_row(const std::string& name, const Rounding& rounding, tensor::Backend& backend) {
  const test::GoldenFamily family = test::read_golden_family(name);
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  model::ModelConfig config = test::adapted_config(*checkpoint);
  config.quantization = rounding.weights;
  test::TestPipeline pipeline(*checkpoint, config, backend, {.stage_count = 2});
  const test::Agreement agreement = test::measure_agreement(pipeline, family, 1e-3);
  fmt::print("| {} | {} | {}{} | {:.1e} | {:.1e} | {:.1e} | {:.1e} | {} / {} |\n", name, config.architecture,
             tensor::to_string(backend.compute_dtype()), rounding.suffix(), agreement.logits.max(),
             agreement.logits.rms(), agreement.logits.kl(), agreement.logprob_max,
             agreement.greedy_checked - agreement.greedy_wrong, agreement.greedy_checked);
}

}  // namespace

int main() {
  try {
    for (const tensor::DType dtype : {tensor::DType::kF32, tensor::DType::kBF16}) {
      const auto backend = cpu::make_backend({.threads = 1, .compute_dtype = dtype});
      fmt::print("{}{}:\n\n", dtype == tensor::DType::kF32 ? "" : "\n", backend->description());
      fmt::print("| model | architecture | dtype | max Δlogit | rms | KL, nats | max Δlogprob | greedy choices |\n");
      fmt::print("|---|---|---|---|---|---|---|---|\n");
      for (const auto quantization :
           {model::Quantization::kNone, model::Quantization::kW8, model::Quantization::kMxInt8,
            model::Quantization::kW8A8, model::Quantization::kW8A8Int8, model::Quantization::kW4}) {
        for (const std::string& name : test::golden_family_names())
          print_row(name, {.weights = quantization}, *backend);
      }
      for (const auto kv : {tensor::KvDType::kInt8, tensor::KvDType::kFp8E4M3}) {
        const auto coded = cpu::make_backend({.threads = 1, .compute_dtype = dtype, .kv_dtype = kv});
        for (const std::string& name : test::golden_family_names()) print_row(name, {.kv = kv}, *coded);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "golden_agreement: {}\n", error.what());
    return 1;
  }
}
