// NCCL through our communicator. One GPU is enough: a group of one rank goes through NCCL here, which a job
// never asks for.
#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/device/device_library.h"
#include "parallel/comm/backend_communicator.h"
#include "parallel/job/rendezvous.h"
#include "tests/gpu/gpu.h"

namespace hyperion {

TEST_CASE("every collective of NCCL does its work on one GPU") {
  struct Right {
    bool all_gather, reduce_scatter, all_reduce_sum, all_reduce_max, all_reduce_on_host;
  };
  if (gpus() == 0) return;
  const Right right = run_one_rank(
      [](const parallel::Environment&) {
        use_gpu(0);
        const auto backend =
            device_library().make_nccl_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1,
                                               {.name = "test/0", .timeout = std::chrono::seconds(60)});
        const auto group = parallel::make_nccl_communicator("test/0", 0, {0}, backend);
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
