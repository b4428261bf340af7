#include "sched/scheduler/sequence.h"

#include <algorithm>
#include <utility>

namespace millrace::sched {

std::unique_ptr<Sequence> make_sequence(SequenceId id, GenerateRequest request) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->prompt_length = static_cast<uint32_t>(request.prompt.size());
  sequence->tokens = std::move(request.prompt);
  sequence->request = std::move(request);
  if (const auto& grammar = sequence->request.grammar; grammar != nullptr) {
    sequence->matcher.emplace(grammar, samples_end_token(*grammar, sequence->request.sampling));
  }
  return sequence;
}

bool samples_end_token(const grammar::Grammar& grammar, const tensor::SamplingParams& sampling) {
  return std::ranges::find_first_of(grammar.stop_token_ids(), sampling.stop_token_ids) !=
         grammar.stop_token_ids().end();
}

}  // namespace millrace::sched
