#include "parallel/comm/host_tree.h"

#include <map>
#include <numeric>
#include <set>
#include <thread>

#include <catch2/catch.hpp>

#include <ATen/ops/ones.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/error.h"

namespace hyperion::parallel {
namespace {

struct Group {
  std::vector<int> ranks;
  int members = 0;  // ranks that say that they are in it, in the place that it gives them
  bool one_node = false;
};

// Every rank's plan put together: the groups of each level, by name.
std::vector<std::map<std::string, Group>> groups_of_all(int world, int ranks_per_node, int fan_out) {
  std::vector<std::map<std::string, Group>> levels;
  for (int rank = 0; rank < world; ++rank) {
    const auto plan = host_tree_plan("host/0", rank, world, ranks_per_node, fan_out);
    if (plan.size() > levels.size()) levels.resize(plan.size());
    for (size_t level = 0; level < plan.size(); ++level) {
      Group& group = levels[level][plan[level].name];
      if (group.members == 0) group.ranks = plan[level].ranks;
      group.one_node = plan[level].one_node;
      const auto place = static_cast<size_t>(plan[level].index);
      const bool agrees = group.ranks == plan[level].ranks && place < group.ranks.size();
      group.members += agrees && group.ranks[place] == rank;
    }
  }
  return levels;
}

Environment placed(int rank, int world, int local_world, bool cyclic = false) {
  Environment environment;
  environment.rank = rank;
  environment.world_size = world;
  environment.local_world_size = local_world;
  const int nodes = (world + local_world - 1) / local_world;
  environment.node = cyclic ? rank % nodes : rank / local_world;
  environment.local_rank = cyclic ? rank / nodes : rank % local_world;
  if (!cyclic) environment.local_world_size = std::min(local_world, world - environment.node * local_world);
  return environment;
}

}  // namespace

TEST_CASE("every rank is in one group of the lowest level and every leader in one of the next") {
  std::vector<int> worlds(65);
  std::iota(worlds.begin(), worlds.end(), 1);
  worlds.insert(worlds.end(), {511, 512, 513, 1000, 16384});
  for (const int world : worlds) {
    for (const auto& [ranks_per_node, fan_out] :
         std::vector<std::pair<int, int>>{{1, 64}, {3, 64}, {8, 64}, {2, 4}}) {
      if (world > 1000 && fan_out < 64) continue;
      CAPTURE(world, ranks_per_node, fan_out);
      std::vector<int> expected(world);
      std::iota(expected.begin(), expected.end(), 0);
      const auto levels = groups_of_all(world, ranks_per_node, fan_out);
      std::vector<int> sockets(world);
      for (size_t level = 0; level < levels.size(); ++level) {
        std::vector<int> ranks, leaders;
        for (const auto& [name, group] : levels[level]) {
          CHECK(group.members == static_cast<int>(group.ranks.size()));
          CHECK(group.ranks.size() <= static_cast<size_t>(group.one_node ? ranks_per_node : fan_out));
          CHECK(group.one_node == (level == 0 && ranks_per_node > 1));
          if (group.one_node)
            CHECK(group.ranks.front() / ranks_per_node == group.ranks.back() / ranks_per_node);
          else
            for (const int rank : group.ranks) sockets[rank] += static_cast<int>(group.ranks.size()) - 1;
          ranks.insert(ranks.end(), group.ranks.begin(), group.ranks.end());
          leaders.push_back(group.ranks.front());
        }
        std::ranges::sort(ranks);
        std::ranges::sort(leaders);
        CHECK(ranks == expected);
        expected = leaders;
      }
      CHECK(expected == std::vector{0});
      CHECK(levels.size() <= (fan_out == 64 ? 4 : 6));
      CHECK(*std::ranges::max_element(sockets) <= (fan_out == 64 ? 3 * 63 : 5 * 3));
    }
  }
}

TEST_CASE("a tree of 1,024 and of 16,384 ranks has three levels and less than a hundred sockets per rank") {
  const auto sockets = [](const std::vector<HostTreeLevel>& plan) {
    size_t count = 0;
    for (const HostTreeLevel& level : plan) count += level.one_node ? 0 : level.ranks.size() - 1;
    return count;
  };
  const auto large = host_tree_plan("host/0", 0, 16384, 8);
  REQUIRE(large.size() == 3);
  CHECK(large[0].name == "host/0/node/0");
  CHECK(large[1].name == "host/0/level/1/0");
  CHECK(large[2].ranks.back() == 31 * 512);
  CHECK(sockets(large) == 63 + 31);
  CHECK(sockets(host_tree_plan("host/0", 0, 1024, 8)) == 63 + 1);
  const auto last = host_tree_plan("host/0", 16383, 16384, 8);
  REQUIRE(last.size() == 1);
  CHECK(last[0].name == "host/0/node/2047");
  CHECK(last[0].index == 7);
}

TEST_CASE("ranks that are not numbered node by node have no group of a node") {
  const auto agreed = [](int world, const auto& environment_of) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<int> found(world);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world; ++rank)
      ranks.emplace_back([&, rank] { found[rank] = agree_on_ranks_per_node(*store, environment_of(rank)); });
    for (std::thread& rank : ranks) rank.join();
    CHECK(std::set<int>(found.begin(), found.end()).size() == 1);
    return found.front();
  };
  CHECK(agreed(12, [](int rank) { return placed(rank, 12, 4); }) == 4);
  CHECK(agreed(10, [](int rank) { return placed(rank, 10, 4); }) == 4);  // two ranks on the last node
  CHECK(agreed(12, [](int rank) { return placed(rank, 12, 4, /*cyclic=*/true); }) == 1);
  CHECK(agreed(8, [](int rank) {  // three ranks on the first node and five on the second
          Environment environment = placed(rank, 8, 8);
          environment.node = rank < 3 ? 0 : 1;
          environment.local_rank = rank < 3 ? rank : rank - 3;
          environment.local_world_size = rank < 3 ? 3 : 5;
          return environment;
        }) == 1);
  CHECK(describe_host_tree(placed(0, 1024, 8), 8, 64) ==
        "Network: host groups are trees of 3 levels: the 8 ranks of a node, then groups of at most 64");
  CHECK(describe_host_tree(placed(0, 12, 4, true), 1, 64) ==
        "Network: host groups are trees of 1 level: groups of at most 64; the ranks are not numbered node by "
        "node, so those of a node have no group of their own");
}

TEST_CASE("a tree refuses what would depend on the nodes or grow with the ranks") {
  const auto tree = make_host_tree("host/0", 0, 2, {make_fake_communicator("host/0/node/0", 0, {0, 1})});
  CHECK_THROWS_WITH(tree->all_reduce_sum(at::ones({2})), Catch::Contains("floating-point"));
  CHECK_THROWS_WITH(tree->all_gather_into(at::ones({2}), at::ones({1})),
                    Catch::Contains("gathers no tensors"));
  CHECK_THROWS_WITH(tree->start_reduce_scatter_sum(at::ones({1}), at::ones({2})).wait(),
                    Catch::Contains("scatters no tensors"));
}

}  // namespace hyperion::parallel
