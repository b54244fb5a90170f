// A tiny model in one process, whole or divided over a tensor parallel group, and one microbatch through it
// as the trainer runs it: equal tokens and weights for every division.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/flavors/registry.h"
#include "models/layers/activation_checkpoint.h"
#include "models/transformer.h"
#include "parallel/comm/process_group.h"
#include "tests/support/comm_ledger.h"
#include "tests/support/ranks.h"

namespace hyperion::models {

using at::Tensor;

inline constexpr int64_t kSeq = 12;  // divided by 2, 3 and 4

struct DividedJob {
  const char* model = "llama3";
  int64_t heads = 4, kv_heads = 2, dim = 18, head_dim = 6, hidden = 25, vocab = 17, layers = 2;
  int64_t batch = 2;
  int64_t window = 0;  // in every second layer
  bool sinks = false;
  bool documents = false;
  bool loss_parallel = true;
  bool chunked = false;  // what blocks exchange
  bool packed = false;   // weights of one input lie side by side
  int64_t chunk_bytes = 0;
  at::ScalarType dtype = at::kDouble;
  ActivationCheckpoint checkpoint = ActivationCheckpoint::kNone;
  bool biases = false;  // of wq, wk, wv and wo
  bool shared_memory = true;
};

inline ModelArgs args_of(const DividedJob& job) {
  return model_args(job.model, "debugmodel",
                    {.dim = job.dim,
                     .n_layers = job.layers,
                     .n_heads = job.heads,
                     .n_kv_heads = job.kv_heads,
                     .head_dim = job.head_dim,
                     .vocab_size = job.vocab,
                     .hidden_dim = job.hidden,
                     .sinks = job.sinks,
                     .sliding_window_size = job.window,
                     .full_attention_every = 2,
                     .qkv_bias = job.biases,
                     .output_bias = job.biases});
}

inline Tensor part_of(const Tensor& whole, const std::vector<Cut>& cuts) {
  const Box box = box_of(whole.sizes().vec(), cuts);
  Tensor part = whole;
  for (size_t dim = 0; dim < box.shape.size(); ++dim)
    part = part.narrow(static_cast<int64_t>(dim), box.offset[dim], box.shape[dim]);
  return part.contiguous();
}

// The same whole values for a parameter on every rank and mesh.
inline void materialise(const Transformer& model, at::ScalarType dtype) {
  at::manual_seed(7);
  for (const ParameterPtr& parameter : model.parameters()) {
    const Tensor whole = at::randn(parameter->shape, at::kDouble) * 0.3;
    parameter->weight = part_of(whole, parameter->cuts).to(dtype, false, /*copy=*/true).requires_grad_();
  }
}

// The weights of each pack as parts of one tensor, as FSDP lays them.
inline void lay_side_by_side(const Transformer& model) {
  std::map<ParameterPtr, std::vector<ParameterPtr>> packs;
  for (const ParameterPtr& parameter : model.parameters())
    if (parameter->pack) packs[parameter->pack].push_back(parameter);
  for (const auto& [pack, parameters] : packs) {
    std::vector<Tensor> weights;
    for (const ParameterPtr& parameter : parameters) weights.push_back(parameter->weight.detach());
    // Of a matrix's rows, also in a stack of matrices; a bias has no others.
    const int64_t dim = std::max<int64_t>(weights[0].dim(), 2) - 2;
    pack->weight = at::cat(weights, dim);
    pack->local = pack->weight.sizes().vec();
    int64_t first = 0;
    for (const ParameterPtr& parameter : parameters) {
      const int64_t rows = parameter->weight.size(dim);
      parameter->weight = pack->weight.narrow(dim, first, rows).detach().requires_grad_();
      first += rows;
    }
  }
}

inline Microbatch batch_of(const DividedJob& job, const Transformer& model) {
  at::manual_seed(11);
  const Tensor tokens = at::randint(0, job.vocab, {job.batch, kSeq}, at::kLong);
  Tensor labels = at::randint(0, job.vocab, {job.batch, kSeq}, at::kLong);
  labels[0][3] = labels[job.batch - 1][kSeq - 1] = -100;
  SequenceContext context = model.context(kSeq, at::kCPU);
  if (job.documents) {
    const Tensor positions =
        at::cat({at::arange(5), at::arange(kSeq - 5)}).to(at::kInt).expand({job.batch, kSeq});
    context = inside_documents(context, positions.contiguous(),
                               kernels::document_mask(positions.contiguous(), at::kCPU));
  }
  return {tokens, labels, context};
}

// Activations between units, their gradients, the loss, and gradients of parameters in their order.
struct Run {
  std::vector<Tensor> forward, backward, parameters;
  Tensor loss, loss_alone;
};

inline Run run(const DividedJob& job, const Transformer& model, const Microbatch& batch) {
  const SelectiveCheckpoint::Shapes no_shapes;
  Run result;
  struct Unit {
    Tensor input, output;
    std::unique_ptr<SelectiveCheckpoint> selective;
  };
  std::vector<Unit> units;
  const Tensor embedded = model.embedding().forward(batch.tokens);
  Tensor x = embedded;
  for (const TransformerBlock& block : model.blocks()) {
    result.forward.push_back(x.detach());
    Unit& unit = units.emplace_back();
    unit.input = x.detach().requires_grad_();
    unit.selective = selective_checkpoint(job.checkpoint, no_shapes);
    const at::AutoGradMode grad_mode(job.checkpoint == ActivationCheckpoint::kNone);
    x = unit.output = block.forward(unit.input, batch.context, {.selective = unit.selective.get()});
  }
  result.forward.push_back(x.detach());
  const Tensor scale = at::full({}, 0.125, job.dtype == at::kDouble ? at::kDouble : at::kFloat);
  auto [loss, grad, z_loss] = model.head().loss_and_grad(x.detach(), batch.labels, scale);
  result.loss = loss;
  result.loss_alone = model.head().loss_sum(x.detach(), batch.labels);
  result.backward.push_back(grad);
  for (size_t block = units.size(); block-- > 0;) {
    Unit& unit = units[block];
    if (job.checkpoint != ActivationCheckpoint::kNone) {
      if (unit.selective) unit.selective->start_recompute();
      unit.output = model.blocks()[block].forward(
          unit.input, batch.context, {.kind = BlockRun::Kind::kRecompute, .selective = unit.selective.get()});
    }
    torch::autograd::backward({unit.output}, {grad});
    grad = unit.input.grad();
    result.backward.push_back(grad);
  }
  torch::autograd::backward({embedded}, {grad});
  for (const ParameterPtr& parameter : model.parameters())
    result.parameters.push_back(parameter->weight.grad().detach());
  return result;
}

inline Run run(const DividedJob& job, const Transformer& model) {
  return run(job, model, batch_of(job, model));
}

struct TensorGroup {
  TensorGroup(const DividedJob& job, const parallel::Environment& environment)
      : groups(parallel::Mesh({.dp_shard = 1, .tp = environment.world_size}, environment.world_size),
               environment, {.shared_memory = job.shared_memory}),
        ranks(groups.get(parallel::MeshDim::kTp)) {
    groups.set_observer([this](const parallel::CommOperation& operation) {
      if (operation.group == ranks.name())  // "world" where it has the same ranks
        ledger.add("tp", std::string(operation.name), operation.sent_bytes);
    });
  }
  ParallelDims dims(const DividedJob& job) const {
    return {.tp_group = &ranks, .loss_parallel = job.loss_parallel, .chunked = job.chunked};
  }
  CommLedger ledger;
  parallel::ProcessGroups groups;
  parallel::Communicator& ranks;
};

}  // namespace hyperion::models
