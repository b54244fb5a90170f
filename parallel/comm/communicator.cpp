#include "parallel/comm/communicator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <stdexcept>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include "base/device/error_text.h"
#include "base/error.h"
#include "base/gpu_fault.h"
#include "base/rank_list.h"
#include "base/resources.h"
#include "base/standard_streams.h"
#include "parallel/comm/trace_range.h"
#include "parallel/health/failure_record.h"
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

// One after the other; null where all are.
std::function<void()> all_of(std::vector<std::function<void()>> finishes) {
  std::erase(finishes, nullptr);
  if (finishes.empty()) return nullptr;
  return [finishes = std::move(finishes)] {
    for (const auto& finish : finishes) finish();
  };
}

}  // namespace

Communicator::Communicator(std::string name, int rank, std::vector<int> global_ranks)
    : name_(std::move(name)), rank_(rank), global_ranks_(std::move(global_ranks)) {}

void Communicator::throw_failure(const std::string& operation, int64_t number, const std::string& phase,
                                 const std::exception& error) const {
  const std::string why = brief(error);
  record_failed_operation({operation, number, name_, phase, why});
  const PostMortem others = find_lost_ranks_ ? find_lost_ranks_(operation, phase) : PostMortem{};
  record_lost_ranks(others.lost);
  std::string reason = others.cause.empty() ? why : others.cause;
  // A message that is not the one expected: no other rank's end is why.
  if (!others.cause.empty() && dynamic_cast<const std::invalid_argument*>(&error) != nullptr)
    reason = why + "; " + others.cause;
  throw_comm("rank {}: {} (number {} of group {}, ranks {}) failed{}: {}{}", global_ranks_[rank_], operation,
             number, name_, rank_list(global_ranks_), phase.empty() ? "" : " in phase '" + phase + "'",
             reason, others.text);
}

void Communicator::tell_observer(const char* operation, at::ScalarType dtype, int64_t sent_bytes) const {
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
  std::string phase = current_phase();
  Finish finish = guarded(phase, start);
  if (!finish) return {};
  return Pending([guarded, phase = std::move(phase), finish = std::move(finish)] { guarded(phase, finish); });
}

Pending Communicator::start_all_gather_into(std::vector<GatherPart> parts) {
  for (const auto& [out, in] : parts)
    require_matching_tensors(out.numel() == in.numel() * size() && in.dtype() == parts[0].in.dtype(), *this,
                             "all_gather", out, in);
  std::erase_if(parts, [](const GatherPart& part) { return part.in.numel() == 0; });
  if (parts.empty()) return {};
  int64_t bytes = 0;
  for (const GatherPart& part : parts) bytes += static_cast<int64_t>(part.in.nbytes());
  tell_observer("all_gather", parts[0].in.scalar_type(), bytes * (size() - 1));
  return start_collective("all_gather", [&] {
    return parts.size() == 1 ? do_all_gather(parts[0].out, parts[0].in) : do_all_gather_parts(parts);
  });
}

Communicator::Finish Communicator::do_all_gather_parts(const std::vector<GatherPart>& parts) {
  std::vector<Finish> finishes;
  for (const auto& [out, in] : parts) finishes.push_back(do_all_gather(out, in));
  return all_of(std::move(finishes));
}

Pending Communicator::start_reduce_scatter_sum(std::vector<ReducePart> parts) {
  for (const auto& [out, in] : parts)
    require_matching_tensors(in.numel() == out.numel() * size() && in.dtype() == parts[0].in.dtype(), *this,
                             "reduce_scatter", out, in);
  std::erase_if(parts, [](const ReducePart& part) { return part.out.numel() == 0; });
  if (parts.empty()) return {};
  int64_t bytes = 0;
  for (const ReducePart& part : parts) bytes += static_cast<int64_t>(part.out.nbytes());
  tell_observer("reduce_scatter", parts[0].in.scalar_type(), bytes * (size() - 1));
  return start_collective("reduce_scatter", [&] {
    return parts.size() == 1 ? do_reduce_scatter_sum(parts[0].out, parts[0].in)
                             : do_reduce_scatter_parts(parts);
  });
}

Communicator::Finish Communicator::do_reduce_scatter_parts(const std::vector<ReducePart>& parts) {
  std::vector<Finish> finishes;
  for (const auto& [out, in] : parts) finishes.push_back(do_reduce_scatter_sum(out, in));
  return all_of(std::move(finishes));
}

Pending Communicator::start_all_reduce(const at::Tensor& tensor, bool max) {
  require_matching_tensors(true, *this, "all_reduce", tensor, tensor);
  if (tensor.numel() == 0) return {};
  tell_observer("all_reduce", tensor.scalar_type(),
                2 * static_cast<int64_t>(tensor.nbytes()) * (size() - 1) / size());
  return start_collective("all_reduce", [&] { return do_all_reduce(tensor, max); });
}

Pending Communicator::start_all_to_all(const at::Tensor& out, const at::Tensor& in,
                                       std::span<const int64_t> out_rows, std::span<const int64_t> in_rows) {
  const auto ranks = static_cast<size_t>(size()), own = static_cast<size_t>(rank());
  // The elements of a row: -1 where the counts are not those of the tensor's rows.
  const auto row_numel = [&](const at::Tensor& tensor, std::span<const int64_t> counts) -> int64_t {
    if (counts.size() != ranks || tensor.dim() == 0 ||
        std::ranges::any_of(counts, [](int64_t n) { return n < 0; }))
      return -1;
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    return rows == tensor.size(0) ? c10::multiply_integers(tensor.sizes().slice(1)) : -1;
  };
  const int64_t width = row_numel(in, in_rows);
  require_matching_tensors(width >= 0 && width == row_numel(out, out_rows) && in_rows[own] == out_rows[own],
                           *this, "all_to_all", out, in);
  std::vector<Transfer> transfers;
  at::Tensor own_out, own_in;
  int64_t out_row = 0, in_row = 0;
  for (size_t r = 0; r < ranks; ++r) {
    const at::Tensor from = out.narrow(0, out_row, out_rows[r]), to = in.narrow(0, in_row, in_rows[r]);
    if (r == own) {
      own_out = from;
      own_in = to;
    } else {
      transfers.push_back({Transfer::Kind::kSend, to, static_cast<int>(r)});
      transfers.push_back({Transfer::Kind::kReceive, from, static_cast<int>(r)});
    }
    out_row += out_rows[r];
    in_row += in_rows[r];
  }
  if (out.numel() > 0 || in.numel() > 0)
    tell_observer("all_to_all", in.scalar_type(), static_cast<int64_t>(in.nbytes() - own_in.nbytes()));
  return start_collective("all_to_all", [&]() -> Finish {
    own_out.copy_(own_in, /*non_blocking=*/true);
    return transfers.empty() ? nullptr : do_transfers(transfers, /*of_all_to_all=*/true);
  });
}

Pending Communicator::start_transfers(std::vector<Transfer> transfers) {
  for (const auto& [kind, tensor, peer] : transfers) {
    if (peer < 0 || peer >= size() || peer == rank_)
      throw_bug("group {}: rank {} of {} has no peer {} to exchange a tensor with", name_, rank_, size(),
                peer);
    require_matching_tensors(true, *this, kind == Transfer::Kind::kSend ? "send" : "recv", tensor, tensor);
    if (kind == Transfer::Kind::kSend && tensor.numel() > 0)
      tell_observer("send", tensor.scalar_type(), static_cast<int64_t>(tensor.nbytes()));
  }
  if (transfers.empty()) return {};
  return start_operation(describe(transfers), ++transfers_,
                         [&] { return do_transfers(transfers, /*of_all_to_all=*/false); });
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

at::Tensor Communicator::gather_bytes(const at::Tensor& in) {
  const bool first = rank() == 0;
  const at::Tensor out = first ? at::empty({size(), in.numel()}, at::kByte) : at::Tensor();
  tell_observer("gather", at::kByte, first ? 0 : in.numel());
  start_collective("gather", [&] { return do_gather(out, in); }).wait();
  return out;
}

void Communicator::broadcast_bytes(const at::Tensor& bytes) {
  tell_observer("broadcast", at::kByte, rank() == 0 ? bytes.numel() : 0);
  start_collective("broadcast", [&] { return do_broadcast(bytes); }).wait();
}

namespace {

// How a text travels: its length and its first bytes, and only where it is longer the rest.
constexpr size_t kHeadBytes = 256, kHeadText = kHeadBytes - sizeof(uint64_t);

at::Tensor head_of(const std::string& text) {
  const at::Tensor head = at::zeros({kHeadBytes}, at::kByte);
  auto* bytes = static_cast<char*>(head.data_ptr());
  const uint64_t length = text.size();
  std::memcpy(bytes, &length, sizeof length);
  std::copy_n(text.data(), std::min(text.size(), kHeadText), bytes + sizeof length);
  return head;
}

// The part of a text behind its head, with zeros up to `length` bytes.
at::Tensor rest_of(const std::string& text, size_t length) {
  const at::Tensor rest = at::zeros({static_cast<int64_t>(length)}, at::kByte);
  if (text.size() > kHeadText) std::memcpy(rest.data_ptr(), text.data() + kHeadText, text.size() - kHeadText);
  return rest;
}

uint64_t length_in(const void* head) {
  uint64_t length = 0;
  std::memcpy(&length, head, sizeof length);
  return length;
}

std::string text_in(const void* head, const void* rest) {
  const uint64_t length = length_in(head);
  std::string text(static_cast<const char*>(head) + sizeof length, std::min(length, uint64_t{kHeadText}));
  if (length > kHeadText) text.append(static_cast<const char*>(rest), length - kHeadText);
  return text;
}

}  // namespace

std::vector<std::string> Communicator::gather(const std::string& text) {
  const at::Tensor heads = gather_bytes(head_of(text));
  const auto head = [&](int r) { return static_cast<const char*>(heads.data_ptr()) + r * kHeadBytes; };
  const at::Tensor longest = at::zeros({sizeof(uint64_t)}, at::kByte);
  if (rank() == 0) {
    uint64_t length = 0;
    for (int r = 0; r < size(); ++r) length = std::max(length, length_in(head(r)));
    std::memcpy(longest.data_ptr(), &length, sizeof length);
  }
  broadcast_bytes(longest);
  const uint64_t length = length_in(longest.data_ptr());
  const size_t rest_bytes = length > kHeadText ? length - kHeadText : 0;
  at::Tensor rests;
  if (rest_bytes > 0) rests = gather_bytes(rest_of(text, rest_bytes));
  std::vector<std::string> texts;
  if (rank() != 0) return texts;
  for (int r = 0; r < size(); ++r) {
    texts.push_back(text_in(
        head(r), rest_bytes > 0 ? static_cast<const char*>(rests.data_ptr()) + r * rest_bytes : nullptr));
  }
  return texts;
}

std::string Communicator::broadcast(const std::string& text) {
  const at::Tensor head = head_of(rank() == 0 ? text : std::string());
  broadcast_bytes(head);
  const uint64_t length = length_in(head.data_ptr());
  if (length <= kHeadText) return text_in(head.data_ptr(), nullptr);
  const at::Tensor rest = rest_of(rank() == 0 ? text : std::string(), length - kHeadText);
  broadcast_bytes(rest);
  return text_in(head.data_ptr(), rest.data_ptr());
}

namespace {

// One process that stands for a group of any size; alone, it is exact.
class LocalCommunicator : public Communicator {
 public:
  using Communicator::Communicator;
  std::string_view backend() const override { return size() == 1 ? "solo" : "fake"; }
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  Finish do_all_gather(const at::Tensor& out, const at::Tensor& in) override {
    stand_in("fake all_gather", in.nbytes() * peers(), [&] { copy_into_slots(out, in); });
    return nullptr;
  }
  Finish do_all_gather_parts(const std::vector<GatherPart>& parts) override {
    size_t bytes = 0;
    for (const GatherPart& part : parts) bytes += part.in.nbytes();
    stand_in("fake all_gather", bytes * peers(), [&] { copy_parts_into_slots(parts); });
    return nullptr;
  }
  Finish do_reduce_scatter_sum(const at::Tensor& out, const at::Tensor& in) override {
    return do_reduce_scatter_parts({{out, in}});
  }
  Finish do_reduce_scatter_parts(const std::vector<ReducePart>& parts) override {
    size_t bytes = 0;
    for (const ReducePart& part : parts) bytes += part.out.nbytes();
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
    return nullptr;
  }
  Finish do_gather(const at::Tensor& out, const at::Tensor& in) override {
    if (rank() == 0) copy_into_slots(out, in);
    return nullptr;
  }
  Finish do_broadcast(const at::Tensor&) override { return nullptr; }

  size_t peers() const { return static_cast<size_t>(size()) - 1; }

  // Runs `work` in a range that says what this rank of a real group would send, which scripts/step_budget.py
  // reads: "fake all_gather 3000 bytes sent in fsdp/0 of 4 ranks".
  void stand_in(const char* operation, size_t bytes, const auto& work) const {
    if (size() == 1) return work();
    const TraceRange range(operation, fmt::format("{} bytes sent in {} of {} ranks", bytes, name(), size()));
    work();
  }

  // One copy whatever the number of ranks, as wide as the addresses allow: a GPU copies bytes at a tenth of
  // the speed of 16-byte elements.
  void copy_into_slots(const at::Tensor& out, const at::Tensor& in) const {
    if (size() == 1) return copy(out, in);
    const at::ScalarType width = widest_type(out, in);
    const at::Tensor slots = out.view({-1}).view(width).view({size(), -1});
    slots.copy_(in.view({-1}).view(width).expand({size(), -1}), /*non_blocking=*/true);
  }
  // Few copies on a GPU, as a group of NCCL is one launch: one for all slots of all parts where these are
  // few, else one for each part, so that their number does not grow with that of the ranks.
  void copy_parts_into_slots(const std::vector<GatherPart>& parts) const {
    constexpr size_t kMostSlots = 256;
    const bool few = parts.size() * static_cast<size_t>(size()) <= kMostSlots;
    if (size() == 1 || !few) {
      for (const auto& [out, in] : parts) copy_into_slots(out, in);
      return;
    }
    std::map<at::ScalarType, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> copies;
    for (const auto& [out, in] : parts) {
      const at::ScalarType width = widest_type(out, in);
      auto& [to, from] = copies[width];
      const at::Tensor own = in.view({-1}).view(width);
      for (const at::Tensor& slot : out.view({-1}).view(width).view({size(), -1}).unbind()) {
        if (slot.data_ptr() == own.data_ptr()) continue;
        to.push_back(slot);
        from.push_back(own);
      }
    }
    for (const auto& [width, tensors] : copies)
      at::_foreach_copy_(tensors.first, tensors.second, /*non_blocking=*/true);
  }

  // A type in which both tensors can be viewed.
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
