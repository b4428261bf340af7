#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/token_mask.h"
#include "grammar/grammar.h"

namespace millrace::grammar {

/// Which tokens may come next where the grammar stands at one state with an unknown rest to come back to: those that
/// may whatever that is, and those for which it has to be asked. (The idea of telling the two apart: Dong et al.,
/// XGrammar, MLSys 2025.)
struct LocalTokens {
  std::vector<TokenId> few;               ///< that may; or
  std::shared_ptr<const TokenMask> many;  ///< that may
  struct NodeRange {
    uint32_t begin;
    uint32_t end;
  };
  std::vector<NodeRange> asked;  ///< of the vocabulary's nodes: subtrees of one parent
  /// Within runs of a rule that is counted: of those that may, the ones that take more than one run, and how many; the
  /// most first.
  struct Long {
    uint32_t runs;
    TokenId token;
  };
  std::vector<Long> longer;
  bool is_countable = true;  ///< else this cannot be told of the rule, and the rest means nothing
};

/// The grammar's automaton made deterministic as far as answers have gone: a place is the set of stacks of states that
/// the text so far may have led to. Kept and shared by all answers that began with it. Thread-safe.
class Memo {
 public:
  using Place = uint32_t;
  /// Nothing matches there.
  static constexpr Place kNowhere = 0;
  static constexpr uint32_t kMostDepth = 500;

  explicit Memo(const Grammar& grammar);

  [[nodiscard]] Place begin() const { return begin_; }
  /// kNowhere if the text does not match, or in so many ways that finding out would take too long.
  [[nodiscard]] Place after(Place place, std::string_view text);
  /// Null if none may follow, or finding out would take too long.
  [[nodiscard]] std::shared_ptr<const TokenMask> allowed(Place place, bool with_ends);
  [[nodiscard]] bool may_end(Place place);
  [[nodiscard]] bool must_end(Place place);
  /// About what it takes.
  [[nodiscard]] size_t bytes() const;
  /// Computes what may follow at `state`, so that no answer has to wait for it; with a loop, in runs of a counted rule.
  /// False: it would take too long.
  [[nodiscard]] bool warm(StateId state, StateId loop = 0);
  /// States that read bytes and are reached from `state` without one.
  [[nodiscard]] std::vector<StateId> readers_at(StateId state);

 private:
  using Frame = uint32_t;
  /// A state, and the frame at which to go on behind the end of its rule.
  struct FrameData {
    StateId state;
    Frame parent;
    uint32_t depth;
  };
  /// The frame that every stack ends with: behind it the text is whole.
  static constexpr Frame kBottom = 0;
  using Steps = std::array<Place, 256>;
  struct PlaceData {
    std::vector<Frame> frames;  // whose states read bytes; ascending
    bool may_end = false;
    std::unique_ptr<Steps> steps;
    std::shared_ptr<const TokenMask> masks[2];  // without, with the ends; kept if they took long
  };

  /// Before each question from outside.
  void begin_work();
  [[nodiscard]] Place step(Place place, uint8_t byte);
  [[nodiscard]] Place compute_step(Place place, uint8_t byte);
  [[nodiscard]] Frame frame_of(StateId state, Frame parent);
  void visit(Frame frame);
  /// The place of what visit() has found; forgets that.
  [[nodiscard]] Place collect();
  [[nodiscard]] Place collect_unless_exhausted();
  [[nodiscard]] const LocalTokens& local(StateId state, StateId loop);
  [[nodiscard]] LocalTokens compute_local(StateId state, StateId loop);
  void add_tokens(Place place, Frame frame, TokenMask& mask, bool& is_large);
  template <class Accept>
  void walk(Place from, const LocalTokens::NodeRange& range, const Accept& accept);
  [[nodiscard]] std::shared_ptr<const TokenMask> shared(TokenMask mask);

  const Grammar& grammar_;
  const Automaton& automaton_;
  const Vocabulary& vocabulary_;
  mutable std::mutex mutex_;
  // The rest is guarded by mutex_.
  Place begin_ = kNowhere;
  std::vector<FrameData> frames_;
  std::unordered_map<uint64_t, Frame> frame_index_;  // by state and parent
  std::vector<PlaceData> places_;
  std::unordered_map<std::string, Place> place_index_;  // by the bytes of frames and may_end
  std::unordered_multimap<uint64_t, std::shared_ptr<const TokenMask>> masks_;
  size_t kept_bytes_ = 0;
  // Of the closure that is being computed.
  std::vector<Frame> open_;
  std::vector<uint64_t> seen_;  // per frame: the closure that it was visited in
  uint64_t closure_ = 0;
  std::vector<Frame> found_;
  bool found_end_ = false;
  std::vector<Place> path_;    // of a walk, by length
  uint64_t work_ = 0;          // frames visited for the present question
  bool is_exhausted_ = false;  // they were too many: what is found from now on is not true, and not kept
};

}  // namespace millrace::grammar
