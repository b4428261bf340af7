#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace millrace::sched {

struct PlanSlice;

/// Number of terms of a micro-batch's time.
inline constexpr size_t kCostTerms = 5;

/// The size of a micro-batch, as the sums in which a stage's time is linear (docs/scheduling.md). Plain data.
struct BatchShape {
  double prefill_tokens = 0;  ///< Σx
  double prefill_pairs = 0;   ///< Σ(2·L·x + x²): twice the pairs of a token and a token it attends to
  double decode_count = 0;    ///< n
  double decode_context = 0;  ///< Σctx

  void add_prefill(uint32_t prefix, uint32_t tokens);
  /// Adds a step of `rows` tokens, the last of them at the end of the context: all rows read it together.
  void add_decode(uint32_t context, uint32_t rows = 1);
  void add(const PlanSlice& slice);
  /// Returns the factors of the coefficients, in their order; the first is 1.
  [[nodiscard]] std::array<double, kCostTerms> terms() const;
};

/// A stage's time in µs: t = fixed + per_token·Σx + per_pair·Σ(2·L·x + x²) + per_decode·n + per_context·Σctx. None of
/// the coefficients is negative. Plain data.
struct CostCoefficients {
  double fixed_us = 0;
  double per_token_us = 0;
  double per_pair_us = 0;
  double per_decode_us = 0;
  double per_context_us = 0;

  [[nodiscard]] double predict_us(const BatchShape& shape) const;
  /// Returns each coefficient's part of predict_us(), in their order.
  [[nodiscard]] std::array<double, kCostTerms> terms_us(const BatchShape& shape) const;
  /// Returns the prompt tokens' part of predict_us().
  [[nodiscard]] double prompt_us(const BatchShape& shape) const;
  /// Returns the tokens of a chunk after `prefix` tokens with which the micro-batch takes `target_us`; 0 if it takes as
  /// long without one.
  [[nodiscard]] double chunk_for(const BatchShape& shape, uint32_t prefix, double target_us) const;
  /// Returns whether more prompt tokens take longer: else their cost is not known.
  [[nodiscard]] bool is_increasing() const { return per_token_us > 0 || per_pair_us > 0; }
};

}  // namespace millrace::sched
