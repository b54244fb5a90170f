#include "trainer/optim/grad_clip.h"

#include <catch2/catch.hpp>

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/utils/clip_grad.h>

namespace hyperion::optim {

TEST_CASE("norm and clipping equal torch's clip_grad_norm_") {
  at::manual_seed(3);
  for (double max_norm : {0.5, 1.0, 1000.0}) {
    parallel::LocalGradients gradients;
    std::vector<at::Tensor>&ours = gradients.tp_sharded, theirs;
    for (int64_t n : {5, 1000, 37}) {
      ours.push_back(at::randn({n}));
      theirs.push_back(at::zeros({n}).requires_grad_());
      theirs.back().mutable_grad() = ours.back().clone();
    }
    auto solo = parallel::make_solo_communicator("fsdp/0", 0);
    const at::Tensor norm = global_grad_norm(gradient_classes(gradients, *solo, nullptr, *solo), at::kCPU);
    clip_gradients(gradients, norm, max_norm);
    const double expected = torch::nn::utils::clip_grad_norm_(theirs, max_norm);
    CHECK(norm.item<double>() == Approx(expected).epsilon(1e-6));
    for (size_t i = 0; i < ours.size(); ++i) CHECK(at::allclose(ours[i], theirs[i].grad(), 1e-6, 1e-8));
  }
}

TEST_CASE("gradients divided by the clip divisor are the clipped ones") {
  for (const double length : {0.1, 1.0, 7.0, 1e30}) {
    for (const double max_norm : {0.5, 1.0, 1000.0, std::numeric_limits<double>::infinity()}) {
      CAPTURE(length, max_norm);
      const at::Tensor norm = at::full({}, length, at::kDouble), grad = at::full({3}, length);
      const parallel::LocalGradients gradients{.tp_sharded = {grad.clone()}, .replicated = {}};
      clip_gradients(gradients, norm, max_norm);
      const at::Tensor divided = grad / clip_divisor(norm, max_norm).to(at::kFloat);
      CHECK(at::allclose(divided, gradients.tp_sharded[0], 1e-6, 0));
      if (length + 1e-6 <= max_norm) CHECK((divided.equal(grad) && gradients.tp_sharded[0].equal(grad)));
    }
  }
}

TEST_CASE("a non-finite gradient makes the norm non-finite") {
  const parallel::LocalGradients gradients{.tp_sharded = {at::tensor({1.0F, NAN})}, .replicated = {}};
  auto solo = parallel::make_solo_communicator("fsdp/0", 0);
  CHECK_FALSE(std::isfinite(
      global_grad_norm(gradient_classes(gradients, *solo, nullptr, *solo), at::kCPU).item<double>()));
}

TEST_CASE("classes of gradients are each added up over their own groups") {
  // Groups in which every rank has the same gradients: a sum over n ranks is n times as large.
  class Peers : public parallel::Communicator {
   public:
    explicit Peers(int size) : parallel::Communicator("peers/0", 0, std::vector<int>(size)) {}
    std::string_view backend() const override { return "test"; }
    void set_timeout(std::chrono::milliseconds) override {}
    int operations = 0;

   private:
    Finish do_all_gather(const std::vector<parallel::CollectivePart>&) override { return {}; }
    Finish do_reduce_scatter_sum(const std::vector<parallel::CollectivePart>&) override { return {}; }
    Finish do_all_reduce(const at::Tensor& tensor, bool) override {
      ++operations;
      tensor.mul_(size());
      return {};
    }
    Finish do_barrier() override { return {}; }
  };
  Peers shard(2), tensor(3), experts(5);
  const at::Tensor one = at::full({4}, 1.0), two = at::full({1}, 2.0);  // squares: 4 each
  const double norm =
      global_grad_norm({{{one}, {&shard, &tensor}}, {{two}, {&shard}}, {{}, {&experts}}}, at::kCPU)
          .item<double>();
  CHECK(norm * norm == Approx(4 * 2 * 3 + 4 * 2));
  CHECK(shard.operations == 1);  // for both classes
  CHECK(tensor.operations == 1);
  CHECK(experts.operations == 1);
}

}  // namespace hyperion::optim
