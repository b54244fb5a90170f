#include "parallel/comm/backend_communicator.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "base/device/device_library.h"
#include "base/device/error_text.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/resources.h"
#include "parallel/comm/mailbox.h"
#include "parallel/job/network.h"

namespace hyperion::parallel {
namespace {

std::atomic<bool> leaked = false;  // a communicator was leaked

std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> flattened(
    const std::vector<CollectivePart>& parts) {
  std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> tensors;
  for (const auto& [out, in] : parts) {
    tensors.first.push_back(out.view({-1}));
    tensors.second.push_back(in.view({-1}));
  }
  return tensors;
}

c10d::AllreduceOptions all_reduce_options(bool max, bool async) {
  c10d::AllreduceOptions options;
  options.reduceOp = max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
  options.asyncOp = async;
  return options;
}

class BackendCommunicator : public Communicator {
 public:
  BackendCommunicator(std::string name, int rank, std::vector<int> global_ranks,
                      c10::intrusive_ptr<c10d::Backend> backend)
      : Communicator(std::move(name), rank, std::move(global_ranks)), backend_(std::move(backend)) {}

  void set_timeout(std::chrono::milliseconds timeout) override { c10d_backend().setTimeout(timeout); }

 protected:
  c10d::Backend& c10d_backend() {
    if (!backend_) throw std::runtime_error("this rank has given up the connections");
    return *backend_;
  }
  void close_connections() { backend_.reset(); }
  void leak() {
    backend_.release();
    leaked = true;
  }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
};

// --- Gloo ---

// out = rows[0] + rows[1] + ... in that order; 16-bit floats add up in float32 and are rounded once.
void sum_rows(const at::Tensor& out, const at::Tensor& rows) {
  const bool narrow = rows.scalar_type() == at::kBFloat16 || rows.scalar_type() == at::kHalf;
  const at::Tensor terms = narrow ? rows.to(at::kFloat) : rows;
  at::Tensor sum = narrow ? at::empty_like(terms[0]) : out.view({-1});
  at::add_out(sum, terms[0], terms[1]);
  for (int64_t r = 2; r < terms.size(0); ++r) sum.add_(terms[r]);
  if (narrow) out.view({-1}).copy_(sum);
}

class GlooCommunicator : public BackendCommunicator {
 public:
  GlooCommunicator(std::string name, int rank, std::vector<int> global_ranks,
                   c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout,
                   int connections)
      : BackendCommunicator(std::move(name), rank, std::move(global_ranks), std::move(backend)),
        timeout_(timeout),
        connections_(connections),
        sent_(static_cast<size_t>(size())),
        received_(static_cast<size_t>(size())) {}
  std::string_view backend() const override { return "gloo"; }
  void set_timeout(std::chrono::milliseconds timeout) override {
    BackendCommunicator::set_timeout(timeout);  // applies to collectives only
    timeout_ = timeout;
  }
  // Gloo closes all connections of an operation that times out and fails the operations in flight on them,
  // for which libtorch's destructor would otherwise wait: so one operation times out here at once.
  void abort() override {
    for (int connection = 0; connection < connections_; ++connection) {
      for (int peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        try {
          std::vector<at::Tensor> never_sent = {at::empty({1}, at::kByte)};
          c10d_backend().recv(never_sent, peer, kNeverSent + connection)->wait(std::chrono::milliseconds(1));
        } catch (const std::exception&) {  // timed out, or failed at once on a closed connection
        }
      }
    }
    close_connections();
  }

 private:
  // A Work holds the connections: a failed one is released before its error is thrown.
  static Finish wait_for(c10::intrusive_ptr<c10d::Work> work) {
    return [work = std::move(work)]() mutable { std::exchange(work, nullptr)->wait(); };
  }

  // Sends all parts as one message [world, bytes of all parts], because each message costs a round trip
  // over sockets, then copies into each part.
  Finish do_all_gather(const std::vector<CollectivePart>& parts) override {
    auto [outputs, inputs] = flattened(parts);
    if (parts.size() == 1) return wait_for(c10d_backend()._allgather_base(outputs[0], inputs[0]));
    at::Tensor packed = at::cat(inputs);
    at::Tensor gathered = at::empty({size(), packed.numel()}, packed.options());
    at::Tensor flat = gathered.view({-1});
    auto work = c10d_backend()._allgather_base(flat, packed);
    return [this, work = std::move(work), gathered, packed, parts] {
      work->wait();
      int64_t offset = 0;
      for (const auto& [out, in] : parts) {
        out.view({size(), in.numel()}).copy_(gathered.narrow(1, offset, in.numel()));
        offset += in.numel();
      }
    };
  }
  // Gloo's own reduce-scatter is an all-reduce and a slice, which moves twice the bytes. Here every rank
  // sends each peer its chunk and adds the received chunks in rank order.
  Finish do_reduce_scatter_sum(const std::vector<CollectivePart>& parts) override {
    return for_each_part(parts, [this](const CollectivePart& part) -> Finish {
      at::Tensor from = part.in.view({-1}), received = at::empty_like(from);
      std::vector<int64_t> even;
      auto work = c10d_backend().alltoall_base(received, from, even, even);
      return [work = std::move(work), received = received.view({size(), -1}), out = part.out] {
        work->wait();
        sum_rows(out, received);
      };
    });
  }
  Finish do_all_reduce(const at::Tensor& tensor, bool max) override {
    std::vector<at::Tensor> tensors = {tensor};
    return wait_for(c10d_backend().allreduce(tensors, all_reduce_options(max, /*async=*/true)));
  }
  Finish do_barrier() override { return wait_for(c10d_backend().barrier()); }

  // Each tensor is preceded by its label, so that a wrong size is an error instead of a message that never
  // arrives (a message that is too long would end the process on a thread of Gloo's).
  Finish do_transfers(const std::vector<Transfer>& transfers, bool is_all_to_all) override {
    std::vector<Message> messages;
    for (const auto& [kind, tensor, peer] : transfers)
      messages.push_back(start_message(kind, tensor, peer, is_all_to_all));
    return [this, messages = std::move(messages)]() mutable {
      // All labels are checked before any payload is waited for: the peer may have detected the same
      // mismatch.
      for (const auto step : {&GlooCommunicator::wait_for_label, &GlooCommunicator::wait_for_payload}) {
        for (Message& message : messages) {
          try {
            (this->*step)(message);
          } catch (...) {
            messages.clear();  // releases the connections
            throw;
          }
        }
      }
    };
  }

  struct Message {
    Transfer::Kind kind;
    int peer;
    MailboxMemory::Label expected;
    at::Tensor label, payload;  // bytes; an empty payload is not sent
    c10::intrusive_ptr<c10d::Work> label_work, payload_work;
  };

  Message start_message(Transfer::Kind kind, const at::Tensor& tensor, int peer, bool is_all_to_all) {
    const bool sends = kind == Transfer::Kind::kSend;
    Message message{kind,
                    peer,
                    MailboxTransfer(tensor, is_all_to_all).label,
                    at::empty({sizeof message.expected}, at::kByte),
                    tensor.view({-1}).view(at::kByte),
                    nullptr,
                    nullptr};
    if (sends) std::memcpy(message.label.data_ptr(), &message.expected, sizeof message.expected);
    const auto [label_tag, payload_tag] =
        tags((sends ? sent_ : received_)[static_cast<size_t>(peer)]++, message.expected);
    const auto start = [&](const at::Tensor& bytes, int tag) {
      std::vector<at::Tensor> tensors = {bytes};
      return sends ? c10d_backend().send(tensors, peer, tag) : c10d_backend().recv(tensors, peer, tag);
    };
    message.label_work = start(message.label, label_tag);
    if (message.payload.numel() > 0) message.payload_work = start(message.payload, payload_tag);
    return message;
  }

  static constexpr int kNeverSent = 1 << 29;  // messages use no tag from here on

  // The tags of label and payload of message `number` between two ranks. The payload's tag contains a hash
  // of the label, so a payload that does not fit meets no receiver.
  static std::pair<int, int> tags(uint32_t number, const MailboxMemory::Label& label) {
    const auto number_bits = static_cast<int>(number % (1U << 14U));
    const auto label_bits = static_cast<int>(hash_bytes(&label, sizeof label) % (1U << 16U));
    return {number_bits, (1 << 30) | (number_bits << 16) | label_bits};
  }

  void wait_for_label(Message& message) {
    if (message.kind == Transfer::Kind::kSend) return;
    message.label_work->wait(timeout_);
    MailboxMemory::Label sent{};
    std::memcpy(&sent, message.label.const_data_ptr(), sizeof sent);
    if (const std::string problem = label_mismatch(sent, message.expected); !problem.empty())
      throw std::invalid_argument(fmt::format("with rank {}: {}", global_ranks()[message.peer], problem));
  }
  void wait_for_payload(Message& message) {
    if (message.kind == Transfer::Kind::kSend) message.label_work->wait(timeout_);
    if (message.payload_work) message.payload_work->wait(timeout_);
  }

  Finish do_gather(const at::Tensor& out, const at::Tensor& in) override {
    std::vector<at::Tensor> inputs = {in};
    std::vector<std::vector<at::Tensor>> outputs;
    if (rank() == 0) outputs.push_back(out.unbind(0));
    return wait_for(c10d_backend().gather(outputs, inputs));
  }
  Finish do_broadcast(const at::Tensor& tensor) override {
    std::vector<at::Tensor> tensors = {tensor};
    return wait_for(c10d_backend().broadcast(tensors));
  }

  std::chrono::milliseconds timeout_;
  const int connections_;                  // per peer; tag t uses connection t % connections_
  std::vector<uint32_t> sent_, received_;  // number of messages, by peer
};

// If the blocks are one for each rank and lie behind each other, returns their rows and sets their number for
// each rank.
at::Tensor rows_behind_each_other(const at::Tensor& tensor, std::span<const RowBlock> blocks,
                                  std::vector<int64_t>& rows) {
  if (blocks.size() != rows.size()) return {};
  int64_t end = blocks[0].first;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].first != end) return {};
    rows[i] = blocks[i].rows;
    end += rows[i];
  }
  return tensor.narrow(0, blocks[0].first, end - blocks[0].first);
}

// --- NCCL: asyncOp = false launches on the current stream, so there is nothing to wait for ---

class NcclCommunicator : public BackendCommunicator {
 public:
  using BackendCommunicator::BackendCommunicator;
  std::string_view backend() const override { return "nccl"; }
  bool takes_host_tensors() const override { return false; }

  // libtorch's destructor would abort too, but with a warning. Both wait for all queued kernels, which wait
  // for the other ranks: after a failure, when a rank may be lost, the communicator is leaked instead.
  ~NcclCommunicator() override {
    if (std::uncaught_exceptions() > 0) {
      leak();
      return;
    }
    try {
      c10d_backend().shutdown();
    } catch (const std::exception& error) {
      log_warning("group {}: NCCL did not shut down: {}", name(), brief(error));
    }
  }

 private:
  // One launch for all parts, here and below.
  Finish do_all_gather(const std::vector<CollectivePart>& parts) override {
    auto [to, from] = flattened(parts);
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    parts.size() == 1 ? c10d_backend()._allgather_base(to[0], from[0], options)
                      : c10d_backend().allgather_into_tensor_coalesced(to, from, options);
    return nullptr;
  }
  Finish do_reduce_scatter_sum(const std::vector<CollectivePart>& parts) override {
    auto [to, from] = flattened(parts);
    c10d::ReduceScatterOptions options;
    options.asyncOp = false;
    parts.size() == 1 ? c10d_backend()._reduce_scatter_base(to[0], from[0], options)
                      : c10d_backend().reduce_scatter_tensor_coalesced(to, from, options);
    return nullptr;
  }
  // Values of offloaded state are on the host and are copied through the device.
  Finish do_all_reduce(const at::Tensor& tensor, bool max) override {
    std::vector<at::Tensor> tensors = {tensor.to(*c10d_backend().getBoundDeviceId())};
    c10d_backend().allreduce(tensors, all_reduce_options(max, /*async=*/false));
    if (!tensor.is_cpu()) return nullptr;
    return [tensor, reduced = tensors[0]] { tensor.copy_(reduced); };
  }
  Finish do_barrier() override {
    return [work = c10d_backend().barrier()] { work->wait(); };
  }
  // One c10d call for all blocks: a send and a receive cost the host 10 us each, and an entry of the flight
  // recorder. NCCL copies this rank's own blocks too. Where blocks do not lie behind each other, the call is
  // an all-to-all of no rows, which makes the streams wait for each other; the blocks are added to its group.
  Finish do_all_to_all(const at::Tensor& out, const at::Tensor& in, std::span<const RowBlock> out_blocks,
                       std::span<const RowBlock> in_blocks) override {
    const auto ranks = static_cast<size_t>(size());
    std::vector<int64_t> received(ranks), sent(ranks);
    at::Tensor to = rows_behind_each_other(out, out_blocks, received),
               from = rows_behind_each_other(in, in_blocks, sent);
    if (to.defined() && from.defined())
      return [work = c10d_backend().alltoall_base(to, from, received, sent), out, in] { work->wait(); };
    std::vector<DeviceLibrary::NcclMessage> messages;
    const size_t each = in_blocks.size() / ranks;
    const int64_t row_bytes =
        static_cast<int64_t>(in.element_size()) * c10::multiply_integers(in.sizes().slice(1));
    const auto add = [&](bool sends, void* data, const RowBlock& block, size_t i) {
      if (block.rows > 0)
        messages.push_back({sends, static_cast<int>(i / each),
                            static_cast<std::byte*>(data) + block.first * row_bytes,
                            static_cast<size_t>(block.rows * row_bytes)});
    };
    for (size_t i = 0; i < in_blocks.size(); ++i) {
      add(/*sends=*/true, in.data_ptr(), in_blocks[i], i);
      add(/*sends=*/false, out.data_ptr(), out_blocks[i], i);
    }
    to = out.narrow(0, 0, 0);
    from = in.narrow(0, 0, 0);
    std::vector<int64_t> none(ranks);
    c10d::AllToAllOptions options;
    options.asyncOp = true;  // on the group's stream, where add_nccl_messages() adds to it
    auto work = coalesced([&] {
      c10d_backend().alltoall_base(to, from, none, none, options);
      device_library().add_nccl_messages(c10d_backend(), out.get_device(), messages);
    });
    return [work, out, in] { work->wait(); };
  }
  // Runs as one group call. NCCL connects two ranks at their first transfer.
  Finish do_transfers(const std::vector<Transfer>& transfers, bool /*is_all_to_all*/) override {
    if (std::ranges::all_of(transfers, [](const Transfer& transfer) { return transfer.tensor.numel() == 0; }))
      return nullptr;
    auto work = coalesced([&] {
      for (const auto& [kind, tensor, peer] : transfers) {
        if (tensor.numel() == 0) continue;
        std::vector<at::Tensor> tensors = {tensor};
        kind == Transfer::Kind::kSend ? c10d_backend().send(tensors, peer, 0)
                                      : c10d_backend().recv(tensors, peer, 0);
      }
    });
    return [work, transfers] { work->wait(); };
  }

 private:
  // Runs what `start` starts as one group call. An error leaves no group call open.
  template <typename Start>
  c10::intrusive_ptr<c10d::Work> coalesced(const Start& start) {
    c10d_backend().startCoalescing();
    try {
      start();
    } catch (...) {
      c10d_backend().endCoalescing();
      throw;
    }
    return c10d_backend().endCoalescing();
  }
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(std::string name, int rank,
                                                     std::vector<int> global_ranks,
                                                     const c10::intrusive_ptr<c10d::Store>& store,
                                                     const Environment& environment,
                                                     std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  const std::vector<NetworkInterface> interfaces = gloo_interfaces(environment);
  const auto connections = static_cast<int>(interfaces.size());
  const int size = static_cast<int>(global_ranks.size());
  // The group and each device need threads and open files: Gloo hangs or ends the process if it gets no
  // thread, and reports a socket that it cannot open as an unknown address.
  constexpr int kFilesOfDevice = 4;
  require_threads(options->threads + connections);
  require_open_files(static_cast<size_t>(connections) * static_cast<size_t>(size - 1 + kFilesOfDevice));
  for (const NetworkInterface& interface : interfaces) {
    options->devices.push_back(interface.address.empty()
                                   ? c10d::ProcessGroupGloo::createDeviceForInterface(interface.name)
                                   : c10d::ProcessGroupGloo::createDeviceForHostname(interface.address));
  }
  options->group_name = name;
  auto backend = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  return std::make_unique<GlooCommunicator>(std::move(name), rank, std::move(global_ranks),
                                            std::move(backend), timeout, connections);
}

bool nccl_communicators_leaked() {
  return leaked;
}

std::unique_ptr<Communicator> make_nccl_communicator(std::string name, int rank,
                                                     std::vector<int> global_ranks,
                                                     c10::intrusive_ptr<c10d::Backend> backend) {
  return std::make_unique<NcclCommunicator>(std::move(name), rank, std::move(global_ranks),
                                            std::move(backend));
}

}  // namespace hyperion::parallel
