// Context parallelism inside a model, without the trainer: attention alone, and the activations and gradients
// of all layers, against those of one rank.
#include <algorithm>
#include <array>

#include <catch2/catch.hpp>

#include "models/parts/attention/gathered_attention.h"
#include "tests/support/divided_model.h"
#include "tests/support/larger_of.h"
#include "tests/support/unwritten_is_nan.h"

namespace hyperion::models {
namespace {

using parallel::Environment, parallel::Mesh, parallel::MeshConfig, parallel::MeshDim, parallel::ProcessGroups;

// Of attention alone.
struct AttentionCase {
  int64_t batch, heads, kv_heads, head_dim, documents;  // documents: how a row is divided; 0: not
  bool head_tail;
  at::ScalarType dtype;
  int64_t v_head_dim = head_dim;
  int64_t window = 0;
  bool sinks = false, ring = false;
};

Tensor positions_of(const AttentionCase& of, int64_t length) {
  if (of.documents == 0) return {};
  std::vector<Tensor> parts;
  std::vector<int64_t> lengths = {1, length / 2, 1, 1};  // across the middle, and of one token
  if (of.documents == 2) lengths = {};                   // of a complete sequence
  int64_t left = length;
  for (const int64_t one : lengths) {
    parts.push_back(at::arange(one));
    left -= one;
  }
  parts.push_back(at::arange(left));
  return at::cat(parts).to(at::kInt).expand({of.batch, length}).contiguous();
}

// The largest difference of the output and of each gradient of this rank's tokens, relative to those of all.
double difference_of_attention(Exchange& ranks, const AttentionCase& of) {
  const int64_t length = 3 * length_divisor(ranks.size(), of.head_tail, 1);
  at::manual_seed(3);
  const auto made = [&](int64_t heads, int64_t width) {
    return at::randn({of.batch, length, heads, width}, at::kDouble).to(of.dtype).transpose(1, 2);
  };
  const std::vector<Tensor> complete = {made(of.heads, of.head_dim), made(of.kv_heads, of.head_dim),
                                        made(of.kv_heads, of.v_head_dim), made(of.heads, of.v_head_dim)};
  const Tensor sinks = of.sinks ? at::randn({of.heads}, at::kDouble).to(of.dtype) : Tensor();
  const std::vector<SequenceRange> parts = sequence_parts(length, {ranks.size(), ranks.rank(), of.head_tail});
  const Tensor positions = positions_of(of, length);
  const auto run = [&](const std::vector<Tensor>& given, const SequenceContext& context, Exchange* over) {
    std::vector<Tensor> leaves;
    for (size_t i = 0; i < 3; ++i) leaves.push_back(given[i].detach().requires_grad_());
    const Tensor leaf = of.sinks ? sinks.detach().clone().requires_grad_() : Tensor();
    const Tensor output = attention_over_ranks(leaves[0], leaves[1], leaves[2], context, {over, of.ring},
                                               BlockRun(), {of.window, leaf});
    torch::autograd::backward({output}, {given[3]});
    std::vector<Tensor> results = {output.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
    if (of.sinks) results.push_back(leaf.grad());
    return results;
  };
  SequenceContext plain;
  if (positions.defined()) plain.mask = kernels::document_mask(positions, at::kCPU);
  const std::vector<Tensor> expected = run(complete, plain, nullptr);
  SequenceContext context;
  for (const SequenceRange& part : parts)
    context.parts.push_back({part, positions.defined()
                                       ? kernels::document_mask(positions, part.first, part.end, at::kCPU)
                                       : kernels::AttentionMask()});
  std::vector<Tensor> own;
  for (const Tensor& t : complete) own.push_back(columns_of_parts(t, parts, 2));
  const std::vector<Tensor> found = run(own, context, &ranks);
  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    if (i == 4) {  // the gradient of the sinks: over all tokens
      const Tensor sum = found[i].to(at::kDouble);
      ranks.start_all_reduce_sum(sum).wait();
      largest = larger_of(largest, ((sum - expected[i]).norm() / expected[i].norm()).item<double>());
      continue;
    }
    const Tensor wanted = columns_of_parts(expected[i], parts, 2);
    largest = larger_of(largest, ((found[i] - wanted).norm() / expected[i].norm()).item<double>());
  }
  return largest;
}

// The largest relative difference of what this rank has of activations and their gradients, and of the
// gradients of parameters and the loss, which the ranks add up, to one rank's.
double difference_of_model(const DividedJob& job, bool head_tail, bool ring, const ProcessGroups& groups) {
  parallel::Communicator &context = groups.get(MeshDim::kCp), &tensor = groups.get(MeshDim::kTp);
  const Transformer one(args_of(job)),
      shared(args_of(job), 0, {.tp_group = &tensor, .cp_group = &context, .ring = ring});
  materialise(one, job.dtype);
  materialise(shared, job.dtype);
  const Microbatch complete = batch_of(job, one);
  const Run expected = run(job, one, complete);
  const std::vector<SequenceRange> parts = sequence_parts(kSeq, {context.size(), context.rank(), head_tail});
  Tensor positions;
  if (job.documents) positions = at::arange(kSeq, at::kInt) - complete.context.mask.first_keys;
  const Run found = run(job, shared,
                        {columns_of_parts(complete.tokens, parts), columns_of_parts(complete.labels, parts),
                         context_of_parts(one.context(kSeq, at::kCPU), parts, positions)});
  double largest = 0;
  const auto compare = [&](const Tensor& a, const Tensor& b) {
    largest = larger_of(largest, ((a - b).norm() / b.norm()).item<double>());
  };
  const auto own = [&](const Tensor& all) {  // [batch, seq, dim] -> this rank's
    const Tensor part = columns_of_parts(all, parts);
    return part.narrow(1, part.size(1) / tensor.size() * tensor.rank(), part.size(1) / tensor.size());
  };
  for (size_t i = 0; i < expected.forward.size(); ++i) compare(found.forward[i], own(expected.forward[i]));
  for (size_t i = 0; i < expected.backward.size(); ++i) compare(found.backward[i], own(expected.backward[i]));
  const Tensor loss = found.loss.clone(), loss_alone = found.loss_alone.clone();
  for (const Tensor& sum : {loss, loss_alone}) context.all_reduce_sum(sum);
  compare(loss, expected.loss);
  compare(loss_alone, expected.loss_alone);
  const std::vector<ParameterPtr> parameters = shared.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor sum = found.parameters[i].clone();
    context.all_reduce_sum(sum);
    if (parameters[i]->cuts.empty() && tensor.size() > 1) tensor.all_reduce_sum(sum);
    compare(sum, part_of(expected.parameters[i], parameters[i]->cuts));
  }
  return largest;
}

}  // namespace

TEST_CASE("gathered keys and values give the attention and the gradients of complete sequences") {
  for (const int ranks : {2, 3, 4}) {
    const auto all = run_ranks(ranks, [=](const Environment& environment) {
      const UnwrittenIsNaN guard;
      ProcessGroups groups(Mesh({.cp = ranks}, ranks), environment, {});
      std::vector<double> differences;
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
        for (const bool head_tail : {true, false})
          for (int64_t documents = 0; documents < 3; ++documents)
            for (const auto& [batch, heads, kv_heads, head_dim, v_head_dim] :
                 {std::array<int64_t, 5>{1, 4, 4, 6, 4}, {3, 4, 2, 5, 5}, {1, 3, 1, 17, 17}})
              differences.push_back(difference_of_attention(
                  groups.get(MeshDim::kCp),
                  {batch, heads, kv_heads, head_dim, documents, head_tail, dtype, v_head_dim}));
      return differences;
    });
    for (const std::vector<double>& differences : all)
      for (size_t i = 0; i < differences.size(); ++i) {
        CAPTURE(ranks, i);
        const std::array<double, 3> allowed = {1e-12, 1e-6, 1.6e-2};  // by dtype
        CHECK(differences[i] < allowed.at(i * allowed.size() / differences.size()));
      }
  }
}

TEST_CASE("windows and sinks over context parallel ranks give those of complete sequences") {
  for (const int ranks : {2, 3}) {
    const auto all = run_ranks(ranks, [=](const Environment& environment) {
      const UnwrittenIsNaN guard;
      ProcessGroups groups(Mesh({.cp = ranks}, ranks), environment, {});
      std::vector<double> differences;
      for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
        for (const bool head_tail : {true, false})
          for (const bool ring : {false, true})
            for (int64_t documents = 0; documents < 2; ++documents)
              for (const int64_t window : {0, 1, 4, 100})
                differences.push_back(difference_of_attention(
                    groups.get(MeshDim::kCp),
                    {2, 4, 2, 5, documents, head_tail, dtype, 5, window, window != 4, ring}));
      return differences;
    });
    for (const std::vector<double>& differences : all)
      for (size_t i = 0; i < differences.size(); ++i) {
        CAPTURE(ranks, i);
        CHECK(differences[i] < (i < differences.size() / 2 ? 1e-12 : 1e-6));
      }
  }
}

TEST_CASE("a model over context parallel ranks has the activations and gradients of one rank") {
  struct Layout {
    int ranks;
    MeshConfig mesh;
    bool head_tail = true;
  };
  for (const Layout& layout : {Layout{2, {.cp = 2}}, Layout{3, {.cp = 3}}, Layout{4, {.cp = 4}, false},
                               Layout{4, {.cp = 2, .tp = 2}, false}}) {
    const auto all = run_ranks(layout.ranks, [=](const Environment& environment) {
      const ProcessGroups groups(Mesh(layout.mesh, layout.ranks), environment, {});
      std::vector<double> differences;
      for (const char* model : {"llama3", "qwen3"})
        for (const bool documents : {false, true})
          for (const ActivationCheckpoint mode :
               {ActivationCheckpoint::kNone, ActivationCheckpoint::kSelectiveOp})
            for (const bool ring : {false, true})
              for (const bool sinks : {false, true})
                differences.push_back(difference_of_model({.model = model,
                                                           .window = sinks ? 5 : 0,
                                                           .sinks = sinks,
                                                           .documents = documents,
                                                           .checkpoint = mode},
                                                          layout.head_tail, ring, groups));
      return differences;
    });
    for (const std::vector<double>& differences : all)
      for (size_t i = 0; i < differences.size(); ++i) {
        CAPTURE(layout.ranks, layout.mesh.cp, layout.mesh.tp, i);
        CHECK(differences[i] < 1e-11);
      }
  }
}

}  // namespace hyperion::models
