// Replicas that differ are found and named; those that do not pass.
#include "parallel/fsdp/replica_audit.h"

#include <catch2/catch.hpp>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "parallel/comm/process_group.h"
#include "tests/support/ranks.h"

namespace hyperion::parallel {
namespace {

// Equal on every rank.
std::vector<at::Tensor> equal_tensors() {
  const at::Tensor random = at::randn({3, 1001}, at::make_generator<at::CPUGeneratorImpl>(7));
  return {random, random.to(at::kBFloat16), at::arange(5), at::empty({0}), at::ones({13}, at::kByte)};
}

void flip_one_bit(const at::Tensor& tensor, int64_t byte) {
  static_cast<uint8_t*>(tensor.data_ptr())[byte] ^= 0x10;
}

}  // namespace

TEST_CASE("equal replicas pass the audit with one exchange per group and one flipped bit is named") {
  const int ranks = GENERATE(2, 4);
  const int64_t flipped_in = GENERATE(-1, 0, 1, 2, 4);
  const auto outcomes = run_ranks_outcome(ranks, [&](const Environment& environment) {
    ProcessGroups groups(Mesh({.dp_shard = 1, .tp = ranks}, ranks), environment, {});
    int64_t exchanges = 0;
    groups.set_observer([&](const CommOperation&) { ++exchanges; });
    std::vector<ReplicatedTensor> tensors;
    for (const at::Tensor& tensor : equal_tensors()) {
      tensors.push_back({"tensor " + std::to_string(tensors.size()),
                         tensor,
                         {&groups.get(MeshDim::kTp), &groups.get(MeshDim::kFsdp)}});  // fsdp has one rank
    }
    audit_replicas(tensors);
    if (exchanges != 1) throw std::runtime_error(std::to_string(exchanges) + " exchanges");
    if (flipped_in >= 0 && environment.rank == 1) {
      const at::Tensor& tensor = tensors[static_cast<size_t>(flipped_in)].tensor;
      flip_one_bit(tensor, static_cast<int64_t>(tensor.nbytes()) - 1);
    }
    audit_replicas(tensors);
  });
  for (const RankOutcome& outcome : outcomes) {
    CAPTURE(ranks, flipped_in, outcome.error, outcome.output);
    if (flipped_in < 0) {
      CHECK(outcome.exit_code == 0);
      continue;
    }
    CHECK(outcome.exit_code == static_cast<int>(ExitCode::kBug));
    const std::string named = "tensor " + std::to_string(flipped_in) + ": rank 1 differs";
    CHECK(outcome.error.find(named) != std::string::npos);
    CHECK(outcome.error.find("over group tp/0 (ranks 0 1") != std::string::npos);
  }
}

TEST_CASE("the audit compares each tensor over its own groups and hashes it once for all of them") {
  const auto outcomes = run_ranks_outcome(4, [](const Environment& environment) {
    ProcessGroups groups(Mesh({.dp_replicate = 2, .dp_shard = 1, .tp = 2}, 4), environment, {});
    Communicator *const tp = &groups.get(MeshDim::kTp), *const replicas = &groups.get(MeshDim::kDpReplicate);
    const auto rank = static_cast<double>(environment.rank);
    // Norms are equal everywhere; a divided matrix is equal on ranks 0 and 2, and on 1 and 3.
    audit_replicas(
        {{"norm", at::ones({3}), {tp, replicas}}, {"wq", at::full({5}, environment.rank % 2), {replicas}}});
    audit_replicas({{"norm", at::full({3}, rank < 2 ? 1.0 : rank == 2 ? 2.0 : 3.0), {tp}}});
  });
  for (const int rank : {0, 1}) CHECK(outcomes[rank].exit_code == 0);
  for (const int rank : {2, 3}) {
    CAPTURE(outcomes[rank].error);
    CHECK(outcomes[rank].exit_code == static_cast<int>(ExitCode::kBug));
    // Of two ranks nobody knows which is right: the lowest counts.
    CHECK(outcomes[rank].error.find("over group tp/1 (ranks 2 3)") != std::string::npos);
    CHECK(outcomes[rank].error.find("norm: rank 3 differs") != std::string::npos);
  }
}

TEST_CASE("the device's hash sees every bit and place and depends on nothing else") {
  const at::Tensor bytes = at::randint(0, 256, {4096 + 8}, at::kByte);
  const auto hash = [](const at::Tensor& tensor) { return hash_of_bits(tensor).item<int64_t>(); };
  for (const int64_t count : {1, 2, 3, 4, 7, 8, 12, 4096}) {
    for (const int64_t offset : {0, 1, 4}) {
      CAPTURE(count, offset);
      const at::Tensor tensor = bytes.narrow(0, offset, count);
      const int64_t before = hash(tensor);
      CHECK(hash(tensor.clone()) == before);
      for (const int64_t byte : {int64_t{0}, count / 2, count - 1}) {
        flip_one_bit(tensor, byte);
        CHECK(hash(tensor) != before);
        flip_one_bit(tensor, byte);
      }
      CHECK(hash(tensor) == before);
    }
  }
  // Two signs, an exchange of two values, and a zero more: what a sum of words would not see.
  at::Tensor values = at::randn({1000}, at::kDouble);
  const int64_t before = hash(values);
  values.narrow(0, 10, 2).neg_();
  CHECK(hash(values) != before);
  values.narrow(0, 10, 2).neg_();
  CHECK(hash(at::cat({values.narrow(0, 1, 999), values.narrow(0, 0, 1)})) != before);
  CHECK(hash(at::zeros({8})) != hash(at::zeros({10})));
  CHECK(hash(at::zeros({0})) == 0);
  // More words than are hashed at once.
  at::Tensor large = at::zeros({9 << 20}, at::kLong);
  const int64_t of_zeros = hash(large);
  large[-1].fill_(int64_t{1} << 62);
  CHECK(hash(large) != of_zeros);
}

}  // namespace hyperion::parallel
