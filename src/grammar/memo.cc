#include "grammar/memo.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "base/check.h"

namespace millrace::grammar {
namespace {

constexpr uint32_t kUnknown = UINT32_MAX;
/// More tokens than this part of the vocabulary are kept as a mask.
constexpr uint32_t kFewPart = 64;
/// Masks that took less to ask for are not kept.
constexpr size_t kFewAsked = 16;
/// Frames visited for one question, up to a microsecond each: a grammar that takes more can be matched in too many
/// ways.
constexpr uint64_t kMostWork = 200'000;

uint64_t hash_of(std::span<const uint32_t> words) {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, by words
  for (const uint32_t word : words) hash = (hash ^ word) * 0x100000001b3u;
  return hash;
}

}  // namespace

Memo::Memo(const Grammar& grammar)
    : grammar_(grammar), automaton_(grammar.automaton()), vocabulary_(grammar.vocabulary()) {
  frames_.push_back({});
  seen_.push_back(0);
  path_.resize(vocabulary_.longest() + 1);
  ++closure_;
  const Place nowhere = collect();
  CHECK(nowhere == kNowhere);
  visit(frame_of(automaton_.begin(), kBottom));
  begin_ = collect_unless_exhausted();
}

Memo::Frame Memo::frame_of(StateId state, Frame parent) {
  const auto [place, is_new] =
      frame_index_.try_emplace(uint64_t{state} << 32 | parent, static_cast<Frame>(frames_.size()));
  if (is_new) {
    frames_.push_back({state, parent, frames_[parent].depth + 1});
    seen_.push_back(0);
  }
  return place->second;
}

void Memo::begin_work() {
  work_ = 0;
  is_exhausted_ = false;
}

void Memo::visit(Frame frame) {
  open_.push_back(frame);
  while (!open_.empty()) {
    const Frame at = open_.back();
    open_.pop_back();
    if (++work_ > kMostWork) is_exhausted_ = true;
    if (is_exhausted_) continue;
    if (at == kBottom) {
      found_end_ = true;
      continue;
    }
    if (std::exchange(seen_[at], closure_) == closure_) continue;
    const FrameData data = frames_[at];
    if (automaton_.is_end(data.state)) {
      open_.push_back(data.parent);
      continue;
    }
    if (!automaton_.bytes_of(data.state).empty()) found_.push_back(at);
    for (const StateId to : automaton_.empties_of(data.state)) open_.push_back(frame_of(to, data.parent));
    if (data.depth >= kMostDepth) continue;
    for (const Automaton::Call& call : automaton_.calls_of(data.state)) {
      // What comes back only to end there needs no frame of its own, so that repetition by recursion stays flat.
      const Frame back = automaton_.is_end(call.to) ? data.parent : frame_of(call.to, data.parent);
      open_.push_back(frame_of(call.begin, back));
    }
  }
}

Memo::Place Memo::collect() {
  ++closure_;
  std::ranges::sort(found_);
  std::string key(found_.size() * sizeof(Frame) + 1, found_end_ ? '\1' : '\0');
  if (!found_.empty()) std::memcpy(key.data() + 1, found_.data(), found_.size() * sizeof(Frame));
  const auto [place, is_new] = place_index_.try_emplace(std::move(key), static_cast<Place>(places_.size()));
  if (is_new) {
    PlaceData& data = places_.emplace_back();
    data.frames = found_;
    data.may_end = found_end_;
    kept_bytes_ += sizeof data + 2 * found_.size() * sizeof(Frame);
  }
  found_.clear();
  found_end_ = false;
  return place->second;
}

Memo::Place Memo::step(Place place, uint8_t byte) {
  PlaceData& data = places_[place];
  if (data.steps == nullptr) {
    data.steps = std::make_unique<Steps>();
    data.steps->fill(kUnknown);
    kept_bytes_ += sizeof(Steps);
  }
  const Place known = (*data.steps)[byte];
  if (known != kUnknown) return known;
  const Place next = compute_step(place, byte);  // moves places_
  if (!is_exhausted_) (*places_[place].steps)[byte] = next;
  return next;
}

Memo::Place Memo::compute_step(Place place, uint8_t byte) {
  for (const Frame frame : places_[place].frames) {
    const FrameData data = frames_[frame];
    for (const Automaton::ByteEdge& edge : automaton_.bytes_of(data.state)) {
      if (edge.low <= byte && byte <= edge.high) visit(frame_of(edge.to, data.parent));
    }
  }
  return collect_unless_exhausted();
}

Memo::Place Memo::collect_unless_exhausted() {
  if (!is_exhausted_) return collect();
  found_.clear();
  found_end_ = false;
  ++closure_;
  return kNowhere;
}

Memo::Place Memo::after(Place place, std::string_view text) {
  const std::lock_guard lock(mutex_);
  begin_work();
  for (const char c : text) {
    if (place == kNowhere) break;
    place = step(place, static_cast<uint8_t>(c));
  }
  return place;
}

bool Memo::may_end(Place place) {
  const std::lock_guard lock(mutex_);
  return places_[place].may_end;
}

bool Memo::must_end(Place place) {
  const std::lock_guard lock(mutex_);
  return places_[place].may_end && places_[place].frames.empty();
}

size_t Memo::bytes() const {
  const std::lock_guard lock(mutex_);
  constexpr size_t kFrameBytes = sizeof(FrameData) + 48;
  return kept_bytes_ + frames_.size() * kFrameBytes;
}

/// Calls accept(node) for the nodes of a range whose texts lead somewhere from `from`; what lies below others is
/// passed over.
template <class Accept>
void Memo::walk(Place from, const LocalTokens::NodeRange& range, const Accept& accept) {
  const size_t depth = vocabulary_.node(range.begin).length - 1;
  path_[depth] = from;
  for (uint32_t at = range.begin; at < range.end;) {
    const Vocabulary::Node& node = vocabulary_.node(at);
    const Place place = step(path_[node.length - 1], node.byte);
    if (place == kNowhere) {
      at = node.end;
      continue;
    }
    path_[node.length] = place;
    accept(at);
    ++at;
  }
}

// With a loop, behind the state's rule comes the loop, and only behind that the unknown rest. Each run of the rule ends
// where the loop begins anew; a place where it may have ended, or gone on, cannot be counted.
LocalTokens Memo::compute_local(StateId state, StateId loop) {
  Place run_end = kNowhere;
  if (loop != 0) {
    visit(frame_of(loop, kBottom));
    run_end = collect();
  }
  found_.assign(1, frame_of(state, loop == 0 ? kBottom : frame_of(loop, kBottom)));
  const Place start = collect();
  LocalTokens local;
  if (is_exhausted_) return local;
  struct Step {
    Place place = kNowhere;
    bool has_ended = false;  // at a text of at most this length, which is not empty
    uint32_t runs = 0;       // that have ended
  };
  std::vector<Step> path(vocabulary_.longest() + 1);
  path[0].place = start;
  for (uint32_t at = 0; at < vocabulary_.node_count() && local.is_countable;) {
    const Vocabulary::Node& node = vocabulary_.node(at);
    const Step& before = path[node.length - 1];
    const Place place = step(before.place, node.byte);
    if (place == kNowhere) {
      if (before.has_ended) local.asked.push_back({at, node.end});
      at = node.end;
      continue;
    }
    const bool may_end = places_[place].may_end;
    path[node.length] = {place, before.has_ended || may_end, before.runs + (place == run_end ? 1 : 0)};
    local.is_countable = loop == 0 || may_end == (place == run_end);
    const uint32_t runs = path[node.length].runs + (place == run_end ? 0 : 1);
    for (const TokenId token : vocabulary_.tokens_of(at)) {
      local.few.push_back(token);
      if (loop != 0 && runs > 1) local.longer.push_back({runs, token});
    }
    ++at;
    if (!places_[place].frames.empty()) continue;
    if (at < node.end) local.asked.push_back({at, node.end});
    at = node.end;
  }
  std::ranges::sort(local.longer, std::greater(), &LocalTokens::Long::runs);
  if (local.few.size() <= vocabulary_.size() / kFewPart) return local;
  TokenMask mask(vocabulary_.size());
  for (const TokenId token : local.few) mask.add(token);
  local.many = shared(std::move(mask));
  local.few = {};
  return local;
}

bool Memo::warm(StateId state, StateId loop) {
  const std::lock_guard lock(mutex_);
  begin_work();
  (void)local(state, loop);
  return !is_exhausted_;
}

std::vector<StateId> Memo::readers_at(StateId state) {
  const std::lock_guard lock(mutex_);
  begin_work();
  visit(frame_of(state, kBottom));
  std::vector<StateId> readers;
  for (const Frame frame : places_[collect()].frames) readers.push_back(frames_[frame].state);
  return readers;
}

const LocalTokens& Memo::local(StateId state, StateId loop) {
  const uint64_t key = uint64_t{state} << 32 | loop;
  {
    const std::lock_guard lock(grammar_.mutex_);
    const auto known = grammar_.local_.find(key);
    if (known != grammar_.local_.end()) return *known->second;
  }
  auto computed = std::make_unique<const LocalTokens>(compute_local(state, loop));
  if (is_exhausted_) {
    static const LocalTokens kNothing;
    return kNothing;
  }
  const std::lock_guard lock(grammar_.mutex_);
  return *grammar_.local_.try_emplace(key, std::move(computed)).first->second;
}

std::shared_ptr<const TokenMask> Memo::shared(TokenMask mask) {
  const uint64_t hash = hash_of(mask.words());
  const auto [first, last] = masks_.equal_range(hash);
  for (auto at = first; at != last; ++at) {
    if (*at->second == mask) return at->second;
  }
  kept_bytes_ += mask.words().size_bytes();
  return masks_.emplace(hash, std::make_shared<const TokenMask>(std::move(mask)))->second;
}

/// What may follow at one of a place's frames.
void Memo::add_tokens(Place place, Frame frame, TokenMask& mask, bool& is_large) {
  const FrameData data = frames_[frame];
  Automaton::CountedPlace counted = automaton_.counted_place(frames_[data.parent].state);
  if (data.parent == kBottom || (counted.loop != 0 && !local(data.state, counted.loop).is_countable)) counted = {};
  const LocalTokens& tokens = local(data.state, counted.loop);
  is_large = is_large || tokens.many != nullptr || tokens.asked.size() > kFewAsked;
  const auto too_long = [&](const LocalTokens::Long& token) { return token.runs - 1 > counted.left; };
  if (tokens.longer.empty() || !too_long(tokens.longer.front())) {
    for (const TokenId token : tokens.few) mask.add(token);
    if (tokens.many != nullptr) mask.add(*tokens.many);
  } else {
    TokenMask shorter = tokens.many != nullptr ? *tokens.many : TokenMask(vocabulary_.size());
    for (const TokenId token : tokens.few) shorter.add(token);
    for (const LocalTokens::Long& token : tokens.longer) {
      if (!too_long(token)) break;
      shorter.remove(token.token);
    }
    mask.add(shorter);
  }
  for (const LocalTokens::NodeRange& range : tokens.asked) {
    const std::string_view text = vocabulary_.first_text(range.begin);
    Place from = place;
    for (const char c : text.substr(0, vocabulary_.node(range.begin).length - 1)) {
      from = step(from, static_cast<uint8_t>(c));
    }
    if (is_exhausted_) return;
    if (from == kNowhere) continue;
    walk(from, range, [&](uint32_t at) {
      for (const TokenId token : vocabulary_.tokens_of(at)) mask.add(token);
    });
  }
}

std::shared_ptr<const TokenMask> Memo::allowed(Place place, bool with_ends) {
  const std::lock_guard lock(mutex_);
  begin_work();
  with_ends = with_ends && places_[place].may_end;
  if (places_[place].masks[with_ends] != nullptr) return places_[place].masks[with_ends];
  TokenMask mask(vocabulary_.size());
  bool is_large = false;
  const std::vector<Frame> frames = places_[place].frames;
  for (const Frame frame : frames) add_tokens(place, frame, mask, is_large);
  if (with_ends) {
    for (const TokenId token : grammar_.ends()) mask.add(token);
  }
  if (is_exhausted_ || mask.empty()) return nullptr;
  if (!is_large) return std::make_shared<const TokenMask>(std::move(mask));
  auto kept = shared(std::move(mask));
  places_[place].masks[with_ends] = kept;
  return kept;
}

}  // namespace millrace::grammar
