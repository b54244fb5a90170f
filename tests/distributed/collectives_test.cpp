// Every collective on Gloo at 2, 3 and 4 ranks, and the groups of a mesh.
#include <catch2/catch.hpp>

#include <ATen/ATen.h>

#include "base/error.h"
#include "parallel/agreement.h"
#include "parallel/ledger.h"
#include "parallel/process_group.h"
#include "tests/support/ranks.h"

namespace hyperion {
namespace {

MeshConfig replicas(int count) {
  return {.dp_replicate = count};
}

CommOptions through(bool shared_memory) {
  CommOptions options;
  options.shared_memory = shared_memory;
  return options;
}

// Value i of rank r: small whole numbers, exact in every dtype, different for every rank and place.
at::Tensor numbers(int rank, int64_t count, at::ScalarType dtype) {
  return at::arange(count, at::kLong).mul_(3).add_(rank * 7).remainder_(31).to(dtype);
}

double differences(const at::Tensor& a, const at::Tensor& b) {
  return a.ne(b).sum().item<double>();
}

// Runs all collectives with tensors of `count` elements per rank and returns how many elements were wrong in
// each.
std::vector<double> wrong_elements(Communicator& group, int64_t count, at::ScalarType dtype) {
  const int rank = group.rank(), size = group.size();
  std::vector<double> wrong;

  std::vector<at::Tensor> all;
  for (int r = 0; r < size; ++r) all.push_back(numbers(r, count, dtype));
  const at::Tensor gathered = at::cat(all);
  at::Tensor out = at::zeros({size * count}, dtype);
  group.all_gather_into(out, all[rank].clone());
  wrong.push_back(differences(out, gathered));

  out = at::zeros({size * count}, dtype);
  const at::Tensor slot = out.narrow(0, rank * count, count);
  slot.copy_(all[rank]);
  group.all_gather_into(out, slot);  // in place
  wrong.push_back(differences(out, gathered));

  at::Tensor sum = at::zeros({size * count}, dtype), most = numbers(0, size * count, dtype);
  for (int r = 0; r < size; ++r) {
    sum += numbers(r, size * count, dtype);
    most = at::maximum(most, numbers(r, size * count, dtype));
  }
  at::Tensor chunk = at::zeros({count}, dtype);
  group.start_reduce_scatter_sum(chunk, numbers(rank, size * count, dtype)).wait();
  wrong.push_back(differences(chunk, sum.narrow(0, rank * count, count)));

  at::Tensor reduced = numbers(rank, size * count, dtype);
  group.all_reduce_sum(reduced);
  wrong.push_back(differences(reduced, sum));
  reduced = numbers(rank, size * count, dtype);
  group.all_reduce_max(reduced);
  wrong.push_back(differences(reduced, most));
  return wrong;
}

}  // namespace

TEST_CASE("every collective gives the right elements for every dtype and size") {
  const int ranks = GENERATE(2, 3, 4);
  const bool shared_memory = GENERATE(true, false);
  CAPTURE(ranks, shared_memory);
  const auto results = run_ranks(ranks, [&](const Environment& environment) {
    ProcessGroups groups(Mesh(replicas(ranks), ranks), environment, through(shared_memory));
    std::vector<double> wrong;
    wrong.push_back(groups.world().backend() == (shared_memory ? "shm" : "gloo") ? 0 : 1);
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte}) {
      for (int64_t count : {0, 7, 300001}) {
        for (double w : wrong_elements(groups.get(MeshDim::kDpReplicate), count, dtype)) wrong.push_back(w);
      }
    }
    return wrong;
  });
  for (const auto& wrong : results) {
    REQUIRE(wrong.size() == 1 + 4 * 3 * 5);
    for (size_t i = 0; i < wrong.size(); ++i) {
      CAPTURE(i);
      CHECK(wrong[i] == 0);
    }
  }
}

TEST_CASE("sums add up in rank order and sixteen bit floats in single precision") {
  const bool shared_memory = GENERATE(true, false);
  const auto results = run_ranks(3, [&](const Environment& environment) {
    ProcessGroups groups(Mesh({}, 3), environment, through(shared_memory));
    Communicator& group = groups.get(MeshDim::kFsdp);
    std::vector<double> wrong;
    const auto random = [](int rank) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + rank);
      return at::randn({3, 1001}, generator);
    };
    const at::Tensor a = random(0), b = random(1), c = random(2);
    at::Tensor out = at::empty({1001});
    group.start_reduce_scatter_sum(out, random(environment.rank)).wait();
    wrong.push_back(differences(out, ((a + b) + c)[environment.rank]));
    // 1 + 2^-9 + 2^-9: in bfloat16 every addition alone would be rounded away.
    at::Tensor terms = at::full({3, 8}, environment.rank == 0 ? 1.0 : 1.0 / 512, at::kBFloat16);
    at::Tensor small = at::empty({8}, at::kBFloat16);
    group.start_reduce_scatter_sum(small, terms.mul_(2)).wait();
    wrong.push_back(differences(small, at::full({8}, 2.0 + 4.0 / 512, at::kBFloat16)));
    return wrong;
  });
  for (const auto& wrong : results) CHECK(wrong == std::vector<double>{0, 0});
}

TEST_CASE("started operations overlap and complete in any order") {
  const bool shared_memory = GENERATE(true, false);
  const auto results = run_ranks(2, [&](const Environment& environment) {
    ProcessGroups groups(Mesh({}, 2), environment, through(shared_memory));
    Communicator& group = groups.get(MeshDim::kFsdp);
    std::vector<at::Tensor> outs;
    std::vector<Pending> pending;
    for (int i = 0; i < 8; ++i) {
      outs.push_back(at::empty({2, 50000}));
      pending.push_back(
          group.start_all_gather_into(outs.back(), at::full({50000}, 10.0 * i + environment.rank)));
    }
    at::Tensor chunk = at::empty({3});
    Pending reduction = group.start_reduce_scatter_sum(chunk, at::ones({6}));
    reduction.wait();
    for (int i = 7; i >= 0; i -= 2) pending[i].wait();
    for (int i = 0; i < 8; i += 2) pending[i].wait();
    double wrong = differences(chunk, at::full({3}, 2.0));
    for (int i = 0; i < 8; ++i) {
      wrong += differences(outs[i][0], at::full({50000}, 10.0 * i)) +
               differences(outs[i][1], at::full({50000}, 10.0 * i + 1));
    }
    return std::vector<double>{wrong};
  });
  for (const auto& wrong : results) CHECK(wrong[0] == 0);
}

TEST_CASE("a mesh of two by two has its groups and shares what has the same ranks") {
  const auto results = run_ranks(4, [](const Environment& environment) {
    const Mesh mesh({.dp_replicate = 2, .dp_shard = 2}, 4);
    ProcessGroups groups(mesh, environment, {});
    const auto total = [&](MeshDim dim) {
      at::Tensor value = at::full({1}, 1 << environment.rank, at::kLong);
      groups.get(dim).all_reduce_sum(value);
      return value.item<double>();
    };
    groups.world().barrier();
    return std::vector<double>{total(MeshDim::kFsdp),
                               total(MeshDim::kDpReplicate),
                               total(MeshDim::kWorld),
                               total(MeshDim::kTp),
                               &groups.get(MeshDim::kLoss) == &groups.world() ? 1.0 : 0.0,
                               &groups.get(MeshDim::kDpShard) == &groups.get(MeshDim::kFsdp) ? 1.0 : 0.0,
                               &groups.host() == &groups.world() ? 1.0 : 0.0};
  });
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(results[rank] == std::vector<double>{rank < 2 ? 3.0 : 12.0, rank % 2 == 0 ? 5.0 : 10.0, 15.0,
                                               static_cast<double>(1 << rank), 1.0, 1.0, 1.0});
  }
}

TEST_CASE("a group of all ranks that carries parameters is not the world group") {
  const auto results = run_ranks(2, [](const Environment& environment) {
    ProcessGroups groups(Mesh({}, 2), environment, {});
    CommLedger ledger;
    groups.set_observer([&](const CommOperation& operation) {
      ledger.add(std::string(operation.group), std::string(operation.name), operation.sent_bytes);
    });
    at::Tensor out = at::empty({2, 100}), in = at::ones({100});
    groups.get(MeshDim::kFsdp).all_gather_into(out, in);
    groups.get(MeshDim::kFsdp).start_reduce_scatter_sum(in, out).wait();
    groups.world().all_reduce_sum(in);
    return std::vector<double>{static_cast<double>(ledger.entry("fsdp/0", "all_gather").bytes),
                               static_cast<double>(ledger.entry("fsdp/0", "reduce_scatter").bytes),
                               static_cast<double>(ledger.entry("world/0", "all_reduce").bytes),
                               static_cast<double>(ledger.total_bytes())};
  });
  for (const auto& bytes : results) CHECK(bytes == std::vector<double>{400, 400, 400, 1200});
}

TEST_CASE("texts of different lengths reach every rank") {
  const auto results = run_ranks(3, [](const Environment& environment) {
    ProcessGroups groups(Mesh({}, 3), environment, {});
    const auto texts =
        groups.host().all_gather_text(std::string(environment.rank * 1000, 'a' + environment.rank));
    double good = 0;
    for (int r = 0; r < 3; ++r) good += texts.at(r) == std::string(r * 1000, 'a' + r);
    return std::vector<double>{good};
  });
  for (const auto& good : results) CHECK(good[0] == 3);
}

TEST_CASE("ranks that run the same job agree") {
  const auto results = run_ranks(2, [](const Environment& environment) {
    ProcessGroups groups(Mesh({}, 2), environment, {});
    require_agreement(groups.host(), {{"training.steps", "10"}, {"binary", "x"}});
    return std::vector<double>{};
  });
  CHECK(results.size() == 2);
}

}  // namespace hyperion
