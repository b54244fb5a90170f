// Scaled dot-product attention with grouped queries, and its backward, on the fastest backend for the device
// and dtype.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace hyperion::kernels {

// Which keys a query may attend to.
enum class Causality {
  // Query i of n: keys 0 to i + (keys - n). The last query sees the last key, and there are at least as many
  // keys as queries.
  kFromLastKey,
  kNone,  // all keys, of which there is at least one; without documents
};

// What a forward leaves for its backward, which also takes the output and the log-sum-exp of several calls
// that have been merged (models/kernels/attention/merge.h), with the extras of any of them.
struct AttentionResult {
  at::Tensor output;  // [batch, heads, queries, head_dim] in q's dtype
  // Natural logarithm of the sum of exponentials of the scaled scores, fp32 (fp64 for fp64) [batch, heads,
  // queries]; for a backward on a GPU contiguous. Undefined with documents on a GPU, whose kernels keep it by
  // document, in the extras.
  at::Tensor lse;
  std::vector<at::Tensor> extras;  // backend-specific
};

// The documents that are packed into the rows of a batch, each of which attention stays inside; none: a row
// is one.
struct Documents {
  // On a CPU: int32 [batch, queries], the first key of each query's document, an index of the given keys.
  at::Tensor first_keys;
  // On a GPU: int32 [documents + 1], where the queries and the keys of each begin, counted over all rows, and
  // the number of queries and keys. The last query of a document sees its last key; keys that no query sees
  // are documents without queries.
  at::Tensor query_bounds, key_bounds;
  int64_t most_queries = 0, most_keys = 0;  // of one document

  bool defined() const { return first_keys.defined() || query_bounds.defined(); }
};
// positions: int32 [batch, seq] on the CPU, counted inside each document; each row begins with 0. On a GPU
// the result is copied without waiting for it.
Documents documents_from(const at::Tensor& positions, at::Device device);
// Of queries [first, end) of every row, 0 <= first < end <= seq, which attend to keys [0, end). positions: as
// above, of complete rows.
Documents documents_of_range(const at::Tensor& positions, int64_t first, int64_t end, at::Device device);
// Documents::query_bounds and key_bounds of these, on the host.
struct DocumentBounds {
  std::vector<int32_t> queries, keys;
};
DocumentBounds document_bounds(const at::Tensor& positions, int64_t first, int64_t end);

// q [batch, heads, queries, head_dim]; k, v [batch, kv_heads, keys, head_dim], heads a multiple of kv_heads;
// scale 1/sqrt(head_dim). Inside `documents`, which are those of q's device.
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Documents& documents, Causality causality = Causality::kFromLastKey);

// The kernel that serves a GPU tensor q [batch, heads, queries, head_dim] and so many keys. cuDNN is the
// fastest on Hopper in half precision up to head_dim 128, causal where there are as many keys as queries, but
// builds a graph for every new length (prompts come in all lengths) and does not repeat its bits; Flash does
// where libtorch is asked for deterministic algorithms, and takes documents as sequences of different
// lengths. The efficient kernels do the latter too, and serve fp32 and every head_dim.
enum class AttentionKernel { kCudnn, kFlash, kEfficient };
AttentionKernel attention_kernel(const at::Tensor& q, int64_t keys, bool documents,
                                 Causality causality = Causality::kFromLastKey);
// Sets whether attention_kernel() may choose cuDNN from now on, in the whole process (true at first); flash
// serves in its place. Not to be changed between a forward and its backward.
void allow_cudnn_attention(bool allowed);
// Sets whether fp32 and bf16 without documents run libtorch's flash attention on a CPU in place of our
// kernels (but causal with more keys than queries, which it does not do), in the whole process (false at
// first), for comparison with programs that do. Not to be changed between a forward and its backward.
void use_libtorch_attention_on_cpu(bool used);

struct AttentionGradients {
  at::Tensor q, k, v;
};
AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const Documents& documents,
                                      const AttentionResult& result,
                                      Causality causality = Causality::kFromLastKey);

// Their specification, in plain operations with all scores in memory, which serves CPUs where their kernels
// (models/kernels/attention/cpu.h) do not: fp64 and heads larger than theirs.
namespace plain {
AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Documents& documents, Causality causality = Causality::kFromLastKey);
AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const Documents& documents,
                                      const AttentionResult& result,
                                      Causality causality = Causality::kFromLastKey);
}  // namespace plain

}  // namespace hyperion::kernels
