#include "models/kernels/attention/merge.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "models/kernels/kernels.h"

namespace hyperion::kernels {
namespace {

// The keys, or values, before the queries' own ones.
at::Tensor earlier(const at::Tensor& t, const at::Tensor& q) {
  return t.narrow(2, 0, t.size(2) - q.size(2));
}
at::Tensor own(const at::Tensor& t, const at::Tensor& q) {
  return t.narrow(2, t.size(2) - q.size(2), q.size(2));
}

}  // namespace

void merge_attention(const at::Tensor& output, const at::Tensor& lse, const AttentionResult& part) {
  table().merge_parts(output, lse, part.output, part.lse);
}

AttentionResult causal_attention_in_two_calls(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  AttentionResult result = attention_forward(q, own(k, q), own(v, q), {});
  merge_attention(result.output, result.lse,
                  attention_forward(q, earlier(k, q), earlier(v, q), {MaskKind::kAllKeys}));
  return result;
}

AttentionGradients causal_attention_in_two_calls_backward(const at::Tensor& grad_output, const at::Tensor& q,
                                                          const at::Tensor& k, const at::Tensor& v,
                                                          const AttentionResult& result) {
  const AttentionGradients to_own = attention_backward(grad_output, q, own(k, q), own(v, q), {}, result),
                           to_earlier = attention_backward(grad_output, q, earlier(k, q), earlier(v, q),
                                                           {MaskKind::kAllKeys}, result);
  const auto joined = [](const at::Tensor& first, const at::Tensor& last) {  // memory as of the keys
    return at::cat({first.transpose(1, 2), last.transpose(1, 2)}, 1).transpose(1, 2);
  };
  return {to_own.q + to_earlier.q, joined(to_earlier.k, to_own.k), joined(to_earlier.v, to_own.v)};
}

}  // namespace hyperion::kernels
