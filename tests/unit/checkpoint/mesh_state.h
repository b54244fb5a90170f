// A state whose tensors are cut by rows and columns over the ranks of a mesh, for tests of what is saved,
// loaded and exported.
#pragma once

#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/cast.h"
#include "checkpoint/saver.h"
#include "tests/support/placements.h"
#include "tests/support/thread_ranks.h"

namespace hyperion::checkpoint {

// Ranks are numbered replica by replica, in one shard by shard; `tensor` ranks divide some tensors along one
// dimension before the rows of what is left are cut.
struct RankMesh {
  int shards = 1, replicas = 1, tensor = 1;
  int ranks() const { return shards * replicas * tensor; }

  Placement placed(int rank, std::optional<int> split) const {
    const int number = rank % tensor, shard = rank / tensor % shards, replica = rank / tensor / shards;
    const Cut rows = {.parts = shards, .index = shard};
    if (split)
      return {.cuts = {{.dim = *split, .parts = tensor, .index = number}, rows},
              .replicas = replicas,
              .replica = replica};
    return {.cuts = {rows}, .replicas = replicas * tensor, .replica = replica * tensor + number};
  }
};

struct MeshTensor {
  std::string key;
  Dims shape;
  std::optional<int> split{};  // the dimension that is divided
};

// Element i of every tensor is (i + seed) % 251, which all types of the tests hold exactly.
class MeshState : public StateComponent {
 public:
  MeshState(const std::vector<MeshTensor>& tensors, const RankMesh& mesh, int rank,
            Dtype dtype = Dtype::kFloat32) {
    for (const MeshTensor& one : tensors) {
      TensorState& tensor = tensors_.emplace_back();
      tensor.key = one.key;
      tensor.path = {one.key};
      tensor.dtype = dtype;
      tensor.shape = one.shape;
      tensor.placement = mesh.placed(rank, one.split);
      if (tensor.local_bytes() == 0) continue;
      memory_.push_back(std::make_unique<std::byte[]>(tensor.local_bytes()));
      tensor.data = memory_.back().get();
    }
  }

  std::string name() const override { return "model"; }
  std::vector<TensorState> tensors() override { return tensors_; }

  void fill(int64_t seed) {
    for (const TensorState& tensor : tensors_) {
      const std::vector<std::byte> bytes = expected(tensor, seed);
      if (!bytes.empty()) std::memcpy(tensor.data, bytes.data(), bytes.size());
    }
  }
  bool holds(int64_t seed) const {
    for (const TensorState& tensor : tensors_) {
      const std::vector<std::byte> bytes = expected(tensor, seed);
      if (!bytes.empty() && std::memcmp(tensor.data, bytes.data(), bytes.size()) != 0) return false;
    }
    return true;
  }

 private:
  static std::vector<std::byte> expected(const TensorState& tensor, int64_t seed) {
    std::vector<float> numbers;
    for_each_run(tensor.shape, tensor.box(), [&](const Run& run) {
      for (int64_t i = run.in_tensor; i < run.in_tensor + run.count; ++i)
        numbers.push_back(static_cast<float>((i + seed) % 251));
    });
    std::vector<std::byte> bytes(numbers.size() * size_of(tensor.dtype));
    if (!numbers.empty())
      cast(Dtype::kFloat32, reinterpret_cast<const std::byte*>(numbers.data()), tensor.dtype, bytes.data(),
           numbers.size());
    return bytes;
  }

  std::vector<TensorState> tensors_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

// Saves the state filled with `seed` as folder/step-1 and returns its path.
inline std::filesystem::path save_mesh(const std::filesystem::path& folder,
                                       const std::vector<MeshTensor>& tensors, const RankMesh& mesh,
                                       int64_t seed, Writers writers = Writers::kAll) {
  test::ThreadRanks::run(mesh.ranks(), [&](Coordinator& ranks) {
    MeshState state(tensors, mesh, ranks.rank());
    state.fill(seed);
    MemoryMover mover;
    Saver({.folder = folder, .writers = writers, .held_part = test::places_on(mesh.shards, mesh.tensor)},
          {&state}, ranks, mover)
        .save(1);
  });
  return folder / "step-1";
}

}  // namespace hyperion::checkpoint
