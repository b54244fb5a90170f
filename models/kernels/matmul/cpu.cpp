#include "models/kernels/attention/cpu.h"

#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>

#include "base/device/parallel_for.h"
#include "base/error.h"
#include "base/processor.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/scratch.h"
#include "models/kernels/matmul/cpu_blocks.h"
#include "models/kernels/matmul/matmul.h"

namespace hyperion::kernels::cpu {
namespace {

// The bytes of the right matrix that are packed at a time: they stay in the last cache.
constexpr int64_t kPackedBytes = int64_t{8} << 20;

bool uses_own_products() {
  static const bool uses = chosen_instructions() >= Instructions::kAvx512 && !processor::has_amx_tiles();
  return uses;
}

bool multiplies_pairs() {
  static const bool pairs = chosen_instructions() == Instructions::kAvx512Bf16;
  return pairs;
}

bool has_neighbours(const at::Tensor& t) {
  return t.stride(1) == 1 || t.stride(0) == 1;
}

Matrix matrix(const at::Tensor& t) {
  return {t.const_data_ptr(), t.stride(0), t.stride(1)};
}

const ProductKernels& products_for(const at::Tensor& t) {
#ifdef HYPERION_X86_64
  const MatmulBlocks& blocks = multiplies_pairs() ? matmul_blocks_avx512_bf16() : matmul_blocks_avx512();
  return t.scalar_type() == at::kBFloat16 ? blocks.bf16 : blocks.fp32;
#else
  throw_bug("products of our own on a processor that has none");
#endif
}

}  // namespace

bool takes_matmul(const at::Tensor& a, const at::Tensor& b) {
  constexpr int64_t kFewestRows = 32, kFewest = 1 << 18;
  // Rows of `a` whose depth is not contiguous (gradients of weights, whose depth is the tokens) are packed
  // once for each kPackedBytes of b, in memory of each thread. Even for two panels that is faster than
  // libtorch's products of bf16 where pairs are slow.
  const int64_t fewest_panels = a.scalar_type() == at::kBFloat16 && !multiplies_pairs() ? 2 : 8;
  return a.is_cpu() && is_fused_dtype(a) && a.scalar_type() == b.scalar_type() && uses_own_products() &&
         a.size(0) >= kFewestRows && a.numel() * b.size(1) >= kFewest && has_neighbours(a) &&
         has_neighbours(b) && products_for(a).takes(matrix(a), a.size(1)) &&
         (a.stride(1) == 1 || products_for(a).panel_bytes(a.size(1)) * fewest_panels <= kPackedBytes);
}

at::Tensor matmul(const at::Tensor& a, const at::Tensor& b) {
  RECORD_FUNCTION("hyperion::mm", std::vector<c10::IValue>({a, b}));
  const int64_t rows = a.size(0), depth = a.size(1), columns = b.size(1);
  const ProductKernels& kernels = products_for(a);
  const at::Tensor c = at::empty({rows, columns}, a.options());
  const int64_t panel_bytes = kernels.panel_bytes(depth), panels = (columns + kPanel - 1) / kPanel,
                at_once = std::min(panels, std::max<int64_t>(1, kPackedBytes / panel_bytes));
  const at::Tensor packed = at::empty({at_once * panel_bytes / 4}, a.options().dtype(at::kFloat));
  auto* to = reinterpret_cast<char*>(packed.mutable_data_ptr<float>());
  const Matrix right = matrix(b);
  const int64_t element = a.element_size();
  for (int64_t first = 0; first < panels; first += at_once) {
    const int64_t last = std::min(panels, first + at_once);
    parallel_for(first, last, 1, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; ++panel)
        kernels.pack(right, depth, columns, panel * kPanel, to + (panel - first) * panel_bytes);
    });
    const ProductCall call{.a = matrix(a),
                           .panels = to,
                           .rows = rows,
                           .depth = depth,
                           .columns = std::min(columns, last * kPanel) - first * kPanel,
                           .c = static_cast<char*>(c.mutable_data_ptr()) + first * kPanel * element,
                           .c_stride = columns};
    // Few ranges where there are few rows, because each reads all panels.
    constexpr int64_t kTiles = 16;
    const int64_t tiles = (rows + kTile - 1) / kTile, threads = at::get_num_threads();
    parallel_for(0, tiles, std::min(kTiles, (tiles + threads - 1) / threads),
                 [&](int64_t begin, int64_t end) {
                   kernels.multiply(call, begin, end, thread_scratch(kernels.scratch_bytes(call) / 4));
                 });
  }
  return c;
}

}  // namespace hyperion::kernels::cpu
