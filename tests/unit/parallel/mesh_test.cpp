#include "parallel/mesh.h"

#include <algorithm>

#include <catch2/catch.hpp>

#include "base/error.h"

namespace hyperion::parallel {
namespace {

using Ranks = std::vector<int>;

std::string usage_error(const MeshConfig& config, int world) {
  try {
    Mesh mesh(config, world);
  } catch (const Error& error) {
    REQUIRE(error.code() == ExitCode::kUsage);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("dp_shard of minus one takes the ranks that the other degrees leave") {
  CHECK(Mesh({.pp = 1, .dp_replicate = 2, .dp_shard = -1, .cp = 1, .tp = 2}, 8).degree(MeshDim::kDpShard) ==
        2);
  CHECK(Mesh({}, 1).degree(MeshDim::kDpShard) == 1);
  CHECK(Mesh({}, 7).degree(MeshDim::kFsdp) == 7);
  CHECK(Mesh({.pp = 2, .dp_replicate = 2, .dp_shard = -1, .cp = 1, .tp = 2}, 8).degree(MeshDim::kDpShard) ==
        1);
}

TEST_CASE("wrong degrees are refused with all degrees named") {
  CHECK(usage_error({.dp_replicate = 2, .dp_shard = 3}, 8)
            .find("pp 1 x dp_replicate 2 x dp_shard 3 x cp 1 x tp 1") != std::string::npos);
  CHECK(usage_error({.dp_replicate = 2, .dp_shard = 2}, 8).find("8") != std::string::npos);
  CHECK(usage_error({.pp = 3}, 4)
            .find("world size 4 is not divisible by pp x dp_replicate x cp x tp = 3 (mesh "
                  "pp 3 x dp_replicate 1 x dp_shard -1 x cp 1 x tp 1)") != std::string::npos);
  CHECK(usage_error({.tp = 16}, 8).find("world size 8 is less than") != std::string::npos);
  CHECK(usage_error({.dp_shard = 0}, 8).find("dp_shard is 0") != std::string::npos);
  CHECK(usage_error({.dp_shard = -2}, 8).find("dp_shard is -2") != std::string::npos);
  CHECK(usage_error({.tp = 0}, 8).find("tp is 0") != std::string::npos);
  CHECK(usage_error({.cp = -1}, 8).find("cp is -1") != std::string::npos);
  CHECK(usage_error({.dp_shard = 1}, 0).find("0 ranks") != std::string::npos);
  // Products far beyond 32 and 64 bits must not wrap around to the world size.
  CHECK_FALSE(
      usage_error({.pp = 65536, .dp_replicate = 65536, .dp_shard = -1, .cp = 65536, .tp = 65536}, 8).empty());
  CHECK_FALSE(usage_error({.pp = 1, .dp_replicate = 1, .dp_shard = 2147483647, .cp = 2, .tp = 1}, 8).empty());
}

TEST_CASE("ranks are row major over the dimensions with tp fastest") {
  const Mesh mesh({.pp = 2, .dp_replicate = 2, .dp_shard = 3, .cp = 2, .tp = 2}, 48);
  int rank = 0;
  for (int p = 0; p < 2; ++p) {
    for (int r = 0; r < 2; ++r) {
      for (int s = 0; s < 3; ++s) {
        for (int c = 0; c < 2; ++c) {
          for (int t = 0; t < 2; ++t, ++rank) {
            CHECK(mesh.coordinate(rank, MeshDim::kPp) == p);
            CHECK(mesh.coordinate(rank, MeshDim::kDpReplicate) == r);
            CHECK(mesh.coordinate(rank, MeshDim::kDpShard) == s);
            CHECK(mesh.coordinate(rank, MeshDim::kCp) == c);
            CHECK(mesh.coordinate(rank, MeshDim::kTp) == t);
            CHECK(mesh.coordinate(rank, MeshDim::kBatch) == r * 3 + s);
            CHECK(mesh.coordinate(rank, MeshDim::kFsdp) == s * 2 + c);
            CHECK(mesh.coordinate(rank, MeshDim::kLoss) == (r * 3 + s) * 2 + c);
            CHECK(mesh.coordinate(rank, MeshDim::kWorld) == rank);
          }
        }
      }
    }
  }
}

TEST_CASE("the groups of every dimension partition the world") {
  const Mesh mesh(
      {.pp = 2, .dp_replicate = 2, .dp_shard = -1, .cp = 2, .tp = 3, .ep = 4, .etp = 3, .ep_nodes = 2}, 48);
  for (MeshDim dim : kMeshDims) {
    CAPTURE(std::string(name_of(dim)));
    std::vector<Ranks> by_slice(48 / mesh.degree(dim));
    for (int rank = 0; rank < 48; ++rank) {
      const Ranks group = mesh.group(rank, dim);
      REQUIRE(group.size() == static_cast<size_t>(mesh.degree(dim)));
      CHECK(group[mesh.coordinate(rank, dim)] == rank);
      CHECK(std::is_sorted(group.begin(), group.end()));
      auto& known = by_slice.at(mesh.slice(rank, dim));
      if (known.empty()) known = group;
      CHECK(known == group);  // one slice number, one group
    }
    Ranks all;
    for (const auto& group : by_slice) all.insert(all.end(), group.begin(), group.end());
    std::sort(all.begin(), all.end());
    for (int rank = 0; rank < 48; ++rank) CHECK(all[rank] == rank);
  }
}

TEST_CASE("an HSDP mesh of eight ranks has the expected groups and names") {
  const Mesh mesh({.dp_replicate = 2, .dp_shard = 4}, 8);
  CHECK(mesh.group(5, MeshDim::kFsdp) == Ranks{4, 5, 6, 7});
  CHECK(mesh.group(5, MeshDim::kDpReplicate) == Ranks{1, 5});
  CHECK(mesh.group(5, MeshDim::kLoss) == Ranks{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(mesh.group(5, MeshDim::kTp) == Ranks{5});
  CHECK(mesh.group_name(5, MeshDim::kFsdp) == "fsdp/1");
  CHECK(mesh.group_name(5, MeshDim::kDpReplicate) == "dp_replicate/1");
  CHECK(mesh.group_name(5, MeshDim::kWorld) == "world/0");
  CHECK(mesh.degree(MeshDim::kFsdp) == 4);
  CHECK(mesh.degree(MeshDim::kDpReplicate) == 2);
  CHECK(mesh.describe() == "pp 1 x dp_replicate 2 x dp_shard 4 x cp 1 x tp 1 = 8 ranks");
}

TEST_CASE("experts are laid out over the ranks of dp_shard x cp x tp, etp innermost") {
  const Mesh mesh({.dp_shard = 8, .ep = 4}, 8);
  CHECK(mesh.group(6, MeshDim::kEp) == Ranks{4, 5, 6, 7});
  CHECK(mesh.group(6, MeshDim::kEfsdp) == Ranks{2, 6});
  CHECK(mesh.group_name(6, MeshDim::kEp) == "ep/1");
  CHECK(mesh.group_name(6, MeshDim::kEfsdp) == "efsdp/2");
  CHECK(mesh.coordinate(6, MeshDim::kEp) == 2);
  CHECK(mesh.coordinate(6, MeshDim::kEfsdp) == 1);
  CHECK(mesh.describe() ==
        "pp 1 x dp_replicate 1 x dp_shard 8 x cp 1 x tp 1 = 8 ranks; experts: efsdp 2 x ep 4 x etp 1");
  const Mesh with_tensor({.dp_replicate = 2, .dp_shard = 4, .tp = 2, .ep = 2, .etp = 2}, 16);
  CHECK(with_tensor.group(13, MeshDim::kEp) == Ranks{13, 15});
  CHECK(with_tensor.group(13, MeshDim::kEtp) == Ranks{12, 13});
  CHECK(with_tensor.group(13, MeshDim::kEfsdp) == Ranks{9, 13});
  CHECK(Mesh({.dp_shard = 2, .tp = 2, .ep = 4}, 4).group(1, MeshDim::kEp) == Ranks{0, 1, 2, 3});
  const Mesh by_node({.dp_replicate = 2, .dp_shard = 8, .tp = 2, .ep = 4, .etp = 2, .ep_nodes = 2}, 32);
  CHECK(by_node.group(21, MeshDim::kEp) == Ranks{17, 19, 21, 23});
  CHECK(by_node.group(21, MeshDim::kEpInNode) == Ranks{21, 23});  // of nodes of four
  CHECK(by_node.group(21, MeshDim::kEpNodes) == Ranks{17, 21});
  CHECK(by_node.describe().ends_with("; experts: efsdp 2 x ep 4 x etp 2, ep over 2 nodes"));
  CHECK(usage_error({.dp_shard = 4, .ep = 4, .ep_nodes = 3}, 4)
            .find("ep 4 does not divide evenly over 3 nodes") != std::string::npos);
  CHECK(usage_error({.dp_shard = 4, .ep = 3}, 4).find("ep 3 x etp 1 must divide dp_shard x cp x tp, 4") !=
        std::string::npos);
  CHECK(usage_error({.dp_shard = 4, .ep = 2, .etp = 4}, 4).find("ep 2 x etp 4") != std::string::npos);
  CHECK_FALSE(usage_error({.dp_shard = 4, .ep = 0}, 4).empty());
  CHECK_FALSE(usage_error({.dp_shard = 4, .ep = 2147483647, .etp = 2147483647}, 4).empty());
}

TEST_CASE("context parallel ranks shard parameters too") {
  const Mesh mesh({.dp_shard = 1, .cp = 2, .tp = 2}, 4);
  CHECK(mesh.degree(MeshDim::kFsdp) == 2);
  CHECK(mesh.degree(MeshDim::kDpReplicate) == 1);
  CHECK(mesh.group(1, MeshDim::kFsdp) == Ranks{1, 3});
  CHECK(mesh.degree(MeshDim::kBatch) == 1);
  CHECK(mesh.degree(MeshDim::kLoss) == 2);
}

TEST_CASE("replicas alone are no FSDP") {
  const Mesh mesh({.dp_replicate = 4, .dp_shard = 1}, 4);
  CHECK(mesh.degree(MeshDim::kFsdp) == 1);
  CHECK(mesh.degree(MeshDim::kBatch) == 4);
}

TEST_CASE("a batch's tokens count once wherever counts are added up, on every mesh up to 16 ranks") {
  for (int world = 1; world <= 16; ++world) {
    for (int code = 0; code < 16 * 16 * 16 * 16; ++code) {
      const MeshConfig config{.pp = code % 16 + 1,
                              .dp_replicate = code / 16 % 16 + 1,
                              .cp = code / 256 % 16 + 1,
                              .tp = code / 4096 + 1};
      if (world % (config.pp * config.dp_replicate * config.cp * config.tp) != 0) continue;
      const Mesh mesh(config, world);
      // Every batch once, by its number: each is a bit.
      const int64_t all_batches = (int64_t{1} << mesh.degree(MeshDim::kBatch)) - 1;
      int64_t among_all = 0;
      for (int rank = 0; rank < world; ++rank)
        if (mesh.counts_among_all(rank)) among_all += int64_t{1} << mesh.coordinate(rank, MeshDim::kBatch);
      CHECK(among_all == all_batches);
      for (int rank = 0; rank < world; ++rank) {  // over the loss group and then pp
        int64_t sum = 0;
        for (const int stage : mesh.group(rank, MeshDim::kPp))
          for (const int other : mesh.group(stage, MeshDim::kLoss))
            if (mesh.counts_in_loss_groups(other))
              sum += int64_t{1} << mesh.coordinate(other, MeshDim::kBatch);
        if (sum != all_batches) FAIL(mesh.describe() << ": rank " << rank);
      }
    }
  }
}

}  // namespace hyperion::parallel
