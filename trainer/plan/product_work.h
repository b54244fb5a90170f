// Counts the products of a block and the casts of their operands.
#pragma once

#include <span>
#include <vector>

#include "trainer/plan/block_work.h"

namespace hyperion::trainer {

// A product of a block: its weight, and this rank's part of it.
struct Product {
  const models::ParameterShape* shape;
  double in = 0, out = 0;  // widths of this rank's part
  bool float8 = false;
};

// Adds the kernels of `times` runs of a block to a step's work.
class ProductCounter {
 protected:
  static constexpr double kFp32 = 4;  // bytes

  ProductCounter(const BlockSetting& setting, double times, StepWork& work)
      : setting_(setting), times_(times), work_(work) {}

  config::RecomputeMode mode() const { return setting_.mode; }
  double tokens() const { return setting_.tokens; }
  double element() const { return setting_.element; }

  void add(Family family, double times, double launches, double bytes, double flops = 0,
           Rate rate = Rate::kBf16, bool casts = false) const;
  // The products with dense weights.
  std::vector<Product> products_of(const std::vector<models::ParameterShape>& parameters) const;
  // Adds the products of this rank's `rows` rows with weights that read the same input: one in bf16, apart in
  // FP8. `repeats`: how many of them backward recomputes.
  void add_products(std::span<const Product> products, double rows, double repeats) const;
  // Finds the largest element in two launches, then casts to rows, columns or both.
  void add_cast(double elements, double times, double layouts) const;

  const BlockSetting& setting_;
  const double times_;
  StepWork& work_;

 private:
  void add_float8_products(std::span<const Product> products, double rows, double repeats) const;
  void add_gathered_cast(double elements, double times) const;
  double reads_of_weight(const Product& product) const;
};

}  // namespace hyperion::trainer
