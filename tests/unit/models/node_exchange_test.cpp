#include "models/parts/experts/exchange/node_exchange.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/zeros.h>

#include "models/flavors/registry.h"
#include "models/kernels/packed_sums/packed_sums.h"
#include "models/kernels/router/router.h"

namespace hyperion::models {
namespace {

using at::Tensor;
using Counts = std::vector<int64_t>;

Counts on_host(const Tensor& numbers) {
  const Tensor counts = numbers.to(at::kLong).contiguous();
  return {counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + counts.numel()};
}

int64_t sum_until(const Counts& counts, size_t end) {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<int64_t>(end), int64_t{0});
}

// What a rank sends in level 1.
struct ToNodes {
  Dispatch dispatch;
  Counts rows;  // to each node
  // The rows of `x` [tokens, ...] for a node.
  Tensor rows_for(int64_t node, const Tensor& x) const {
    return x.index_select(0, dispatch.tokens).narrow(0, sum_until(rows, node), rows[node]);
  }
};

ToNodes to_nodes(const Tensor& choices, int64_t experts, int64_t nodes) {
  ToNodes sent{dispatch_present(choices, choices_by_node(choices, experts / nodes, nodes), at::kFloat), {}};
  sent.rows = on_host(sent.dispatch.expert_rows);
  drop_absent(sent.dispatch, sum_until(sent.rows, sent.rows.size()));
  return sent;
}

Tensor random_choices(int64_t tokens, int64_t experts, int64_t k) {
  std::vector<Tensor> rows(1, at::empty({0, k}, at::kInt));
  for (int64_t token = 0; token < tokens; ++token)
    rows.push_back(at::randperm(experts, at::kInt).narrow(0, 0, k).unsqueeze(0));
  return at::cat(rows);
}

}  // namespace

TEST_CASE("a token travels once to each node of its experts, and there to each of them") {
  at::manual_seed(3);
  struct Case {
    int64_t nodes, ranks, experts, tokens, k;  // ranks of a node
  };
  for (const Case& c :
       {Case{2, 2, 8, 9, 3}, {4, 1, 4, 7, 2}, {2, 4, 16, 5, 8}, {3, 2, 6, 4, 6}, {2, 2, 4, 1, 1}}) {
    CAPTURE(c.nodes, c.ranks, c.experts, c.tokens, c.k);
    const int64_t of_node = c.experts / c.nodes, width = 5;
    for (int64_t rail = 0; rail < c.ranks; ++rail) {
      std::vector<Tensor> choices, x, weights;
      std::vector<ToNodes> sent;
      for (int64_t node = 0; node < c.nodes; ++node) {
        choices.push_back(random_choices(c.tokens, c.experts, c.k));
        x.push_back(at::randn({c.tokens, width}));
        weights.push_back(at::rand({c.tokens, c.k}));
        sent.push_back(to_nodes(choices.back(), c.experts, c.nodes));
      }
      std::vector<Tensor> sums;  // of the experts of each node, for what it received
      for (int64_t node = 0; node < c.nodes; ++node) {
        std::vector<Tensor> of_choices, of_x, of_weights;
        for (int64_t source = 0; source < c.nodes; ++source) {
          // The tokens with an expert of the node, in their order.
          Counts wanted;
          for (int64_t token = 0; token < c.tokens; ++token)
            if (choices[source][token].floor_divide(of_node).eq(node).any().item<bool>())
              wanted.push_back(token);
          REQUIRE(sent[source].rows[node] == static_cast<int64_t>(wanted.size()));
          CHECK(on_host(sent[source].dispatch.tokens.narrow(0, sum_until(sent[source].rows, node),
                                                            sent[source].rows[node])) == wanted);
          of_choices.push_back(sent[source].rows_for(node, choices[source]));
          of_x.push_back(sent[source].rows_for(node, x[source]));
          of_weights.push_back(sent[source].rows_for(node, weights[source]));
        }
        const Tensor received = at::cat(of_choices);
        Dispatch experts =
            dispatch_present(received, choices_in_node(received, node * of_node, of_node), at::kFloat);
        const Counts rows = on_host(experts.expert_rows);
        drop_absent(experts, sum_until(rows, rows.size()));
        CHECK(experts.present.sum().item<int64_t>() == experts.tokens.numel());
        const Tensor gathered = gather_rows(at::cat(of_x), experts, Tensor()).clone();
        for (int64_t expert = 0, row = 0; expert < of_node;
             ++expert)  // an expert multiplies by its number + 1
          for (int64_t i = 0; i < rows[expert]; ++i, ++row) {
            const int64_t assignment = experts.assignments[row].item<int64_t>();
            CHECK(received.flatten()[assignment].item<int64_t>() == node * of_node + expert);
            gathered[row].mul_(node * of_node + expert + 1);
          }
        // Weights of absent choices are zero (NodeDispatchExchange::wait).
        sums.push_back(sum_rows(gathered, experts, at::cat(of_weights).mul(experts.present)));
      }
      for (int64_t source = 0; source < c.nodes; ++source) {
        std::vector<Tensor> back;
        for (int64_t node = 0; node < c.nodes; ++node) {
          int64_t first = 0;
          for (int64_t before = 0; before < source; ++before) first += sent[before].rows[node];
          back.push_back(sums[node].narrow(0, first, sent[source].rows[node]));
        }
        const Tensor sum = sum_rows(at::cat(back), sent[source].dispatch, Tensor()),
                     factors = weights[source].mul(choices[source] + 1).sum(1, /*keepdim=*/true),
                     wanted = x[source].mul(factors);
        CHECK((sum - wanted).norm().item<double>() <= 2e-7 * wanted.norm().item<double>());
      }
    }
  }
}

TEST_CASE("671B's rows over 8 nodes: at most 0.55 of the bytes between nodes, forward and back") {
  at::manual_seed(17);
  const ModelArgs args = model_args("deepseek_v3", "671B", {});
  const kernels::RoutingOptions options(args.experts);
  REQUIRE(
      (options.experts == 256 && options.top_k == 8 && options.groups == 8 && options.limited_groups == 4));
  constexpr int64_t kNodes = 8, kRanksOfNode = 8, kRanks = kNodes * kRanksOfNode, kTokens = 512;
  constexpr int64_t kSenders = kNodes;  // one rank of each node
  const int64_t row = args.dim * 2, packed = kernels::bytes_of_packed_row(args.dim), k = options.top_k;
  struct Bytes {
    int64_t plain = 0, by_node = 0;
  } there, back, gradients_there, gradients_back, in_node;
  for (int64_t sender = 0; sender < kSenders; ++sender) {
    const int64_t rank = sender * (kRanksOfNode + 1);
    const Tensor choices = kernels::plain::route_tokens(at::randn({kTokens, options.experts}),
                                                        at::zeros({options.experts}), options)
                               .choices;
    const Dispatch to_experts = dispatch_tokens(choices, options.experts);
    const ExchangePlan plan =
        plan_exchange(to_experts.counts, to_experts.counts, kRanks, /*unit=*/std::nullopt);
    const ToNodes sent = to_nodes(choices, options.experts, kNodes);
    for (int64_t node = 0; node < kNodes; ++node) {
      const int64_t rows =
          sum_until(plan.sent, (node + 1) * kRanksOfNode) - sum_until(plan.sent, node * kRanksOfNode);
      // A node passes on what it received, over its own links. Here its ranks pass on as much as this one
      // sends.
      in_node.by_node += rows * row * (kRanksOfNode - 1) / kRanksOfNode;
      if (node == rank / kRanksOfNode) {
        in_node.plain += (rows - plan.sent[rank]) * row;
        continue;
      }
      const int64_t tokens = sent.rows[node], choices_bytes = k * 4, weights_bytes = k * 4;
      there.plain += rows * row;
      there.by_node += tokens * (row + choices_bytes + weights_bytes);
      back.plain += rows * row;
      back.by_node += tokens * packed;
      gradients_there.plain += rows * row;
      gradients_there.by_node += tokens * row;
      gradients_back.plain += rows * row;
      gradients_back.by_node += tokens * (packed + weights_bytes);
    }
  }
  const auto ratio = [](const Bytes& bytes) {
    return static_cast<double>(bytes.by_node) / static_cast<double>(bytes.plain);
  };
  const auto each = [](int64_t bytes) { return static_cast<double>(bytes) / 1024 / (kSenders * kTokens); };
  const auto text = [&](const char* what, const Bytes& bytes) {
    return fmt::format("{}: {:.1f} -> {:.1f} KiB a token ({:.3f})\n", what, each(bytes.plain),
                       each(bytes.by_node), ratio(bytes));
  };
  const std::string table = text("between nodes, rows to experts", there) + text("their results", back) +
                            text("gradients of results", gradients_there) +
                            text("gradients of rows", gradients_back) +
                            text("inside a node, one way", in_node);
  CAPTURE(table);
  for (const Bytes& bytes : {there, back, gradients_there, gradients_back}) CHECK(ratio(bytes) <= 0.55);
  CHECK(ratio(there) > 0.4);  // 1 / 2 at least where each of four nodes has two of the eight
}

}  // namespace hyperion::models
