#include "grammar/until_tag.h"

#include <utility>

#include "grammar/tag_automaton.h"

namespace millrace::grammar {

ExpressionPtr until_tag(std::span<const std::string_view> tags, const ExpressionPtr& then, bool may_end,
                        std::span<const std::string_view> words) {
  return until_tag(tags, std::span(&then, 1), may_end, words);
}

ExpressionPtr until_tag(std::span<const std::string_view> tags, std::span<const ExpressionPtr> then, bool may_end,
                        std::span<const std::string_view> words) {
  const TagAutomaton automaton(tags);
  const ExpressionPtr nothing = literal("");
  NetworkBuilder network;
  std::vector<uint32_t> nodes = {NetworkBuilder::kBegin};
  while (nodes.size() < automaton.state_count() + then.size()) nodes.push_back(network.add_node());
  for (uint32_t state = 0; state < automaton.state_count(); ++state) {
    for (const auto& [to, chars] : automaton.steps(CharSet(0, CharSet::kMaxCodePoint), state)) {
      if (to < nodes.size()) network.add_edge(nodes[state], nodes[to], one_of(chars));
    }
    if (may_end) network.add_edge(nodes[state], NetworkBuilder::kEnd, nothing);
  }
  const auto add_from_all = [&](std::string_view text, uint32_t to) {
    const uint32_t before = network.add_node();
    for (uint32_t state = 0; state < automaton.state_count(); ++state) network.add_edge(nodes[state], before, nothing);
    network.add_edge(before, nodes[to], tagged(text));
  };
  for (const std::string_view word : words) {
    if (const uint32_t to = automaton.after(word); !automaton.is_end(to)) add_from_all(word, to);
  }
  for (uint32_t tag = 0; tag < then.size(); ++tag) {
    add_from_all(tags[tag], automaton.end_of(tag));
    network.add_edge(nodes[automaton.end_of(tag)], NetworkBuilder::kEnd, then[tag]);
  }
  return std::move(network).build();
}

}  // namespace millrace::grammar
