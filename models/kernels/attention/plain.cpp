#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>

#include "models/kernels/attention/attention.h"
#include "models/kernels/attention/heads.h"
#include "models/kernels/common/dtype.h"

namespace hyperion::kernels::plain {
namespace {

// bool [batch or 1, 1, queries, keys]: whether a query (row) may attend to a key (column).
at::Tensor allowed(int64_t queries, int64_t keys, const AttentionMask& mask) {
  const at::Tensor key = at::arange(keys, at::kInt);
  const at::Tensor last_key = at::arange(keys - queries, keys, at::kInt).unsqueeze(1);
  at::Tensor causal = key.le(last_key);
  if (mask.window > 0) causal = causal.logical_and(key.gt(last_key - mask.window));
  if (!mask.has_documents()) return causal.unsqueeze(0).unsqueeze(0);
  return key.ge(mask.first_keys.unsqueeze(2)).logical_and_(causal).unsqueeze(1);
}

struct PlainInput {
  PlainInput(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask)
      : q(q.to(opmath_dtype(q))),
        k(repeat_heads(k.to(opmath_dtype(q)), q.size(1))),
        v(repeat_heads(v.to(opmath_dtype(q)), q.size(1))),
        scale(1 / std::sqrt(static_cast<double>(q.size(3)))),
        scores(at::matmul(this->q, this->k.transpose(2, 3)).mul_(scale)) {
    if (mask.kind == MaskKind::kAllKeys) return;
    scores.masked_fill_(allowed(q.size(2), k.size(2), mask).logical_not_(),
                        -std::numeric_limits<double>::infinity());
  }

  at::Tensor q, k, v;
  double scale;
  at::Tensor scores;  // [batch, heads, queries, keys]
};

}  // namespace

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionMask& mask) {
  const PlainInput in(q, k, v, mask);
  const at::Tensor lse = at::logsumexp(in.scores, {-1});
  const at::Tensor weights = (in.scores - lse.unsqueeze(-1)).exp_();
  return {at::matmul(weights, in.v).to(q.scalar_type()), lse, {}};
}

AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const AttentionMask& mask,
                                      const AttentionResult& result) {
  const PlainInput in(q, k, v, mask);
  const at::Tensor grad = grad_output.to(opmath_dtype(q)), output = result.output.to(opmath_dtype(q));
  const at::Tensor weights = (in.scores - result.lse.unsqueeze(-1)).exp_();
  const at::Tensor grad_weights = at::matmul(grad, in.v.transpose(2, 3));
  // Over all keys, of which these may be a part: from the output.
  const at::Tensor mean = (grad * output).sum(-1, /*keepdim=*/true);
  const at::Tensor grad_scores = (grad_weights - mean).mul_(weights).mul_(in.scale);
  const int64_t kv_heads = k.size(1);
  return {at::matmul(grad_scores, in.k).to(q.scalar_type()),
          sum_heads(at::matmul(grad_scores.transpose(2, 3), in.q), kv_heads).to(k.scalar_type()),
          sum_heads(at::matmul(weights.transpose(2, 3), grad), kv_heads).to(v.scalar_type())};
}

}  // namespace hyperion::kernels::plain
