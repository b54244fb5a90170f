#include "models/parts/experts/exchange/exchange_plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace hyperion::models {
using at::Tensor;

namespace {

// Copies of counts wait for nothing but the counts. A process uses one GPU.
const DeviceStream& copy_stream(at::Device device) {
  static const DeviceStream stream = DeviceStream::from_pool(device, /*high_priority=*/true);
  return stream;
}

std::span<const int64_t> numbers_of(const Tensor& counts) {
  return {counts.const_data_ptr<int64_t>(), static_cast<size_t>(counts.numel())};
}

}  // namespace

int64_t total_rows(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

ExchangePlan plan_exchange(std::span<const int64_t> counts, std::span<const int64_t> received, int ranks,
                           std::optional<int64_t> unit, int64_t first_row) {
  const size_t local_experts = counts.size() / static_cast<size_t>(ranks);
  ExchangePlan exchange;
  int64_t sent = first_row;
  for (size_t first = 0; first < counts.size(); first += local_experts) {
    exchange.sent.push_back(total_rows(counts.subspan(first, local_experts)));
    exchange.received.push_back(total_rows(received.subspan(first, local_experts)));
  }
  for (const int64_t rows : counts) {
    exchange.sent_blocks.push_back({sent, rows});
    sent += rows;
  }
  exchange.received_blocks.resize(received.size());
  int64_t& end = exchange.received_rows;
  for (size_t expert = 0; expert < local_experts; ++expert) {
    const int64_t begin = end;
    for (size_t block = expert; block < received.size(); block += local_experts) {
      exchange.received_blocks[block] = {end, received[block]};
      end += received[block];
    }
    if (!unit) continue;
    const int64_t rows = end - begin, padded = std::max<int64_t>((rows + *unit - 1) / *unit, 1) * *unit;
    if (padded > rows) exchange.padding.push_back({end, padded - rows});
    end = begin + padded;
  }
  return exchange;
}

std::vector<RowBlock> blocks_of_slices(int64_t ranks, int64_t slices) {
  std::vector<RowBlock> blocks;
  for (int64_t rank = 0; rank < ranks; ++rank)
    for (int64_t slice = 0; slice < slices; ++slice) blocks.push_back({slice * ranks + rank, 1});
  return blocks;
}

std::vector<int64_t> ends_of_groups(const ExchangePlan& exchange) {
  const size_t local_experts = exchange.received_blocks.size() / exchange.received.size();
  std::vector<int64_t> ends;  // a group ends where the next one begins
  for (size_t expert = 1; expert < local_experts; ++expert)
    ends.push_back(exchange.received_blocks[expert].first);
  ends.push_back(exchange.received_rows);
  return ends;
}

Dispatch groups_of_received(const ExchangePlan& exchange, std::optional<int64_t> unit, at::Device device) {
  const std::vector<int64_t> ends = ends_of_groups(exchange);
  Dispatch groups;
  if (!unit) {
    for (int64_t before = 0; const int64_t end : ends)
      groups.counts.push_back(end - std::exchange(before, end));
    return groups;
  }
  const Tensor on_host = at::empty({static_cast<int64_t>(ends.size())},
                                   at::TensorOptions(at::kInt).pinned_memory(device.is_cuda()));
  std::ranges::copy(ends, on_host.mutable_data_ptr<int>());
  groups.ends = on_host.to(device, /*non_blocking=*/true);
  return groups;
}

CountsExchange::CountsExchange(std::shared_ptr<Dispatch> dispatch, Exchange& ep_group, bool equal,
                               std::optional<int64_t> unit)
    : dispatch_(std::move(dispatch)), ep_size_(ep_group.size()), unit_(unit) {
  const int64_t slices = dispatch_->slices,
                local_experts = dispatch_->expert_rows.numel() / slices / ep_size_;
  if (equal) {
    for (int64_t slice = 0; slice < slices; ++slice) {
      const auto here = dispatch_->counts.begin() + (slice * ep_size_ + ep_group.rank()) * local_experts;
      for (int r = 0; r < ep_size_; ++r)
        received_on_host_.insert(received_on_host_.end(), here, here + local_experts);
    }
    return;
  }
  const Tensor sent = dispatch_->expert_rows.view({slices * ep_size_, local_experts});
  received_ = at::empty_like(sent);
  const std::vector<RowBlock> blocks = blocks_of_slices(ep_size_, slices);
  pending_ = ep_group.start_block_exchange(received_, sent, blocks, blocks);
  const at::Device device = sent.device();
  if (device.is_cpu()) return;
  const DeviceStream& stream = copy_stream(device);
  stream.wait(DeviceStream::current(device));
  const StreamScope scope(stream);
  pending_.wait_on_current_stream();
  copies_ = at::empty({2, sent.size(0), sent.size(1)}, at::TensorOptions(at::kLong).pinned_memory(true));
  copies_[0].copy_(sent, /*non_blocking=*/true);
  copies_[1].copy_(received_, /*non_blocking=*/true);
  copied_.record(stream);
}

std::vector<std::shared_ptr<ExchangePlan>> CountsExchange::wait() {
  if (received_on_host_.empty()) {
    pending_.wait();
    copied_.wait_on_host();
    const std::span<const int64_t> received = numbers_of(copies_.defined() ? copies_[1] : received_);
    received_on_host_.assign(received.begin(), received.end());
    const std::span<const int64_t> sent = numbers_of(copies_.defined() ? copies_[0] : dispatch_->expert_rows);
    dispatch_->counts.assign(sent.begin(), sent.end());
  }
  const std::span<const int64_t> sent = dispatch_->counts, received = received_on_host_;
  const size_t of_slice = sent.size() / static_cast<size_t>(dispatch_->slices);
  std::vector<std::shared_ptr<ExchangePlan>> plans;
  int64_t row = 0;
  for (size_t first = 0; first < sent.size(); first += of_slice) {
    plans.push_back(std::make_shared<ExchangePlan>(plan_exchange(
        sent.subspan(first, of_slice), received.subspan(first, of_slice), ep_size_, unit_, row)));
    row += total_rows(sent.subspan(first, of_slice));
  }
  return plans;
}

std::shared_ptr<const Dispatch> CountsExchange::groups(const ExchangePlan& plan) const {
  return std::make_shared<const Dispatch>(groups_of_received(plan, unit_, dispatch_->expert_rows.device()));
}

}  // namespace hyperion::models
