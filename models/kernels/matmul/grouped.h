// Matrix products of several pairs at once, as those of experts: the rows of one operand are divided among
// the matrices of a stack, in order. Either the host knows how many rows each matrix gets, zero allowed, and
// multiplies one pair after the other; or only the device does: then libtorch multiplies all of them in one
// launch, and the groups of rows are padded.
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

struct RowGroups {
  std::span<const int64_t> counts{};  // rows of each group, on the host
  at::Tensor
      ends{};  // int32 [groups], on the device: where each padded group ends; undefined: the host knows
};

// Products of rows with each of `groups` matrices of widths k and j.
struct GroupedShape {
  int64_t groups, k, j;
};
// Why libtorch has no single launch for these on a GPU of that compute capability (90 for 9.0); null: it has.
const char* why_not_at_once(at::ScalarType dtype, int compute_capability, const GroupedShape& shape);
// Whether it has one for rows like those of `a`, which is where their groups are to be padded.
bool multiplies_groups_at_once(const at::Tensor& a, const GroupedShape& shape);

// What that product asks groups of rows to be multiples of: 16 bytes where rows are the depth.
inline constexpr int64_t kGroupUnit = 8;

// Each group in multiples of `unit` rows, and at least that many: a group without rows is one of zeros. The
// last row is never one of a group.
struct PaddedGroups {
  int64_t rows;          // of all groups, and some to spare: what the host can know; a multiple of the unit
  at::Tensor ends{};     // int32 [groups]
  at::Tensor shift{};    // int64 [groups]: a row's number, less its number where groups are not padded
  at::Tensor padding{};  // int64 [unit x groups]: rows that belong to no one; the last row stands for none
};
// Rows of so many padded groups with `rows` in all, and some to spare.
inline constexpr int64_t padded_rows(int64_t rows, int64_t groups, int64_t unit) {
  return (rows + unit - 1) / unit * unit + (groups + 1) * unit;
}
// counts: int64 [groups], on any device, of `rows` in all. No wait for the device.
PaddedGroups pad_groups(const at::Tensor& counts, int64_t rows, int64_t unit = kGroupUnit);

// For each group: its rows of a [rows, k] times b[group], b [n, k, j] with any strides -> [rows, j]. Of rows
// behind the last padded group the elements are undefined.
at::Tensor grouped_matmul(const at::Tensor& a, const at::Tensor& b, const RowGroups& groups);

// For each group: its rows of a [rows, m], transposed, times its rows of b [rows, k] -> [n, m, k]; zeros
// without rows. Rows of the padding must be zeros in one of them and finite in the other.
at::Tensor grouped_outer_matmul(const at::Tensor& a, const at::Tensor& b, const RowGroups& groups);

}  // namespace hyperion::kernels
