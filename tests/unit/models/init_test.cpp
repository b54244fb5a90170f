#include "models/init.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <catch2/catch.hpp>

#include <cmath>

namespace hyperion::models {
namespace {

at::Tensor drawn(const Parameter& parameter, uint64_t seed, int64_t first_row, int64_t rows) {
  Box box = whole_box(parameter.shape);
  box.offset[0] = first_row;
  box.shape[0] = rows;
  at::Tensor shard = at::zeros(box.shape);
  initialize(parameter, seed, box, shard);
  return shard;
}

}  // namespace

TEST_CASE("the normal quantile equals published values and is odd") {
  CHECK(normal_quantile(0.5) == 0.0);
  CHECK(normal_quantile(0.975) == Approx(1.959963984540054).epsilon(1e-14));
  CHECK(normal_quantile(0.25) == Approx(-0.6744897501960817).epsilon(1e-14));
  CHECK(normal_quantile(1e-12) == Approx(-7.034483825301131).epsilon(1e-12));
  for (double p : {1e-9, 0.01, 0.3, 0.44})
    CHECK(normal_quantile(p) == Approx(-normal_quantile(1 - p)).epsilon(1e-6));
}

TEST_CASE("an element depends on seed and name and index alone") {
  const Parameter weight{"layers.0.attention.wq.weight", {7, 5}, Init::truncated_normal(0.02, -2, 2), {}, {}};
  const at::Tensor whole = drawn(weight, 42, 0, 7);
  for (int64_t rows : {1, 2, 3, 4})  // odd row lengths make shards start in the middle of a Philox block
    for (int64_t first = 0; first + rows <= 7; ++first)
      CHECK(drawn(weight, 42, first, rows).equal(whole.narrow(0, first, rows)));
  CHECK_FALSE(drawn(weight, 43, 0, 7).equal(whole));
  Parameter other = weight;
  other.fqn = "layers.1.attention.wq.weight";
  CHECK_FALSE(drawn(other, 42, 0, 7).equal(whole));
}

TEST_CASE("the columns that a rank holds are those of the whole weight") {
  const Parameter weight{
      "layers.0.attention.wo.weight", {7, 10}, Init::truncated_normal(0.02, -2, 2), {}, {}};
  const at::Tensor whole = drawn(weight, 42, 0, 7);
  for (int64_t part = 0; part < 4; ++part) {
    const std::vector<Cut> cuts = {{.dim = 1, .parts = 4, .index = part}, {.dim = 0, .parts = 2, .index = 1}};
    const Box box = box_of(weight.shape, cuts);
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      at::Tensor tile = at::zeros(box.shape, dtype);
      initialize(weight, 42, box, tile);
      CHECK(tile.equal(whole.narrow(0, 4, 3).narrow(1, box.offset[1], box.shape[1]).to(dtype)));
    }
  }
}

TEST_CASE("weights follow the distribution asked for") {
  const Parameter normal{"a", {400, 500}, Init::normal(1.0), {}, {}};
  const at::Tensor z = drawn(normal, 1, 0, 400);
  CHECK(std::abs(z.mean().item<double>()) < 0.01);
  CHECK(z.std().item<double>() == Approx(1.0).epsilon(0.01));
  const Parameter cut{"b", {400, 500}, Init::truncated_normal(0.1, -0.1, 0.1), {}, {}};
  const at::Tensor t = drawn(cut, 1, 0, 400);
  CHECK(t.abs().max().item<double>() <= 0.1f);
  CHECK(t.std().item<double>() == Approx(0.1 * 0.5396).epsilon(0.01));  // std of a normal cut at one sigma
  const Parameter ones{"c", {3}, Init::ones(), {}, {}};
  CHECK(drawn(ones, 1, 0, 3).equal(at::ones({3})));
}

}  // namespace hyperion::models
