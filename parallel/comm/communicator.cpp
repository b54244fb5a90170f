#include "parallel/comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include "base/device/error_text.h"
#include "base/device/streams.h"
#include "base/error.h"
#include "base/gpu_fault.h"
#include "base/rank_list.h"
#include "base/resources.h"
#include "parallel/comm/step_timer.h"
#include "parallel/comm/trace_range.h"
#include "parallel/job/failure_record.h"
#include "parallel/job/phase.h"

namespace hyperion::parallel {
namespace {

void require_matching_tensors(bool good, const Communicator& group, const char* operation,
                              const at::Tensor& out, const at::Tensor& in) {
  if (good && out.is_contiguous() && in.is_contiguous() && out.dtype() == in.dtype() &&
      out.device() == in.device())
    return;
  throw_bug(
      "{} in group {} of {} ranks: the tensors do not fit together (out {} elements {}, in {} elements {}; "
      "both contiguous and on one device?)",
      operation, group.name(), group.size(), out.numel(), out.dtype().name(), in.numel(), in.dtype().name());
}

}  // namespace

Communicator::Communicator(std::string name, int rank, std::vector<int> global_ranks)
    : name_(std::move(name)), rank_(rank), global_ranks_(std::move(global_ranks)) {}

void Communicator::throw_failure(const std::string& operation, int64_t number, const std::string& phase,
                                 const std::exception& error) const {
  const std::string why = brief(error);
  record_failed_operation({operation, number, name_, phase, why});
  const PostMortem post_mortem = find_lost_ranks_ ? find_lost_ranks_(operation, phase) : PostMortem{};
  record_lost_ranks(post_mortem.lost);
  std::string reason = post_mortem.cause.empty() ? why : post_mortem.cause;
  // An unexpected message is the cause itself: no other rank's end explains it.
  if (!post_mortem.cause.empty() && dynamic_cast<const std::invalid_argument*>(&error) != nullptr)
    reason = why + "; " + post_mortem.cause;
  throw_comm("rank {}: {} (number {} of group {}, ranks {}) failed{}: {}{}", global_ranks_[rank_], operation,
             number, name_, rank_list(global_ranks_), phase.empty() ? "" : " in phase '" + phase + "'",
             reason, post_mortem.text);
}

void Communicator::notify_observer(const char* operation, at::ScalarType dtype, int64_t sent_bytes) const {
  if (observer_) observer_({name_, operation, dtype, sent_bytes});
}

Pending Communicator::start_operation(const std::string& operation, int64_t number,
                                      const std::function<Finish()>& start) {
  set_newest_operation(operation, number, name_);
  const auto guarded = [this, operation, number](const std::string& phase, const auto& action) {
    try {
      return action();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      if (exhausted_resource(error) || gpu_fault(error)) throw;
      throw_failure(operation, number, phase, error);
    }
  };
  const c10::DeviceType waits = takes_host_tensors() ? at::kCPU : at::kCUDA;
  std::string phase = current_phase();
  RankWait starting(waits);
  Finish finish = guarded(phase, start);
  starting.done();
  if (!finish) return {};
  return Pending([guarded, waits, phase = std::move(phase), finish = std::move(finish)] {
    RankWait finishing(waits);
    guarded(phase, finish);
    finishing.done();
  });
}

Communicator::Finish Communicator::for_each_part(const std::vector<CollectivePart>& parts,
                                                 const std::function<Finish(const CollectivePart&)>& start) {
  std::vector<Finish> finishes;
  for (const CollectivePart& part : parts) finishes.push_back(start(part));
  return [finishes = std::move(finishes)] {
    for (const Finish& finish : finishes) finish();
  };
}

Pending Communicator::start_parts(bool gathers, std::vector<CollectivePart> parts) {
  const char* operation = gathers ? "all_gather" : "reduce_scatter";
  int64_t bytes = 0;  // size of this rank's shards
  for (const auto& [out, in] : parts) {
    const at::Tensor &full = gathers ? out : in, &shard = gathers ? in : out;
    require_matching_tensors(full.numel() == shard.numel() * size() && in.dtype() == parts[0].in.dtype(),
                             *this, operation, out, in);
    bytes += static_cast<int64_t>(shard.nbytes());
  }
  std::erase_if(parts, [](const CollectivePart& part) { return part.in.numel() == 0; });
  if (parts.empty()) return {};
  notify_observer(operation, parts[0].in.scalar_type(), bytes * (size() - 1));
  return start_collective(operation,
                          [&] { return gathers ? do_all_gather(parts) : do_reduce_scatter_sum(parts); });
}

Pending Communicator::start_all_reduce(const at::Tensor& tensor, bool max) {
  require_matching_tensors(/*good=*/true, *this, "all_reduce", tensor, tensor);
  if (tensor.numel() == 0) return {};
  notify_observer("all_reduce", tensor.scalar_type(),
                  2 * static_cast<int64_t>(tensor.nbytes()) * (size() - 1) / size());
  return start_collective("all_reduce", [&] { return do_all_reduce(tensor, max); });
}

Pending Communicator::start_block_exchange(const at::Tensor& out, const at::Tensor& in,
                                           std::span<const RowBlock> out_blocks,
                                           std::span<const RowBlock> in_blocks) {
  const size_t ranks = static_cast<size_t>(size()), each = in_blocks.size() / ranks;
  const auto of_rank = [&](std::span<const RowBlock> blocks, int r) {
    return blocks.subspan(static_cast<size_t>(r) * each, each);
  };
  // Returns the number of elements of a row, or -1 if the blocks do not lie in the tensor.
  const auto row_numel = [&](const at::Tensor& tensor, std::span<const RowBlock> blocks) -> int64_t {
    if (each == 0 || blocks.size() != each * ranks || tensor.dim() == 0) return -1;
    for (const auto& [first, rows] : blocks)
      if (first < 0 || rows < 0 || first + rows > tensor.size(0)) return -1;
    return c10::multiply_integers(tensor.sizes().slice(1));
  };
  const int64_t width = row_numel(in, in_blocks);
  const auto as_many = [](const RowBlock& a, const RowBlock& b) { return a.rows == b.rows; };
  require_matching_tensors(
      width >= 0 && width == row_numel(out, out_blocks) &&
          std::ranges::equal(of_rank(in_blocks, rank()), of_rank(out_blocks, rank()), as_many),
      *this, "all_to_all", out, in);
  int64_t sent = 0;
  for (int r = 0; r < size(); ++r)
    for (const RowBlock& block : of_rank(in_blocks, r)) sent += r == rank() ? 0 : block.rows;
  if (out.numel() > 0 || in.numel() > 0)
    notify_observer("all_to_all", in.scalar_type(), sent * width * static_cast<int64_t>(in.element_size()));
  return start_collective("all_to_all", [&] { return do_all_to_all(out, in, out_blocks, in_blocks); });
}

Communicator::Finish Communicator::do_all_to_all(const at::Tensor& out, const at::Tensor& in,
                                                 std::span<const RowBlock> out_blocks,
                                                 std::span<const RowBlock> in_blocks) {
  const size_t each = in_blocks.size() / static_cast<size_t>(size());
  std::vector<Transfer> transfers;
  std::vector<at::Tensor> own_out, own_in;
  for (size_t i = 0; i < in_blocks.size(); ++i) {
    const at::Tensor from = out.narrow(0, out_blocks[i].first, out_blocks[i].rows),
                     to = in.narrow(0, in_blocks[i].first, in_blocks[i].rows);
    if (const int peer = static_cast<int>(i / each); peer != rank_) {
      transfers.push_back({Transfer::Kind::kSend, to, peer});
      transfers.push_back({Transfer::Kind::kReceive, from, peer});
    } else if (each == 1) {
      from.copy_(to, /*non_blocking=*/true);
    } else if (to.numel() > 0) {
      own_out.push_back(from);
      own_in.push_back(to);
    }
  }
  if (!own_out.empty()) at::_foreach_copy_(own_out, own_in, /*non_blocking=*/true);
  return transfers.empty() ? nullptr : do_transfers(transfers, /*is_all_to_all=*/true);
}

Pending Communicator::start_transfers(std::vector<Transfer> transfers) {
  for (const auto& [kind, tensor, peer] : transfers) {
    if (peer < 0 || peer >= size() || peer == rank_)
      throw_bug("group {}: rank {} of {} has no peer {} to exchange a tensor with", name_, rank_, size(),
                peer);
    require_matching_tensors(/*good=*/true, *this, kind == Transfer::Kind::kSend ? "send" : "recv", tensor,
                             tensor);
    if (kind == Transfer::Kind::kSend && tensor.numel() > 0)
      notify_observer("send", tensor.scalar_type(), static_cast<int64_t>(tensor.nbytes()));
  }
  if (transfers.empty()) return {};
  return start_operation(describe(transfers), ++transfers_,
                         [&] { return do_transfers(transfers, /*is_all_to_all=*/false); });
}

// "send to rank 3 and recv from rank 5"
std::string Communicator::describe(const std::vector<Transfer>& transfers) const {
  std::string text;
  for (const auto& [kind, tensor, peer] : transfers) {
    text += fmt::format("{}{} rank {}", text.empty() ? "" : " and ",
                        kind == Transfer::Kind::kSend ? "send to" : "recv from", global_ranks_[peer]);
  }
  return text;
}

Communicator::Finish Communicator::do_transfers(const std::vector<Transfer>&, bool) {
  throw_bug("group {}: {} groups move nothing between two ranks", name_, backend());
}

void Communicator::barrier() {
  start_collective("barrier", [&] { return do_barrier(); }).wait();
}

Communicator::Finish Communicator::do_gather(const at::Tensor&, const at::Tensor&) {
  throw_bug("gather of texts in group {}: {} groups move no text", name_, backend());
}

Communicator::Finish Communicator::do_broadcast(const at::Tensor&) {
  throw_bug("broadcast of a text in group {}: {} groups move no text", name_, backend());
}

namespace {

at::Tensor tensor_of(const std::string& bytes) {
  const at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace

std::vector<std::string> Communicator::gather_bytes(const std::string& bytes) {
  const bool first = rank() == 0;
  const auto length = static_cast<int64_t>(bytes.size());
  const at::Tensor out = first ? at::empty({size(), length}, at::kByte) : at::Tensor();
  notify_observer("gather", at::kByte, first ? 0 : length);
  start_collective("gather", [&] { return do_gather(out, tensor_of(bytes)); }).wait();
  std::vector<std::string> of_ranks;
  for (int r = 0; first && r < size(); ++r)
    of_ranks.emplace_back(static_cast<const char*>(out[r].const_data_ptr()), bytes.size());
  return of_ranks;
}

void Communicator::broadcast_bytes(std::string& bytes) {
  notify_observer("broadcast", at::kByte, rank() == 0 ? static_cast<int64_t>(bytes.size()) : 0);
  const at::Tensor tensor = tensor_of(bytes);
  start_collective("broadcast", [&] { return do_broadcast(tensor); }).wait();
  bytes.assign(static_cast<const char*>(tensor.const_data_ptr()), bytes.size());
}

namespace {

// A text is sent after its length, as two messages only if both together are longer than this.
constexpr size_t kFirstMessage = 256;

std::string with_length(const std::string& text) {
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += text;
  bytes.resize(std::max(bytes.size(), kFirstMessage));
  return bytes;
}

uint64_t length_in(const std::string& bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  return length;
}

std::string text_in(const std::string& bytes) {
  return bytes.substr(sizeof(uint64_t), length_in(bytes));
}

}  // namespace

std::vector<std::string> Communicator::gather(const std::string& text) {
  std::string message = with_length(text);
  std::vector<std::string> texts = gather_bytes(message.substr(0, kFirstMessage));
  uint64_t size = 0;  // length of the longest text
  for (const std::string& bytes : texts) size = std::max(size, sizeof size + length_in(bytes));
  std::string longest(reinterpret_cast<const char*>(&size), sizeof size);
  broadcast_bytes(longest);
  size = length_in(longest);
  if (size > kFirstMessage) {
    message.resize(size);
    const std::vector<std::string> rests = gather_bytes(message.substr(kFirstMessage));
    for (size_t r = 0; r < rests.size(); ++r) texts[r] += rests[r];
  }
  for (std::string& bytes : texts) bytes = text_in(bytes);
  return texts;
}

std::string Communicator::broadcast(const std::string& text) {
  std::string bytes = with_length(rank() == 0 ? text : "");
  std::string rest = bytes.substr(kFirstMessage);
  bytes.resize(kFirstMessage);
  broadcast_bytes(bytes);
  if (const uint64_t size = sizeof(uint64_t) + length_in(bytes); size > kFirstMessage) {
    rest.resize(size - kFirstMessage);
    broadcast_bytes(rest);
    bytes += rest;
  }
  return text_in(bytes);
}

namespace {

// One process that stands for a group of any size; alone, it is exact.
class LocalCommunicator : public Communicator {
 public:
  using Communicator::Communicator;
  std::string_view backend() const override { return size() == 1 ? "solo" : "fake"; }
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  Finish do_all_gather(const std::vector<CollectivePart>& parts) override {
    size_t bytes = 0;
    for (const CollectivePart& part : parts) bytes += part.in.nbytes();
    stand_in("fake all_gather", bytes * peers(), [&] { copy_into_slots(parts); });
    return nullptr;
  }
  Finish do_reduce_scatter_sum(const std::vector<CollectivePart>& parts) override {
    size_t bytes = 0;
    for (const CollectivePart& part : parts) bytes += part.out.nbytes();
    stand_in("fake reduce_scatter", bytes * peers(), [&] {
      for (const auto& [out, in] : parts) copy(out, in.view({size(), -1})[rank()]);
    });
    return nullptr;
  }
  Finish do_all_reduce(const at::Tensor& tensor, bool) override {
    stand_in("fake all_reduce", 2 * tensor.nbytes() * peers() / (peers() + 1), [] {});
    return nullptr;
  }
  Finish do_barrier() override { return nullptr; }
  Finish do_transfers(const std::vector<Transfer>& transfers, bool) override {
    size_t bytes = 0;
    for (const auto& [kind, tensor, peer] : transfers)
      if (kind == Transfer::Kind::kSend) bytes += tensor.nbytes();
    stand_in("fake transfers", bytes, [&] {
      for (const auto& [kind, tensor, peer] : transfers)
        if (kind == Transfer::Kind::kReceive) tensor.zero_();
    });
    return received_on(transfers[0].tensor.device());
  }
  // Own blocks are copied in the range too: NCCL's kernel copies them.
  Finish do_all_to_all(const at::Tensor& out, const at::Tensor& in, std::span<const RowBlock> out_blocks,
                       std::span<const RowBlock> in_blocks) override {
    const size_t each = in_blocks.size() / static_cast<size_t>(size());
    std::vector<at::Tensor> own_out, own_in, received;
    size_t bytes = 0;
    for (size_t i = 0; i < in_blocks.size(); ++i) {
      const at::Tensor from = out.narrow(0, out_blocks[i].first, out_blocks[i].rows),
                       to = in.narrow(0, in_blocks[i].first, in_blocks[i].rows);
      const bool own = static_cast<int>(i / each) == rank();
      if (!own) bytes += to.nbytes();
      if (from.numel() == 0) continue;
      (own ? own_out : received).push_back(from);
      if (own) own_in.push_back(to);
    }
    stand_in("fake transfers", bytes, [&] {
      if (!own_out.empty()) at::_foreach_copy_(own_out, own_in, /*non_blocking=*/true);
      if (!received.empty()) at::_foreach_zero_(received);
    });
    return received_on(out.device());
  }
  Finish do_gather(const at::Tensor& out, const at::Tensor& in) override {
    if (rank() == 0) copy_into_slots({{out, in}});
    return nullptr;
  }
  Finish do_broadcast(const at::Tensor&) override { return nullptr; }

  // A receive may be started on another stream than the one that reads it.
  static Finish received_on(at::Device device) {
    const auto received = std::make_shared<DeviceEvent>();
    received->record(DeviceStream::current(device));
    return [received, device] { DeviceStream::current(device).wait(*received); };
  }

  size_t peers() const { return static_cast<size_t>(size()) - 1; }

  // Runs `work` in a trace range that says what this rank of a real group would send, which
  // tests/simulated_gpu/step_trace.py reads: "fake all_gather 3000 bytes sent in fsdp/0 of 4 ranks".
  void stand_in(const char* operation, size_t bytes, const auto& work) const {
    if (size() == 1) return work();
    const TraceRange range(operation, fmt::format("{} bytes sent in {} of {} ranks", bytes, name(), size()));
    work();
  }

  // Copies as few times as NCCL launches kernels: once for all chunks of all parts if these are few, else
  // once per part, so that the number of copies does not grow with the ranks. Elements are as wide as the
  // addresses allow: a GPU copies bytes at a tenth of the speed of 16-byte elements.
  void copy_into_slots(const std::vector<CollectivePart>& parts) const {
    constexpr size_t kMaxSlots = 256;
    const bool few = parts.size() > 1 && parts.size() * static_cast<size_t>(size()) <= kMaxSlots;
    std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> copies;
    for (const auto& [out, in] : parts) {
      if (size() == 1) {
        copy(out, in);
        continue;
      }
      const at::ScalarType width = widest_type(out, in);
      const at::Tensor input = in.view({-1}).view(width);
      const at::Tensor slots = out.view({-1}).view(width).view({size(), -1});
      if (!few) {
        slots.copy_(input.expand({size(), -1}), /*non_blocking=*/true);
        continue;
      }
      auto& [to, from] = copies[width];
      for (const at::Tensor& slot : slots.unbind()) {
        if (slot.data_ptr() == input.data_ptr()) continue;
        to.push_back(slot);
        from.push_back(input);
      }
    }
    for (const auto& [width, tensors] : copies)
      at::_foreach_copy_(tensors.first, tensors.second, /*non_blocking=*/true);
  }

  // The widest type in which both tensors can be viewed.
  static at::ScalarType widest_type(const at::Tensor& a, const at::Tensor& b) {
    for (const at::ScalarType type : {at::kComplexDouble, at::kLong, at::kInt}) {
      const size_t width = c10::elementSize(type);
      const auto fits = [width](const at::Tensor& tensor) {
        const auto offset = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
        return (tensor.nbytes() | offset | reinterpret_cast<uintptr_t>(tensor.const_data_ptr())) % width == 0;
      };
      if (fits(a) && fits(b)) return type;
    }
    return a.scalar_type();
  }
  static void copy(const at::Tensor& to, const at::Tensor& from) {
    if (to.data_ptr() != from.data_ptr()) to.view({-1}).copy_(from.view({-1}), /*non_blocking=*/true);
  }
};

}  // namespace

std::unique_ptr<Communicator> make_solo_communicator(std::string name, int global_rank) {
  return std::make_unique<LocalCommunicator>(std::move(name), 0, std::vector<int>{global_rank});
}

std::unique_ptr<Communicator> make_fake_communicator(std::string name, int rank,
                                                     std::vector<int> global_ranks) {
  return std::make_unique<LocalCommunicator>(std::move(name), rank, std::move(global_ranks));
}

}  // namespace hyperion::parallel
