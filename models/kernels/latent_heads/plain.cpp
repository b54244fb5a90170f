#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/stack.h>

#include "models/kernels/common/dtype.h"
#include "models/kernels/latent_heads/latent_heads.h"

namespace hyperion::kernels::plain {
namespace {

using at::Tensor;

Tensor wide(const Tensor& t) {
  return t.to(opmath_dtype(t));
}

// Rotates neighbouring elements of x [batch, seq, heads, width], wide; back: by the opposite angles.
Tensor rotate_neighbours(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back = false) {
  const Tensor pairs = x.unflatten(-1, {-1, 2});
  const Tensor even = pairs.select(-1, 0), odd = pairs.select(-1, 1);
  const Tensor c = cos.unsqueeze(-2), s = back ? -sin.unsqueeze(-2) : sin.unsqueeze(-2);  // of each head
  return at::stack({even * c - odd * s, even * s + odd * c}, -1).flatten(-2);
}

}  // namespace

Heads latent_heads(const Tensor& q, const Tensor& kv, const Tensor& shared, const Tensor& cos,
                   const Tensor& sin, double factor, int64_t value_width) {
  const int64_t rotated = shared.size(-1), plain = q.size(-1) - rotated, values = kv.size(-1) - plain;
  Tensor queries = at::cat(
      {wide(q.narrow(-1, 0, plain)), rotate_neighbours(wide(q.narrow(-1, plain, rotated)), cos, sin)}, -1);
  if (factor != 1) queries.mul_(factor);
  const Tensor rotated_keys = rotate_neighbours(wide(shared.unsqueeze(2)), cos, sin)
                                  .to(q.scalar_type())
                                  .expand({-1, -1, q.size(2), -1});
  const Tensor keys = at::cat({kv.narrow(-1, 0, plain), rotated_keys}, -1);
  return {queries.to(q.scalar_type()), keys,
          at::constant_pad_nd(kv.narrow(-1, plain, values), {0, value_width - values})};
}

LatentGradients latent_heads_backward(const Heads& grads, const Tensor& cos, const Tensor& sin, double factor,
                                      int64_t values) {
  const int64_t rotated = 2 * cos.size(-1), plain = grads.q.size(-1) - rotated;
  const at::ScalarType dtype = grads.q.scalar_type();
  const auto rotated_back = [&](const Tensor& t) { return rotate_neighbours(t, cos, sin, /*back=*/true); };
  Tensor of_q = at::cat(
      {wide(grads.q.narrow(-1, 0, plain)), rotated_back(wide(grads.q.narrow(-1, plain, rotated)))}, -1);
  if (factor != 1) of_q.mul_(factor);
  const Tensor of_kv = at::cat({grads.k.narrow(-1, 0, plain), grads.v.narrow(-1, 0, values)}, -1);
  const Tensor of_shared = rotated_back(wide(grads.k.narrow(-1, plain, rotated)).sum(2, /*keepdim=*/true));
  return {of_q.to(dtype), of_kv, of_shared.squeeze(2).to(dtype)};
}

}  // namespace hyperion::kernels::plain
