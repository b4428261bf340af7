#include "sched/scheduler/cost_coefficients.h"

#include <cmath>
#include <limits>

#include "sched/plan/plan.h"

namespace millrace::sched {

void BatchShape::add_prefill(uint32_t prefix, uint32_t tokens) {
  const double x = tokens;
  prefill_tokens += x;
  prefill_pairs += 2.0 * prefix * x + x * x;
}

void BatchShape::add_decode(uint32_t context, uint32_t rows) {
  decode_count += rows;
  decode_context += context;
}

void BatchShape::add(const PlanSlice& slice) {
  if (slice.decodes()) {
    add_decode(slice.prefix + slice.token_count, slice.token_count);
  } else {
    add_prefill(slice.prefix, slice.token_count);
  }
}

std::array<double, kCostTerms> BatchShape::terms() const {
  return {1, prefill_tokens, prefill_pairs, decode_count, decode_context};
}

double CostCoefficients::prompt_us(const BatchShape& shape) const {
  return per_token_us * shape.prefill_tokens + per_pair_us * shape.prefill_pairs;
}

double CostCoefficients::predict_us(const BatchShape& shape) const {
  return fixed_us + prompt_us(shape) + per_decode_us * shape.decode_count + per_context_us * shape.decode_context;
}

std::array<double, kCostTerms> CostCoefficients::terms_us(const BatchShape& shape) const {
  return {fixed_us, per_token_us * shape.prefill_tokens, per_pair_us * shape.prefill_pairs,
          per_decode_us * shape.decode_count, per_context_us * shape.decode_context};
}

// Solves a·x² + (b + 2·a·L)·x = target − t(shape) for its positive root, in the form that is stable for a → 0.
double CostCoefficients::chunk_for(const BatchShape& shape, uint32_t prefix, double target_us) const {
  const double room = target_us - predict_us(shape);
  if (room <= 0) return 0;
  const double slope = per_token_us + 2 * per_pair_us * prefix;
  const double root = slope + std::sqrt(slope * slope + 4 * per_pair_us * room);
  return root > 0 ? 2 * room / root : std::numeric_limits<double>::infinity();
}

}  // namespace millrace::sched
