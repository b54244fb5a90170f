#include "parallel/comm/host_tree.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/counted.h"
#include "base/device/error_text.h"
#include "base/error.h"
#include "base/pack.h"
#include "base/rank_list.h"

namespace hyperion::parallel {

std::vector<HostTreeLevel> host_tree_plan(const std::string& name, int rank, int world_size,
                                          int ranks_per_node, int fan_out) {
  std::vector<HostTreeLevel> levels;
  int64_t stride = 1;  // number of ranks that each member represents
  while (rank % stride == 0 && stride < world_size) {
    const bool node = stride == 1 && ranks_per_node > 1;
    const int64_t members = node ? ranks_per_node : fan_out;
    const int64_t group = rank / (stride * members);
    HostTreeLevel level;
    level.name = node ? fmt::format("{}/node/{}", name, group)
                      : fmt::format("{}/level/{}/{}", name, levels.size(), group);
    level.one_node = node;
    level.index = static_cast<int>(rank / stride % members);
    for (int64_t member = 0; member < members; ++member) {
      const int64_t other = (group * members + member) * stride;
      if (other < world_size) level.ranks.push_back(static_cast<int>(other));
    }
    levels.push_back(std::move(level));
    stride *= members;
  }
  return levels;
}

bool placed_node_by_node(const Environment& environment, int ranks_per_node) {
  const int first = environment.node * ranks_per_node;
  return environment.rank == first + environment.local_rank &&
         environment.local_world_size == std::min(ranks_per_node, environment.world_size - first);
}

int agree_on_ranks_per_node(c10d::Store& store, const Environment& environment) {
  constexpr int64_t kElsewhere = int64_t{1} << 32;  // counted above the number of answers
  try {
    if (environment.rank == 0) store.set("nodes/ranks", std::to_string(environment.local_world_size));
    const int ranks = std::stoi(store.get_to_str("nodes/ranks"));
    const int64_t answers =
        store.add("nodes/answers", placed_node_by_node(environment, ranks) ? 1 : 1 + kElsewhere);
    if (answers % kElsewhere == environment.world_size)  // the last one
      store.set("nodes/agreed", std::to_string(answers < kElsewhere ? ranks : 1));
    return std::stoi(store.get_to_str("nodes/agreed"));
  } catch (const c10::Error& error) {
    throw_comm("rank {}: another rank met the others, but did not say where it runs: {}; see the other logs",
               environment.rank, brief(error));
  }
}

std::string describe_host_tree(const Environment& environment, int ranks_per_node, int fan_out) {
  const size_t levels = host_tree_plan("", 0, environment.world_size, ranks_per_node, fan_out).size();
  std::string line = fmt::format("Network: host groups are trees of {}: ", counted(levels, "level"));
  if (ranks_per_node > 1)
    line += fmt::format("the {} ranks of a node, then groups of at most {}", ranks_per_node, fan_out);
  else
    line += fmt::format("groups of at most {}", fan_out);
  if (ranks_per_node == 1 && environment.local_world_size > 1)
    line += "; the ranks are not numbered node by node, so those of a node have no group of their own";
  return line;
}

namespace {

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

void copy_bytes(const std::string& bytes, const at::Tensor& tensor) {
  std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
}

class HostTree : public Communicator {
 public:
  HostTree(std::string name, int rank, int world_size, std::vector<std::shared_ptr<Communicator>> levels)
      : Communicator(std::move(name), rank, first_ranks(world_size)), levels_(std::move(levels)) {}

  std::string_view backend() const override { return "tree"; }
  void set_timeout(std::chrono::milliseconds timeout) override {
    for (const auto& level : levels_) level->set_timeout(timeout);
  }
  // The observer sees what the groups of the tree send.
  void set_observer(CommObserver observer) override {
    for (const auto& level : levels_) level->set_observer(observer);
  }
  void abort() override {
    for (const auto& level : levels_) level->abort();
  }

  // A leader forwards the texts of all ranks that it represents: they are consecutive, so they stay in
  // order.
  std::vector<std::string> gather(const std::string& text) override {
    std::vector<std::string> texts = {text};
    for (const auto& level : levels_) {
      const std::vector<std::string> packed = level->gather(pack(texts));
      texts.clear();
      if (level->rank() != 0) break;
      for (const std::string& of_member : packed)
        std::ranges::move(unpack<std::vector<std::string>>(of_member), std::back_inserter(texts));
    }
    return texts;
  }

  std::string broadcast(const std::string& text) override {
    std::string received = text;
    for (auto level = levels_.rbegin(); level != levels_.rend(); ++level)
      received = (*level)->broadcast(received);
    return received;
  }

 private:
  // A gather is a round trip per group, where Gloo's all-reduce is one per member.
  Finish do_all_reduce(const at::Tensor& tensor, bool max) override {
    if (!max && tensor.is_floating_point())
      throw_bug("group {}: a sum of floating-point numbers through a tree depends on the nodes", name());
    for (const auto& level : levels_) {
      const std::vector<std::string> terms = level->gather(bytes_of(tensor));
      if (level->rank() != 0) break;
      for (size_t member = 1; member < terms.size(); ++member) {
        const at::Tensor term = at::empty_like(tensor);
        copy_bytes(terms[member], term);
        if (max)
          at::maximum_out(const_cast<at::Tensor&>(tensor), tensor, term);
        else
          tensor.add_(term);
      }
    }
    copy_bytes(broadcast(bytes_of(tensor)), tensor);
    return nullptr;
  }

  Finish do_barrier() override {
    for (const auto& level : levels_) {
      level->barrier();
      if (level->rank() != 0) break;
    }
    broadcast("");
    return nullptr;
  }

  Finish do_all_gather(const std::vector<CollectivePart>&) override {
    throw_bug("group {}: a tree gathers no tensors", name());
  }
  Finish do_reduce_scatter_sum(const std::vector<CollectivePart>&) override {
    throw_bug("group {}: a tree scatters no tensors", name());
  }

  std::vector<std::shared_ptr<Communicator>> levels_;  // this rank's, lowest first
};

}  // namespace

std::unique_ptr<Communicator> make_host_tree(std::string name, int rank, int world_size,
                                             std::vector<std::shared_ptr<Communicator>> levels) {
  return std::make_unique<HostTree>(std::move(name), rank, world_size, std::move(levels));
}

}  // namespace hyperion::parallel
