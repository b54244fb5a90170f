#include "checkpoint/save_index.h"

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/format/dcp/metadata.h"

namespace hyperion::checkpoint {
namespace {

// Walks the plan as the encoder requests the chunks of consecutive tensors.
class PlannedTensors : public IndexTensors {
 public:
  PlannedTensors(const SaveLayout& layout, const SavePlan& plan) : layout_(layout), plan_(plan) {
    for (size_t rank = 0; rank < plan.file_bytes.size(); ++rank)
      files_.push_back(shard_file_name(static_cast<int>(rank)));
  }

  size_t size() const override { return layout_.entries.size(); }

  Tensor at(size_t number) const override {
    const SaveLayout::Entry& entry = layout_.entries[number];
    return {entry.key, entry.dtype, entry.shape, &entry.path};
  }

  void visit_chunks(size_t number, const std::function<void(const Chunk& chunk)>& visit) override {
    if (number == 0) {
      next_run_ = 0;
      file_bytes_.assign(files_.size(), 0);
    }
    for (; next_run_ < plan_.runs.size() && plan_.runs[next_run_].entry == number; ++next_run_)
      for_each_item(layout_, plan_, plan_.runs[next_run_], file_bytes_, [&](const SaveItem& item) {
        Box box = item_box(layout_, item);
        visit({std::move(box.offset), std::move(box.shape), {files_[item.writer], item.offset, item.length}});
      });
  }

 private:
  const SaveLayout& layout_;
  const SavePlan& plan_;
  std::vector<std::string> files_;    // file names, by rank
  size_t next_run_ = 0;               // index in the plan's runs
  std::vector<uint64_t> file_bytes_;  // bytes before that run, by rank
};

}  // namespace

void encode_save_index(const SaveLayout& layout, const SavePlan& plan, const CheckpointIndex& rest,
                       const std::function<void(std::string_view piece)>& take, uint64_t max_bytes) {
  PlannedTensors tensors(layout, plan);
  uint64_t bytes = 0, pieces = 0;
  for (const PartRun& run : plan.runs) pieces += static_cast<uint64_t>(run.parts);
  encode_metadata(tensors, rest, [&](std::string_view piece) {
    bytes += piece.size();
    if (bytes > max_bytes)
      throw_save_failed(
          "the index of a checkpoint (.metadata) of {} tensors in {} pieces would be "
          "larger than the {} MiB that readers accept: fewer shards make it smaller, "
          "with parallelism.data_parallel_replicate_degree above 1 (HSDP)",
          tensors.size(), pieces, max_bytes >> 20);
    take(piece);
  });
}

uint64_t save_index_bytes(const SaveLayout& layout, const SavePlan& plan, uint64_t max_bytes) {
  uint64_t bytes = 0;
  encode_save_index(
      layout, plan, {}, [&](std::string_view piece) { bytes += piece.size(); }, max_bytes);
  return bytes;
}

}  // namespace hyperion::checkpoint
