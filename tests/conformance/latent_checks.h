#pragma once

#include <map>
#include <utility>

#include "conformance/latent_sequences.h"

/// What holds for latent attention whatever a cache stores. `for_each` calls its argument with each backend and with
/// how that one stores latents.
namespace millrace::test {

/// Checks outputs for many sizes against the reference, with latents of `wide` channels where few heads share them.
template <class ForEach, class Tolerance>
void check_latents_near_reference(const ForEach& for_each, const Tolerance& tolerance, int32_t wide, uint64_t salt) {
  INFO("seed " << test_seed());
  Random random(test_seed() + salt);
  struct Sized {
    LatentCase sizes;
    int32_t length;
  };
  for (const auto& [sizes, length] :
       {Sized{{shape_of(4, 32, 16, 24, 32), 16}, 90}, Sized{{shape_of(16, 24, 8, 40, 72), 7}, 50},
        Sized{{shape_of(20, 16, 16, 16, wide), 16}, 70}, Sized{{shape_of(70, 16, 16, 16, 64), 64}, 40},
        Sized{{shape_of(2, 192, 64, 256, 512), 1}, 20}}) {
    const LatentCase& of_sizes = sizes;
    const LatentWeights weights = random_latent_weights(random, sizes.shape);
    std::vector<LatentSequence> sequences = {random_latents(random, sizes.shape, length),
                                             random_latents(random, sizes.shape, length / 2 + 1)};
    for (LatentSequence& sequence : sequences) sequence.chunks = random_chunks(random, sequence.length, false);
    std::map<std::pair<tensor::DType, tensor::KvDType>, std::vector<Values>> wanted;
    for_each([&](tensor::Backend& backend, tensor::KvDType stored) {
      INFO(of_sizes.to_string());
      const tensor::DType dtype = backend.compute_dtype();
      std::vector<Values>& outputs = wanted[{dtype, stored}];
      for (size_t s = outputs.size(); s < sequences.size(); ++s)
        outputs.push_back(expected_latent_outputs(of_sizes, weights, sequences[s], dtype, stored));
      const auto got = feed_latents(backend, of_sizes, weights, sequences, test_seed());
      for (size_t s = 0; s < sequences.size(); ++s)
        check_close(got[s], outputs[s], unit(dtype), tolerance(dtype, stored));
    });
  }
}

/// Checks that outputs depend neither on chunks and pages nor on other sequences.
template <class ForEach>
void check_latents_have_equal_bits(const ForEach& for_each, const std::vector<tensor::LatentShape>& shapes,
                                   uint64_t salt) {
  INFO("seed " << test_seed());
  Random random(test_seed() + salt);
  for (const tensor::LatentShape& shape : shapes) {
    const LatentWeights weights = random_latent_weights(random, shape);
    const LatentSequence sequence = random_latents(random, shape, static_cast<int32_t>(random.integer(60, 150)));
    LatentSequence other = random_latents(random, shape, 50);
    other.chunks = random_chunks(random, other.length, false);
    for_each([&](tensor::Backend& backend, tensor::KvDType) {
      const Values whole = feed_latents(backend, {shape, 16}, weights, {sequence}, 1)[0];
      for (const int32_t page_size : {1, 16, 64, 7}) {
        LatentSequence same = sequence;
        same.chunks = random_chunks(random, same.length, page_size == 1);
        INFO(shape.head_count << " heads, pages of " << page_size << ", " << same.chunks.size() << " chunks");
        const auto got = feed_latents(backend, {shape, page_size}, weights, {other, same, other}, test_seed());
        REQUIRE(got[1] == whole);
        REQUIRE(got[0] == got[2]);
      }
    });
  }
}

}  // namespace millrace::test
