// Attention whose keys and values go round the ranks, against one rank that has the complete sequence.
#include "models/parts/attention/ring_attention.h"

#include <algorithm>
#include <set>
#include <vector>

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/autograd.h>

#include "models/layers/activation_checkpoint.h"
#include "models/layers/ops.h"
#include "parallel/comm/process_group.h"
#include "tests/support/comm_ledger.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/ranks.h"
#include "tests/support/unwritten_is_nan.h"

namespace hyperion::models {
namespace {

using at::Tensor;

struct RingCase {
  int64_t batch, heads, kv_heads, chunk, head_dim;  // chunk: tokens, of which a rank has one or two
  at::ScalarType dtype;
  int64_t v_head_dim = head_dim;
};

std::vector<int> ring_chunks(int ranks, int rank, bool head_tail) {
  if (!head_tail) return {rank};
  return {rank, 2 * ranks - 1 - rank};
}

// This rank's tokens of [batch, heads, seq, head_dim].
Tensor part_of_rank(const Tensor& t, const RingCase& c, int ranks, int rank, bool head_tail) {
  std::vector<Tensor> chunks;
  for (const int chunk : ring_chunks(ranks, rank, head_tail))
    chunks.push_back(t.narrow(2, chunk * c.chunk, c.chunk));
  return at::cat(chunks, 2);
}

// The largest difference of the output and each gradient, relative to the largest number of it.
std::vector<double> differences_to_one_rank(const RingCase& c, bool head_tail, Exchange& group) {
  const int ranks = group.size(), rank = group.rank();
  const int64_t seq = c.chunk * ranks * (head_tail ? 2 : 1);
  at::manual_seed(41);
  const auto make = [&](int64_t heads, int64_t width) {
    return at::randn({c.batch, seq, heads, width}, at::kDouble).to(c.dtype).transpose(1, 2);
  };
  const Tensor q = make(c.heads, c.head_dim), k = make(c.kv_heads, c.head_dim),
               v = make(c.kv_heads, c.v_head_dim), grad = make(c.heads, c.v_head_dim);
  const auto leaf = [](const Tensor& t) { return t.detach().clone().requires_grad_(); };
  const auto part = [&](const Tensor& t) { return part_of_rank(t, c, ranks, rank, head_tail); };
  const Tensor all_q = leaf(q), all_k = leaf(k), all_v = leaf(v);
  const Tensor wanted = ops::attention(all_q, all_k, all_v, {});
  torch::autograd::backward({wanted}, {grad});
  const Tensor own_q = leaf(part(q)), own_k = leaf(part(k)), own_v = leaf(part(v));
  const Tensor found = ring_attention(own_q, own_k, own_v, group, head_tail, nullptr);
  torch::autograd::backward({found}, {part(grad)});
  std::vector<double> differences;
  for (const auto& [ours, one] : {std::pair(found.detach(), wanted.detach()),
                                  {own_q.grad(), all_q.grad()},
                                  {own_k.grad(), all_k.grad()},
                                  {own_v.grad(), all_v.grad()}}) {
    const Tensor difference = (ours - part(one)).abs().max() / one.abs().max();
    differences.push_back(difference.to(at::kDouble).item<double>());
  }
  return differences;
}

// Hands everything on, and measures what the host holds when a hop starts.
class WatchedExchange final : public Exchange {
 public:
  WatchedExchange(Exchange& group, const CountingAllocator& memory) : group_(group), memory_(memory) {}

  std::vector<int64_t> held;  // at each hop

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  Pending start_all_gather_into(const Tensor& out, const Tensor& in) override {
    return group_.start_all_gather_into(out, in);
  }
  Pending start_reduce_scatter_sum(const Tensor& out, const Tensor& in) override {
    return group_.start_reduce_scatter_sum(out, in);
  }
  Pending start_all_reduce_sum(const Tensor& tensor) override { return group_.start_all_reduce_sum(tensor); }
  Pending start_all_reduce_max(const Tensor& tensor) override { return group_.start_all_reduce_max(tensor); }
  Pending start_block_exchange(const Tensor& out, const Tensor& in, std::span<const RowBlock> out_blocks,
                               std::span<const RowBlock> in_blocks) override {
    return group_.start_block_exchange(out, in, out_blocks, in_blocks);
  }
  Pending start_transfers(std::vector<Transfer> transfers) override {
    held.push_back(memory_.live());
    return group_.start_transfers(std::move(transfers));
  }

 private:
  Exchange& group_;
  const CountingAllocator& memory_;
};

}  // namespace

TEST_CASE("the steps of a ring take every query with each key before it once") {
  for (const bool head_tail : {false, true})
    for (const int ranks : {1, 2, 3, 4, 5, 8, 16}) {
      CAPTURE(ranks, head_tail);
      std::multiset<std::pair<int, int>> pairs;  // of chunks; those of one chunk twice are causal inside it
      std::vector<size_t> of_rank;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto steps = ring_steps(ranks, rank, head_tail);
        REQUIRE(steps.size() == static_cast<size_t>(ranks));
        const size_t before = pairs.size();
        for (int i = 0; i < ranks; ++i) {
          const RingStep& step = steps[i];
          CHECK(step.source == (rank - i + ranks) % ranks);  // the keys that i hops bring
          if (!step.attends) continue;
          const auto chosen = [&](int of, RingRows rows) {
            std::vector<int> chunks = ring_chunks(ranks, of, head_tail);
            if (rows == RingRows::kFirstHalf) chunks.pop_back();
            if (rows == RingRows::kSecondHalf) chunks.erase(chunks.begin());
            return chunks;
          };
          for (const int query : chosen(rank, step.queries))
            for (const int key : chosen(step.source, step.keys)) {
              const bool own = step.mask == kernels::MaskKind::kCausal;
              CHECK(own == (i == 0));
              if (own && key > query) continue;
              CHECK(key <= query);
              pairs.emplace(query, key);
            }
        }
        of_rank.push_back(pairs.size() - before);
      }
      const int chunks = ranks * (head_tail ? 2 : 1);
      CHECK(pairs.size() == static_cast<size_t>(chunks * (chunks + 1) / 2));
      CHECK(std::set(pairs.begin(), pairs.end()).size() == pairs.size());
      if (head_tail) CHECK(std::ranges::min(of_rank) == std::ranges::max(of_rank));
    }
}

TEST_CASE("a ring of ranks gives the attention and the gradients of one rank") {
  const int ranks = GENERATE(2, 3, 4);
  const bool shared_memory = GENERATE(true, false);
  std::vector<RingCase> cases = {{1, 4, 2, 5, 3, at::kDouble},  {3, 2, 2, 4, 6, at::kDouble, 4},
                                 {1, 4, 1, 1, 8, at::kDouble},  {3, 4, 2, 33, 10, at::kFloat},
                                 {1, 2, 1, 64, 16, at::kFloat}, {2, 4, 2, 40, 16, at::kBFloat16}};
  const auto all = run_ranks(ranks, [&](const parallel::Environment& environment) {
    const UnwrittenIsNaN guard;
    parallel::ProcessGroups groups(parallel::Mesh({.dp_shard = 1, .tp = ranks}, ranks), environment,
                                   {.shared_memory = shared_memory});
    std::vector<double> differences;
    for (const bool head_tail : {true, false})
      for (const RingCase& c : cases)
        for (const double difference :
             differences_to_one_rank(c, head_tail, groups.get(parallel::MeshDim::kTp)))
          differences.push_back(difference);
    return differences;
  });
  for (const auto& of_rank : all) {
    REQUIRE(of_rank.size() == 2 * 4 * cases.size());
    for (size_t i = 0; i < of_rank.size(); ++i) {
      const RingCase& c = cases[i / 4 % cases.size()];
      CAPTURE(ranks, shared_memory, i / 4 < cases.size(), c.dtype, c.batch, c.chunk, i % 4);
      CHECK(of_rank[i] < (c.dtype == at::kDouble ? 1e-13 : c.dtype == at::kFloat ? 1e-6 : 1.6e-2));
    }
  }
}

TEST_CASE("a ring sends each rank's keys once round, gradients behind them, and nothing in a second run") {
  struct Found {
    int64_t forward, backward, second_run, wrong;
  };
  const int ranks = GENERATE(2, 3);
  const auto all = run_ranks(ranks, [&](const parallel::Environment& environment) {
    parallel::ProcessGroups groups(parallel::Mesh({.dp_shard = 1, .tp = ranks}, ranks), environment, {});
    parallel::Communicator& group = groups.get(parallel::MeshDim::kTp);
    CommLedger ledger;
    groups.set_observer([&](const parallel::CommOperation& operation) {
      ledger.add(std::string(operation.group), std::string(operation.name), operation.sent_bytes);
    });
    at::manual_seed(42);
    const auto leaf = [](int64_t heads) {
      return at::randn({2, 6, heads, 4}).to(at::kBFloat16).transpose(1, 2).requires_grad_();
    };
    const Tensor q = leaf(4), k = leaf(2), v = leaf(2), grad = at::randn({2, 4, 6, 4}).to(at::kBFloat16);
    const SelectiveCheckpoint::Shapes none;
    SelectiveCheckpoint checkpoint(none);
    const auto sent = [&] {
      const int64_t bytes = ledger.total_bytes();
      ledger.reset();
      return bytes;
    };
    Found found{};
    Tensor first;
    {
      const at::NoGradGuard no_gradients;
      first = ring_attention(q, k, v, group, /*head_tail=*/true, &checkpoint);
    }
    found.forward = sent();
    checkpoint.start_recompute();
    const Tensor second = ring_attention(q, k, v, group, /*head_tail=*/true, &checkpoint);
    found.second_run = sent();
    torch::autograd::backward({second}, {grad});
    found.backward = sent();
    found.wrong = first.ne(second).sum().item<int64_t>();
    return found;
  });
  for (const Found& found : all) {
    const int64_t keys = 2 * 2 * 6 * 2 * 4;  // of a rank, and values
    CHECK(found.forward == (ranks - 1) * keys * 2);
    CHECK(found.second_run == 0);
    CHECK(found.backward == (ranks - 1) * keys * (2 + 4));
    CHECK(found.wrong == 0);
  }
}

TEST_CASE("a ring holds the keys and values of two ranks, and as many gradients, on any number of ranks") {
  constexpr int64_t kSeq = 64, kHeadDim = 16;
  const auto held = [](int ranks) {
    const auto all = run_ranks(ranks, [&](const parallel::Environment& environment) {
      auto* memory = new CountingAllocator(*c10::GetCPUAllocator());  // the process ends with it
      c10::SetCPUAllocator(memory, /*priority=*/255);
      parallel::ProcessGroups groups(parallel::Mesh({.dp_shard = 1, .tp = ranks}, ranks), environment, {});
      WatchedExchange group(groups.get(parallel::MeshDim::kTp), *memory);
      const auto leaf = [] { return at::randn({1, 1, kSeq, kHeadDim}).requires_grad_(); };
      const Tensor q = leaf(), k = leaf(), v = leaf(), grad = at::randn({1, 1, kSeq, kHeadDim});
      const auto run = [&] { return ring_attention(q, k, v, group, /*head_tail=*/true, nullptr); };
      run();  // what threads keep is there then
      group.held.clear();
      const int64_t before = memory->live();
      const Tensor output = run();
      torch::autograd::backward({output}, {grad});
      for (int64_t& bytes : group.held) bytes -= before;
      return group.held;
    });
    return all.front();
  };
  // Hop 0 of the forward has the own keys, packed, and room for those that come; the others the output and
  // the log-sum-exp besides.
  constexpr int64_t kKeysOfTwo = 2 * 2 * kSeq * kHeadDim * 4, kResult = kSeq * (kHeadDim + 1) * 4;
  const std::vector<int64_t> three = held(3), four = held(4);
  REQUIRE(three.size() == 2 + 4);
  REQUIRE(four.size() == 3 + 6);
  for (size_t hop = 0; hop < 3; ++hop) CHECK(four[hop] == kKeysOfTwo + (hop == 0 ? 0 : kResult));
  CHECK(*std::max_element(three.begin(), three.end()) == *std::max_element(four.begin(), four.end()));
}

}  // namespace hyperion::models
