#include "parallel/fsdp/gradient_pack.h"

#include <algorithm>

namespace hyperion::parallel {

void write_rows(const at::Tensor& grad, const at::Tensor& rows, bool add) {
  if (!grad.defined()) {
    if (!add) rows.zero_();
    return;
  }
  const auto write = [&](const at::Tensor& to, const at::Tensor& from) {
    if (add)
      to.add_(from);
    else
      to.copy_(from);
  };
  const at::Tensor flat = grad.reshape(-1);
  const int64_t count = rows.size(1), full = flat.numel() / count, rest = flat.numel() % count;
  write(rows.narrow(0, 0, full), flat.narrow(0, 0, full * count).view({full, count}));
  if (rest > 0) write(rows.select(0, full).narrow(0, 0, rest), flat.narrow(0, full * count, rest));
  if (add) return;
  if (rest > 0) rows.select(0, full).narrow(0, rest, count - rest).zero_();
  const int64_t used = full + (rest > 0 ? 1 : 0);
  if (used < rows.size(0)) rows.narrow(0, used, rows.size(0) - used).zero_();
}

bool chunk_cat_takes(const std::vector<at::Tensor>& grads, const at::Tensor& packed) {
  constexpr int64_t kMaxChunks = 65'535;  // of its grid
  return packed.is_cuda() && packed.size(0) <= kMaxChunks &&
         std::ranges::all_of(grads,
                             [&](const auto& grad) {
                               return grad.defined() && grad.is_contiguous() &&
                                      grad.scalar_type() == grads[0].scalar_type();
                             }) &&
         (grads[0].scalar_type() == packed.scalar_type() ||
          (grads[0].scalar_type() == at::kBFloat16 && packed.scalar_type() == at::kFloat));
}

bool adds_in_place(const std::vector<at::Tensor>& grads) {
  constexpr int64_t kNumelOfALaunch = 1 << 20;  // 8 MB of memory traffic take about as long as a launch
  int64_t numel = 0;
  for (const at::Tensor& grad : grads) numel += grad.numel();
  return numel >= kNumelOfALaunch * std::ssize(grads);
}

}  // namespace hyperion::parallel
