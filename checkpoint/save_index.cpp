#include "checkpoint/save_index.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "checkpoint/format/dcp/metadata.h"

namespace hyperion::checkpoint {
namespace {

// Entries come in the order of their keys, but where a piece lies in its file follows from all pieces before
// it in the plan's order. So the plan is walked once for every group of entries whose items fit into memory.
class PlannedTensors : public IndexTensors {
 public:
  PlannedTensors(const SaveLayout& layout, const SavePlan& plan, size_t items_at_once)
      : layout_(layout),
        plan_(plan),
        items_at_once_(items_at_once),
        by_key_(layout.entries.size()),
        number_of_(by_key_.size()),
        first_item_(by_key_.size() + 1) {
    std::iota(by_key_.begin(), by_key_.end(), 0);
    std::ranges::sort(by_key_, {}, [&](uint32_t e) -> const std::string& { return layout.entries[e].key; });
    for (uint32_t number = 0; number < by_key_.size(); ++number) number_of_[by_key_[number]] = number;
    for_each_item(layout, plan, [&](const SaveItem& item) { ++first_item_[number_of_[item.entry] + 1]; });
    std::partial_sum(first_item_.begin(), first_item_.end(), first_item_.begin());
    items_.reserve(std::min<uint64_t>(items(), items_at_once));
    for (size_t rank = 0; rank < plan.file_bytes.size(); ++rank)
      files_.push_back(shard_file_name(static_cast<int>(rank)));
  }

  uint64_t items() const { return first_item_.back(); }
  size_t size() const override { return by_key_.size(); }

  Tensor at(size_t number) const override {
    const SaveLayout::Entry& entry = layout_.entries[by_key_[number]];
    return {entry.key, entry.dtype, entry.shape, &entry.path};
  }

  void visit_chunks(size_t number, const std::function<void(const Chunk& chunk)>& visit) override {
    if (number < begin_ || number >= end_) collect_items(number);
    Chunk chunk;
    for (uint64_t i = first_item_[number]; i < first_item_[number + 1]; ++i) {
      const SaveItem& item = items_[i - first_item_[begin_]];
      Box box = item_box(layout_, item);
      chunk.offset = std::move(box.offset);
      chunk.shape = std::move(box.shape);
      chunk.where = {files_[item.writer], item.offset, item.length};
      visit(chunk);
    }
  }

 private:
  // The items of tensor `begin` and of as many after it as fit.
  void collect_items(size_t begin) {
    begin_ = begin;
    end_ = begin + 1;
    while (end_ < size() && first_item_[end_ + 1] - first_item_[begin] <= items_at_once_) ++end_;
    items_.resize(first_item_[end_] - first_item_[begin]);
    std::vector<uint64_t> next(first_item_.begin() + static_cast<ptrdiff_t>(begin),
                               first_item_.begin() + static_cast<ptrdiff_t>(end_));
    for_each_item(layout_, plan_, [&](const SaveItem& item) {
      const size_t number = number_of_[item.entry];
      if (number >= begin_ && number < end_) items_[next[number - begin_]++ - first_item_[begin_]] = item;
    });
  }

  const SaveLayout& layout_;
  const SavePlan& plan_;
  const size_t items_at_once_;
  std::vector<uint32_t> by_key_;      // entries
  std::vector<uint32_t> number_of_;   // of an entry, in that order
  std::vector<uint64_t> first_item_;  // of tensor `number`, counted in the order of keys
  std::vector<std::string> files_;    // by rank
  size_t begin_ = 0, end_ = 0;        // tensors whose items are in items_
  std::vector<SaveItem> items_;
};

}  // namespace

void encode_save_index(const SaveLayout& layout, const SavePlan& plan, const CheckpointIndex& rest,
                       const std::function<void(std::string_view piece)>& take, const IndexLimits& limits) {
  PlannedTensors tensors(layout, plan, limits.items_at_once);
  uint64_t bytes = 0;
  encode_metadata(tensors, rest, [&](std::string_view piece) {
    bytes += piece.size();
    if (bytes > limits.most_bytes)
      throw_save_failed(
          "the index of a checkpoint (.metadata) of {} tensors in {} pieces would be "
          "larger than the {} MiB that readers accept: fewer shards make it smaller, "
          "with parallelism.data_parallel_replicate_degree above 1 (HSDP)",
          tensors.size(), tensors.items(), limits.most_bytes >> 20);
    take(piece);
  });
}

uint64_t save_index_bytes(const SaveLayout& layout, const SavePlan& plan, const IndexLimits& limits) {
  uint64_t bytes = 0;
  encode_save_index(
      layout, plan, {}, [&](std::string_view piece) { bytes += piece.size(); }, limits);
  return bytes;
}

}  // namespace hyperion::checkpoint
