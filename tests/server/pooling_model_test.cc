#include "server/pooling_model.h"

#include <catch2/catch.hpp>
#include <cmath>

using namespace millrace::server;

TEST_CASE("A vector is cut before it is normalized") {
  PoolingModel model;
  CHECK(model.embed({3, 4, 12}, 0, true) == std::vector<float>{3 / 13.0f, 4 / 13.0f, 12 / 13.0f});
  CHECK(model.embed({3, 4, 12}, 2, true) == std::vector<float>{0.6f, 0.8f});
  CHECK(model.embed({3, 4, 12}, 2, false) == std::vector<float>{3, 4});
  model.normalizes = false;
  CHECK(model.embed({3, 4}, 0, true) == std::vector<float>{3, 4});
}

TEST_CASE("A vector of zeros stays as it is") {
  CHECK(PoolingModel().embed({0, 0}, 0, true) == std::vector<float>{0, 0});
  CHECK(cosine(std::vector<float>{0, 0}, std::vector<float>{1, 0}) == 0.0f);
  CHECK(cosine(std::vector<float>{2, 0}, std::vector<float>{3, 3}) == Approx(std::sqrt(0.5)));
}

TEST_CASE("Dense layers follow the pooling in their order") {
  PoolingModel model;
  model.normalizes = false;
  model.layers = {{.weights = {1, 2, 3, 4}, .bias = {10, -20}, .activation = Activation::kRelu},
                  {.weights = {1, 1}, .bias = {}, .activation = Activation::kIdentity}};
  CHECK(model.width(2) == 1);
  CHECK(model.embed({1, 1}, 0, true) == std::vector<float>{13});
}

TEST_CASE("Activations are those of torch") {
  CHECK(activate(Activation::kIdentity, -2.5f) == -2.5f);
  CHECK(activate(Activation::kSigmoid, 2.0f) == Approx(0.880797));
  CHECK(activate(Activation::kTanh, 0.5f) == Approx(0.462117));
  CHECK(activate(Activation::kRelu, -1.0f) == 0.0f);
  CHECK(activate(Activation::kGelu, 1.0f) == Approx(0.841345));
  CHECK(activate(Activation::kGelu, -0.5f) == Approx(-0.154269));
}

TEST_CASE("A score has its activation if it is wanted") {
  PoolingModel model;
  model.scores = true;
  model.layers = {{.weights = {2, 0}, .bias = {}}};
  CHECK(model.score({1, 7}, false) == 2.0f);
  CHECK(model.score({1, 7}, true) == Approx(0.880797));
}
