// The tree of host groups among real processes: what it computes, and what is said when one of them is gone.
#include <cstdlib>
#include <functional>

#include <catch2/catch.hpp>
#include <signal.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "base/error.h"
#include "parallel/comm/process_group.h"
#include "parallel/job/phase.h"
#include "tests/distributed/lost_rank.h"
#include "tests/support/ranks.h"

namespace hyperion::parallel {
namespace {

using std::chrono::seconds;

// Groups have four leaders, and nodes ranks_per_node ranks: 24 ranks on nodes of two have three levels.
constexpr int kFanOut = 4;

Environment on_fake_nodes(Environment environment, int ranks_per_node) {
  setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  environment.local_world_size = ranks_per_node;
  environment.node = environment.rank / ranks_per_node;
  environment.local_rank = environment.rank % ranks_per_node;
  return environment;
}

CommOptions tree_options() {
  CommOptions options;
  options.host_fan_out = kFanOut;
  return options;
}

}  // namespace

TEST_CASE("a tree of N ranks sums and gathers and broadcasts") {
  const auto [world, ranks_per_node] =
      GENERATE(std::pair(6, 2), std::pair(6, 6), std::pair(12, 3), std::pair(24, 2));
  CAPTURE(world, ranks_per_node);
  const auto results = run_ranks(world, [world = world,
                                         ranks_per_node = ranks_per_node](const Environment& own) {
    ProcessGroups groups(Mesh({}, world), on_fake_nodes(own, ranks_per_node), tree_options());
    const std::shared_ptr<Communicator> second = groups.new_host_group("checkpoint");
    const std::string name(second->name());
    groups.set_timeout(seconds(120));
    int right = name == "checkpoint/0";
    for (Communicator* tree : {&groups.host(), second.get()}) {
      right += tree->backend() == "tree" && tree->rank() == own.rank && tree->size() == world;
      at::Tensor sum = at::arange(1, 5, at::kLong) * (own.rank + 1);
      tree->all_reduce_sum(sum);
      right += sum.equal(at::arange(1, 5, at::kLong) * (world * (world + 1) / 2));
      at::Tensor largest = at::full({1000}, own.rank == 1 ? 2.5 : -1.0 * own.rank, at::kFloat);
      tree->all_reduce_max(largest);
      right += largest.eq(2.5).all().item<bool>();
      tree->barrier();
      const auto text_of = [](int rank) { return std::string(rank * 700, static_cast<char>('a' + rank)); };
      const std::vector<std::string> texts = tree->gather(text_of(own.rank));
      std::vector<std::string> expected;
      for (int rank = 0; rank < world; ++rank) expected.push_back(text_of(rank));
      right += texts == (own.rank == 0 ? expected : std::vector<std::string>());
      right += tree->broadcast(text_of(own.rank + 1)) == text_of(1);
      right += tree->broadcast("") == "";
    }
    require_agreement(groups.host(), {{"data", "equal"}});
    return right;
  });
  for (const int right : results) CHECK(right == 1 + 2 * 6);
}

TEST_CASE("ranks placed round-robin on the nodes make a tree without groups of a node") {
  const auto lines = run_ranks(6, [](const Environment& own) {
    Environment cyclic = on_fake_nodes(own, 3);
    cyclic.node = own.rank % 2;
    cyclic.local_rank = own.rank / 2;
    ProcessGroups groups(Mesh({}, 6), cyclic, tree_options());
    at::Tensor ranks = at::full({1}, own.rank, at::kLong);
    groups.host().all_reduce_sum(ranks);
    const std::string& line = groups.network().back();
    return ranks.item<int64_t>() == 15 && groups.ranks_per_node() == 1 &&
           line.find("not numbered node by node") != std::string::npos;
  });
  for (const bool right : lines) CHECK(right);
}

TEST_CASE("a killed member or leader ends every rank of a tree and is named by all") {
  const int killed = GENERATE(0, 8, 23);  // the root, the leader of four nodes, a member
  CAPTURE(killed);
  const auto outcomes = run_ranks_outcome(24, [&](const Environment& own) {
    ProcessGroups groups(Mesh({}, 24), on_fake_nodes(own, 2), tree_options());
    PhaseGuard phase("step 3 data");
    at::Tensor count = at::ones({4}, at::kLong);
    groups.host().all_reduce_sum(count);
    kill_when_others_are_here(own, killed);
    groups.host().all_reduce_sum(count);
  });
  CHECK(outcomes[killed].exit_code == 128 + SIGKILL);
  for (int rank = 0; rank < 24; ++rank) {
    if (rank == killed) continue;
    CAPTURE(rank, outcomes[rank].error);
    CHECK(outcomes[rank].exit_code == static_cast<int>(ExitCode::kCommunication));
    for (const std::string& part :
         {std::string("group host/0/"), std::string("step 3 data"), "rank " + std::to_string(rank) + ":"})
      CHECK(outcomes[rank].error.find(part) != std::string::npos);
    check_lost(outcomes, rank, killed);
  }
}

TEST_CASE("a rank that gives up a group fails its peers at once and makes no operation in it any more") {
  const bool shared_memory = GENERATE(true, false);
  const auto outcomes = run_ranks_outcome(2, [&](const Environment& own) {
    CommOptions options;
    options.shared_memory = shared_memory;
    ProcessGroups groups(Mesh({}, 2), own, options);
    groups.world().barrier();
    if (own.rank == 1) groups.world().abort();
    groups.world().gather("text");
  });
  CAPTURE(outcomes[0].error);
  for (const RankOutcome& outcome : outcomes)
    CHECK(outcome.exit_code == static_cast<int>(ExitCode::kCommunication));
  CHECK(outcomes[1].error.find("this rank has given up the") != std::string::npos);
}

}  // namespace hyperion::parallel
