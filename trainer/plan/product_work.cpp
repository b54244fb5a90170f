#include "trainer/plan/product_work.h"

#include "trainer/config/schema.h"

namespace hyperion::trainer {

std::vector<Product> ProductCounter::products_of(
    const std::vector<models::ParameterShape>& parameters) const {
  std::vector<Product> products;
  for (const models::ParameterShape& shape : parameters) {
    if (shape.dims.size() != 2 || shape.domain == Domain::kExpert) continue;
    Product product{
        .shape = &shape, .in = static_cast<double>(shape.dims[1]), .out = static_cast<double>(shape.dims[0])};
    if (shape.split == models::kSplitByRows) product.out /= setting_.tensor;
    if (shape.split == models::kSplitByColumns) product.in /= setting_.tensor;
    const bool router = shape.name.ends_with("router.gate.weight");
    product.float8 = !router && multiplies_in_float8(shape, setting_.config, shape.name);
    products.push_back(product);
  }
  return products;
}

void ProductCounter::add(Family family, double times, double launches, double bytes, double flops, Rate rate,
                         bool casts) const {
  if (times <= 0) return;
  work_.kernels.push_back({.family = family,
                           .times = times * times_,
                           .launches = launches,
                           .bytes = bytes,
                           .flops = flops,
                           .rate = rate,
                           .casts_to_float8 = casts});
}

// A product in chunks is as many launches as ranks, each of which reads the weight.
double ProductCounter::reads_of_weight(const Product& product) const {
  const bool chunks = setting_.tensor > 1 && setting_.config.parallelism.enable_async_tensor_parallel;
  return chunks && product.shape->split ? setting_.tensor : 1;
}

void ProductCounter::add_products(std::span<const Product> products, double rows, double repeats) const {
  if (products[0].float8) return add_float8_products(products, rows, repeats);
  double out = 0;
  for (const Product& product : products) out += product.out;
  const double in = products[0].in, reads = reads_of_weight(products[0]);
  const Rate rate = element() == kFp32 ? Rate::kFp32 : Rate::kBf16;
  const bool apart = repeats > 0 && repeats < 1;  // selective checkpointing computes w1 and w3 apart
  const double parts = apart ? static_cast<double>(products.size()) : 1;
  const double forward_bytes = (parts * rows * in + reads * in * out + rows * out) * element();
  add(Family::kProducts, 1, parts * reads, forward_bytes, 2 * rows * in * out, rate);
  add(Family::kProducts, repeats > 0 ? 1 : 0, reads,
      (rows * in + repeats * (reads * in * out + rows * out)) * element(), repeats * 2 * rows * in * out,
      rate);
  add(Family::kProducts, 1, reads, (rows * out + reads * in * out + rows * in) * element(),
      2 * rows * in * out, rate);
  add(Family::kProducts, 1, 1, rows * (in + out) * element() + in * out * kFp32 * setting_.gradient_passes,
      2 * rows * in * out, rate);
}

void ProductCounter::add_float8_products(std::span<const Product> products, double rows,
                                         double repeats) const {
  const double in = products[0].in, reads = reads_of_weight(products[0]);
  const double runs = 1 + repeats;
  const bool gathers_float8 = setting_.config.quantize.linear.float8.enable_fsdp_float8_all_gather;
  // Tensor parallel ranks gather the inputs of column layers, and the gradients of row layers, in FP8.
  const double tensor = setting_.tensor;
  const bool column = tensor > 1 && products[0].shape->split == models::kSplitByRows,
             row = tensor > 1 && products[0].shape->split == models::kSplitByColumns;
  if (column) {
    add_gathered_cast(rows * in, runs);
    add(Family::kResidual, static_cast<double>(products.size()) - 1, reads, 3 * rows * in * element());
  } else {
    const double casts =
        mode() == config::RecomputeMode::kFull ? 2 : runs;  // also of a product that is not repeated
    add_cast(rows * in, casts - 1, 1);
    add_cast(rows * in, 1, casts > runs ? 1 : 2);  // dgrad and wgrad read the other layout
  }
  for (const Product& product : products) {
    const double weight = product.in * product.out, flops = 2 * rows * weight;
    if (!gathers_float8) add_cast(weight, 2, 2);  // of what forward gathers, and backward
    add(Family::kProducts, runs, reads, rows * product.in + reads * weight + rows * product.out * element(),
        flops, Rate::kFp8);
    if (row)
      add_gathered_cast(rows * product.out, 1);
    else
      add_cast(rows * product.out, 1, 2);
    if (gathers_float8) add(Family::kFloat8Casts, 1, 1, 2 * weight, 0, Rate::kBf16, true);  // transposes it
    add(Family::kProducts, 1, reads, rows * product.out + reads * weight + rows * product.in * element(),
        flops, Rate::kFp8Slow);
    add(Family::kProducts, 1, 1,
        rows * (product.in + product.out) + weight * kFp32 * setting_.gradient_passes, flops, Rate::kFp8Slow);
  }
}

void ProductCounter::add_cast(double elements, double times, double layouts) const {
  add(Family::kFloat8Casts, times, 2, elements * element());
  add(Family::kFloat8Casts, times, 1, elements * (element() + layouts), 0, Rate::kBf16, true);
}

// A rank casts its part, and transposes once what it gathers.
void ProductCounter::add_gathered_cast(double elements, double times) const {
  add_cast(elements / setting_.tensor, times, 1);
  add(Family::kFloat8Casts, 1, 1, 2 * elements, 0, Rate::kBf16, true);
}

}  // namespace hyperion::trainer
