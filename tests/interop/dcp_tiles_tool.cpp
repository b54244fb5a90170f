// dcp_tiles_tool IN OUT SHARDS TENSOR: loads the tensors of a DCP folder with our loader into the parts that
// SHARDS x TENSOR ranks hold of them (wo and w2 divided by columns, other matrices by rows, then all by
// rows), and saves those parts with our saver as OUT/step-1. For tests/interop/dcp_tiles.py.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>

#include "checkpoint/loader.h"
#include "checkpoint/saver.h"
#include "tests/support/placements.h"
#include "tests/support/thread_ranks.h"

using namespace hyperion;
using namespace hyperion::checkpoint;

namespace {

// The tensors of the folder as one rank of the mesh holds them.
class PartsOfRank : public StateComponent {
 public:
  PartsOfRank(const CheckpointIndex& index, int shards, int tensor_ranks, int rank) {
    for (const auto& [key, record] : index.tensors) {
      TensorState& tensor = tensors_.emplace_back();
      tensor.key = key;
      tensor.path = index.paths.at(key);
      tensor.dtype = record.dtype;
      tensor.shape = record.shape;
      if (record.shape.empty()) {
        tensor.placement = {.cuts = {}, .replicas = shards * tensor_ranks, .replica = rank};
      } else {
        const int number = rank % tensor_ranks;
        const Cut rows = {.parts = shards, .index = rank / tensor_ranks};
        const bool columns = key.find("wo.weight") != key.npos || key.find("w2.weight") != key.npos;
        if (record.shape.size() == 2)
          tensor.placement.cuts = {{.dim = columns ? 1 : 0, .parts = tensor_ranks, .index = number}, rows};
        else
          tensor.placement = {.cuts = {rows}, .replicas = tensor_ranks, .replica = number};
      }
      memory_.push_back(std::make_unique<std::byte[]>(tensor.local_bytes()));
      tensor.data = memory_.back().get();
    }
  }
  std::string name() const override { return "model"; }
  std::vector<TensorState> tensors() override { return tensors_; }

 private:
  std::vector<TensorState> tensors_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fputs("usage: dcp_tiles_tool IN OUT SHARDS TENSOR\n", stderr);
    return 2;
  }
  try {
    const OpenCheckpoint checkpoint = open_checkpoint(arguments[1]);
    const int shards = std::atoi(arguments[3]), tensor_ranks = std::atoi(arguments[4]);
    StoredNames names;
    for (const auto& [key, record] : checkpoint.index.tensors) names.keys.emplace(key, key);
    test::ThreadRanks::run(shards * tensor_ranks, [&](Coordinator& ranks) {
      PartsOfRank parts(checkpoint.index, shards, tensor_ranks, ranks.rank());
      MemoryMover mover;
      load_tensors(checkpoint, plan_load(checkpoint, parts.tensors(), names, {}), mover, {});
      Saver({.folder = arguments[2], .held_part = test::places_on(shards, tensor_ranks)}, {&parts}, ranks,
            mover)
          .save(1);
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
