// Every collective on Gloo at 2, 3 and 4 ranks, and the groups of a mesh.
#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "parallel/comm/agreement.h"
#include "parallel/comm/process_group.h"
#include "tests/support/comm_ledger.h"
#include "tests/support/ranks.h"

namespace hyperion::parallel {
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

int64_t differences(const at::Tensor& a, const at::Tensor& b) {
  return a.ne(b).sum().item<int64_t>();
}

// How many elements each collective got wrong.
struct WrongElements {
  int64_t count;  // of elements per rank
  at::ScalarType dtype;
  int64_t all_gather = 0, all_gather_in_place = 0, reduce_scatter = 0, all_reduce_sum = 0, all_reduce_max = 0;
};

WrongElements wrong_elements(Communicator& group, int64_t count, at::ScalarType dtype) {
  const int rank = group.rank(), size = group.size();
  WrongElements wrong{count, dtype};

  std::vector<at::Tensor> all;
  for (int r = 0; r < size; ++r) all.push_back(numbers(r, count, dtype));
  const at::Tensor gathered = at::cat(all);
  at::Tensor out = at::zeros({size * count}, dtype);
  group.all_gather_into(out, all[rank].clone());
  wrong.all_gather = differences(out, gathered);

  out = at::zeros({size * count}, dtype);
  const at::Tensor slot = out.narrow(0, rank * count, count);
  slot.copy_(all[rank]);
  group.all_gather_into(out, slot);  // in place
  wrong.all_gather_in_place = differences(out, gathered);

  at::Tensor sum = at::zeros({size * count}, dtype), most = numbers(0, size * count, dtype);
  for (int r = 0; r < size; ++r) {
    sum += numbers(r, size * count, dtype);
    most = at::maximum(most, numbers(r, size * count, dtype));
  }
  at::Tensor chunk = at::zeros({count}, dtype);
  group.start_reduce_scatter_sum(chunk, numbers(rank, size * count, dtype)).wait();
  wrong.reduce_scatter = differences(chunk, sum.narrow(0, rank * count, count));
  // Several at once, of which one has no elements.
  at::Tensor again = at::zeros({count}, dtype), twice = at::zeros({count}, dtype);
  group
      .start_reduce_scatter_sum({{again, numbers(rank, size * count, dtype)},
                                 {again.narrow(0, 0, 0), again.narrow(0, 0, 0)},
                                 {twice, numbers(rank, size * count, dtype) * 2}})
      .wait();
  wrong.reduce_scatter += differences(again, chunk) + differences(twice, chunk * 2);

  at::Tensor reduced = numbers(rank, size * count, dtype);
  group.all_reduce_sum(reduced);
  wrong.all_reduce_sum = differences(reduced, sum);
  reduced = numbers(rank, size * count, dtype);
  group.all_reduce_max(reduced);
  wrong.all_reduce_max = differences(reduced, most);
  return wrong;
}

}  // namespace

TEST_CASE("every collective gives the right elements for every dtype and size") {
  const int ranks = GENERATE(2, 3, 4);
  const bool shared_memory = GENERATE(true, false);
  CAPTURE(ranks, shared_memory);
  const auto results = run_ranks(ranks, [&](const Environment& environment) {
    ProcessGroups groups(Mesh(replicas(ranks), ranks), environment, through(shared_memory));
    if (groups.world().backend() != (shared_memory ? "shm" : "gloo"))
      throw std::runtime_error("the backend is " + std::string(groups.world().backend()));
    std::vector<WrongElements> wrong;
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte})
      for (int64_t count : {0, 7, 300001})
        wrong.push_back(wrong_elements(groups.get(MeshDim::kDpReplicate), count, dtype));
    return wrong;
  });
  for (const auto& rank : results) {
    REQUIRE(rank.size() == 4 * 3);
    for (const WrongElements& wrong : rank) {
      CAPTURE(wrong.dtype, wrong.count);
      CHECK(wrong.all_gather == 0);
      CHECK(wrong.all_gather_in_place == 0);
      CHECK(wrong.reduce_scatter == 0);
      CHECK(wrong.all_reduce_sum == 0);
      CHECK(wrong.all_reduce_max == 0);
    }
  }
}

TEST_CASE("tensors that are gathered at once arrive as those gathered alone") {
  const bool shared_memory = GENERATE(true, false);
  const auto results = run_ranks(3, [&](const Environment& environment) {
    ProcessGroups groups(Mesh({}, 3), environment, through(shared_memory));
    Communicator& group = groups.get(MeshDim::kFsdp);
    std::vector<CollectivePart> parts;
    std::vector<at::Tensor> expected;
    for (const int64_t count : {7, 0, 300001, 1}) {
      std::vector<at::Tensor> all;
      for (int r = 0; r < 3; ++r) all.push_back(numbers(r, count, at::kFloat));
      parts.push_back({at::zeros({3 * count}), all[static_cast<size_t>(environment.rank)]});
      expected.push_back(at::cat(all));
    }
    Pending first = group.start_all_gather_into(parts);
    at::Tensor sum = at::ones({2});
    group.all_reduce_sum(sum);  // while the first is in flight
    first.wait();
    int64_t wrong = differences(sum, at::full({2}, 3.0));
    for (size_t i = 0; i < parts.size(); ++i) wrong += differences(parts[i].out, expected[i]);
    return wrong;
  });
  for (const int64_t wrong : results) CHECK(wrong == 0);
}

TEST_CASE("sums add up in rank order and sixteen bit floats in single precision") {
  struct Wrong {
    int64_t order, precision;
  };
  const bool shared_memory = GENERATE(true, false);
  const auto results = run_ranks(3, [&](const Environment& environment) {
    ProcessGroups groups(Mesh({}, 3), environment, through(shared_memory));
    Communicator& group = groups.get(MeshDim::kFsdp);
    Wrong wrong{};
    const auto random = [](int rank) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + rank);
      return at::randn({3, 1001}, generator);
    };
    const at::Tensor a = random(0), b = random(1), c = random(2);
    at::Tensor out = at::empty({1001});
    group.start_reduce_scatter_sum(out, random(environment.rank)).wait();
    wrong.order = differences(out, ((a + b) + c)[environment.rank]);
    // 1 + 2^-9 + 2^-9: in bfloat16 every addition alone would be rounded away.
    at::Tensor terms = at::full({3, 8}, environment.rank == 0 ? 1.0 : 1.0 / 512, at::kBFloat16);
    at::Tensor small = at::empty({8}, at::kBFloat16);
    group.start_reduce_scatter_sum(small, terms.mul_(2)).wait();
    wrong.precision = differences(small, at::full({8}, 2.0 + 4.0 / 512, at::kBFloat16));
    return wrong;
  });
  for (const Wrong& wrong : results) {
    CHECK(wrong.order == 0);
    CHECK(wrong.precision == 0);
  }
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
    int64_t wrong = differences(chunk, at::full({3}, 2.0));
    for (int i = 0; i < 8; ++i) {
      wrong += differences(outs[i][0], at::full({50000}, 10.0 * i)) +
               differences(outs[i][1], at::full({50000}, 10.0 * i + 1));
    }
    return wrong;
  });
  for (const int64_t wrong : results) CHECK(wrong == 0);
}

TEST_CASE("a mesh of two by two has its groups and shares what has the same ranks") {
  struct Groups {
    int64_t fsdp, replicate, world, tp;  // a bit for each rank of the group
    bool loss_is_world, host_is_world;
  };
  const auto results = run_ranks(4, [](const Environment& environment) {
    const Mesh mesh({.dp_replicate = 2, .dp_shard = 2}, 4);
    ProcessGroups groups(mesh, environment, {});
    const auto total = [&](MeshDim dim) {
      at::Tensor value = at::full({1}, 1 << environment.rank, at::kLong);
      groups.get(dim).all_reduce_sum(value);
      return value.item<int64_t>();
    };
    groups.world().barrier();
    return Groups{total(MeshDim::kFsdp),
                  total(MeshDim::kDpReplicate),
                  total(MeshDim::kWorld),
                  total(MeshDim::kTp),
                  &groups.get(MeshDim::kLoss) == &groups.world(),
                  &groups.host() == &groups.world()};
  });
  for (int rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    CHECK(results[rank].fsdp == (rank < 2 ? 0b0011 : 0b1100));
    CHECK(results[rank].replicate == (rank % 2 == 0 ? 0b0101 : 0b1010));
    CHECK(results[rank].world == 0b1111);
    CHECK(results[rank].tp == 1 << rank);
    CHECK(results[rank].loss_is_world);
    CHECK(results[rank].host_is_world);
  }
}

TEST_CASE("a group of all ranks that carries parameters is not the world group") {
  struct SentBytes {
    int64_t all_gather, reduce_scatter, all_reduce, total;
  };
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
    return SentBytes{ledger.entry("fsdp/0", "all_gather").bytes,
                     ledger.entry("fsdp/0", "reduce_scatter").bytes,
                     ledger.entry("world/0", "all_reduce").bytes, ledger.total_bytes()};
  });
  for (const SentBytes& sent : results) {
    CHECK(sent.all_gather == 400);
    CHECK(sent.reduce_scatter == 400);
    CHECK(sent.all_reduce == 400);
    CHECK(sent.total == 1200);
  }
}

TEST_CASE("a text of any length reaches rank 0 from all ranks and all ranks from rank 0") {
  const bool shared_memory = GENERATE(true, false);
  const auto results = run_ranks(3, [&](const Environment& environment) {
    CommOptions options;
    options.shared_memory = shared_memory;
    ProcessGroups groups(Mesh({}, 3), environment, options);
    Communicator& host = groups.host();
    const auto of = [](int rank, size_t length) {
      return std::string(length, static_cast<char>('a' + rank));
    };
    int right = 0;
    // Around the bytes that travel with the length, and more than a message of shared memory.
    for (const size_t length : {0, 1, 247, 248, 249, 5000, 3'000'001}) {
      const std::vector<std::string> texts = host.gather(of(host.rank(), length * host.rank()));
      const std::vector<std::string> expected = {"", of(1, length), of(2, 2 * length)};
      right += texts == (host.rank() == 0 ? expected : std::vector<std::string>());
      right += host.broadcast(of(host.rank(), length)) == of(0, length);
    }
    return right;
  });
  for (const int right : results) CHECK(right == 14);
}

TEST_CASE("ranks that run the same job agree with one number each") {
  struct Sent {
    int64_t reductions, bytes;
  };
  const auto results = run_ranks(3, [](const Environment& environment) {
    ProcessGroups groups(Mesh({}, 3), environment, {});
    CommLedger ledger;
    groups.set_observer([&](const CommOperation& operation) {
      ledger.add(std::string(operation.group), std::string(operation.name), operation.sent_bytes);
    });
    Fingerprint fingerprint = {{"training.steps", "10"}, {"binary", "x"}};
    for (int i = 0; i < 100; ++i) fingerprint[std::to_string(i)] = "equal";
    require_agreement(groups.host(), fingerprint);
    return Sent{ledger.entry("world/0", "all_reduce").calls, ledger.total_bytes()};
  });
  for (const Sent& sent : results) {
    CHECK(sent.reductions == 1);
    CHECK(sent.bytes == 2 * 16 * 2 / 3);
  }
}

}  // namespace hyperion::parallel
