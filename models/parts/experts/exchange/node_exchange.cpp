#include "models/parts/experts/exchange/node_exchange.h"

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

// Returns 0, 1, ... k - 1 for each token.
Tensor numbers_of_choices(const Tensor& choices) {
  return at::arange(choices.size(1), choices.options()).expand_as(choices);
}

// Returns the number of the first choice of each token for which `holds` [..., k] is true; k if there is
// none.
Tensor first_choice(const Tensor& holds, const Tensor& choices) {
  const int64_t k = choices.size(1);
  return at::where(holds, at::arange(k, choices.options()), k).amin(-1);
}

using Exchanges = std::vector<std::shared_ptr<const ExchangePlan>>;  // of the slices

// Starts the exchange of the choices of the tokens that level 1 sends.
Tensor start_choices(const Dispatch& dispatch, const Exchanges& exchanges, bool equal, Exchange& nodes,
                     Pending& pending) {
  const Tensor sent = dispatch.choices.index_select(0, dispatch.tokens);
  const auto here = static_cast<size_t>(nodes.rank());
  if (equal) {  // those for the own node are those of every sender
    std::vector<Tensor> received;
    for (const auto& exchange : exchanges) {
      const auto& [first, rows] = exchange->sent_blocks[here];
      received.push_back(sent.narrow(0, first, rows).repeat({nodes.size(), 1}));
    }
    return at::cat(received);
  }
  std::vector<RowBlock> sent_blocks, received_blocks;  // of each rank those of the slices
  int64_t received_rows = 0;
  for (size_t rank = 0; rank < static_cast<size_t>(nodes.size()); ++rank) {
    received_rows = 0;
    for (const auto& exchange : exchanges) {
      sent_blocks.push_back(exchange->sent_blocks[rank]);
      const auto& [first, rows] = exchange->received_blocks[rank];
      received_blocks.push_back({received_rows + first, rows});
      received_rows += exchange->received_rows;
    }
  }
  const Tensor received = at::empty({received_rows, sent.size(1)}, sent.options());
  pending = nodes.start_block_exchange(received, sent, received_blocks, sent_blocks);
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

PresentChoices choices_by_node(const Tensor& choices, int64_t experts_of_node, int64_t nodes,
                               int64_t slices) {
  const Tensor node = choices.floor_divide(experts_of_node), numbers = numbers_of_choices(choices);
  const Tensor first = first_choice(node.unsqueeze(2).eq(node.unsqueeze(1)), choices);
  const int64_t count = slices * nodes;
  return {count, at::where(first.eq(numbers), number_groups_by_slice(node, nodes, slices), count), first};
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
                       bool equal, std::optional<int64_t> unit, int64_t slices)
    : groups_(groups), equal_(equal), unit_(unit) {
  const int64_t nodes = groups.nodes->size(), of_node = experts / nodes;
  dispatch_ = std::make_shared<Dispatch>(
      dispatch_present(choices, choices_by_node(choices, of_node, nodes, slices), dtype));
  dispatch_->slices = slices;
  const Tensor flat = number_groups_by_slice(choices, experts, slices).flatten().to(at::kLong),
               rows_of_nodes = dispatch_->expert_rows;
  dispatch_->expert_rows =
      at::zeros({slices * experts}, flat.options()).scatter_add_(0, flat, at::ones_like(flat));
  const Tensor sent =
      at::cat({rows_of_nodes.unsqueeze(1), dispatch_->expert_rows.view({slices * nodes, of_node})}, 1);
  const std::vector<int64_t> by_slice = {slices, nodes, 1 + of_node};
  Tensor received;
  if (equal) {
    received = sent.view(by_slice).narrow(1, groups.nodes->rank(), 1).expand(by_slice);
  } else {
    received = at::empty_like(sent);
    const std::vector<RowBlock> blocks = blocks_of_slices(nodes, slices);
    groups.nodes->start_block_exchange(received, sent, blocks, blocks).wait();
    received = received.view(by_slice);
  }
  rows_in_node_ = std::make_shared<Dispatch>();
  rows_in_node_->slices = slices;
  rows_in_node_->expert_rows = received.narrow(2, 1, of_node).sum(1).flatten();
  if (!equal) counts_in_node_.emplace(rows_in_node_, *groups.in_node, /*equal=*/false, unit);
  counts_ = at::stack({sent.view(by_slice), received});
  if (counts_.is_cpu()) return;
  const Tensor on_device = counts_;
  counts_ = at::empty(on_device.sizes(), at::TensorOptions(at::kLong).pinned_memory(true));
  counts_.copy_(on_device, /*non_blocking=*/true);
  copied_.record(DeviceStream::current(on_device.device()));
}

std::vector<std::shared_ptr<const ExchangePlan>> NodeCounts::wait() {
  copied_.wait_on_host();
  const int64_t slices = counts_.size(1), nodes = counts_.size(2), width = counts_.size(3);
  const auto* counts = counts_.const_data_ptr<int64_t>();
  Exchanges exchanges;
  std::vector<int64_t> rows_in_node(static_cast<size_t>(slices * (width - 1)));
  int64_t sent_rows = 0;
  for (int64_t slice = 0; slice < slices; ++slice) {
    const int64_t *to_nodes = counts + slice * nodes * width, *from_nodes = to_nodes + counts_.stride(0);
    std::vector<int64_t> sent, received;
    for (int64_t node = 0; node < nodes; ++node) {
      sent.push_back(to_nodes[node * width]);
      received.push_back(from_nodes[node * width]);
      for (int64_t expert = 0; expert < width - 1; ++expert)
        rows_in_node[static_cast<size_t>(slice * (width - 1) + expert)] +=
            from_nodes[node * width + 1 + expert];
    }
    exchanges.push_back(std::make_shared<const ExchangePlan>(
        plan_exchange(sent, received, static_cast<int>(nodes), /*unit=*/std::nullopt, sent_rows)));
    sent_rows += total_rows(sent);
  }
  drop_absent(*dispatch_, sent_rows);
  if (equal_) {
    rows_in_node_->counts = std::move(rows_in_node);
    counts_in_node_.emplace(rows_in_node_, *groups_.in_node, /*equal=*/true, unit_);
  }
  for (const auto& exchange : counts_in_node_->wait()) {  // copied by then
    const auto slice = static_cast<int64_t>(in_node_.size());
    const int64_t first_row = exchange->sent_blocks.front().first;  // here each slice has a tensor of rows
    for (RowBlock& block : exchange->sent_blocks) block.first -= first_row;
    exchange->experts = counts_in_node_->groups(*exchange);
    auto dispatch = std::make_shared<Dispatch>();
    dispatch->expert_rows = rows_in_node_->expert_rows.view({slices, -1})[slice];
    const auto first = rows_in_node_->counts.begin() + slice * (width - 1);
    dispatch->counts.assign(first, first + width - 1);
    in_node_.push_back({std::move(dispatch), exchange});
  }
  return exchanges;
}

NodeDispatchExchange::NodeDispatchExchange(const Tensor& x, const Tensor& weights, KeptRouting& routing,
                                           std::optional<NodeCounts> counts, const NodeGroups& groups,
                                           const BlockRun& run)
    : groups_(groups),
      level_{x.scalar_type() == at::kBFloat16 ? std::make_shared<NodeSums>() : nullptr},
      weights_([&] {
        if (counts) {
          routing.exchanges = counts->wait();
          choices_ =
              start_choices(*routing.dispatch, routing.exchanges, counts->equal(), *groups.nodes, pending_);
          in_node_ = counts->take_in_node();
        }
        return DispatchExchange(weights, Tensor(), routing, {}, *groups.nodes, run);
      }()),
      tokens_(x, Tensor(), routing, {}, *groups.nodes, run, level_) {
  routing_ = routing;
}

NodeDispatchExchange::Received NodeDispatchExchange::wait(size_t slice) {
  Received received{.x = tokens_.wait(slice),
                    .weights = weights_.wait(slice),
                    .level = {.sums = level_.sums, .packs = true}};
  if (!in_node_.empty()) {
    pending_.wait();
    auto& [dispatch, exchange] = in_node_[slice];
    int64_t first = 0;
    for (size_t earlier = 0; earlier < slice; ++earlier) first += routing_.exchanges[earlier]->received_rows;
    const int64_t experts = dispatch->expert_rows.numel();
    complete_dispatch(*dispatch, choices_.narrow(0, first, received.x.size(0)),
                      groups_.nodes->rank() * experts, received.weights.scalar_type());
    received.routing.dispatch = std::move(dispatch);
    const auto number = static_cast<int64_t>(slice), slices = static_cast<int64_t>(in_node_.size()),
               tokens = routing_.dispatch->choices.size(0);
    received.routing.mean_rows =
        (first_token_of_slice(tokens, number + 1, slices) - first_token_of_slice(tokens, number, slices)) *
        routing_.dispatch->top_k();
    received.routing.exchanges = {exchange};
  } else {
    received.routing = *routing_.in_node[slice];
  }
  received.weights = received.weights.masked_fill(received.routing.dispatch->present.eq(0), 0);
  return received;
}

}  // namespace hyperion::models
