#include "models/parts/experts/exchange/expert_exchange.h"

#include <numeric>

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace hyperion::models {
namespace {

using at::Tensor;
using Counts = std::vector<int64_t>;

int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Moves the blocks that the plan of each rank names for each other rank from `from` to `to`, as
// Exchange::start_block_exchange() does. back: from the experts.
void exchange_blocks(const std::vector<ExchangePlan>& plans, bool back, const std::vector<Tensor>& from,
                     const std::vector<Tensor>& to) {
  const auto blocks_of = [&](size_t rank, bool sent) -> const std::vector<RowBlock>& {
    return sent ? plans[rank].sent_blocks : plans[rank].received_blocks;
  };
  const size_t each = plans[0].sent_blocks.size() / plans.size();
  for (size_t source = 0; source < plans.size(); ++source)
    for (size_t target = 0; target < plans.size(); ++target)
      for (size_t i = 0; i < each; ++i) {
        const RowBlock &leaves = blocks_of(source, !back)[target * each + i],
                       &arrives = blocks_of(target, back)[source * each + i];
        REQUIRE(leaves.rows == arrives.rows);
        to[target]
            .narrow(0, arrives.first, arrives.rows)
            .copy_(from[source].narrow(0, leaves.first, leaves.rows));
      }
}

Tensor ends_of(const std::vector<int>& ends) {
  return at::tensor(ends, at::kInt);
}

// Checks the plan of a rank that receives `received` against a sort of these rows by their experts, which
// arrive as blocks of (rank, expert).
void check_places(const ExchangePlan& plan, const Counts& received, int64_t here,
                  std::optional<int64_t> unit) {
  std::vector<Tensor> experts = {at::empty({0}, at::kInt)}, places = {at::empty({0}, at::kInt)};
  for (size_t i = 0; i < received.size(); ++i) {
    const auto& [first, rows] = plan.received_blocks[i];
    CHECK(rows == received[i]);
    experts.push_back(at::full({rows}, static_cast<int64_t>(i) % here, at::kInt));
    places.push_back(at::arange(first, first + rows, at::kInt));
  }
  const Dispatch sorted = dispatch_tokens(at::cat(experts).unsqueeze(1), here,
                                          unit ? RowCounts::kPadded : RowCounts::kOnHost, unit.value_or(8)),
                 groups = groups_of_received(plan, unit, at::kCPU);
  CHECK(at::cat(places).equal(sorted.rows));
  CHECK(groups.counts == sorted.counts);
  CHECK(groups.in_order());
  Tensor taken = at::zeros({plan.received_rows}, at::kInt);
  taken.index_fill_(0, at::cat(places).to(at::kLong), 1);
  for (const auto& [first, rows] : plan.padding) taken.narrow(0, first, rows).add_(1);
  CHECK(taken.eq(1).all().item<bool>());  // each row is received or padding, once
  REQUIRE(groups.ends.defined() == unit.has_value());
  if (!unit) return;
  CHECK(groups.ends.equal(sorted.ends));
  CHECK(plan.received_rows == sorted.ends[-1].item<int64_t>());
}

// Sends every assignment of every rank's choices to its expert and back, and checks where it arrives.
void check_journey(const std::vector<Tensor>& choices, int64_t experts, std::optional<int64_t> unit) {
  const int ranks = static_cast<int>(choices.size());
  const int64_t here = experts / ranks;
  std::vector<Dispatch> dispatches;
  for (const Tensor& of_rank : choices) dispatches.push_back(dispatch_tokens(of_rank, experts));
  std::vector<ExchangePlan> plans;
  std::vector<Tensor> rows, arrived, back;  // [assignment, source, expert] of each
  for (int rank = 0; rank < ranks; ++rank) {
    Counts received;
    for (const Dispatch& source : dispatches)
      received.insert(received.end(), source.counts.begin() + rank * here,
                      source.counts.begin() + (rank + 1) * here);
    plans.push_back(plan_exchange(dispatches[rank].counts, received, ranks, unit));
    CHECK(total(plans.back().sent) == choices[rank].numel());
    CHECK(total(plans.back().received) == total(received));
    check_places(plans.back(), received, here, unit);
    const Tensor& assignments = dispatches[rank].assignments;
    rows.push_back(at::stack(
        {assignments, at::full_like(assignments, rank), choices[rank].flatten().index_select(0, assignments)},
        1));
    arrived.push_back(at::full({plans.back().received_rows, 3}, -1, at::kInt));
    back.push_back(at::full_like(rows.back(), -1));
  }
  exchange_blocks(plans, /*back=*/false, rows, arrived);
  for (int rank = 0; rank < ranks; ++rank) {
    const Dispatch groups = groups_of_received(plans[rank], unit, at::kCPU);
    int64_t row = 0, before = -1;
    for (int64_t expert = 0; expert < here; ++expert) {
      const int64_t end = unit ? groups.ends[expert].item<int64_t>() : row + groups.counts[expert];
      for (; row < end; ++row) {
        const auto at = [&](int64_t i) { return arrived[rank][row][i].item<int64_t>(); };
        if (at(0) < 0) continue;  // of the padding
        CHECK(at(2) == rank * here + expert);
        const int64_t key = (expert * ranks + at(1)) * 1'000'000 + at(0);
        CHECK(key > before);  // by expert, then by rank, then in the order of its assignments
        before = key;
      }
    }
    CHECK(row == arrived[rank].size(0));
  }
  exchange_blocks(plans, /*back=*/true, arrived, back);
  for (int rank = 0; rank < ranks; ++rank) CHECK(back[rank].equal(rows[rank]));
}

}  // namespace

TEST_CASE("every assignment reaches its expert in the order of the ranks, and comes back") {
  at::manual_seed(5);
  struct Case {
    int ranks;
    int64_t tokens, experts, top_k;
  };
  for (const Case& c :
       {Case{1, 5, 3, 2}, {2, 7, 4, 2}, {4, 3, 4, 1}, {3, 4, 6, 6}, {2, 0, 2, 1}, {4, 1, 8, 1}})
    for (const std::optional<int64_t> unit : {std::optional<int64_t>(), {8}}) {
      CAPTURE(c.ranks, c.tokens, c.experts, c.top_k, unit.value_or(0));
      std::vector<Tensor> random, one, last;
      for (int rank = 0; rank < c.ranks; ++rank) {
        std::vector<Tensor> rows(1, at::empty({0, c.top_k}, at::kInt));
        for (int64_t token = 0; token < c.tokens; ++token)
          rows.push_back(at::randperm(c.experts, at::kInt).narrow(0, 0, c.top_k).unsqueeze(0));
        random.push_back(at::cat(rows));
        one.push_back(at::arange(c.top_k, at::kInt).expand({c.tokens, c.top_k}).contiguous());
        last.push_back(c.experts - 1 - one.back());
      }
      check_journey(random, c.experts, unit);
      check_journey(one, c.experts, unit);  // most ranks send and receive nothing
      check_journey(last, c.experts, unit);
    }
}

TEST_CASE("eight experts on four ranks: rows to send and to receive by hand") {
  // Choices 5, 0, 5, 2 of rank 1; what it would receive is made up.
  const Dispatch own = dispatch_tokens(ends_of({5, 0, 5, 2}).view({4, 1}), 8);
  const ExchangePlan plan = plan_exchange(own.counts, Counts{1, 0, 0, 2, 3, 0, 0, 0}, 4, std::nullopt);
  CHECK(plan.sent == Counts{1, 1, 2, 0});
  CHECK(plan.received == Counts{1, 2, 3, 0});
  CHECK(plan.received_rows == 6);
  CHECK(plan.padding.empty());
  CHECK(groups_of_received(plan, std::nullopt, at::kCPU).counts == Counts{4, 2});
  const auto firsts = [](const std::vector<RowBlock>& blocks) {
    Counts all;
    for (const RowBlock& block : blocks) all.push_back(block.first);
    return all;
  };
  CHECK(firsts(plan.sent_blocks) == Counts{0, 1, 1, 2, 2, 2, 4, 4});
  CHECK(firsts(plan.received_blocks) == Counts{0, 4, 1, 4, 1, 6, 4, 6});
}

TEST_CASE("received rows have the places that a sort of them by expert has, whatever the counts are") {
  at::manual_seed(9);
  for (const int ranks : {1, 2, 4, 64})
    for (const int64_t here : {1, 3, 16}) {
      const Tensor random = at::randint(0, 9, {ranks * here}, at::kLong);
      const Tensor skewed =
          at::zeros({ranks * here}, at::kLong);  // one rank sends all its rows to one expert
      skewed[ranks * here - 1] = 1'000;
      const Tensor of_one = random.clone();  // most experts have no rows
      of_one.view({ranks, here}).narrow(1, 1 % here, here - 1).zero_();
      for (const Tensor& counts : {random, skewed, of_one, at::zeros_like(random)})
        for (const std::optional<int64_t> unit : {std::optional<int64_t>(), {8}, {32}}) {
          CAPTURE(ranks, here, unit.value_or(0));
          const Counts received(counts.const_data_ptr<int64_t>(),
                                counts.const_data_ptr<int64_t>() + counts.numel());
          check_places(plan_exchange(received, received, ranks, unit), received, here, unit);
        }
    }
}

TEST_CASE("received rows are padded where experts multiply in FP8, also where there are none") {
  const ExchangePlan plan = plan_exchange(Counts{1, 0, 2, 1}, Counts{3, 1, 2, 0}, 2, 16);
  CHECK(plan.received == Counts{4, 2});
  CHECK(plan.received_rows == 32);
  const auto is = [](const RowBlock& block, int64_t first, int64_t rows) {
    return block.first == first && block.rows == rows;
  };
  REQUIRE(plan.padding.size() == 2);
  CHECK((is(plan.padding[0], 5, 11) && is(plan.padding[1], 17, 15)));
  const Dispatch local = groups_of_received(plan, 16, at::kCPU);
  CHECK(local.counts.empty());
  CHECK(local.ends.equal(ends_of({16, 32})));
  const Tensor rows = at::ones({32, 2});  // they stay where they are
  CHECK(gather_rows(rows, local, Tensor()).is_same(rows));
  CHECK(sum_rows(rows, local, Tensor()).is_same(rows));
  CHECK(local.tokens_of(32) == 32);
  const ExchangePlan none = plan_exchange(Counts{1, 0}, Counts{0, 0}, 2, 32);
  REQUIRE(none.padding.size() == 1);
  CHECK((none.received_rows == 32 && is(none.padding[0], 0, 32)));
}

}  // namespace hyperion::models
