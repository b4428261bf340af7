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
        Sized{{shape_of(20, 16, 16, 16, wide), 16, 0.3f, 16}, 70}, Sized{{shape_of(70, 16, 16, 16, 64), 64}, 40},
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

/// Checks the same of expansions that are held in codes. make(random, case) returns their `weights`, and draw(random,
/// shape, length) a sequence. `for_each` calls its argument with each backend.
template <class ForEach, class Case, class Make, class Draw>
void check_expansions_have_equal_bits(const ForEach& for_each, const std::vector<Case>& cases, const Make& make,
                                      const Draw& draw, uint64_t salt) {
  INFO("seed " << test_seed());
  Random random(test_seed() + salt);
  for (const Case& test_case : cases) {
    const tensor::LatentShape& shape = test_case.sizes.shape;
    const auto codes = make(random, test_case);
    const LatentSequence sequence = draw(random, shape, static_cast<int32_t>(random.integer(30, 60)));
    LatentSequence other = draw(random, shape, 25);
    other.chunks = random_chunks(random, other.length, false);
    for_each([&](tensor::Backend& backend) {
      const Values whole = feed_latents(backend, test_case.sizes, codes.weights, {sequence}, 1)[0];
      LatentSequence same = sequence;
      same.chunks = random_chunks(random, same.length, true);
      INFO(test_case.to_string() << ", " << same.chunks.size() << " chunks");
      const auto got = feed_latents(backend, {shape, 64}, codes.weights, {other, same, other}, test_seed());
      REQUIRE(got[1] == whole);
      REQUIRE(got[0] == got[2]);
    });
  }
}

/// Checks that a head alone has the bits that all heads together give it. with_rows(codes, rows, use) calls `use` with
/// the weights of these rows of an expansion.
template <class ForEach, class Case, class Make, class Draw, class WithRows>
void check_heads_have_bits_of_all(const ForEach& for_each, const std::vector<Case>& cases, const Make& make,
                                  const Draw& draw, const WithRows& with_rows, uint64_t salt) {
  INFO("seed " << test_seed());
  Random random(test_seed() + salt);
  for (const Case& test_case : cases) {
    INFO(test_case.to_string());
    const tensor::LatentShape& shape = test_case.sizes.shape;
    const auto codes = make(random, test_case);
    const LatentSequence whole = draw(random, shape, 20);
    const int64_t head_rows = int64_t{shape.nope_dim} + shape.value_dim;
    LatentCase own = test_case.sizes;
    own.shape.head_count = 1;
    for_each([&](tensor::Backend& backend) {
      const Values wanted = feed_latents(backend, test_case.sizes, codes.weights, {whole}, 1)[0];
      for (int64_t head = 0; head < shape.head_count; ++head) {
        with_rows(codes, tensor::TermRange{head * head_rows, (head + 1) * head_rows},
                  [&](const LatentWeights& weights) {
                    const Values got = feed_latents(backend, own, weights, {head_of(whole, shape, head)}, 1)[0];
                    REQUIRE(has_head(wanted, got, shape, head));
                  });
      }
    });
  }
}

}  // namespace millrace::test
