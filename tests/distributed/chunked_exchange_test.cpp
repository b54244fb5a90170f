// Products whose operands are exchanged in pieces give the bits of an exchange before or after.
#include "models/layers/chunked_exchange.h"

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>

#include "parallel/comm/process_group.h"
#include "tests/support/comm_ledger.h"
#include "tests/support/ranks.h"

namespace hyperion::models {

TEST_CASE("products in pieces give the bits of one gather before them and of one sum after them") {
  struct Result {
    int64_t wrong_rows, wrong_products, wrong_sums, order;
    int64_t sent, expected;
  };
  const int ranks = GENERATE(1, 2, 3, 4);
  const bool bfloat16 = GENERATE(false, true);
  CAPTURE(ranks, bfloat16);
  const auto results = run_ranks(ranks, [&](const parallel::Environment& environment) {
    parallel::ProcessGroups groups(parallel::Mesh({.dp_shard = 1, .tp = ranks}, ranks), environment, {});
    parallel::Communicator& group = groups.get(parallel::MeshDim::kTp);
    CommLedger ledger;
    const auto random = [&](int seed, at::IntArrayRef shape) {
      const at::Tensor values = at::randn(shape, at::make_generator<at::CPUGeneratorImpl>(seed));
      return values.to(bfloat16 ? at::kBFloat16 : at::kFloat);
    };
    constexpr int64_t kRows = 33, kIn = 17, kOut = 25;
    const at::Tensor shard = random(10 + group.rank(), {kRows, kIn}), w = random(1, {kIn, kOut});
    Result result{};
    at::Tensor all = at::empty({ranks, kRows, kIn}, shard.options());
    group.all_gather_into(all, shard);
    groups.set_observer([&](const parallel::CommOperation& operation) {
      ledger.add(std::string(operation.group), std::string(operation.name), operation.sent_bytes);
    });
    int calls = 0;
    const at::Tensor gathered = at::empty_like(all);
    gather_chunks(gathered, shard, group, [&](int r) {
      result.order += r != (group.rank() + calls++) % ranks;
      result.wrong_products += gathered[r].mm(w).ne(all[r].mm(w)).sum().item<int64_t>();
    });
    result.wrong_rows = gathered.ne(all).sum().item<int64_t>() + (calls != ranks);
    // Different terms on every rank.
    const auto product = [&](int r) { return all[r].mm(w).mul_(group.rank() + 1); };
    const at::Tensor sum = scatter_chunks(group, product);
    result.sent = ledger.entry("tp/0", "send").bytes;
    result.expected = (ranks - 1) * static_cast<int64_t>(shard.nbytes() + sum.nbytes());
    std::vector<at::Tensor> terms;
    for (int r = 0; r < ranks; ++r) terms.push_back(product(r));
    const at::Tensor wanted = at::empty_like(sum);
    group.start_reduce_scatter_sum(wanted, at::cat(terms)).wait();
    result.wrong_sums = sum.ne(wanted).sum().item<int64_t>();
    return result;
  });
  for (const Result& result : results) {
    CHECK(result.wrong_rows == 0);
    CHECK(result.wrong_products == 0);
    CHECK(result.wrong_sums == 0);
    CHECK(result.order == 0);
    CHECK(result.sent == result.expected);
  }
}

}  // namespace hyperion::models
