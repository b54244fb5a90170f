// NCCL through our communicator. One GPU is enough: a group of one rank goes through NCCL here, which a job
// never asks for.
#include <catch2/catch.hpp>

#include <deque>
#include <numeric>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/device/device_library.h"
#include "base/device/streams.h"
#include "models/parts/attention/ring_attention.h"
#include "parallel/comm/backend_communicator.h"
#include "parallel/job/rendezvous.h"
#include "tests/gpu/gpu.h"

namespace hyperion {
namespace {

c10::intrusive_ptr<c10d::Backend> nccl_of_one_rank() {
  return device_library().make_nccl_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1,
                                            {.name = "test/0", .timeout = std::chrono::seconds(60)});
}

// Rank `rank` of `size` ranks whose messages all go to this rank itself, through a real group of one rank:
// what it sends to a peer is what it receives from that peer.
class ToItself final : public c10d::Backend {
 public:
  using Works = std::vector<at::Tensor>;
  ToItself(int rank, int size) : Backend(rank, size), nccl_(nccl_of_one_rank()) {}
  const std::string getBackendName() const override { return nccl_->getBackendName(); }  // NOLINT
  void setTimeout(std::chrono::milliseconds timeout) override { nccl_->setTimeout(timeout); }
  void shutdown() override { nccl_->shutdown(); }
  void startCoalescing() override { nccl_->startCoalescing(); }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override { return nccl_->endCoalescing(); }
  c10::intrusive_ptr<c10d::Work> send(Works& tensors, int, int tag) override {
    return nccl_->send(tensors, 0, tag);
  }
  c10::intrusive_ptr<c10d::Work> recv(Works& tensors, int, int tag) override {
    return nccl_->recv(tensors, 0, tag);
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& out, at::Tensor& in,
                                               std::vector<int64_t>& out_rows, std::vector<int64_t>& in_rows,
                                               const c10d::AllToAllOptions& options) override {
    std::vector<int64_t> to = {std::accumulate(out_rows.begin(), out_rows.end(), int64_t{0})},
                         from = {std::accumulate(in_rows.begin(), in_rows.end(), int64_t{0})};
    return nccl_->alltoall_base(out, in, to, from, options);
  }

 private:
  c10::intrusive_ptr<c10d::Backend> nccl_;
};

// The same ranks without NCCL: a received tensor is a copy of the one sent in the same call.
class HandedBack final : public Exchange {
 public:
  HandedBack(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Pending start_all_gather_into(const at::Tensor&, const at::Tensor&) override { return none(); }
  Pending start_reduce_scatter_sum(const at::Tensor&, const at::Tensor&) override { return none(); }
  Pending start_all_reduce_sum(const at::Tensor&) override { return none(); }
  Pending start_all_reduce_max(const at::Tensor&) override { return none(); }
  Pending start_block_exchange(const at::Tensor&, const at::Tensor&, std::span<const RowBlock>,
                               std::span<const RowBlock>) override {
    return none();
  }
  Pending start_transfers(std::vector<Transfer> transfers) override {
    std::vector<at::Tensor> sent, received;
    for (const Transfer& transfer : transfers)
      (transfer.kind == Transfer::Kind::kSend ? sent : received).push_back(transfer.tensor);
    for (size_t i = 0; i < received.size(); ++i) received[i].copy_(sent.at(i));
    return {};
  }

 private:
  static Pending none() { throw std::logic_error("a ring has transfers alone"); }
  int rank_, size_;
};

// The output of ring attention and its three gradients.
std::vector<at::Tensor> ring_of(Exchange& ranks, const std::vector<at::Tensor>& qkv, const at::Tensor& grad) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : qkv) leaves.push_back(x.detach().requires_grad_());
  const at::AutoGradMode gradients(true);
  const at::Tensor output =
      models::ring_attention(leaves[0], leaves[1], leaves[2], ranks, /*head_tail=*/true, nullptr);
  torch::autograd::backward({output}, {grad});
  return {output.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

// Activations of a stage to itself and gradients back, as a pipeline has them: on a stream of their own, into
// memory that is used again, two sends in flight.
bool stages_get_their_bits(parallel::Communicator& group) {
  using Kind = Transfer::Kind;
  const at::Device device(at::kCUDA, 0);
  const DeviceStream stream = DeviceStream::from_pool(device, /*high_priority=*/true);
  std::vector<at::Tensor> sums, wanted;
  std::deque<std::pair<Pending, std::vector<at::Tensor>>> in_flight;
  const auto take_oldest = [&] {
    auto& [pending, tensors] = in_flight.front();
    pending.wait();
    sums.push_back(tensors[2] + tensors[3]);
    in_flight.pop_front();
  };
  for (int microbatch = 0; microbatch < 8; ++microbatch) {
    at::Tensor x = at::randn({512, 256}, at::kCUDA).to(at::kBFloat16), grad = x.mul(-0.5).exp();
    wanted.push_back(x + grad);
    at::Tensor next, back;
    {
      const StreamScope scope(stream);
      next = at::empty_like(x);
      back = at::empty_like(grad);
    }
    Pending pending = group.start_transfers(
        {{Kind::kSend, x, 2}, {Kind::kReceive, next, 2}, {Kind::kSend, grad, 0}, {Kind::kReceive, back, 0}});
    in_flight.emplace_back(std::move(pending), std::vector{x, grad, next, back});
    if (in_flight.size() > 2) take_oldest();
  }
  while (!in_flight.empty()) take_oldest();
  return at::cat(sums).equal(at::cat(wanted));
}

}  // namespace

TEST_CASE("every collective of NCCL does its work on one GPU") {
  struct Right {
    bool all_gather, reduce_scatter, all_reduce_sum, all_reduce_max, all_reduce_on_host;
  };
  if (gpus() == 0) return;
  const Right right = run_one_rank(
      [](const parallel::Environment&) {
        use_gpu(0);
        const auto group = parallel::make_nccl_communicator("test/0", 0, {0}, nccl_of_one_rank());
        group->set_timeout(std::chrono::seconds(30));
        const at::Tensor x = at::randn({1000}, at::kCUDA);
        const auto equal = [](const at::Tensor& found, const at::Tensor& wanted) {
          return found.cpu().equal(wanted.cpu());
        };
        Right right{};
        at::Tensor out = at::zeros_like(x);
        group->all_gather_into(out, x);
        right.all_gather = equal(out, x);
        out.zero_();
        group->start_reduce_scatter_sum(out, x).wait();
        const at::Tensor parts = at::zeros_like(x);
        group
            ->start_reduce_scatter_sum({{parts.narrow(0, 0, 300), x.narrow(0, 0, 300)},
                                        {parts.narrow(0, 300, 700), x.narrow(0, 300, 700)}})
            .wait();
        right.reduce_scatter = equal(out, x) && equal(parts, x);
        const at::Tensor reduced = x.clone(), on_host = x.cpu();
        group->all_reduce_sum(reduced);
        right.all_reduce_sum = equal(reduced, x);
        group->all_reduce_max(reduced);
        right.all_reduce_max = equal(reduced, x);
        group->all_reduce_sum(on_host);
        group->all_reduce_max(on_host);
        right.all_reduce_on_host = equal(on_host, x);
        group->barrier();
        return right;
      },
      kGpuTimeout);
  CHECK(right.all_gather);
  CHECK(right.reduce_scatter);
  CHECK(right.all_reduce_sum);
  CHECK(right.all_reduce_max);
  CHECK(right.all_reduce_on_host);
}

TEST_CASE("a rank exchanges with itself through NCCL what experts and a ring and a pipeline exchange") {
  struct Right {
    bool all_to_all, ring, stages;
  };
  if (gpus() == 0) return;
  const Right right = run_one_rank(
      [](const parallel::Environment&) {
        use_gpu(0);
        constexpr int kRanks = 4, kOwn = 1;
        const auto group = parallel::make_nccl_communicator("test/0", kOwn, {0, 1, 2, 3},
                                                            c10::make_intrusive<ToItself>(kOwn, kRanks));
        Right right{};
        const at::Tensor rows = at::randn({4096, 128}, at::kCUDA).to(at::kBFloat16);
        const at::Tensor received = at::zeros_like(rows);
        const std::vector<int64_t> equal_parts(kRanks, rows.size(0) / kRanks);
        Pending exchange = group->start_all_to_all(received, rows, equal_parts, equal_parts);
        const at::Tensor product = rows.mm(rows.t());  // under the exchange
        exchange.wait();
        right.all_to_all = received.equal(rows) && product.equal(received.mm(received.t()));

        // One kernel whose backward repeats its bits.
        at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
        std::vector<at::Tensor> qkv;
        for (const int64_t heads : {4, 2, 2})
          qkv.push_back(at::randn({1, heads, 256, 64}, at::kCUDA).to(at::kBFloat16));
        const at::Tensor grad = at::randn({1, 4, 256, 64}, at::kCUDA).to(at::kBFloat16);
        HandedBack copies(kOwn, kRanks);
        const std::vector<at::Tensor> found = ring_of(*group, qkv, grad), wanted = ring_of(copies, qkv, grad);
        right.ring = true;
        for (size_t i = 0; i < wanted.size(); ++i) right.ring = right.ring && found[i].equal(wanted[i]);
        at::globalContext().setDeterministicAlgorithms(false,
                                                       false);  // which would fill what is received into

        right.stages = stages_get_their_bits(*group);
        return right;
      },
      kGpuTimeout);
  CHECK(right.all_to_all);
  CHECK(right.ring);
  CHECK(right.stages);
}

TEST_CASE("simulated NCCL stops ranks that make different calls and says which") {
  if (!simulated()) return static_cast<void>(std::printf("skipped: a real NCCL hangs\n"));
  if (gpus(2) < 2) return;
  using parallel::Communicator;
  const std::string of_rank_0 = "rank 0 all reduce of 8 x Float (sum)";
  const std::vector<std::pair<std::function<void(Communicator&)>, std::string>> cases = {
      {[](Communicator& group) { group.all_reduce_max(at::ones({8}, at::kCUDA)); },
       "rank 1 all reduce of 8 x Float (max)"},
      {[](Communicator& group) { group.all_reduce_sum(at::ones({9}, at::kCUDA)); },
       "rank 1 all reduce of 9 x Float (sum)"},
      {[](Communicator& group) { group.all_reduce_sum(at::ones({8}, at::kCUDA).to(at::kBFloat16)); },
       "rank 1 all reduce of 8 x BFloat16 (sum)"},
      {[](Communicator& group) {
         group.all_gather_into(at::empty({16}, at::kCUDA), at::ones({8}, at::kCUDA));
       },
       "rank 1 all gather of 8 x Float"}};
  for (const auto& [call, of_rank_1] : cases) {
    const auto outcomes = run_ranks_outcome(
        2,
        [&](const parallel::Environment& environment) {
          use_gpu(environment.rank);
          const auto store = parallel::join_ranks(environment, {}, std::chrono::seconds(60));
          const auto backend = device_library().make_nccl_backend(
              store, environment.rank, 2,
              {.name = "test/0", .timeout = std::chrono::seconds(60), .device_index = environment.rank});
          const auto group = parallel::make_nccl_communicator("test/0", environment.rank, {0, 1}, backend);
          const at::Tensor ones = at::ones({8}, at::kCUDA);
          group->all_reduce_sum(ones);  // the same on both ranks
          if (ones.cpu().sum().item<float>() != 16) throw std::runtime_error("not the sum");
          environment.rank == 0 ? group->all_reduce_sum(ones) : call(*group);
          ones.cpu();
        },
        kGpuTimeout);
    for (const RankOutcome& outcome : outcomes) {
      CAPTURE(of_rank_1, outcome.error, outcome.output);
      CHECK(outcome.exit_code == 99);
      for (const std::string& text : {std::string("ranks make different calls: "), of_rank_0, of_rank_1})
        CHECK(outcome.output.find(text) != std::string::npos);
    }
  }
}

}  // namespace hyperion
