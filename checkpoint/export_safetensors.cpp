#include "checkpoint/export_safetensors.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/cast.h"
#include "checkpoint/finite.h"
#include "checkpoint/format/safetensors/safetensors_writer.h"
#include "checkpoint/save_job.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kConvertedAtATime = uint64_t{16} << 20;  // bytes of a tensor per conversion

// Writes this rank's part of a tensor, in the stored type, to its planned position. Contiguous elements of
// the file are one write: complete rows together, columns one run per row. For a stack of matrices at least
// one matrix is held.
class PartWriter {
 public:
  PartWriter(const ExportedTensor& tensor, size_t number, SafetensorsWriter& writer, MemoryMover& mover,
             NotFinite& not_finite)
      : tensor_(tensor), number_(number), writer_(writer), mover_(mover), not_finite_(not_finite) {}

  void write() {
    const Box held = tensor_.tensor->box();
    const std::optional<Box> part = box_in_part(tensor_.part, tensor_.tensor->shape, held);
    if (!part) return;
    const Box& part_box = *part;
    const int64_t rows = part_box.shape.empty() ? 1 : part_box.shape.front();
    const auto row_elements = static_cast<uint64_t>(part_box.numel() / rows);
    const uint64_t row_bytes = row_elements * size_of(tensor_.dtype);
    const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kConvertedAtATime / row_bytes));
    uint64_t fetched = 0;  // bytes already read from the tensor's memory
    if (!part_box.shape.empty())
      fetched = static_cast<uint64_t>(part_box.offset.front() - held.offset.front()) * row_elements *
                size_of(tensor_.tensor->dtype);
    for (int64_t row = 0; row < rows; row += step) {
      Box piece = part_box;
      if (!piece.shape.empty()) {
        piece.offset.front() += row;
        piece.shape.front() = std::min(step, rows - row);
      }
      fetched += convert(piece, fetched);
      if (tensor_.row_map) {
        write_mapped(piece, row_bytes);
      } else {
        write_box(piece, stored_);
      }
    }
  }

 private:
  // Converts the piece at byte `offset` of the tensor's memory into stored_. Returns the bytes read.
  uint64_t convert(const Box& piece, uint64_t offset) {
    const TensorState& from = *tensor_.tensor;
    const auto elements = static_cast<uint64_t>(piece.numel());
    fetched_.resize(elements * size_of(from.dtype));
    mover_.to_host(fetched_.data(), from, offset, fetched_.size());
    mover_.finish();
    stored_.resize(elements * size_of(tensor_.dtype));
    cast(from.dtype, fetched_.data(), tensor_.dtype, stored_.data(), elements);
    not_finite_.scan(tensor_.name, tensor_.dtype, stored_.data(), stored_.size());
    return fetched_.size();
  }

  void write_box(const Box& box, std::span<const std::byte> content) {
    const uint64_t element = size_of(tensor_.dtype);
    if (tensor_.part.transposes()) {
      transposed_.resize(content.size());
      transpose_matrices(box.shape, element, content.data(), transposed_.data());
      content = transposed_;
    }
    const Dims shape = stored_shape(tensor_.part, tensor_.tensor->shape);
    for_each_run(shape, stored_box(tensor_.part, box), [&](const Run& run) {
      writer_.write(number_, static_cast<uint64_t>(run.in_tensor) * element,
                    content.subspan(static_cast<uint64_t>(run.in_box) * element,
                                    static_cast<uint64_t>(run.count) * element));
    });
  }

  // The rows in stored_, in the order of the stored tensor, as boxes of consecutive rows.
  void write_mapped(Box piece, uint64_t row_bytes) {
    std::vector<std::pair<int64_t, uint64_t>> order;  // {stored row, its offset in stored_}
    for (int64_t row = 0; row < piece.shape[0]; ++row)
      order.emplace_back(tensor_.row_map(piece.offset[0] + row), static_cast<uint64_t>(row) * row_bytes);
    std::ranges::sort(order);
    for (size_t i = 0; i < order.size();) {
      piece.offset[0] = order[i].first;
      piece.shape[0] = 0;
      gathered_.clear();
      for (; i < order.size() && order[i].first == piece.offset[0] + piece.shape[0]; ++i, ++piece.shape[0]) {
        const auto row = stored_.begin() + static_cast<ptrdiff_t>(order[i].second);
        gathered_.insert(gathered_.end(), row, row + static_cast<ptrdiff_t>(row_bytes));
      }
      write_box(piece, gathered_);
    }
  }

  const ExportedTensor& tensor_;
  size_t number_;  // the tensor's number in the plan
  SafetensorsWriter& writer_;
  MemoryMover& mover_;
  NotFinite& not_finite_;
  std::vector<std::byte> fetched_, stored_, gathered_, transposed_;
};

}  // namespace

void export_safetensors(int64_t step, const std::string& save_id, const std::vector<ExportedTensor>& tensors,
                        const std::map<std::string, std::string>& more_files,
                        const std::map<std::string, std::string>& notes, const CheckpointFolder& folder,
                        Coordinator& group, MemoryMover& mover) {
  mover.prepare();
  const bool lead = group.rank() == 0;
  const fs::path incoming = folder.incoming(save_id);
  std::vector<NamedTensor> planned;
  std::map<std::string, size_t> numbers;  // number in the plan, by name in the files
  for (const ExportedTensor& tensor : tensors)
    if (numbers.emplace(tensor.name, planned.size()).second)
      planned.push_back({tensor.name, tensor.dtype, stored_shape(tensor.part, tensor.tensor->shape)});
  const SafetensorsPlan plan = plan_safetensors(planned, kSafetensorsFileBytes, notes);
  const auto on_rank_0 = [&](const auto& part) {
    collectively(group, [&] {
      if (lead) run_save_part(part);
    });
  };
  try {
    on_rank_0([&] {
      folder.begin(save_id, /*coordinator=*/true);
      create_safetensors(incoming, plan);
    });
    collectively(group, [&] {
      NotFinite not_finite;
      run_save_part([&] {
        SafetensorsWriter writer(incoming, plan);
        for (const ExportedTensor& tensor : tensors) {
          const Placement& placement = tensor.tensor->placement;
          if (placement.is_local && placement.replica == 0)
            PartWriter(tensor, numbers.at(tensor.name), writer, mover, not_finite).write();
        }
        writer.sync();
      });
      if (!not_finite.empty()) throw Error(ExitCode::kNonFinite, not_finite.text());
    });
    on_rank_0([&] {
      for (const auto& [name, text] : more_files) write_file_atomic(incoming / name, text);
      folder.commit(incoming, step);
    });
  } catch (const Error& error) {
    if (error.code() == ExitCode::kCommunication) throw;
    if (lead) folder.abandon(incoming);
    if (error.code() != ExitCode::kNonFinite) throw;
    throw Error(error.code(), from_rank_0(group, [&] {
                  return explain_not_finite(step, error.what(), tensors.front().dtype, folder);
                }));
  }
}

}  // namespace hyperion::checkpoint
