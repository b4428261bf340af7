// Prints, as Markdown, how far each golden model's logits are from the reference implementation's f32 logits.

#include <fmt/core.h>

#include "base/result.h"
#include "cpu/cpu_backend.h"
#include "golden_test/agreement.h"
#include "golden_test/golden_file.h"
#include "model/families/read_config.h"
#include "model/test_pipeline.h"

using namespace millrace;

namespace {

void print_row(const std::string& name, model::Quantization quantization, tensor::Backend& backend) {
  const test::GoldenFamily family = test::read_golden_family(name);
  const auto checkpoint = model::Checkpoint::open(family.folder).value();
  model::ModelConfig config = model::read_config(family.folder).value();
  config.quantization = quantization;
  test::TestPipeline pipeline(*checkpoint, config, backend, {.stage_count = 2});
  const test::Agreement agreement = test::measure_agreement(pipeline, family, 1e-3);
  const bool plain = quantization == model::Quantization::kNone;
  const std::string held = plain ? "" : fmt::format(", {}", model::to_string(quantization));
  fmt::print("| {} | {} | {}{} | {:.1e} | {:.1e} | {:.1e} | {:.1e} | {} / {} |\n", name, config.architecture,
             tensor::to_string(backend.compute_dtype()), held, agreement.logits.max(), agreement.logits.rms(),
             agreement.logits.kl(), agreement.logprob_max, agreement.greedy_checked - agreement.greedy_wrong,
             agreement.greedy_checked);
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
            model::Quantization::kW8A8, model::Quantization::kW8A8Int8}) {
        for (const std::string& name : test::golden_family_names()) print_row(name, quantization, *backend);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "golden_agreement: {}\n", error.what());
    return 1;
  }
}
