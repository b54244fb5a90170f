// Small checkpoints for the tests of checkpoint/tools, written as a job writes its own.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "checkpoint/format/dcp/archive.h"
#include "checkpoint/format/zip/crc32.h"
#include "checkpoint/loader.h"
#include "checkpoint/saver.h"
#include "checkpoint/tools/tools.h"
#include "tests/support/placements.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_ranks.h"

namespace hyperion::checkpoint {

// What a tool printed, and how it ended.
struct Ran {
  ExitCode code = ExitCode::kOk;
  std::string text;
};
template <typename Command>
Ran run_tool(const Command& command) {
  char* data = nullptr;
  size_t size = 0;
  std::FILE* out = ::open_memstream(&data, &size);
  Ran ran;
  try {
    ran.code = command(out);
  } catch (const Error& error) {
    ran.code = error.code();
    fmt::print(out, "error: {}", error.what());
  }
  std::fclose(out);
  ran.text.assign(data, size);
  std::free(data);
  return ran;
}

inline Digest digest_of(const std::filesystem::path& checkpoint, const Selection& only = {}) {
  return digest_of(open_checkpoint(checkpoint), only);
}

inline void flip_bit(const std::filesystem::path& file, uint64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  const int byte = stream.get();
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(static_cast<char>(byte ^ 4));
}

// Makes the last `count` numbers of a float32 tensor's first piece infinite; the CRC of its archive stays
// right.
inline void put_not_finite(const OpenCheckpoint& checkpoint, const std::string& key, int count) {
  const Chunk& chunk = checkpoint.index.tensors.at(key).chunks.front();
  const bool archive = checkpoint.index.layout == CheckpointIndex::Layout::kArchives;
  const std::string head = archive ? tensor_archive_head(Dtype::kFloat32, chunk.shape) : "";
  const std::filesystem::path path = checkpoint.folder / chunk.where.file;
  std::string file = read_file(path);
  const uint64_t begin = chunk.where.offset + head.size();
  uint64_t bytes = 4;
  for (const int64_t extent : chunk.shape) bytes *= static_cast<uint64_t>(extent);
  for (int i = 1; i <= count; ++i) {
    const float bad = std::numeric_limits<float>::infinity();
    std::memcpy(file.data() + begin + bytes - static_cast<uint64_t>(i) * 4, &bad, sizeof bad);
  }
  if (archive) {
    const std::string tail =
        tensor_archive_tail(Dtype::kFloat32, chunk.shape, crc32(0, file.data() + begin, bytes));
    file.replace(begin + bytes, tail.size(), tail);
  }
  std::ofstream(path, std::ios::binary) << file;
}

// The manifest of files as they are now.
inline void rewrite_manifest(const std::filesystem::path& checkpoint) {
  Manifest manifest = read_manifest(checkpoint);
  for (FileRecord& record : manifest.files) {
    const std::string bytes = read_file(checkpoint / record.name);
    record.blocks.clear();
    for (uint64_t at = 0; at < bytes.size(); at += kBlockBytes)
      record.blocks.push_back(hash_bytes(bytes.data() + at, std::min(kBlockBytes, bytes.size() - at)));
  }
  std::ofstream(checkpoint / kManifestFile, std::ios::binary) << to_json(manifest);
}

// How the state of a toy job differs from the default.
struct ToyOptions {
  int shards = 1, replicas = 1;
  int tensor = 1;  // ranks that divide the matrices: the table by rows, wq by columns
  Writers writers = Writers::kAll;
  int64_t keep = 0;
  CheckpointKind kind = CheckpointKind::kFull;
  std::map<std::string, float> offsets{};   // added to the first number of a tensor
  std::map<std::string, Object> objects{};  // instead of the default's, or beside it
  std::vector<std::string> without{};       // keys left out

  int ranks() const { return shards * replicas * tensor; }
};

// A few tensors of every component, uneven over 3 ranks, and values.
class ToyState : public StateComponent {
 public:
  ToyState(const ToyOptions& options, int rank) : options_(options), rank_(rank) {
    add("tok_embeddings.weight", {}, {10, 4}, placed(0));
    add("layers.0.attention.wq.weight", {}, {8, 6}, placed(1));
    add("norm.weight", {}, {5}, placed({}));
    add("optimizer.state.norm.weight.exp_avg", {"optimizer", "state.norm.weight.exp_avg"}, {5}, placed({}));
    add("optimizer.state.norm.weight.step", {"optimizer", "state.norm.weight.step"}, {},
        test::whole_on(options.ranks(), rank));
    add("ema.tok_embeddings.weight", {"ema", "tok_embeddings.weight"}, {10, 4}, placed(0));
  }
  std::string name() const override { return "model"; }
  std::vector<TensorState> tensors() override { return tensors_; }
  std::vector<ObjectState> objects() override {
    std::map<std::string, Object> objects = {
        {"train_state.step", 7},
        {"lr_scheduler.base_lrs", Object::list({0.25})},
        {"train_state.config", fmt::format("shards {}", options_.shards)}};
    for (const auto& [key, value] : options_.objects) objects[key] = value;
    std::vector<ObjectState> states;
    for (const auto& [key, value] : objects) {
      const size_t dot = key.find('.');
      states.push_back({key, {key.substr(0, dot), key.substr(dot + 1)}, value});
    }
    const std::string key = fmt::format("rank_{}", rank_);
    states.push_back({"rng." + key, {"rng", key}, rank_, true});
    return states;
  }

 private:
  // Ranks are numbered replica by replica, in one shard by shard. What they do not divide is equal on all of
  // them.
  Placement placed(std::optional<int> split) const {
    const auto& [shards, replicas, tensor] = std::tie(options_.shards, options_.replicas, options_.tensor);
    const int number = rank_ % tensor, shard = rank_ / tensor % shards, replica = rank_ / tensor / shards;
    const Cut rows = {.parts = shards, .index = shard};
    if (split && tensor > 1)
      return {.cuts = {{.dim = *split, .parts = tensor, .index = number}, rows},
              .replicas = replicas,
              .replica = replica};
    return {.cuts = {rows}, .replicas = replicas * tensor, .replica = replica * tensor + number};
  }

  void add(const std::string& key, KeyPath path, const Dims& shape, Placement placement) {
    if (std::find(options_.without.begin(), options_.without.end(), key) != options_.without.end()) return;
    TensorState tensor;
    tensor.key = key;
    tensor.path = path.empty() ? KeyPath{key} : path;
    tensor.shape = shape;
    tensor.placement = std::move(placement);
    std::vector<float>& numbers = numbers_.emplace_back();
    numbers.reserve(64);
    for_each_run(shape, tensor.box(), [&](const Run& run) {
      for (int64_t i = run.in_tensor; i < run.in_tensor + run.count; ++i) {
        const auto offset = options_.offsets.find(key);
        numbers.push_back(static_cast<float>(i) + static_cast<float>(key.size()) / 64 +
                          (i == 0 && offset != options_.offsets.end() ? offset->second : 0));
      }
    });
    tensor.data = numbers.empty() ? nullptr : numbers.data();
    tensors_.push_back(std::move(tensor));
  }

  ToyOptions options_;
  int rank_;
  std::vector<std::vector<float>> numbers_;  // their buffers stay where they are
  std::vector<TensorState> tensors_;
};

// Writes folder/step-<step> and returns its path.
inline std::filesystem::path save_toy(const std::filesystem::path& folder, int64_t step,
                                      const ToyOptions& options = {}) {
  test::ThreadRanks::run(options.ranks(), [&](Coordinator& ranks) {
    ToyState state(options, ranks.rank());
    MemoryMover mover;
    Saver saver({.folder = folder,
                 .writers = options.writers,
                 .keep_latest = options.keep,
                 .held_part = test::places_on(options.shards, options.tensor)},
                {&state}, ranks, mover);
    SaveContent content;
    content.kind = options.kind;
    if (options.kind == CheckpointKind::kModel)
      content.wanted = [](const std::string& key) { return component_of(key) == "model"; };
    saver.save(step, content);
  });
  return folder / fmt::format("step-{}", step);
}

}  // namespace hyperion::checkpoint
