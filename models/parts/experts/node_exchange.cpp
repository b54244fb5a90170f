#include "models/parts/experts/node_exchange.h"

#include <numeric>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "models/kernels/kernels.h"

namespace hyperion::models {
namespace {

using at::Tensor;

// 0, 1, ... k - 1 of each token.
Tensor numbers_of_choices(const Tensor& choices) {
  return at::arange(choices.size(1), choices.options()).expand_as(choices);
}

// Returns the number of the first choice of each token for which `holds` [..., k] is true; k if there is
// none.
Tensor first_choice(const Tensor& holds, const Tensor& choices) {
  const int64_t k = choices.size(1);
  return at::where(holds, at::arange(k, choices.options()), k).amin(-1);
}

int64_t total_rows(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

// Starts the exchange of the choices of the tokens that level 1 sends.
Tensor start_choices(const Dispatch& dispatch, const ExpertExchange& exchange, bool equal, Exchange& nodes,
                     Pending& pending) {
  const Tensor sent = dispatch.choices.index_select(0, dispatch.tokens);
  if (equal) {  // those for the own node are those of every sender
    const auto own = static_cast<size_t>(nodes.rank());
    const int64_t first = std::accumulate(exchange.sent.begin(), exchange.sent.begin() + own, int64_t{0});
    return sent.narrow(0, first, exchange.sent[own]).repeat({nodes.size(), 1});
  }
  const Tensor received = at::empty({total_rows(exchange.received), sent.size(1)}, sent.options());
  pending = nodes.start_all_to_all(received, sent, exchange.received, exchange.sent);
  return received;
}

// Completes the dispatch of level 2, which has counts alone, from the choices of the received tokens.
void complete_dispatch(Dispatch& in_node, const Tensor& choices, int64_t first, at::ScalarType dtype) {
  std::vector<int64_t> counts = std::move(in_node.counts);
  const int64_t rows = total_rows(counts);
  const Tensor expert_rows = in_node.expert_rows;
  in_node = dispatch_present(choices, choices_in_node(choices, first, expert_rows.numel()), dtype);
  drop_absent(in_node, rows);
  in_node.expert_rows = expert_rows;
  in_node.counts = std::move(counts);
}

}  // namespace

PresentChoices choices_by_node(const Tensor& choices, int64_t experts_of_node, int64_t nodes) {
  const Tensor node = choices.floor_divide(experts_of_node), numbers = numbers_of_choices(choices);
  const Tensor first = first_choice(node.unsqueeze(2).eq(node.unsqueeze(1)), choices);
  return {nodes, at::where(first.eq(numbers), node, nodes), first};
}

PresentChoices choices_in_node(const Tensor& choices, int64_t first, int64_t experts) {
  const Tensor expert = choices.sub(first), here = expert.ge(0).logical_and_(expert.lt(experts));
  const Tensor stand_in =
      at::where(here, numbers_of_choices(choices), first_choice(here, choices).unsqueeze(1));
  return {experts, at::where(here, expert, experts), stand_in};
}

Dispatch dispatch_present(const Tensor& choices, const PresentChoices& present, at::ScalarType dtype) {
  Dispatch dispatch = {
      kernels::table().order_rows(present.groups.contiguous(), present.count + 1, /*unit=*/0),
      choices.contiguous()};
  dispatch.rows = dispatch.rows.view_as(choices).gather(1, present.stand_in.to(at::kLong)).flatten();
  dispatch.expert_rows = dispatch.expert_rows.narrow(0, 0, present.count);
  dispatch.present = present.groups.ne(present.count).to(dtype);
  return dispatch;
}

void drop_absent(Dispatch& dispatch, int64_t rows) {
  dispatch.assignments = dispatch.assignments.narrow(0, 0, rows);
  dispatch.tokens = dispatch.tokens.narrow(0, 0, rows);
}

NodeCounts::NodeCounts(const Tensor& choices, int64_t experts, at::ScalarType dtype, const NodeGroups& groups,
                       bool equal, std::optional<int64_t> unit)
    : groups_(groups), equal_(equal), unit_(unit), in_node_(std::make_shared<Dispatch>()) {
  const int64_t nodes = groups.nodes->size(), of_node = experts / nodes;
  dispatch_ =
      std::make_shared<Dispatch>(dispatch_present(choices, choices_by_node(choices, of_node, nodes), dtype));
  const Tensor flat = choices.flatten().to(at::kLong), rows_of_nodes = dispatch_->expert_rows;
  dispatch_->expert_rows = at::zeros({experts}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
  const Tensor sent = at::cat({rows_of_nodes.unsqueeze(1), dispatch_->expert_rows.view({nodes, of_node})}, 1);
  Tensor received;
  if (equal) {
    received = sent.narrow(0, groups.nodes->rank(), 1).expand_as(sent);
  } else {
    received = at::empty_like(sent);
    const std::vector<int64_t> one(static_cast<size_t>(nodes), 1);
    groups.nodes->start_all_to_all(received, sent, one, one).wait();
  }
  in_node_->expert_rows = received.narrow(1, 1, of_node).sum(0);
  if (!equal) counts_in_node_.emplace(in_node_, *groups.in_node, /*equal=*/false, unit);
  counts_ = at::stack({sent, received});
  if (counts_.is_cpu()) return;
  const Tensor on_device = counts_;
  counts_ = at::empty(on_device.sizes(), at::TensorOptions(at::kLong).pinned_memory(true));
  counts_.copy_(on_device, /*non_blocking=*/true);
  copied_.record(DeviceStream::current(on_device.device()));
}

std::shared_ptr<const ExpertExchange> NodeCounts::wait() {
  copied_.wait_on_host();
  const auto* count = counts_.const_data_ptr<int64_t>();
  const int64_t nodes = counts_.size(1), width = counts_.size(2);
  std::vector<int64_t> sent, received;
  for (int64_t node = 0; node < nodes; ++node) {
    sent.push_back(count[node * width]);
    received.push_back(count[(nodes + node) * width]);
  }
  const auto exchange = std::make_shared<const ExpertExchange>(
      plan_exchange(sent, received, static_cast<int>(nodes), /*unit=*/std::nullopt));
  drop_absent(*dispatch_, total_rows(exchange->sent));
  if (equal_) {
    in_node_->counts.assign(static_cast<size_t>(width - 1), 0);
    for (int64_t node = 0; node < nodes; ++node)
      for (int64_t expert = 0; expert < width - 1; ++expert)
        in_node_->counts[static_cast<size_t>(expert)] += count[(nodes + node) * width + 1 + expert];
    counts_in_node_.emplace(in_node_, *groups_.in_node, /*equal=*/true, unit_);
  }
  counts_in_node_->wait();  // copied by then
  return exchange;
}

TokensForNodes::TokensForNodes(const Tensor& x, const Tensor& weights, KeptRouting& routing,
                               std::optional<NodeCounts> counts, const NodeGroups& groups,
                               const BlockRun& run)
    : groups_(groups),
      level_{x.scalar_type() == at::kBFloat16 ? std::make_shared<NodeSums>() : nullptr},
      tokens_([&] {
        if (counts) {
          routing.exchange = counts->wait();
          choices_ =
              start_choices(*routing.dispatch, *routing.exchange, counts->equal(), *groups.nodes, pending_);
          in_node_ = counts->take_in_node();
          counts_in_node_ = counts->take_counts_in_node();
        }
        return RowsForExperts(x, Tensor(), routing, {}, *groups.nodes, run, level_);
      }()),
      weights_(weights, Tensor(), routing, {}, *groups.nodes, run) {
  routing_ = routing;
}

TokensForNodes::Received TokensForNodes::wait() {
  Received received{
      .x = tokens_.wait(), .weights = weights_.wait(), .level = {.sums = level_.sums, .packs = true}};
  if (in_node_ != nullptr) {
    pending_.wait();
    const int64_t experts = in_node_->expert_rows.numel();
    complete_dispatch(*in_node_, choices_, groups_.nodes->rank() * experts, received.weights.scalar_type());
    received.routing.dispatch = std::move(in_node_);
    received.routing.mean_rows = routing_.dispatch->choices.numel();
    received.counts = std::move(counts_in_node_);
  } else {
    received.routing = *routing_.in_node;
  }
  received.weights = received.weights.masked_fill(received.routing.dispatch->present.eq(0), 0);
  return received;
}

}  // namespace hyperion::models
