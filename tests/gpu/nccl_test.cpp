// NCCL through our communicator. One GPU is enough: a group of one rank goes through NCCL here, which a job
// never asks for.
#include <catch2/catch.hpp>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/device/device_library.h"
#include "parallel/backend_communicator.h"
#include "tests/gpu/gpu.h"

namespace hyperion {

TEST_CASE("every collective of NCCL does its work on one GPU and a group can be aborted") {
  if (gpus() == 0) return;
  const auto wrong = run_ranks(
                         1,
                         [](const Environment&) -> std::vector<double> {
                           use_gpu(0);
                           const auto backend = device_library().make_nccl_backend(
                               c10::make_intrusive<c10d::HashStore>(), 0, 1,
                               {.name = "test/0", .timeout = std::chrono::seconds(60)});
                           const auto group = make_nccl_communicator("test/0", 0, {0}, backend);
                           group->set_timeout(std::chrono::seconds(30));
                           const at::Tensor x = at::randn({1000}, at::kCUDA);
                           std::vector<double> wrong;
                           const auto expect = [&](const at::Tensor& found, const at::Tensor& wanted) {
                             wrong.push_back(found.cpu().equal(wanted.cpu()) ? 0 : 1);
                           };
                           at::Tensor out = at::zeros_like(x);
                           group->all_gather_into(out, x);
                           expect(out, x);
                           out.zero_();
                           group->start_reduce_scatter_sum(out, x).wait();
                           expect(out, x);
                           for (const at::Tensor& tensor : {x.clone(), x.cpu()}) {  // a host tensor too
                             group->all_reduce_sum(tensor);
                             expect(tensor, x);
                             group->all_reduce_max(tensor);
                             expect(tensor, x);
                           }
                           group->barrier();
                           group->abort();
                           return wrong;
                         },
                         kGpuTimeout)
                         .front();
  for (double difference : wrong) CHECK(difference == 0);
}

}  // namespace hyperion
