// What a job computes in which dtype, on real ranks: weights, residual stream, collectives, state, loss.
#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "models/kernels/kernels.h"
#include "tests/distributed/trace_ranges.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"

namespace hyperion::parallel {
namespace {

using Dtypes = std::set<at::ScalarType>;

std::string text(const Dtypes& dtypes) {
  std::vector<std::string> names;
  for (at::ScalarType dtype : dtypes) names.emplace_back(c10::toString(dtype));
  return fmt::format("{}", fmt::join(names, " "));
}

// Both operands of every sum of two [batch, seq, dim] tensors while `watching`: inside a block's forward
// these are the two residual additions.
struct ResidualWatch {
  bool watching = false;
  int additions = 0;
  Dtypes dtypes;
} residual;

// Every operation called under the dispatch key that libtorch reserves for tests comes here first.
void watch_operation(const c10::OperatorHandle& operation, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::TESTING_ONLY_GenericMode);
  if (residual.watching && operation.schema().name() == "aten::add" && stack->at(0).toTensor().dim() == 3) {
    residual.dtypes.insert({stack->at(0).toTensor().scalar_type(), stack->at(1).toTensor().scalar_type()});
    ++residual.additions;
  }
  operation.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&watch_operation>());
}

// Trains one step and lists every dtype that was seen.
std::string observed_dtypes(const TinyJob& job, const Environment& environment) {
  // Fused kernels add up within themselves; kernels_test.cpp holds their sums to those of the plain ones.
  kernels::choose_kernels(kernels::KernelChoice::kPlain);  // of this rank's process
  TinyTraining training(job, environment);
  const c10::impl::IncludeDispatchKeyGuard watch(c10::DispatchKey::TESTING_ONLY_GenericMode);
  Dtypes weights, logits, state;
  {
    const TraceRangeListener listener(
        [&](const std::string& range) {
          residual.watching = range.starts_with("forward layers.");
          for (const auto& unit : training.stage().groups()) {
            if (range != "forward " + unit->name() && range != "forward and backward " + unit->name())
              continue;
            for (const auto& parameter : unit->parameters())
              weights.insert({parameter->parameter().weight.scalar_type(),
                              parameter->all_gather_output().scalar_type()});
          }
          if (range == "forward and backward norm,output")
            logits.insert(training.model().head().logits(at::zeros({1, 2, 18}, job.compute)).scalar_type());
        },
        [](const std::string&) { residual.watching = false; });
    training.step(0);
  }
  if (residual.additions != 2 * 3) throw std::runtime_error("the three blocks have two residual sums each");
  const std::vector<ShardedParameterPtr> parameters = training.stage().parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    state.insert({parameters[i]->master().scalar_type(), parameters[i]->grad().scalar_type()});
    for (const at::Tensor& moment : training.optimizer().states(i)) state.insert(moment.scalar_type());
  }

  const at::Tensor tokens = at::ones({1, 4}, at::kLong);
  const models::Microbatch batch{tokens, tokens, training.model().context(4, at::kCPU)};
  const Dtypes loss = {training.schedule().losses(1, [&](size_t) { return batch; })[0].scalar_type(),
                       training.schedule()
                           .train_step(
                               1, 1, [&](size_t) { return batch; }, at::ones({}))[0]
                           .scalar_type()};
  std::string seen = fmt::format("state {}, weights {}, residual {}, logits {}, loss {}", text(state),
                                 text(weights), text(residual.dtypes), text(logits), text(loss));
  for (const auto& [operation, dtypes] : training.sent_dtypes())
    if (operation.starts_with("fsdp/0 ") && environment.world_size > 1)
      seen += fmt::format(", {} {}", operation.substr(7), text(dtypes));
  return seen;
}

}  // namespace

TEST_CASE("bf16 is the dtype of weights and residual stream and fp32 that of state and reduction and loss") {
  struct Case {
    int ranks;
    at::ScalarType compute;
    const char* expected;
  };
  // All-gathers move bytes; fsdp_test.cpp counts that they are the weights'. The all-reduce is the norm's.
  const Case is = GENERATE(
      Case{1, at::kBFloat16, "state Float, weights BFloat16, residual BFloat16, logits BFloat16, loss Float"},
      Case{2, at::kBFloat16,
           "state Float, weights BFloat16, residual BFloat16, logits BFloat16, loss Float, "
           "all_gather Byte, all_reduce Double, reduce_scatter Float"},
      Case{2, at::kFloat,
           "state Float, weights Float, residual Float, logits Float, loss Float, "
           "all_gather Byte, all_reduce Double, reduce_scatter Float"});
  for (const RankOutcome& rank : run_ranks_outcome(is.ranks, [is](const Environment& environment) {
         const std::string seen = observed_dtypes({.compute = is.compute}, environment);
         if (seen != is.expected) throw std::runtime_error(seen);
       })) {
    INFO(rank.output);
    CHECK(rank.error == "");
  }
}

}  // namespace hyperion::parallel
