#include "models/kernels/attention/attention.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include "base/error.h"
#include "base/log.h"
#include "models/args/attention_heads.h"
#include "models/kernels/attention/cpu.h"
#include "models/kernels/attention/gpu.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/matmul/matmul.h"

namespace hyperion::kernels {
namespace {

constexpr double kNoDropout = 0.0;

std::atomic<bool> cudnn_allowed{true}, libtorch_on_cpu{false};

bool is_causal(Causality causality) {
  return causality == Causality::kFromLastKey;
}

// libtorch's is causal from the first key.
bool libtorch_serves(const at::Tensor& q, const at::Tensor& k, const Documents& documents,
                     Causality causality) {
  return libtorch_on_cpu && is_fused_dtype(q) && !documents.defined() &&
         (!is_causal(causality) || q.size(2) == k.size(2));
}

// libtorch runs bf16 through the same slow products as matmul.h: it is widened to fp32 under the same
// condition.
at::Tensor to_product_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kBFloat16 && widens_bf16() ? t.to(at::kFloat) : t;
}

AttentionResult libtorch_cpu_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     Causality causality) {
  auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
      to_product_dtype(q), to_product_dtype(k), to_product_dtype(v), kNoDropout, is_causal(causality));
  return {out.to(q.scalar_type()), lse, {}};
}

AttentionGradients libtorch_cpu_backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const AttentionResult& result,
                                         Causality causality) {
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      to_product_dtype(grad), to_product_dtype(q), to_product_dtype(k), to_product_dtype(v),
      to_product_dtype(result.output), result.lse, kNoDropout, is_causal(causality));
  return {dq.to(q.scalar_type()), dk.to(q.scalar_type()), dv.to(q.scalar_type())};
}

void log_plain_attention(const at::Tensor& q) {
  static std::atomic<bool> logged{false};
  if (!logged.exchange(true))
    log_info(
        "Attention: plain operations, which are slow and hold all scores; the kernels for CPUs take float32 "
        "and "
        "bfloat16 and heads of up to 256, this is {} and {}",
        c10::toString(q.scalar_type()), q.size(3));
}

void require_keys_for_each_query(const at::Tensor& q, const at::Tensor& k, const Documents& documents,
                                 Causality causality) {
  if (is_causal(causality) && k.size(2) < q.size(2))
    throw_bug("attention of {} queries from the last of {} keys: the first queries would have no key",
              q.size(2), k.size(2));
  if (!is_causal(causality) && documents.defined())
    throw_bug("attention to all keys cannot stay inside documents, where queries may have no key");
}

}  // namespace

void allow_cudnn_attention(bool allowed) {
  cudnn_allowed = allowed;
}

void use_libtorch_attention_on_cpu(bool used) {
  libtorch_on_cpu = used;
}

AttentionKernel attention_kernel(const at::Tensor& q, int64_t keys, bool documents, Causality causality) {
  constexpr int64_t kCudnnHeadDim = 128;
  if (q.scalar_type() == at::kFloat || q.size(3) > gpu::kLargestFlashHead) return AttentionKernel::kEfficient;
  const bool cudnn_takes = is_causal(causality) ? keys == q.size(2) : keys % gpu::kCudnnLength == 0;
  if (documents || q.size(3) > kCudnnHeadDim || q.size(2) % gpu::kCudnnLength != 0 || !cudnn_takes ||
      at::globalContext().deterministicAlgorithms() || !cudnn_allowed)
    return AttentionKernel::kFlash;
  return AttentionKernel::kCudnn;
}

Documents documents_from(const at::Tensor& positions, at::Device device) {
  return documents_of_range(positions, 0, positions.size(1), device);
}

DocumentBounds document_bounds(const at::Tensor& positions, int64_t first, int64_t end) {
  const int64_t rows = positions.size(0), seq = positions.size(1), queries = end - first;
  const int32_t* position = positions.const_data_ptr<int32_t>();
  DocumentBounds bounds;
  const auto begin_document = [&](int64_t query, int64_t key) {
    bounds.queries.push_back(static_cast<int32_t>(query));
    bounds.keys.push_back(static_cast<int32_t>(key));
  };
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t query_row = row * queries, key_row = row * end;
    const int32_t* of_row = position + row * seq;
    const int64_t first_key = first - of_row[first];
    if (first_key > 0) begin_document(query_row, key_row);  // keys that no query sees
    begin_document(query_row, key_row + first_key);
    for (int64_t i = first + 1; i < end; ++i)
      if (of_row[i] == 0) begin_document(query_row + i - first, key_row + i);
  }
  begin_document(rows * queries, rows * end);
  return bounds;
}

Documents documents_of_range(const at::Tensor& positions, int64_t first, int64_t end, at::Device device) {
  const auto options = at::TensorOptions(at::kInt);
  Documents documents;
  if (device.is_cpu()) {
    documents.first_keys = at::arange(first, end, options) - positions.narrow(1, first, end - first);
    return documents;
  }
  const DocumentBounds bounds = document_bounds(positions, first, end);
  const auto longest = [](const std::vector<int32_t>& begins) {
    int64_t most = 0;
    for (size_t i = 1; i < begins.size(); ++i) most = std::max<int64_t>(most, begins[i] - begins[i - 1]);
    return most;
  };
  const auto to_device = [&](const std::vector<int32_t>& begins) {
    const at::Tensor on_host = at::empty({static_cast<int64_t>(begins.size())}, options.pinned_memory(true));
    std::ranges::copy(begins, on_host.mutable_data_ptr<int32_t>());
    return on_host.to(device, /*non_blocking=*/true);
  };
  documents.query_bounds = to_device(bounds.queries);
  documents.key_bounds = first == 0 ? documents.query_bounds : to_device(bounds.keys);
  documents.most_queries = longest(bounds.queries);
  documents.most_keys = longest(bounds.keys);
  return documents;
}

AttentionResult attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const Documents& documents, Causality causality) {
  require_keys_for_each_query(q, k, documents, causality);
  if (!q.is_cpu()) return gpu::attention_forward(q, k, v, documents, causality);
  if (libtorch_serves(q, k, documents, causality)) return libtorch_cpu_forward(q, k, v, causality);
  if (cpu::takes_attention(q))
    return cpu::attention_forward(q, k, v, documents.first_keys, causality, cpu::chosen_instructions());
  log_plain_attention(q);
  return plain::attention_forward(q, k, v, documents, causality);
}

AttentionGradients attention_backward(const at::Tensor& grad_output, const at::Tensor& q, const at::Tensor& k,
                                      const at::Tensor& v, const Documents& documents,
                                      const AttentionResult& result, Causality causality) {
  require_keys_for_each_query(q, k, documents, causality);
  if (!q.is_cpu()) return gpu::attention_backward(grad_output, q, k, v, documents, result, causality);
  if (libtorch_serves(q, k, documents, causality))
    return libtorch_cpu_backward(grad_output, q, k, v, result, causality);
  return cpu::takes_attention(q)
             ? cpu::attention_backward(grad_output, q, k, v, documents.first_keys, result, causality,
                                       cpu::chosen_instructions())
             : plain::attention_backward(grad_output, q, k, v, documents, result, causality);
}

}  // namespace hyperion::kernels
