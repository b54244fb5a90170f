#include "models/kernels/kernels.h"

#include <algorithm>
#include <mutex>
#include <set>

#include <fmt/format.h>

#include "base/device/device_library.h"
#include "base/log.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/common/limits.h"

namespace hyperion::kernels {
namespace {

// Why the fused forms do not take tensors: what all kernels have in common, and of one kernel.
std::string why_plain_dtype(const at::Tensor& x) {
  return is_fused_dtype(x) ? "" : fmt::format("tensors of dtype {}", c10::toString(x.scalar_type()));
}
std::string why_plain_norm(const at::Tensor& x, const at::Tensor& weight) {
  return is_fused_dtype(x) && weight.scalar_type() != x.scalar_type() ? "a weight of another dtype"
                                                                      : why_plain_dtype(x);
}
// Returns whether all that are defined have the dtype of x.
bool alike(const at::Tensor& x, at::TensorList others) {
  return std::ranges::all_of(
      others, [&](const at::Tensor& t) { return !t.defined() || t.scalar_type() == x.scalar_type(); });
}
std::string why_plain_rope(const Heads& x, const at::Tensor& cos, const at::Tensor&, const models::RopeStyle&,
                           const int64_t&) {
  if (!is_fused_dtype(x.q)) return why_plain_dtype(x.q);
  if (cos.scalar_type() != at::kFloat) return "angles that are not fp32";
  return alike(x.q, {x.k, x.v}) ? "" : "heads of different dtypes";
}
std::string why_plain_latent(const at::Tensor& heads, at::TensorList others, const at::Tensor& cos,
                             int64_t values) {
  if (!is_fused_dtype(heads)) return why_plain_dtype(heads);
  if (!alike(heads, others)) return "heads of different dtypes";
  if (cos.scalar_type() != at::kFloat) return "angles that are not fp32";
  return heads.size(-1) % 2 == 0 && values % 2 == 0 ? "" : "heads of odd widths";
}
std::string why_plain_keys(const at::Tensor& chunks, const at::Tensor& k, const at::Tensor& v) {
  if (!is_fused_dtype(k)) return why_plain_dtype(k);
  if (!alike(k, {v})) return "keys and values of different dtypes";
  return chunks.scalar_type() == at::kFloat || alike(k, {chunks}) ? "" : why_plain_dtype(chunks);
}
std::string why_plain_experts(const at::Tensor& x, int64_t experts) {
  return !x.is_cuda() || experts <= kMaxFusedExperts ? "" : fmt::format("{} experts", experts);
}
std::string why_plain_order(const at::Tensor& choices, int64_t groups) {
  return !choices.is_cuda() || groups <= kMaxRowGroups ? "" : fmt::format("{} groups of rows", groups);
}
// dtype: of logits, or of their gradient.
std::string why_plain_weights(const at::Tensor& scores, at::ScalarType dtype) {
  if (scores.scalar_type() != at::kFloat)
    return fmt::format("scores of dtype {}", c10::toString(scores.scalar_type()));
  return is_fused_dtype(dtype) ? "" : fmt::format("logits of dtype {}", c10::toString(dtype));
}
std::string why_plain_loss(const at::Tensor& logits, const at::Tensor& labels) {
  return is_fused_dtype(logits) && !(logits.is_contiguous() && labels.is_contiguous())
             ? "rows with gaps"
             : why_plain_dtype(logits);
}

// libtorch's operations are fused enough for a CPU, which waits for attention and not for its merges.
void merge_parts_on_cpu(const at::Tensor& output, const at::Tensor& lse, const at::Tensor& part_output,
                        const at::Tensor& part_lse) {
  plain::merge_parts(output, lse, part_output, part_lse);
}

// The table where nothing is chosen: name, title, why the plain form alone takes some tensors, the plain
// form, and, where they exist, the fused form of a CPU and libtorch's of a GPU. choose_kernels() adds ours of
// a GPU.
Kernels all_forms() {
  return {
      .rms_norm = {"hyperion::rms_norm", "RMSNorm",
                   [](auto& x, auto& weight, auto&) { return why_plain_norm(x, weight); }, plain::rms_norm,
                   cpu::rms_norm, libtorch::rms_norm},
      .rms_norm_backward = {"hyperion::rms_norm_backward", "RMSNorm",
                            [](auto&, auto& x, auto& weight, auto&) { return why_plain_norm(x, weight); },
                            plain::rms_norm_backward, cpu::rms_norm_backward, libtorch::rms_norm_backward},
      .add_rms_norm = {"hyperion::add_rms_norm", "residual sum with RMSNorm",
                       [](auto& x, auto&, auto& weight, auto&) { return why_plain_norm(x, weight); },
                       plain::add_rms_norm, cpu::add_rms_norm},
      .add_rms_norm_backward = {"hyperion::add_rms_norm_backward", "residual sum with RMSNorm",
                                [](auto&, auto&, auto& sum, auto& weight, auto&, auto&) {
                                  return why_plain_norm(sum, weight);
                                },
                                plain::add_rms_norm_backward, cpu::add_rms_norm_backward},
      .rope_heads = {"hyperion::rope_heads", "RoPE", why_plain_rope, plain::rope_heads, cpu::rope_heads},
      .rope_heads_backward = {"hyperion::rope_heads_backward", "RoPE", why_plain_rope,
                              plain::rope_heads_backward, cpu::rope_heads_backward},
      .gated_activation = {"hyperion::gated_activation", "gated activation",
                           [](auto& gate, auto&...) { return why_plain_dtype(gate); },
                           plain::gated_activation, cpu::gated_activation},
      .gated_activation_backward = {"hyperion::gated_activation_backward", "gated activation",
                                    [](auto&, auto& gate, auto&...) { return why_plain_dtype(gate); },
                                    plain::gated_activation_backward, cpu::gated_activation_backward},
      .clamped_gate = {"hyperion::clamped_gate", "gated activation", why_plain_dtype, plain::clamped_gate,
                       cpu::clamped_gate},
      .clamped_gate_backward = {"hyperion::clamped_gate_backward", "gated activation",
                                [](auto&, auto& h) { return why_plain_dtype(h); },
                                plain::clamped_gate_backward, cpu::clamped_gate_backward},
      .latent_heads = {"hyperion::latent_heads", "latent attention's heads",
                       [](auto& q, auto& kv, auto& shared, auto& cos, auto&...) {
                         return why_plain_latent(q, {kv, shared}, cos, kv.size(-1) + shared.size(-1));
                       },
                       plain::latent_heads, cpu::latent_heads},
      .latent_heads_backward = {"hyperion::latent_heads_backward", "latent attention's heads",
                                [](auto& grads, auto& cos, auto&, auto&, auto& values) {
                                  return why_plain_latent(grads.q, {grads.k, grads.v}, cos, values);
                                },
                                plain::latent_heads_backward, cpu::latent_heads_backward},
      .pack_keys = {"hyperion::pack_keys_", "chunks of keys", why_plain_keys, plain::pack_keys,
                    cpu::pack_keys},
      .add_keys = {"hyperion::add_keys_", "chunks of keys", why_plain_keys, plain::add_keys, cpu::add_keys},
      .unpack_keys = {"hyperion::unpack_keys_", "chunks of keys",
                      [](auto& keys, auto& chunks, auto&) { return why_plain_keys(chunks, keys, keys); },
                      plain::unpack_keys, cpu::unpack_keys},
      .merge_parts = {"hyperion::merge_parts_", "parts of attention",
                      [](auto&, auto& lse, auto& part, auto&) {
                        return why_plain_dtype(lse.scalar_type() == at::kDouble ? lse : part);
                      },
                      plain::merge_parts, merge_parts_on_cpu},
      .route_tokens = {"hyperion::route_tokens", "router",
                       [](auto& logits, auto&, auto& options) {
                         return is_fused_dtype(logits) ? why_plain_experts(logits, options.experts)
                                                       : why_plain_dtype(logits);
                       },
                       plain::route_tokens, cpu::route_tokens},
      .routing_weights = {"hyperion::routing_weights", "router",
                          [](auto& scores, auto&...) { return why_plain_weights(scores, at::kFloat); },
                          plain::routing_weights, cpu::routing_weights},
      .routing_weights_backward = {"hyperion::routing_weights_backward", "router",
                                   [](auto&, auto& scores, auto&, auto&, auto&, auto& dtype) {
                                     return why_plain_weights(scores, dtype);
                                   },
                                   plain::routing_weights_backward, cpu::routing_weights_backward},
      .order_rows = {"hyperion::order_rows", "rows of experts",
                     [](auto& choices, auto& groups, auto&) { return why_plain_order(choices, groups); },
                     plain::order_rows, cpu::order_rows},
      .gather_rows = {"hyperion::gather_rows", "rows of experts",
                      [](auto& x, auto&...) { return why_plain_dtype(x); }, plain::gather_rows,
                      cpu::gather_rows},
      .sum_rows = {"hyperion::sum_rows", "rows of experts",
                   [](auto& rows, auto&...) { return why_plain_dtype(rows); }, plain::sum_rows,
                   cpu::sum_rows},
      .products_of_rows = {"hyperion::products_of_rows", "rows of experts",
                           [](auto& a, auto&...) { return why_plain_dtype(a); }, plain::products_of_rows,
                           cpu::products_of_rows},
      .weight_rows = {"hyperion::weight_rows", "rows of experts",
                      [](auto& a, auto&...) { return why_plain_dtype(a); }, plain::weight_rows,
                      cpu::weight_rows},
      .add_group_bias = {"hyperion::add_group_bias_", "rows of experts",
                         [](auto& rows, auto&...) { return why_plain_dtype(rows); }, plain::add_group_bias,
                         cpu::add_group_bias},
      .sum_groups = {"hyperion::sum_groups", "rows of experts",
                     [](auto& grad, auto&) { return why_plain_dtype(grad); }, plain::sum_groups,
                     cpu::sum_groups},
      .pack_row_sums = {"hyperion::pack_row_sums", "rows of experts",
                        [](auto& rows, auto&...) { return why_plain_dtype(rows); }, plain::pack_row_sums,
                        cpu::pack_row_sums},
      .sum_packed_rows = {"hyperion::sum_packed_rows", "rows of experts",
                          [](auto&, auto&, auto&, auto&, auto&, auto& dtype) {
                            return is_fused_dtype(dtype)
                                       ? ""
                                       : fmt::format("sums of dtype {}", c10::toString(dtype));
                          },
                          plain::sum_packed_rows, cpu::sum_packed_rows},
      .cross_entropy = {"hyperion::cross_entropy_", "cross-entropy",
                        [](auto& logits, auto& labels, auto&...) { return why_plain_loss(logits, labels); },
                        plain::cross_entropy, cpu::cross_entropy},
      .vocab_statistics = {"hyperion::vocab_statistics", "cross-entropy",
                           [](auto& logits, auto& labels, auto&) { return why_plain_loss(logits, labels); },
                           plain::vocab_statistics, cpu::vocab_statistics},
      .vocab_gradient = {"hyperion::vocab_gradient_", "cross-entropy",
                         [](auto& logits, auto& labels, auto&...) { return why_plain_loss(logits, labels); },
                         plain::vocab_gradient, cpu::vocab_gradient},
      .sum_of_squares = {"hyperion::sum_of_squares", "sum of squares", why_plain_dtype, plain::sum_of_squares,
                         cpu::sum_of_squares},
      .rounded_adam = {"hyperion::rounded_adam_", "optimizer states in bf16",
                       [](auto&...) { return std::string(); }, plain::rounded_adam, cpu::rounded_adam},
      .rounded_momentum = {"hyperion::rounded_momentum_", "optimizer states in bf16",
                           [](auto&...) { return std::string(); }, plain::rounded_momentum,
                           cpu::rounded_momentum},
      .adam_update = cpu::adam_update,
      .cpu_matmul = cpu::matmul};
}

template <typename F>
void for_each_row(Kernels& k, const F& f) {
  const auto all = [&](auto&... rows) { (f(rows), ...); };
  all(k.rms_norm, k.rms_norm_backward, k.add_rms_norm, k.add_rms_norm_backward, k.rope_heads,
      k.rope_heads_backward, k.gated_activation, k.gated_activation_backward, k.clamped_gate,
      k.clamped_gate_backward, k.latent_heads, k.latent_heads_backward, k.pack_keys, k.add_keys,
      k.unpack_keys, k.merge_parts, k.route_tokens, k.routing_weights, k.routing_weights_backward,
      k.order_rows, k.gather_rows, k.sum_rows, k.products_of_rows, k.weight_rows, k.add_group_bias,
      k.sum_groups, k.pack_row_sums, k.sum_packed_rows, k.cross_entropy, k.vocab_statistics, k.vocab_gradient,
      k.sum_of_squares);
}

Kernels& process_table() {
  static Kernels table = all_forms();
  return table;
}

}  // namespace

const Kernels& table() {
  return process_table();
}

KernelForms choose_kernels(KernelChoice choice, at::DeviceType device) {
  const bool on_gpu = device == at::kCUDA;
  Kernels made = all_forms();
  const auto titles = [&](const auto& wanted) {  // of rows whose form is wanted, each once
    std::vector<std::string> found;
    for_each_row(made, [&](const auto& row) {
      const bool plain = (on_gpu ? row.cuda : row.cpu) == row.plain;
      if (wanted(plain) && (found.empty() || found.back() != row.title)) found.emplace_back(row.title);
    });
    return found;
  };
  const auto fused = [](bool plain) { return !plain; };
  KernelForms forms;
  if (choice == KernelChoice::kPlain) {
    const auto make_plain = [](auto& row) { row.cpu = row.cuda = row.plain; };
    for_each_row(made, make_plain);
    make_plain(made.rounded_adam);
    make_plain(made.rounded_momentum);
    made.adam_update = nullptr;
    made.cpu_matmul = nullptr;
  } else if (on_gpu) {
    forms.libtorchs = titles(fused);
    device_library().add_kernels(made);
  }
  forms.ours = titles(fused);
  std::erase_if(forms.ours, [&](const std::string& title) {
    return std::ranges::find(forms.libtorchs, title) != forms.libtorchs.end();
  });
  forms.plain = titles([](bool plain) { return plain; });
  process_table() = made;
  return forms;
}

void log_plain(const char* title, const std::string& reason) {
  static std::mutex mutex;
  static std::set<std::string> logged;
  const std::scoped_lock lock(mutex);
  const std::string line = fmt::format("No fused {} for {}: its plain form runs instead", title, reason);
  if (logged.insert(line).second) log_info("{}", line);
}

}  // namespace hyperion::kernels
