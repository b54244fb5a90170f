// Grouped matrix products, as those of experts: consecutive groups of rows are multiplied by the matrices of
// a stack. If the host knows the number of rows of each group (zero is allowed), it multiplies one group
// after the other. If only the device knows it, libtorch multiplies all groups in one launch, and the groups
// are padded.
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

struct RowGroups {
  std::span<const int64_t> counts{};  // the number of rows of each group, if the host knows it
  at::Tensor ends{};                  // else int32 [groups] on the device: the end of each padded group
};

// The shape of a grouped product: `groups` matrices of widths k and j.
struct GroupedShape {
  int64_t groups, k, j;
};
// Returns why libtorch has no single launch for the shape on a GPU of that compute capability (90 for 9.0);
// null if it has.
const char* why_not_at_once(at::ScalarType dtype, int compute_capability, const GroupedShape& shape);
// Returns whether libtorch has a single launch for rows like those of `a`. Their groups must then be padded.
bool multiplies_groups_at_once(const at::Tensor& a, const GroupedShape& shape);

// The multiple of rows that the single launch needs: 16 bytes if rows are the depth.
inline constexpr int64_t kGroupUnit = 8;

// Groups of rows that are padded to multiples of `unit`, and to at least `unit`: a group without rows has
// zeros. The last row never belongs to a group.
struct PaddedGroups {
  int64_t rows;          // padded_rows(): an upper bound that the host knows, a multiple of the unit
  at::Tensor ends{};     // int32 [groups]
  at::Tensor shift{};    // int64 [groups]: a row's padded index minus its index without padding
  at::Tensor padding{};  // int64 [unit x groups]: the padding rows; unused entries are the last row
};
// Returns an upper bound of the number of padded rows, for `rows` rows in all.
inline constexpr int64_t padded_rows(int64_t rows, int64_t groups, int64_t unit) {
  return (rows + unit - 1) / unit * unit + (groups + 1) * unit;
}
// Pads groups of `counts` rows, int64 [groups] on any device, `rows` in all. The host does not wait for the
// device.
PaddedGroups pad_groups(const at::Tensor& counts, int64_t rows, int64_t unit = kGroupUnit);

// Multiplies the rows of each group of a [rows, k] by b[group], b [n, k, j] with any strides -> [rows, j].
// Rows behind the last padded group are undefined.
at::Tensor grouped_matmul(const at::Tensor& a, const at::Tensor& b, const RowGroups& groups);

// Multiplies, for each group, its rows of a [rows, m], transposed, by its rows of b [rows, k] -> [n, m, k];
// zeros for a group without rows. Padding rows must be zeros in one operand and finite in the other.
at::Tensor grouped_outer_matmul(const at::Tensor& a, const at::Tensor& b, const RowGroups& groups);

}  // namespace hyperion::kernels
