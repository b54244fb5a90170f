// The weights of one unit over ranks that exchange nothing: what each rank keeps of a gradient.
#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "parallel/fsdp/fsdp.h"

namespace hyperion::parallel {
namespace {

constexpr int kWorld = 4;

// The gradients that rank `rank` of kWorld holds after a step with these gradients of a unit's weights.
std::vector<at::Tensor> kept_gradients(int rank, const std::vector<at::Tensor>& gradients,
                                       const ShardingOptions& options) {
  const auto shard = make_fake_communicator("fsdp/0", rank, {0, 1, 2, 3});
  const auto replicate = make_solo_communicator("dp_replicate/0", rank);
  FsdpContext context(Mesh({}, kWorld), rank, *shard, *replicate, options);
  std::vector<ParameterPtr> parameters;
  for (size_t i = 0; i < gradients.size(); ++i)
    parameters.push_back(
        make_parameter("weight " + std::to_string(i), gradients[i].sizes().vec(), Init::ones()));
  std::map<const Parameter*, ShardedParameterPtr> known;
  ShardGroup unit("unit", parameters, known, context);
  unit.finish_unshard();
  for (size_t i = 0; i < gradients.size(); ++i) parameters[i]->weight.mutable_grad() = gradients[i];
  unit.reduce(/*last_microbatch=*/true);
  context.finish_reduction();
  std::vector<at::Tensor> kept;
  for (const ShardedParameterPtr& parameter : unit.parameters()) kept.push_back(parameter->grad());
  return kept;
}

// Two ranks, of which this one is alone: keeps the parts of its reduce-scatters.
class Parts : public Communicator {
 public:
  Parts() : Communicator("fsdp/0", 0, {0, 1}) {}
  std::string_view backend() const override { return "test"; }
  void set_timeout(std::chrono::milliseconds) override {}
  std::vector<int64_t> sent;  // elements
  std::vector<at::ScalarType> dtypes;

 private:
  Finish do_all_gather(const std::vector<CollectivePart>&) override { return {}; }
  Finish do_reduce_scatter_sum(const std::vector<CollectivePart>& parts) override {
    for (const auto& [out, in] : parts) {
      sent.push_back(in.numel());
      dtypes.push_back(in.scalar_type());
      out.copy_(in.narrow(0, 0, out.numel()));
    }
    return {};
  }
  Finish do_all_reduce(const at::Tensor&, bool) override { return {}; }
  Finish do_barrier() override { return {}; }
};

}  // namespace

TEST_CASE("a rank keeps the rows of a gradient that torch.chunk gives it") {
  const auto [compute, reduce] =
      GENERATE(std::pair{at::kFloat, at::kFloat}, std::pair{at::kBFloat16, at::kFloat},
               std::pair{at::kBFloat16, at::kBFloat16});
  const ShardingOptions options{.compute_dtype = compute, .reduce_dtype = reduce};
  std::vector<at::Tensor> gradients;
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17})
    gradients.push_back(at::randn({rows, 3}).to(compute));
  gradients.push_back(at::randn({3, 10}).to(compute).t());  // not contiguous
  gradients.push_back(at::randn({13}).to(compute));
  for (int rank = 0; rank < kWorld; ++rank) {
    const std::vector<at::Tensor> kept = kept_gradients(rank, gradients, options);
    for (size_t i = 0; i < gradients.size(); ++i) {
      CAPTURE(rank, gradients[i].sizes().vec());
      const std::vector<at::Tensor> chunks = gradients[i].chunk(kWorld);
      if (static_cast<size_t>(rank) < chunks.size())
        CHECK(kept[i].equal(chunks[static_cast<size_t>(rank)].to(reduce).to(at::kFloat)));
      else
        CHECK(kept[i].numel() == 0);
    }
  }
}

TEST_CASE("a weight without a gradient adds nothing") {
  const std::vector<at::Tensor> gradients = {at::ones({5, 2}), at::ones({8})};
  const auto shard = make_fake_communicator("fsdp/0", 1, {0, 1, 2, 3});
  const auto replicate = make_solo_communicator("dp_replicate/0", 1);
  FsdpContext context(Mesh({}, kWorld), 1, *shard, *replicate, {.compute_dtype = at::kFloat});
  const std::vector<ParameterPtr> parameters = {make_parameter("a", {5, 2}, Init::ones()),
                                                make_parameter("b", {8}, Init::ones())};
  std::map<const Parameter*, ShardedParameterPtr> known;
  ShardGroup unit("unit", parameters, known, context);
  unit.finish_unshard();
  parameters[1]->weight.mutable_grad() = at::ones({8});
  unit.reduce(/*last_microbatch=*/true);
  context.finish_reduction();
  CHECK(unit.parameters()[0]->grad().equal(at::zeros({2, 2})));
  CHECK(unit.parameters()[1]->grad().equal(at::ones({2})));
}

TEST_CASE("a frozen weight is gathered with the others and has no place in their reduction and gradients") {
  const int frozen = GENERATE(1, 2, 3);  // of the first weights
  Parts shard;
  const auto replicate = make_solo_communicator("dp_replicate/0", 0);
  FsdpContext context(Mesh({}, 2), 0, shard, *replicate, {.compute_dtype = at::kFloat});
  std::vector<ParameterPtr> parameters;
  for (const int64_t rows : {6, 4, 2})
    parameters.push_back(make_parameter("weight " + std::to_string(rows), {rows, 3}, Init::ones()));
  for (int i = 0; i < frozen; ++i) parameters[static_cast<size_t>(i)]->trainable = false;
  std::map<const Parameter*, ShardedParameterPtr> known;
  ShardGroup unit("unit", parameters, known, context);
  unit.finish_unshard();
  int64_t elements = 0;
  for (const ShardedParameterPtr& parameter : unit.parameters()) {
    const Parameter& weight = parameter->parameter();
    CHECK(parameter->all_gather_output().numel() == weight.numel());
    CHECK(weight.weight.requires_grad() == weight.trainable);
    CHECK(parameter->grad().defined() == weight.trainable);
    if (!weight.trainable) continue;
    elements += weight.numel();
    weight.weight.mutable_grad() = at::ones(weight.shape);
  }
  if (GENERATE(false, true)) unit.accumulate();
  unit.reduce(/*last_microbatch=*/true);
  context.finish_reduction();
  CHECK(std::reduce(shard.sent.begin(), shard.sent.end()) == elements);
  int64_t held = 0;
  for (const at::Tensor& gradients : unit.local_gradients().tp_sharded) held += gradients.numel();
  CHECK(held == elements / 2);
  for (const ShardedParameterPtr& parameter : unit.parameters())
    if (parameter->parameter().trainable)
      CHECK(parameter->grad().equal(at::ones({parameter->parameter().shape[0] / 2, 3})));
}

TEST_CASE("the first gradients of a step replace those of the step before and later ones add to them") {
  const int world = GENERATE(1, 4);
  std::vector<int> ranks(static_cast<size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto shard = make_fake_communicator("fsdp/0", 0, ranks);
  const auto replicate = make_solo_communicator("dp_replicate/0", 0);
  FsdpContext context(Mesh({}, world), 0, *shard, *replicate, {.compute_dtype = at::kFloat});
  const ParameterPtr tied = make_parameter("tied", {8, 2}, Init::ones()),
                     own = make_parameter("own", {4}, Init::ones());
  std::map<const Parameter*, ShardedParameterPtr> known;
  ShardGroup first("first", {tied}, known, context), last("last", {own, tied}, known, context);
  const auto microbatch = [&](double value) {
    for (ShardGroup* group : {&last, &first}) {
      group->finish_unshard();
      for (const ShardedParameterPtr& parameter : group->parameters())
        parameter->parameter().weight.mutable_grad() = at::full(parameter->parameter().shape, value);
      group->reduce(/*last_microbatch=*/true);
    }
    context.finish_reduction();
  };
  for (const double step : {1.0, 10.0}) {
    microbatch(step);
    microbatch(2 * step);
    for (const ShardedParameterPtr& parameter : last.parameters()) {
      const double uses = &parameter->parameter() == tied.get() ? 2 : 1;
      CHECK(parameter->grad().equal(at::full(parameter->grad().sizes(), 3 * step * uses)));
    }
    first.drop_grads();
    last.drop_grads();
  }
}

TEST_CASE("weights lie side by side only where they are gathered without padding") {
  const int world = GENERATE(1, 2, 4);
  const at::ScalarType compute = GENERATE(at::kFloat, at::kBFloat16);
  std::vector<int> ranks(static_cast<size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto shard = make_fake_communicator("fsdp/0", world - 1, ranks);
  const auto replicate = make_solo_communicator("dp_replicate/0", 0);
  FsdpContext context(Mesh({}, world), world - 1, *shard, *replicate,
                      {.compute_dtype = compute, .pack_weights = true});
  const ParameterPtr pack = make_parameter("q, k and v", {16, 3}, Init::ones()),
                     padded = make_parameter("gate and up", {10, 3}, Init::ones());
  std::vector<ParameterPtr> parameters;
  for (const int64_t rows : {8, 4, 4}) {
    parameters.push_back(make_parameter("w", {rows, 3}, Init::ones()));
    parameters.back()->pack = pack;
  }
  parameters.push_back(make_parameter("norm", {3}, Init::ones()));
  for (const int64_t rows : {5, 5}) {
    parameters.push_back(make_parameter("w", {rows, 3}, Init::ones()));
    parameters.back()->pack = padded;
  }
  std::map<const Parameter*, ShardedParameterPtr> known;
  ShardGroup unit("unit", parameters, known, context);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& own = unit.parameters()[i]->compute_shard();
    own.fill_(static_cast<double>(i + 1));
  }
  for (int again = 0; again < 2; ++again) {
    unit.finish_unshard();
    REQUIRE(pack->weight.defined());
    CHECK(padded->weight.defined() == (world == 1));
    CHECK(pack->weight.sizes() == at::IntArrayRef({16, 3}));
    int64_t row = 0;
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor weight = parameters[i]->weight.detach();
      CHECK(weight.equal(at::full(weight.sizes(), static_cast<double>(i + 1), weight.options())));
      CHECK(weight.data_ptr() == pack->weight[row].data_ptr());
      row += weight.size(0);
    }
    unit.reshard();
    if (world > 1) CHECK(pack->weight.storage().nbytes() == 0);
  }
}

TEST_CASE("two stacks of experts' matrices are gathered as one whose experts have both") {
  const int world = GENERATE(1, 2, 8);  // eight ranks have no whole expert each
  const at::ScalarType compute = GENERATE(at::kFloat, at::kBFloat16);
  std::vector<int> ranks(static_cast<size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  const int rank = world - 1;
  const auto shard = make_fake_communicator("efsdp/0", rank, ranks);
  const auto replicate = make_solo_communicator("dp_replicate/0", 0);
  FsdpContext context(Mesh({}, world), rank, *shard, *replicate,
                      {.compute_dtype = compute, .pack_weights = true});
  const ParameterPtr pack = make_parameter("w1 and w3", {4, 10, 3}, Init::ones());
  std::vector<ParameterPtr> parameters;
  for (const int64_t rows : {6, 4}) {
    parameters.push_back(make_parameter("w", {4, rows, 3}, Init::ones()));
    parameters.back()->pack = pack;
  }
  std::map<const Parameter*, ShardedParameterPtr> known;
  ShardGroup unit("unit", parameters, known, context);
  const bool fits = compute == at::kBFloat16 && world < 8;
  CHECK(pack->weight.defined() == fits);
  std::vector<at::Tensor> wholes;
  for (const ShardedParameterPtr& parameter : unit.parameters()) {
    CHECK(parameter->master().is_contiguous());
    CHECK(parameter->grad().is_contiguous());
    const at::Tensor whole = at::randint(0, 100, parameter->parameter().shape, at::kFloat);
    wholes.push_back(whole);
    // The fake communicator gathers copies of this rank's shard.
    parameter->master().copy_(whole.narrow(0, parameter->box().offset[0], parameter->box().shape[0])
                                  .narrow(1, parameter->box().offset[1], parameter->box().shape[1]));
    if (parameter->has_separate_compute_shard()) parameter->compute_shard().copy_(parameter->master());
    parameter->contents_changed();
  }
  for (int again = 0; again < 2 && fits; ++again) {
    unit.finish_unshard();
    const int64_t own = 4 / world;
    CHECK(pack->weight.sizes() == at::IntArrayRef({4, 10, 3}));
    const at::Tensor both = at::cat(wholes, 1).narrow(0, 4 - own, own).to(compute);
    for (int64_t first = 0; first < 4; first += own) CHECK(pack->weight.narrow(0, first, own).equal(both));
    int64_t row = 0;
    for (const ParameterPtr& parameter : parameters) {
      CHECK(parameter->weight.data_ptr() == pack->weight[0][row].data_ptr());
      CHECK(parameter->weight.equal(pack->weight.narrow(1, row, parameter->local[1])));
      row += parameter->local[1];
    }
    pack->derived = std::make_shared<DerivedWeight>();
    unit.parameters()[1]->contents_changed();
    CHECK(pack->derived == nullptr);
    unit.reshard();
    if (world > 1) CHECK(pack->weight.storage().nbytes() == 0);
  }
}

TEST_CASE("a unit sends the same parts whatever gradients a microbatch leaves") {
  Parts shard;
  const auto replicate = make_solo_communicator("dp_replicate/0", 0);
  FsdpContext context(Mesh({}, 2), 0, shard, *replicate, {.compute_dtype = at::kBFloat16});
  const std::vector<ParameterPtr> parameters = {make_parameter("a", {4, 2}, Init::ones()),
                                                make_parameter("b", {6}, Init::ones())};
  std::map<const Parameter*, ShardedParameterPtr> known;
  ShardGroup unit("unit", parameters, known, context);
  // As planned; in another dtype, as a product on a GPU may leave it; none.
  for (const at::Tensor& gradient : {at::ones({6}, at::kBFloat16), at::full({6}, 1.001), at::Tensor()}) {
    unit.drop_grads();
    unit.finish_unshard();
    parameters[0]->weight.mutable_grad() = at::ones({4, 2}, at::kBFloat16);
    parameters[1]->weight.mutable_grad() = gradient;
    shard.sent.clear();
    unit.reduce(/*last_microbatch=*/true);
    context.finish_reduction();
    CHECK(shard.sent == std::vector<int64_t>{8 + 6});
    const at::Tensor expected = gradient.defined() ? gradient.narrow(0, 0, 3).to(at::kFloat) : at::zeros({3});
    CHECK(unit.parameters()[1]->grad().equal(expected));
  }
}

TEST_CASE("gradients of several microbatches are added up in fp32 and reduced once, whatever is sent") {
  const at::ScalarType reduce = GENERATE(at::kFloat, at::kBFloat16);
  Parts shard;
  const auto replicate = make_solo_communicator("dp_replicate/0", 0);
  FsdpContext context(Mesh({}, 2), 0, shard, *replicate,
                      {.compute_dtype = at::kBFloat16, .reduce_dtype = reduce});
  const std::vector<ParameterPtr> parameters = {make_parameter("a", {5, 2}, Init::ones()),
                                                make_parameter("b", {6}, Init::ones())};
  std::map<const Parameter*, ShardedParameterPtr> known;
  ShardGroup unit("unit", parameters, known, context);
  const auto leave = [&](double a, std::optional<double> b) {
    unit.finish_unshard();
    parameters[0]->weight.mutable_grad() = at::full({5, 2}, a, at::kBFloat16);
    if (b) parameters[1]->weight.mutable_grad() = at::full({6}, *b, at::kBFloat16);
  };
  const double small = 1.0 / 512;  // half of the distance of 1 and the next bf16
  for (int step = 0; step < 2; ++step) {
    unit.drop_grads();
    leave(1, std::nullopt);
    unit.accumulate();
    for (const double b : {1.0, 2.0, 4.0}) {
      leave(small, b);
      unit.accumulate();
    }
    CHECK(shard.sent.empty());
    const bool in_last = step == 0;  // or there is nothing left for the reduction to add
    leave(small, 8.0);
    if (!in_last) unit.accumulate();
    unit.reduce(/*last_microbatch=*/true);
    context.finish_reduction();
    CHECK(shard.sent == std::vector<int64_t>{2 * (3 * 2 + 3)});
    CHECK(shard.dtypes == std::vector<at::ScalarType>{reduce});
    CHECK(unit.parameters()[0]->grad().equal(at::full({3, 2}, 1 + 4 * small)));
    CHECK(unit.parameters()[1]->grad().equal(at::full({3}, 15.0)));
    shard.sent.clear();
    shard.dtypes.clear();
  }
}

TEST_CASE("every shard of a block of qwen3 begins at 16 bytes on 128 ranks and is what it is without zeros") {
  constexpr int kRanks = 128;
  const at::ScalarType compute = GENERATE(at::kFloat, at::kBFloat16);
  const int rank = GENERATE(0, 77);
  std::vector<int> ranks(kRanks);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto shard = make_fake_communicator("fsdp/0", rank, ranks);
  const auto replicate = make_solo_communicator("dp_replicate/0", rank);
  struct Unit {  // qwen3 0.6B's shapes; norms of heads have one number on each rank
    Unit(int64_t alignment, at::ScalarType compute, int rank, Communicator& shard, Communicator& replicate)
        : context(Mesh({}, kRanks), rank, shard, replicate,
                  {.compute_dtype = compute, .shard_alignment = alignment, .pack_weights = true}) {
      const auto add = [&](const char* name, std::vector<int64_t> shape, const ParameterPtr& pack = {}) {
        parameters.push_back(make_parameter(name, std::move(shape), Init::ones()));
        parameters.back()->pack = pack;
      };
      const ParameterPtr qkv = make_parameter("qkv", {4096, 1024}, Init::ones()),
                         gate_up = make_parameter("gate and up", {6144, 1024}, Init::ones());
      add("wq", {2048, 1024}, qkv);
      add("wk", {1024, 1024}, qkv);
      add("wv", {1024, 1024}, qkv);
      add("wo", {1024, 2048});
      add("q_norm", {128});
      add("k_norm", {128});
      add("w1", {3072, 1024}, gate_up);
      add("w2", {1024, 3072});
      add("w3", {3072, 1024}, gate_up);
      add("attention_norm", {1024});
      add("ffn_norm", {1000});  // not all ranks have the same of it
      unit = std::make_unique<ShardGroup>("unit", parameters, known, context);
    }
    FsdpContext context;
    std::vector<ParameterPtr> parameters;
    std::map<const Parameter*, ShardedParameterPtr> known;
    std::unique_ptr<ShardGroup> unit;
  };
  Unit aligned(kGpuShardAlignment, compute, rank, *shard, *replicate),
      dense(1, compute, rank, *shard, *replicate);
  at::manual_seed(1);
  for (const bool accumulates : {true, false}) {
    for (size_t i = 0; i < aligned.parameters.size(); ++i) {
      const at::Tensor gradient = at::randn(aligned.parameters[i]->shape).to(compute);
      for (Unit* one : {&aligned, &dense}) one->parameters[i]->weight.mutable_grad() = gradient.clone();
    }
    for (Unit* one : {&aligned, &dense}) {
      one->unit->finish_unshard();
      if (accumulates)
        one->unit->accumulate();
      else
        one->unit->reduce(/*last_microbatch=*/true);
    }
  }
  aligned.context.finish_reduction();
  dense.context.finish_reduction();
  int64_t zeros = 0;
  for (size_t i = 0; i < aligned.parameters.size(); ++i) {
    const ShardedParameter &parameter = *aligned.unit->parameters()[i], &other = *dense.unit->parameters()[i];
    CAPTURE(parameter.parameter().fqn);
    for (const at::Tensor& tensor : {parameter.master(), parameter.grad(), parameter.compute_shard(),
                                     parameter.all_gather_input(), parameter.all_gather_output()})
      CHECK(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0);
    CHECK(parameter.grad().equal(other.grad()));
    CHECK(parameter.all_gather_input().numel() ==
          other.all_gather_input().numel());  // zeros are not gathered
    CHECK(other.aligned_numel() == other.padded_numel());
    zeros += parameter.aligned_numel() - parameter.padded_numel();
  }
  CHECK(zeros == 3 + 3);
  const at::Tensor all = aligned.unit->local_gradients().tp_sharded.front(),
                   without = dense.unit->local_gradients().tp_sharded.front();
  CHECK(all.numel() == without.numel() + zeros);
  CHECK(all.ne(0).sum().item<int64_t>() == without.ne(0).sum().item<int64_t>());
}

}  // namespace hyperion::parallel
