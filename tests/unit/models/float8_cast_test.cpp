// The two copies of an FP8 operand: their layouts, and that they are what separate casts give.
#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "models/float8/cast.h"
#include "tests/support/error_of.h"
#include "tests/support/float8_bits.h"

namespace hyperion::models {

using namespace float8;
using at::Tensor;
using Catch::Contains;

TEST_CASE("both copies of an operand have the bits of separate casts in the layouts that products want") {
  at::manual_seed(5);
  for (const at::ScalarType from : {at::kFloat, at::kBFloat16})
    for (const at::ScalarType dtype : {kE4m3, kE5m2})
      for (const int64_t m : {1, 16, 17, 80}) {
        const int64_t n = 48, padded = (m + 15) / 16 * 16;
        const Tensor x = troublesome(m, n).to(from).t().contiguous().t();  // any layout is taken
        const Tensor row_scale = at::rand({m, 1}).mul(100), column_scale = at::rand({1, n}).mul(100);
        const Copies copies = cast(x, row_scale, column_scale, dtype);
        INFO(m << " rows of " << from << " to " << dtype);
        CHECK(same_bits(copies.rows, saturating_cast(x, row_scale, dtype)));
        CHECK(copies.rows.is_contiguous());
        CHECK(copies.columns.sizes() == at::IntArrayRef({padded, n}));
        CHECK(copies.columns.t().is_contiguous());
        CHECK(same_bits(copies.columns.narrow(0, 0, m), saturating_cast(x, column_scale, dtype)));
        CHECK(copies.columns.view(at::kByte).narrow(0, m, padded - m).eq(0).all().item<bool>());

        CHECK(!cast(x, row_scale, {}, dtype).columns.defined());
        CHECK(!cast(x, {}, column_scale, dtype).rows.defined());
        CHECK(same_bits(cast(x, row_scale, {}, dtype).rows, copies.rows));
        CHECK(same_bits(cast(x, {}, column_scale, dtype).columns, copies.columns));
        const Tensor one = at::full({}, 3.0);
        const Copies shared = cast(x, one, one, dtype);
        CHECK(same_bits(shared.columns.narrow(0, 0, m), shared.rows));
        CHECK(same_bits(shared.rows, saturating_cast(x, one, dtype)));
        CHECK(same_bits(cast(shared.rows, {}, one, dtype).columns, shared.columns));  // FP8 already
      }
}

TEST_CASE("operands are scaled as each of their copies alone") {
  at::manual_seed(6);
  const Tensor x = at::randn({32, 64});
  const Scaling row = {.granularity = Granularity::kRow, .power_of_two = true};
  const Scaling column = {.granularity = Granularity::kColumn, .power_of_two = true};
  const Scaling tensor = {.power_of_two = true};
  for (const auto& [rows, columns] : {std::pair(row, column), std::pair(row, tensor),
                                      std::pair(Scaling{}, Scaling{}), std::pair(tensor, column)}) {
    const Operands operands = quantize_operands(x, rows, columns);
    CHECK(operands.rows.scale.equal(quantize(x, rows).scale));
    CHECK(operands.columns.scale.equal(quantize(x, columns).scale));
    CHECK(same_bits(operands.rows.values, quantize(x, rows).values));
    CHECK(same_bits(operands.columns.values, quantize(x, columns).values));
    CHECK(operands.rows.scale.is_same(operands.columns.scale) == (rows == columns));
    CHECK(operands.rows.inverse.equal(operands.rows.scale.reciprocal()));
  }
  const Tensor out = at::zeros({32, 64}).to(kE4m3);
  cast_into(out, x, quantize(x, {}).scale);
  CHECK(same_bits(out, quantize(x, {}).values));
  CHECK_THAT(error_of(ExitCode::kBug, [&] { quantize_operands(x, row, Scaling{}); }), Contains("two"));
  CHECK(!quantize_operands(x, row, std::nullopt).columns.values.defined());
  CHECK(!quantize_operands(x, std::nullopt, column).rows.values.defined());
}

}  // namespace hyperion::models
