#pragma once

#include <array>

#include "sim/random_rings.h"

namespace millrace::test {

/// Breaks a ring in ways drawn at random, each every so many occasions, as long as `may_act` says so: runs that fail,
/// processes that die, stages that hang, links that are lost, messages that are late. Outlives the world's runs.
class Saboteur {
 public:
  enum Way : uint8_t { kFailure, kDeath, kHang, kLostLink, kLateMessage };
  static constexpr size_t kWayCount = 5;

  Saboteur(Dice& dice, sim::SimulatedRingOptions& options, std::function<bool()> may_act)
      : may_act_(std::move(may_act)), victim_(dice.range(0, options.stage_count - 1)), own_(dice.range(0, 1u << 30)) {
    const uint32_t surely = dice.range(0, kWayCount - 1);
    for (uint32_t way = 0; way < kWayCount; ++way) {
      if (way != surely && !dice.chance(0.2)) continue;
      const bool of_link = way >= kLostLink;
      gaps_[way] = dice.range(of_link ? 20 : 5, of_link ? 500 : 60);
      left_[way] = dice.range(0, *gaps_[way]);
    }
    options.fault = [this](StageId stage) {
      if (stage == victim_ && comes(kDeath)) throw sim::StageDeath("device lost");
      if (stage == victim_ && comes(kFailure)) throw std::runtime_error("device lost");
    };
    options.stall = [this](StageId stage) { return stage == victim_ && comes(kHang) ? a_while() : async::Duration{}; };
    options.links.fault = [this]() -> std::optional<std::string> {
      if (comes(kLostLink)) return "cable pulled";
      return std::nullopt;
    };
    options.links.delay = [this] { return comes(kLateMessage) ? a_while() : async::Duration{}; };
    if (gaps_[kHang] || gaps_[kLateMessage]) options.head.watchdog = 500ms;
  }
  Saboteur(const Saboteur&) = delete;
  Saboteur& operator=(const Saboteur&) = delete;

  /// How often it did something.
  [[nodiscard]] const std::array<uint64_t, kWayCount>& done() const { return done_; }
  /// What those hear whom it hits; of the watchdogs, a stage's and the head's.
  [[nodiscard]] static std::vector<std::string_view> errors() {
    return {"device lost", "cable pulled", "has been running plan", "has been in flight for"};
  }

 private:
  bool comes(Way way) {
    if (!gaps_[way] || !may_act_() || left_[way]-- > 0) return false;
    left_[way] = *gaps_[way];
    ++done_[way];
    return true;
  }
  /// Less than the watchdog's time, or more.
  async::Duration a_while() { return std::chrono::milliseconds(own_.range(100, 2500)); }

  const std::function<bool()> may_act_;
  const StageId victim_;
  Dice own_;
  std::array<std::optional<uint32_t>, kWayCount> gaps_;
  std::array<uint32_t, kWayCount> left_{};
  std::array<uint64_t, kWayCount> done_{};
};

}  // namespace millrace::test
