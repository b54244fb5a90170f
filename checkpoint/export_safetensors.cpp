#include "checkpoint/export_safetensors.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/cast.h"
#include "checkpoint/finite.h"
#include "checkpoint/format/safetensors/safetensors_writer.h"
#include "checkpoint/save_job.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kConvertedAtATime = uint64_t{16} << 20;  // bytes of a tensor at a time

// Rows of this rank, in the stored type, written where the plan has them.
class RowWriter {
 public:
  RowWriter(const ExportedTensor& tensor, size_t number, SafetensorsWriter& writer, MemoryMover& mover,
            NotFinite& not_finite)
      : tensor_(tensor), number_(number), writer_(writer), mover_(mover), not_finite_(not_finite) {
    const Dims& shape = tensor.tensor->shape;
    width_ =
        std::accumulate(shape.begin() + (shape.empty() ? 0 : 1), shape.end(), int64_t{1}, std::multiplies());
  }

  void write() {
    const Rows rows = tensor_.tensor->rows();
    const int64_t step =
        std::max<int64_t>(1, static_cast<int64_t>(kConvertedAtATime / std::max<uint64_t>(1, to_bytes(1))));
    for (int64_t row = 0; row < rows.count; row += step)
      write_rows(rows.begin, row, std::min(step, rows.count - row));
  }

 private:
  uint64_t to_bytes(int64_t rows) const {
    return static_cast<uint64_t>(rows * width_) * size_of(tensor_.dtype);
  }

  // Rows [first, first + count) of this rank's.
  void write_rows(int64_t begin, int64_t first, int64_t count) {
    const TensorState& from = *tensor_.tensor;
    const uint64_t from_bytes = static_cast<uint64_t>(width_) * size_of(from.dtype);
    fetched_.resize(static_cast<uint64_t>(count) * from_bytes);
    mover_.to_host(fetched_.data(), from, static_cast<uint64_t>(first) * from_bytes, fetched_.size());
    mover_.finish();
    stored_.resize(to_bytes(count));
    cast(from.dtype, fetched_.data(), tensor_.dtype, stored_.data(), static_cast<uint64_t>(count * width_));
    not_finite_.scan(tensor_.name, tensor_.dtype, stored_.data(), stored_.size());
    if (!tensor_.row_map) return writer_.write(number_, to_bytes(begin + first), stored_);
    // Stored rows that follow each other go out in one write.
    std::vector<std::pair<int64_t, int64_t>> order;  // {stored row, row of the piece}
    for (int64_t row = 0; row < count; ++row) order.emplace_back(tensor_.row_map(begin + first + row), row);
    std::ranges::sort(order);
    for (size_t i = 0; i < order.size();) {
      const int64_t start = order[i].first;
      gathered_.clear();
      for (;
           i < order.size() && order[i].first == start + static_cast<int64_t>(gathered_.size() / to_bytes(1));
           ++i) {
        const auto row = stored_.begin() + static_cast<ptrdiff_t>(to_bytes(order[i].second));
        gathered_.insert(gathered_.end(), row, row + static_cast<ptrdiff_t>(to_bytes(1)));
      }
      writer_.write(number_, to_bytes(start), gathered_);
    }
  }

  const ExportedTensor& tensor_;
  size_t number_;  // in the plan
  SafetensorsWriter& writer_;
  MemoryMover& mover_;
  NotFinite& not_finite_;
  int64_t width_ = 1;  // elements of a row
  std::vector<std::byte> fetched_, stored_, gathered_;
};

}  // namespace

void export_safetensors(int64_t step, const std::string& save_id, const std::vector<ExportedTensor>& tensors,
                        const std::map<std::string, std::string>& more_files,
                        const std::map<std::string, std::string>& notes, const CheckpointFolder& folder,
                        Coordinator& ranks, MemoryMover& mover) {
  mover.prepare();
  const bool lead = ranks.rank() == 0;
  const fs::path incoming = folder.incoming(save_id);
  std::vector<NamedTensor> planned;
  for (const ExportedTensor& tensor : tensors)
    planned.push_back({tensor.name, tensor.dtype, tensor.tensor->shape});
  const SafetensorsPlan plan = plan_safetensors(planned, kSafetensorsFileBytes, notes);
  try {
    collectively(ranks, [&] {
      if (!lead) return;
      run_save_part([&] {
        folder.begin(save_id, /*coordinator=*/true);
        create_safetensors(incoming, plan);
      });
    });
    collectively(ranks, [&] {
      NotFinite not_finite;
      run_save_part([&] {
        SafetensorsWriter writer(incoming, plan);
        for (size_t i = 0; i < tensors.size(); ++i)
          if (tensors[i].tensor->placement.replica == 0)
            RowWriter(tensors[i], i, writer, mover, not_finite).write();
        writer.sync();
      });
      if (!not_finite.empty()) throw Error(ExitCode::kNonFinite, not_finite.text());
    });
    collectively(ranks, [&] {
      if (!lead) return;
      run_save_part([&] {
        for (const auto& [name, text] : more_files) write_file_atomic(incoming / name, text);
        folder.commit(incoming, step);
      });
    });
  } catch (const Error& error) {
    if (error.code() == ExitCode::kCommunication) throw;
    if (lead) folder.abandon(incoming);
    if (error.code() != ExitCode::kNonFinite) throw;
    throw Error(error.code(), from_rank_0(ranks, [&] {
                  return explain_not_finite(step, error.what(), tensors.front().dtype, folder);
                }));
  }
}

}  // namespace hyperion::checkpoint
