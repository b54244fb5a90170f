// Tensor parallelism: the layers of a model that ranks divide, against the same model whole on one rank; the
// bytes that they exchange, and what they keep for backward.
#include <cmath>

#include <catch2/catch.hpp>

#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <c10/core/CPUAllocator.h>

#include "base/error.h"
#include "models/layers/activation_checkpoint.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/divided_model.h"
#include "tests/support/exact_nodes.h"

namespace hyperion::models {
namespace {

using parallel::Environment;
using Job = DividedJob;

double difference(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  if (a.numel() == 0) return 0;
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).to(at::kDouble).item<double>();
}

// The largest relative differences to the whole model on one rank.
struct Differences {
  double forward = 0, backward = 0, loss = 0, parameters = 0;
  int worst_parameter = -1;
};

Differences differences(const Job& job, const Environment& environment) {
  TensorGroup group(job, environment);
  const Transformer whole(args_of(job), job.chunk_bytes),
      divided(args_of(job), job.chunk_bytes, group.dims(job));
  materialise(whole, job.dtype);
  materialise(divided, job.dtype);
  if (job.packed) lay_side_by_side(divided);
  const Run expected = run(job, whole), found = run(job, divided);
  Differences largest;
  const int64_t tokens = kSeq / group.ranks.size();
  const auto compare = [&](double& most, const Tensor& part, const Tensor& of_all) {
    most = std::max(most, difference(part, of_all.narrow(1, group.ranks.rank() * tokens, tokens)));
  };
  for (size_t i = 0; i < expected.forward.size(); ++i) {
    compare(largest.forward, found.forward[i], expected.forward[i]);
    compare(largest.backward, found.backward[i], expected.backward[i]);
  }
  largest.loss = std::max(difference(found.loss, expected.loss), difference(found.loss_alone, expected.loss));
  const std::vector<ParameterPtr> parameters = divided.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    Tensor grad = found.parameters[i].clone();
    if (!parameters[i]->split) group.ranks.all_reduce_sum(grad);
    const double error = difference(grad, part_of(expected.parameters[i], parameters[i]->cuts));
    if (error > largest.parameters) largest.worst_parameter = static_cast<int>(i);
    largest.parameters = std::max(largest.parameters, error);
  }
  return largest;
}

void check_equal_to_one_rank(const Job& job, int ranks) {
  CAPTURE(ranks, job.model, job.documents, job.loss_parallel, job.chunk_bytes, job.chunked, job.packed,
          static_cast<int>(job.checkpoint));
  for (const Differences& rank :
       run_ranks(ranks, [&](const Environment& environment) { return differences(job, environment); })) {
    CAPTURE(rank.worst_parameter);
    CHECK(rank.forward < 1e-12);
    CHECK(rank.loss < 1e-12);
    CHECK(rank.backward < 1e-11);
    CHECK(rank.parameters < 1e-11);
  }
}

// Head counts that `ranks` divide.
Job odd_job(const char* model, int ranks) {
  return {.model = model, .heads = ranks == 3 ? 6 : 4, .kv_heads = ranks == 3 ? 3 : ranks == 4 ? 4 : 2};
}

}  // namespace

TEST_CASE("a model divided over tensor parallel ranks equals one rank in every activation and gradient") {
  const int ranks = GENERATE(2, 3, 4);
  const char* model = GENERATE("llama3", "qwen3");  // both RoPE styles; query and key norms and a tied table
  Job job = odd_job(model, ranks);
  check_equal_to_one_rank(job, ranks);
  job.chunked = true;
  check_equal_to_one_rank(job, ranks);
  job.packed = true;
  check_equal_to_one_rank(job, ranks);
  job.chunked = false;
  check_equal_to_one_rank(job, ranks);
  job.sinks = true;  // of which each rank has its heads'
  job.window = 5;
  check_equal_to_one_rank(job, ranks);
  job.biases = true;
  check_equal_to_one_rank(job, ranks);
  job.chunked = true;
  job.packed = false;
  job.checkpoint = ActivationCheckpoint::kSelectiveOp;
  check_equal_to_one_rank(job, ranks);
}

TEST_CASE(
    "nodes in pieces have the bits of nodes that gather before and sum after, with packed weights too") {
  struct Found {
    int64_t one = 0, pieces = 0,
            apart = 0;  // tensors; those that differ in pieces, and without packed weights
    bool packed = false, all_in_chunks = false;
  };
  const int ranks = GENERATE(2, 4);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const bool shared_memory = GENERATE(true, false);
  CAPTURE(ranks, dtype, shared_memory);
  const auto results = run_ranks(ranks, [&](const Environment& environment) {
    TensorGroup group({.shared_memory = shared_memory}, environment);
    const auto run = [&](bool packed, bool chunked) {
      group.ledger.reset();
      return ExactNodes{.packed = packed, .chunked = chunked, .dtype = dtype}.run(group.ranks);
    };
    const auto differing = [](const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
      int64_t count = 0;
      for (size_t i = 0; i < a.size(); ++i) count += a[i].equal(b[i]) ? 0 : 1;
      return count;
    };
    const std::vector<Tensor> one = run(true, false), apart = run(false, false),
                              apart_pieces = run(false, true), pieces = run(true, true);
    Found found{.one = static_cast<int64_t>(one.size()), .pieces = differing(one, pieces)};
    found.all_in_chunks = group.ledger.entry("tp", "send").bytes > 0 &&
                          group.ledger.entry("tp", "all_gather").calls == 0 &&
                          group.ledger.entry("tp", "reduce_scatter").calls == 0;
    found.packed = pieces[1].is_alias_of(pieces[0]) && !apart_pieces[1].is_alias_of(apart_pieces[0]);
    found.apart = differing(apart, apart_pieces) + (dtype == at::kFloat ? differing(one, apart) : 0);
    return found;
  });
  for (const Found& rank : results) {
    CHECK(rank.one == 11);
    CHECK(rank.pieces == 0);
    CHECK(rank.apart == 0);
    CHECK(rank.packed);
    CHECK(rank.all_in_chunks);
  }
}

TEST_CASE("tensor parallel layers take document masks and any batch and chunks of logits") {
  for (const int64_t chunk_rows : {1, 5}) {
    Job job = odd_job("llama3", 2);
    job.documents = true;
    job.batch = 3;
    job.chunk_bytes = chunk_rows * 9 * 8;  // of rank 0's part of the vocabulary
    check_equal_to_one_rank(job, 2);
  }
}

TEST_CASE("without loss parallel every rank computes the loss from gathered logits") {
  for (const int ranks : {2, 4})
    for (const int64_t chunk_rows : {0, 5}) {
      Job job = odd_job("qwen3", ranks);
      job.loss_parallel = false;
      job.chunk_bytes = chunk_rows * 17 * 8;
      check_equal_to_one_rank(job, ranks);
    }
}

TEST_CASE("tensor parallel ranks may have an empty part of the vocabulary and of the hidden width") {
  Job job = odd_job("llama3", 4);
  job.vocab = 5;
  job.hidden = 5;  // parts of 2, 2, 1 and 0
  check_equal_to_one_rank(job, 4);
  job.chunked = true;
  check_equal_to_one_rank(job, 4);
  job.loss_parallel = job.chunked = false;
  check_equal_to_one_rank(job, 4);
}

TEST_CASE("a token or label outside the vocabulary is refused on tensor parallel ranks too") {
  const auto outcomes = run_ranks_outcome(2, [](const Environment& environment) {
    const Job job = odd_job("llama3", 2);
    TensorGroup group(job, environment);
    const Transformer model(args_of(job), 0, {&group.ranks});
    materialise(model, at::kDouble);
    const Tensor x = at::randn({1, kSeq / 2, job.dim}, at::kDouble);
    try {
      model.head().loss_sum(x, at::full({1, kSeq}, 17, at::kLong));
    } catch (const std::exception& error) {
      if (std::string(error.what()).find("label 17") == std::string::npos) throw;
      model.embedding().forward(at::full({1, kSeq}, 17, at::kLong));
    }
  });
  for (const RankOutcome& rank : outcomes) {
    CHECK(rank.exit_code == static_cast<int>(ExitCode::kBug));
    CHECK_THAT(rank.error, Catch::Contains("a token is outside the vocabulary of 17"));
  }
}

TEST_CASE("activation checkpointing under tensor parallelism equals one rank without it") {
  const auto checkpoint = GENERATE(ActivationCheckpoint::kFull, ActivationCheckpoint::kSelectiveOp,
                                   ActivationCheckpoint::kElementwise);
  Job job = odd_job("llama3", 2);
  job.checkpoint = checkpoint;
  job.chunked = GENERATE(false, true);
  job.packed = GENERATE(false, true);
  check_equal_to_one_rank(job, 2);
}

TEST_CASE("gradients of a model divided over two ranks equal finite differences") {
  const auto results = run_ranks(2, [](const Environment& environment) {
    const Job job = odd_job("qwen3", 2);
    TensorGroup group(job, environment);
    const Transformer model(args_of(job), 0, {&group.ranks});
    materialise(model, at::kDouble);
    const Run exact = run(job, model);
    double worst = 0;
    const std::vector<ParameterPtr> parameters = model.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = *parameters[i];
      at::manual_seed(100 + static_cast<int64_t>(i));
      const Tensor direction = part_of(at::randn(parameter.shape, at::kDouble), parameter.cuts);
      // Of divided weights each rank has a part of the product, of the others a part of the gradient.
      const Tensor slope = (exact.parameters[i] * direction).sum();
      group.ranks.all_reduce_sum(slope);
      constexpr double kStep = 1e-5;
      const auto loss_at = [&](double by) {
        at::NoGradGuard no_grad;
        parameter.weight.add_(direction, by);
        const Microbatch batch = batch_of(job, model);
        Tensor x = model.embedding().forward(batch.tokens);
        for (const TransformerBlock& block : model.blocks()) x = block.forward(x, batch.context);
        const double loss = model.head().loss_sum(x, batch.labels).item<double>();
        parameter.weight.sub_(direction, by);
        return 0.125 * loss;
      };
      const double numeric = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      worst = std::max(worst, std::abs(numeric - slope.item<double>()) / (std::abs(numeric) + 1e-2));
    }
    return worst;
  });
  for (const double worst : results) CHECK(worst < 1e-5);
}

TEST_CASE("repeated runs and transports and checkpointing change no bit under tensor parallelism") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const auto all_numbers = [&](ActivationCheckpoint checkpoint, bool shared_memory, bool chunked = false) {
    return run_ranks(3, [&](const Environment& environment) {
      Job job = odd_job("qwen3", 3);
      job.chunked = chunked;
      job.dtype = dtype;
      job.checkpoint = checkpoint;
      job.shared_memory = shared_memory;
      job.chunk_bytes = 5 * 6 * (dtype == at::kFloat ? 4 : 2);
      TensorGroup group(job, environment);
      const Transformer model(args_of(job), job.chunk_bytes, group.dims(job));
      materialise(model, dtype);
      const Run found = run(job, model);
      std::vector<float> numbers = {found.loss.item<float>()};
      for (const auto* list : {&found.forward, &found.backward, &found.parameters})
        for (const Tensor& tensor : *list) {
          const Tensor wide = tensor.to(at::kFloat).contiguous().view(-1);
          numbers.insert(numbers.end(), wide.data_ptr<float>(), wide.data_ptr<float>() + wide.numel());
        }
      return numbers;
    });
  };
  const auto plain = all_numbers(ActivationCheckpoint::kNone, true);
  CHECK(plain == all_numbers(ActivationCheckpoint::kNone, true));
  CHECK(plain == all_numbers(ActivationCheckpoint::kNone, false));
  CHECK(plain == all_numbers(ActivationCheckpoint::kFull, true));
  CHECK(plain == all_numbers(ActivationCheckpoint::kSelectiveOp, true));
  CHECK(plain == all_numbers(ActivationCheckpoint::kElementwise, true));
  CHECK(plain[0][0] == plain[1][0]);  // every rank has the whole loss, with the same bits
  CHECK(plain[0][0] == plain[2][0]);
  // In pieces products have fewer rows at once, for which a library may add up in another order.
  const auto pieces = all_numbers(ActivationCheckpoint::kNone, true, true);
  double squares = 0, of_difference = 0;
  for (size_t rank = 0; rank < plain.size(); ++rank)
    for (size_t i = 0; i < plain[rank].size(); ++i) {
      squares += std::pow(plain[rank][i], 2);
      of_difference += std::pow(plain[rank][i] - pieces[rank][i], 2);
    }
  CHECK(std::sqrt(of_difference / squares) < (dtype == at::kFloat ? 2e-6 : 2e-2));
  CHECK(pieces == all_numbers(ActivationCheckpoint::kNone, true, true));
  CHECK(pieces == all_numbers(ActivationCheckpoint::kNone, false, true));
  CHECK(pieces == all_numbers(ActivationCheckpoint::kFull, true, true));
  CHECK(pieces == all_numbers(ActivationCheckpoint::kSelectiveOp, true, true));
  CHECK(pieces == all_numbers(ActivationCheckpoint::kElementwise, true, true));
}

TEST_CASE("units exchange exactly the planned bytes for every checkpointing mode") {
  struct Bytes {
    int64_t embedding = 0, block = 0, head = 0, loss_alone = 0, embedding_backward = 0;
    int64_t sends = 0;  // of the block: messages to one rank
  };
  const auto [checkpoint, times] =
      GENERATE(table<ActivationCheckpoint, int64_t>({{ActivationCheckpoint::kNone, 8},
                                                     {ActivationCheckpoint::kFull, 11},
                                                     {ActivationCheckpoint::kSelectiveOp, 10},
                                                     {ActivationCheckpoint::kElementwise, 10}}));
  const int ranks = GENERATE(2, 3);
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  CAPTURE(static_cast<int>(checkpoint), ranks);
  Job job = odd_job("llama3", ranks);
  job.dtype = dtype;
  job.layers = 1;
  job.batch = 3;
  job.chunk_bytes = 7 * 8 * 4;
  job.chunked = GENERATE(false, true);
  const auto results = run_ranks(ranks, [&, mode = checkpoint](const Environment& environment) {
    TensorGroup group(job, environment);
    const Transformer model(args_of(job), job.chunk_bytes, group.dims(job));
    materialise(model, dtype);
    const Microbatch batch = batch_of(job, model);
    const auto sent = [&] {
      const int64_t bytes = group.ledger.total_bytes();
      group.ledger.reset();
      return bytes;
    };
    Bytes bytes;
    const Tensor embedded = model.embedding().forward(batch.tokens);
    bytes.embedding = sent();
    const SelectiveCheckpoint::Shapes no_shapes;
    const std::unique_ptr<SelectiveCheckpoint> active = selective_checkpoint(mode, no_shapes);
    const Tensor input = embedded.detach().requires_grad_();
    Tensor output;
    {
      const at::AutoGradMode grad_mode(mode == ActivationCheckpoint::kNone);
      output = model.blocks()[0].forward(input, batch.context, {.selective = active.get()});
    }
    const Tensor x = output.detach();
    if (mode != ActivationCheckpoint::kNone) {
      if (active) active->start_recompute();
      output = model.blocks()[0].forward(input, batch.context,
                                         {.kind = BlockRun::Kind::kRecompute, .selective = active.get()});
    }
    torch::autograd::backward({output}, {at::ones_like(x)});
    bytes.sends = group.ledger.entry("tp", "send").calls;
    bytes.block = sent();
    model.head().loss_and_grad(x, batch.labels, at::ones({}));
    bytes.head = sent();
    model.head().loss_sum(x, batch.labels);
    bytes.loss_alone = sent();
    torch::autograd::backward({embedded}, {input.grad()});
    bytes.embedding_backward = sent();
    return bytes;
  });
  const int64_t tokens = job.batch * kSeq, width = dtype == at::kFloat ? 4 : 2;
  const int64_t n = tokens * job.dim * width * (ranks - 1) / ranks, statistics = 12 * tokens * (ranks - 1);
  for (const Bytes& rank : results) {
    CHECK(rank.embedding == n);
    CHECK(rank.block == times * n);
    // All of the block's exchanges, but those of inputs that only backward gathers.
    const int64_t whole = checkpoint == ActivationCheckpoint::kElementwise ? 2 : 0;
    CHECK(rank.sends == (job.chunked ? (times - whole) * (ranks - 1) : 0));
    CHECK(rank.head == 2 * n + statistics);
    CHECK(rank.loss_alone == n + statistics);
    CHECK(rank.embedding_backward == n);
  }
}

TEST_CASE("a column node whose results were saved gathers its input in backward only") {
  struct Counted {
    int64_t forward = 0, again = 0, backward = 0;  // calls of all_gather
    bool equal = false;                            // to gradients without a checkpoint
  };
  const auto results = run_ranks(2, [](const Environment& environment) {
    TensorGroup group({}, environment);
    const ParameterPtr parameter = make_parameter("w.weight", {10, 6}, Init::ones(), 0);
    parameter->shard(2, group.ranks.rank());
    at::manual_seed(4 + group.ranks.rank());
    parameter->weight = at::randn({5, 6}).requires_grad_();
    const Linear layer(parameter, nullptr, &group.ranks);
    const Tensor x = at::randn({2, 3, 6}).requires_grad_(), grad = at::randn({2, 2, 3, 5});
    const auto gradients = [&] {
      const std::vector<Tensor> both = {x.grad().clone(), parameter->weight.grad().clone()};
      x.mutable_grad().reset();
      parameter->weight.mutable_grad().reset();
      return both;
    };
    torch::autograd::backward({column_linear(x, {&layer})[0]}, {grad});
    const std::vector<Tensor> plain = gradients();
    const auto gathers = [&] {
      const int64_t calls = group.ledger.entry("tp", "all_gather").calls;
      group.ledger.reset();
      return calls;
    };
    gathers();
    const SelectiveCheckpoint::Shapes no_shapes;
    SelectiveCheckpoint checkpoint(no_shapes);
    Counted counted;
    Tensor output;
    {
      const at::NoGradGuard no_grad;
      column_linear(x, {&layer}, {.selective = &checkpoint});
      counted.forward = gathers();
    }
    checkpoint.start_recompute();
    output = column_linear(x, {&layer}, {.selective = &checkpoint})[0];
    counted.again = gathers();
    torch::autograd::backward({output}, {grad});
    counted.backward = gathers();
    const std::vector<Tensor> again = gradients();
    counted.equal = again[0].equal(plain[0]) && again[1].equal(plain[1]);
    return counted;
  });
  for (const Counted& rank : results) {
    CHECK(rank.forward == 1);
    CHECK(rank.again == 0);
    CHECK(rank.backward == 1);
    CHECK(rank.equal);
  }
}

TEST_CASE("a block keeps for its backward what the plan says") {
  const int ranks = GENERATE(1, 2);
  const Job job = {
      .heads = 4, .kv_heads = 2, .dim = 64, .head_dim = 16, .hidden = 96, .layers = 1, .dtype = at::kFloat};
  const auto results = run_ranks(ranks, [&](const Environment& environment) {
    auto* counter = new CountingAllocator(*c10::GetCPUAllocator());  // the process ends with it
    c10::SetCPUAllocator(counter, /*priority=*/255);
    TensorGroup group(job, environment);
    const Transformer model(args_of(job), 0, {&group.ranks});
    materialise(model, job.dtype);
    const Microbatch batch = batch_of(job, model);
    const Tensor x = at::randn({job.batch, kSeq / ranks, job.dim}).requires_grad_();
    model.blocks()[0].forward(x, batch.context);  // what is made once, is
    const int64_t before = counter->live();
    const Tensor output = model.blocks()[0].forward(x, batch.context);
    return counter->live() - before;
  });
  const int64_t tokens = job.batch * kSeq, width = job.heads * job.head_dim, kv = job.kv_heads * job.head_dim;
  // The gathered inputs of both column nodes; for a rank's tokens the sum behind attention, the output, and
  // two rows of the norms' statistics; for its heads q, k, v, attention's result and log-sum-exp; for its
  // hidden units gate, up and their product.
  const int64_t numbers = 2 * tokens * job.dim + tokens / ranks * (2 * job.dim + 2) +
                          tokens / ranks * (2 * width + 2 * kv + job.heads) + 3 * tokens * job.hidden / ranks;
  for (const int64_t bytes : results) CHECK(bytes == numbers * 4);
}

}  // namespace hyperion::models
