#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "model/checkpoint_files.h"
#include "model/config.h"

namespace millrace::test {

/// Random F32 weights of a config by name, and the forward pass over them as plain loops in double precision. It
/// follows the definition of the block alone.
class RandomModel {
 public:
  RandomModel(const model::ModelConfig& config, uint32_t seed);

  /// Returns every tensor in the order of names.
  [[nodiscard]] std::vector<TensorToWrite> tensors() const;
  /// Returns logits [tokens, vocab].
  [[nodiscard]] std::vector<double> logits(const std::vector<TokenId>& tokens) const;

 private:
  using Row = std::vector<double>;
  [[nodiscard]] const TensorToWrite& tensor(const std::string& name) const { return tensors_.at(name); }
  [[nodiscard]] Row linear(const Row& x, const std::string& name) const;
  [[nodiscard]] Row norm(const Row& x, const std::string& name) const;
  void prepare_head(Row& heads, const model::AttentionConfig& attention, const std::string& norm_name,
                    size_t position) const;
  void attend(std::vector<Row>& hidden, int32_t layer) const;
  /// Returns down(silu(gate(x)) · up(x)) for tensors by their names without ".weight".
  [[nodiscard]] Row feed_forward(const Row& x, const std::string& gate, const std::string& up,
                                 const std::string& down) const;
  [[nodiscard]] Row fused_moe(const Row& x, int32_t layer) const;
  void feed_forward(std::vector<Row>& hidden, int32_t layer) const;

  model::ModelConfig config_;
  std::map<std::string, TensorToWrite> tensors_;
};

}  // namespace millrace::test
