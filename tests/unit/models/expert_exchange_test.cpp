#include "models/parts/experts/expert_exchange.h"

#include <numeric>

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
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

// The plan of a rank, with the order of what it receives.
ExpertExchange planned(const Counts& counts, const Counts& received, int ranks,
                       std::optional<int64_t> unit = {}) {
  ExpertExchange plan = plan_exchange(counts, received, ranks);
  plan.experts = std::make_shared<const Dispatch>(
      order_received(received, at::tensor(received, at::kLong), ranks, unit));
  return plan;
}

// What each rank receives where rank r sends rows of `sent[r]`, as the plans of both say.
std::vector<Tensor> all_to_all(const std::vector<Tensor>& sent, const std::vector<Counts>& to,
                               const std::vector<Counts>& from) {
  std::vector<Tensor> received;
  for (size_t rank = 0; rank < sent.size(); ++rank) {
    std::vector<Tensor> parts;
    for (size_t source = 0; source < sent.size(); ++source) {
      REQUIRE(to[source][rank] == from[rank][source]);
      const int64_t first = std::accumulate(to[source].begin(), to[source].begin() + rank, int64_t{0});
      parts.push_back(sent[source].narrow(0, first, to[source][rank]));
    }
    received.push_back(at::cat(parts));
  }
  return received;
}

// Sends every assignment of every rank's choices to its expert and back, and checks where it arrives.
void check_journey(const std::vector<Tensor>& choices, int64_t experts) {
  const int ranks = static_cast<int>(choices.size());
  const int64_t here = experts / ranks;
  std::vector<Dispatch> dispatches;
  for (const Tensor& of_rank : choices) dispatches.push_back(dispatch_tokens(of_rank, experts));
  std::vector<ExpertExchange> plans;
  std::vector<Counts> sent, received;
  std::vector<Tensor> rows;  // [assignment, source, expert] of each
  for (int rank = 0; rank < ranks; ++rank) {
    Counts of_sources;
    for (const Dispatch& source : dispatches)
      of_sources.insert(of_sources.end(), source.counts.begin() + rank * here,
                        source.counts.begin() + (rank + 1) * here);
    plans.push_back(planned(dispatches[rank].counts, of_sources, ranks));
    sent.push_back(plans.back().sent);
    received.push_back(plans.back().received);
    CHECK(total(sent.back()) == choices[rank].numel());
    const Tensor& assignments = dispatches[rank].assignments;
    rows.push_back(at::stack(
        {assignments, at::full_like(assignments, rank), choices[rank].flatten().index_select(0, assignments)},
        1));
  }
  std::vector<Tensor> arrived = all_to_all(rows, sent, received), made;
  for (int rank = 0; rank < ranks; ++rank) {
    const Dispatch& local = *plans[rank].experts;
    const Tensor in_order = arrived[rank].index_select(0, local.assignments);
    int64_t row = 0, before = -1;
    for (int64_t expert = 0; expert < here; ++expert)
      for (int64_t i = 0; i < local.counts[expert]; ++i, ++row) {
        const int64_t assignment = in_order[row][0].item<int64_t>(),
                      source = in_order[row][1].item<int64_t>();
        CHECK(in_order[row][2].item<int64_t>() == rank * here + expert);
        const int64_t key = (expert * ranks + source) * 1'000'000 + assignment;
        CHECK(key > before);  // by expert, then by rank, then in the order of its assignments
        before = key;
      }
    CHECK(row == arrived[rank].size(0));
    made.push_back(in_order.index_select(0, local.rows));
    CHECK(made.back().equal(arrived[rank]));
  }
  const std::vector<Tensor> back = all_to_all(made, received, sent);
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
       {Case{1, 5, 3, 2}, {2, 7, 4, 2}, {4, 3, 4, 1}, {3, 4, 6, 6}, {2, 0, 2, 1}, {4, 1, 8, 1}}) {
    CAPTURE(c.ranks, c.tokens, c.experts, c.top_k);
    std::vector<Tensor> random, one, last;
    for (int rank = 0; rank < c.ranks; ++rank) {
      std::vector<Tensor> rows(1, at::empty({0, c.top_k}, at::kLong));
      for (int64_t token = 0; token < c.tokens; ++token)
        rows.push_back(at::randperm(c.experts).narrow(0, 0, c.top_k).unsqueeze(0));
      random.push_back(at::cat(rows));
      one.push_back(at::arange(c.top_k).expand({c.tokens, c.top_k}).contiguous());
      last.push_back(c.experts - 1 - one.back());
    }
    check_journey(random, c.experts);
    check_journey(one, c.experts);  // most ranks send and receive nothing
    check_journey(last, c.experts);
  }
}

TEST_CASE("eight experts on four ranks: rows to send and to receive by hand") {
  // Choices 5, 0, 5, 2 of rank 1; what it would receive is made up.
  const Dispatch own =
      dispatch_tokens(at::cat({at::full({1}, 5), at::full({1}, 0), at::full({1}, 5), at::full({1}, 2)})
                          .to(at::kLong)
                          .view({4, 1}),
                      8);
  const ExpertExchange plan = planned(own.counts, {1, 0, 0, 2, 3, 0, 0, 0}, 4);
  CHECK(plan.sent == Counts{1, 1, 2, 0});
  CHECK(plan.received == Counts{1, 2, 3, 0});
  CHECK(plan.experts->counts == Counts{4, 2});
  CHECK(plan.experts->assignments.equal(at::cat({at::arange(0, 1), at::arange(3, 6), at::arange(1, 3)})));
}

TEST_CASE("the order of received rows is that of a sort of them by expert, whatever the counts are") {
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
          std::vector<Tensor> experts = {at::empty({0}, at::kLong)};
          for (size_t i = 0; i < received.size(); ++i)
            experts.push_back(at::full({received[i]}, static_cast<int64_t>(i) % here, at::kLong));
          const Dispatch sorted =
              dispatch_tokens(at::cat(experts).unsqueeze(1), here,
                              unit ? RowCounts::kPadded : RowCounts::kOnHost, unit.value_or(8));
          const Dispatch made = order_received(received, counts, ranks, unit);
          CHECK(made.counts == sorted.counts);
          CHECK(made.choices.equal(sorted.choices));
          CHECK(made.assignments.equal(sorted.assignments));
          CHECK(made.tokens.equal(sorted.tokens));
          CHECK(made.rows.equal(sorted.rows));
          CHECK(made.expert_rows.equal(sorted.expert_rows));
          REQUIRE(made.ends.defined() == unit.has_value());
          if (!unit) continue;
          CHECK(made.ends.equal(sorted.ends));
          CHECK(made.padding.equal(sorted.padding));
        }
    }
}

TEST_CASE("received rows are padded where experts multiply in FP8, also where there are none") {
  const ExpertExchange plan = planned({1, 0, 2, 1}, {3, 1, 2, 0}, 2, 16);
  CHECK(plan.received == Counts{4, 2});
  const Dispatch& local = *plan.experts;
  CHECK(local.counts.empty());
  CHECK(local.ends.equal(at::tensor({16, 32}, at::kInt)));
  const Tensor x = at::arange(1, 7).to(at::kFloat).unsqueeze(1), rows = gather_rows(x, local, Tensor());
  const Tensor of_first = at::tensor({1.0F, 2.0F, 3.0F, 5.0F, 6.0F}), of_second = at::tensor({4.0F});
  CHECK(rows.narrow(0, 0, 5).flatten().equal(of_first));
  CHECK(rows.narrow(0, 16, 1).flatten().equal(of_second));
  CHECK(rows.narrow(0, 0, 32).count_nonzero().item<int64_t>() == 6);
  CHECK(rows.index_select(0, local.rows).equal(x));
  const ExpertExchange none = planned({1, 0}, {0, 0}, 2, 32);
  const Tensor zeros = gather_rows(x.narrow(0, 0, 0), *none.experts, Tensor());
  CHECK(zeros.size(0) % 32 == 0);
  CHECK(zeros.narrow(0, 0, 32).count_nonzero().item<int64_t>() == 0);
}

}  // namespace hyperion::models
