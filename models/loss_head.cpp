#include "models/loss_head.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/error.h"
#include "models/kernels/common/dtype.h"
#include "models/kernels/kernels.h"
#include "models/layers/row_exchange.h"

namespace hyperion::models {
namespace {

// Returns this rank's shard of the vocabulary.
kernels::VocabPart vocab_part(const Parameter& weight) {
  return {box_of(weight.shape, weight.cuts).offset[0], weight.shape[0]};
}

struct RowLosses {
  at::Tensor sum;          // 0-dim, or [2] with z-loss (kernels::CrossEntropy)
  at::Tensor log_sum_exp;  // [rows]
};

// Combines the vocab_statistics of all ranks, [ranks, rows, 3], in rank order, so that every rank gets the
// same bits.
RowLosses combine_statistics(const at::Tensor& statistics, const at::Tensor& labels, bool z_loss) {
  const at::Tensor max = statistics.select(2, 0).amax(0);
  at::Tensor sum = at::zeros_like(max), label_logit = at::zeros_like(max);
  for (int64_t rank = 0; rank < statistics.size(0); ++rank) {
    const at::Tensor shard = statistics.select(0, rank);
    sum.add_(shard.select(1, 1) * (shard.select(1, 0) - max).exp_());
    label_logit.add_(shard.select(1, 2));
  }
  const at::Tensor log_sum_exp = sum.log_().add_(max);
  const at::Tensor losses = log_sum_exp.to(at::kDouble) - label_logit.to(at::kDouble);
  const at::Tensor valid = labels.ne(kernels::kIgnoredLabel);
  const auto sum_of_counted = [&](const at::Tensor& rows) {
    return kernels::sum_of_losses(at::where(valid, rows, at::zeros({}, rows.options())))
        .to(statistics.scalar_type());
  };
  at::Tensor total = sum_of_counted(losses);
  if (z_loss) total = at::stack({total, sum_of_counted(log_sum_exp.to(at::kDouble).square())});
  return {std::move(total), log_sum_exp};
}

}  // namespace

// The rows of all chunks: the normed input and the labels.
struct LossHead::Rows {
  Rows(const at::Tensor& normed, const at::Tensor& labels, const Linear& output)
      : count(labels.numel()),
        labels(output.tp_group() == nullptr ? labels.flatten()
                                            : in_rank_order(labels, output.tp_group()->size())),
        options(normed.options()),
        gathered(normed.detach(), {&output}, OperandKind::kInput, gather_of({&output}, OperandKind::kInput)),
        operand(gathered.wait()) {}
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  int64_t count;
  at::Tensor labels;  // [count], in the order of the rows
  at::TensorOptions options;
  GatheredRows gathered;  // the normed input of all tokens
  Operand& operand;
};

struct LossHead::Chunk {
  int64_t first = 0, count = 0;
  Operand rows;
  at::Tensor labels;
  at::Tensor logits{};  // over this rank's shard of the vocabulary; then their gradient
  // The all-gather over a tensor parallel group: statistics [ranks, count, 3], or logits padded to equal
  // shards.
  at::Tensor local{}, gathered{};
  Pending exchange{};
};

LossHead::LossHead(Norm norm, ParameterPtr output, int64_t chunk_bytes, const ParallelDims& dims,
                   double z_loss)
    : chunk_bytes_(chunk_bytes),
      norm_(std::move(norm)),
      output_(std::move(output), nullptr, dims.active_tp_group()),
      loss_parallel_(dims.loss_parallel),
      z_loss_(z_loss) {}

// Returns the same number on every rank of the group, whose shards of the vocabulary may differ in size.
int64_t LossHead::rows_per_chunk(const Rows& rows) const {
  if (output_.couples_rows()) return rows.count;
  const int64_t parts = output_.tp_group() == nullptr || !loss_parallel_ ? 1 : output_.tp_group()->size();
  const int64_t columns = chunk_of(output_.weight()->shape[0], parts, 0).count;
  const int64_t row_bytes = columns * static_cast<int64_t>(rows.options.dtype().itemsize());
  const int64_t automatic = rows.options.device().is_cpu() ? int64_t{64} << 20 : int64_t{1} << 30;
  const int64_t at_once = parts > 1 ? 2 : 1;  // chunks
  const int64_t bytes = chunk_bytes_ > 0 ? chunk_bytes_ : automatic;
  const int64_t fit = std::max<int64_t>(1, bytes / (at_once * row_bytes));
  constexpr int64_t kTileRows = 256;  // the largest tile of a GPU's products
  return rows.options.device().is_cpu() || fit < kTileRows ? fit : fit / kTileRows * kTileRows;
}

LossHead::Chunk LossHead::start_chunk(Rows& rows, int64_t first, int64_t count) const {
  Chunk chunk{
      .first = first,
      .count = count,
      .rows = count == rows.count ? rows.operand : Operand(rows.operand.values.narrow(0, first, count)),
      .labels = rows.labels.narrow(0, first, count)};
  chunk.logits = output_.output(chunk.rows);
  Exchange* tp_group = output_.tp_group();
  if (tp_group == nullptr) return chunk;
  const Parameter& weight = *output_.weight();
  if (loss_parallel_) {
    chunk.local = kernels::table().vocab_statistics(chunk.logits, chunk.labels, vocab_part(weight));
  } else {
    const int64_t columns = chunk_of(weight.shape[0], tp_group->size(), 0).count;
    chunk.local = at::zeros({count, columns}, chunk.logits.options());
    chunk.local.narrow(1, 0, weight.rows()).copy_(chunk.logits);
    chunk.logits.reset();
  }
  chunk.gathered = at::empty({tp_group->size(), count, chunk.local.size(1)}, chunk.local.options());
  chunk.exchange = tp_group->start_all_gather_into(chunk.gathered, chunk.local);
  return chunk;
}

// Returns the chunk's loss. With `scale` its logits become their gradient, and the loss has the sum of the
// z-loss too if there is one.
at::Tensor LossHead::finish_chunk(Chunk& chunk, const at::Tensor* scale) const {
  const double z_loss = scale != nullptr ? z_loss_ : 0;
  if (output_.tp_group() == nullptr)
    return kernels::table().cross_entropy(chunk.logits, chunk.labels, scale, z_loss);
  chunk.exchange.wait();
  const Parameter& weight = *output_.weight();
  const kernels::VocabPart part = vocab_part(weight);
  if (loss_parallel_) {
    const RowLosses losses = combine_statistics(chunk.gathered, chunk.labels, z_loss != 0);
    if (scale != nullptr)
      kernels::table().vocab_gradient(chunk.logits, chunk.labels, part, losses.log_sum_exp, *scale, z_loss);
    return losses.sum;
  }
  // Only the last shards are short, so all padding is behind the vocabulary.
  const at::Tensor logits = chunk.gathered.transpose(0, 1).flatten(1).narrow(1, 0, part.vocab).contiguous();
  chunk.local.reset();
  chunk.gathered.reset();
  const at::Tensor loss = kernels::table().cross_entropy(logits, chunk.labels, scale, z_loss);
  if (scale != nullptr) chunk.logits = logits.narrow(1, part.first, weight.rows()).contiguous();
  return loss;
}

// Returns the sum of finish_chunk() over the chunks. Calls each(chunk) after finish_chunk(), in order.
template <typename EachChunk>
at::Tensor LossHead::add_up_loss(Rows& rows, const at::Tensor* scale, const EachChunk& each) const {
  const bool ahead =
      output_.tp_group() != nullptr && loss_parallel_;  // a chunk's exchange overlaps the next product
  const int64_t step = rows_per_chunk(rows);
  const at::ScalarType dtype = rows.operand.dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto options = rows.options.dtype(dtype);
  at::Tensor total = scale != nullptr && z_loss_ != 0 ? at::zeros({2}, options) : at::zeros({}, options);
  std::optional<Chunk> next;
  for (int64_t first = 0; first < rows.count; first += step) {
    const auto start = [&](int64_t at) { return start_chunk(rows, at, std::min(step, rows.count - at)); };
    Chunk chunk = next ? std::move(*next) : start(first);
    next.reset();
    if (ahead && first + step < rows.count) next.emplace(start(first + step));
    total.add_(finish_chunk(chunk, scale));
    each(chunk);
  }
  return total;
}

at::Tensor LossHead::loss_sum(const at::Tensor& x, const at::Tensor& labels) const {
  at::NoGradGuard no_grad;
  Rows rows(norm_.forward(x), labels, output_);
  return add_up_loss(rows, nullptr, [](const Chunk&) {});
}

LossHead::LossAndGrad LossHead::loss_and_grad(const at::Tensor& x, const at::Tensor& labels,
                                              const at::Tensor& scale) const {
  const at::Tensor leaf = x.detach().requires_grad_();
  const at::Tensor normed = [&] {
    at::AutoGradMode grad_mode(true);
    return norm_.forward(leaf);
  }();
  at::NoGradGuard no_grad;
  const Parameter& weight = *output_.weight();
  Rows rows(normed, labels, output_);
  rows.operand.makes_columns = weight.trainable;
  at::Tensor grad_h = at::empty({rows.count, x.size(-1)}, x.options());
  // The sum of earlier microbatches if the product adds to it. Otherwise fp32 if there are several chunks, so
  // that bf16 is rounded once.
  at::Tensor grad_weight = weight.weight.grad();
  const bool adds = weight.trainable && output_.multiplies_into(grad_weight);
  if (!adds) grad_weight.reset();
  std::optional<ScatteredSum> sum;
  const at::Tensor loss = add_up_loss(rows, &scale, [&](Chunk& chunk) {
    Operand grad(chunk.logits);
    grad_h.narrow(0, chunk.first, chunk.count).copy_(output_.input_gradient(grad));
    if (chunk.first + chunk.count == rows.count) sum.emplace(grad_h, output_.tp_group());
    if (!weight.trainable) return;
    if (chunk.count == rows.count && !adds)
      grad_weight = output_.weight_gradient(grad, chunk.rows);
    else
      output_.add_weight_gradient(grad_weight, grad, chunk.rows);
  });
  if (weight.trainable && !adds) {
    const bool takes_sum = weight.gradient_dtype == grad_weight.scalar_type();
    accumulate_gradient(*output_.weight(),
                        takes_sum ? grad_weight : grad_weight.to(weight.weight.scalar_type()));
  }
  torch::autograd::backward({normed}, {(sum ? sum->wait() : grad_h).view(x.sizes())});
  if (z_loss_ == 0) return {loss, leaf.grad(), {}};
  return {loss.select(0, 0), leaf.grad(), loss.select(0, 1) * z_loss_};
}

at::Tensor LossHead::logits(const at::Tensor& x) const {
  if (output_.tp_group() != nullptr)
    throw_bug("logits of a model that is divided over a tensor parallel group");
  at::NoGradGuard no_grad;
  const at::Tensor normed = norm_.forward(x);
  Operand rows(normed.flatten(0, 1));
  return output_.output(rows).unflatten(0, {x.size(0), x.size(1)});
}

}  // namespace hyperion::models
