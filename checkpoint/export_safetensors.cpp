#include "checkpoint/export_safetensors.h"

#include <algorithm>
#include <cerrno>
#include <numeric>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/printable.h"
#include "checkpoint/cast.h"
#include "checkpoint/finite.h"
#include "checkpoint/format/safetensors/safetensors.h"
#include "checkpoint/format/safetensors/safetensors_writer.h"
#include "checkpoint/save_job.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kPiece = uint64_t{16} << 20;  // bytes of a tensor at a time

// A file that several ranks write, each other parts of it.
class SharedFile {
 public:
  SharedFile(fs::path path, bool create)
      : path_(std::move(path)),
        file_(::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT | O_EXCL : 0),
                     0666)) {
    if (!file_) fail("open");
  }
  void write(uint64_t offset, const void* data, uint64_t bytes) {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::pwrite(file_.get(), from, bytes, static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("write");
      from += written;
      offset += static_cast<uint64_t>(written);
      bytes -= static_cast<uint64_t>(written);
    }
  }
  void set_size(uint64_t bytes) {
    if (::ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0) fail("size");
  }
  void sync() {
    if (::fsync(file_.get()) != 0) fail("flush");
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    const int error = errno;
    throw Error(ExitCode::kSaveFailed,
                fmt::format("cannot {} {}: {}", what, printable(path_), errno_text(error)));
  }
  fs::path path_;
  Descriptor file_;
};

// Rows of this rank, in the stored type, written where the plan has them.
class RowWriter {
 public:
  RowWriter(const ExportedTensor& tensor, uint64_t place, SharedFile& file, MemoryMover& mover,
            NotFinite& not_finite)
      : tensor_(tensor), place_(place), file_(file), mover_(mover), not_finite_(not_finite) {
    const Dims& shape = tensor.tensor->shape;
    width_ =
        std::accumulate(shape.begin() + (shape.empty() ? 0 : 1), shape.end(), int64_t{1}, std::multiplies());
  }

  void write() {
    const Rows rows = tensor_.tensor->rows();
    const int64_t step =
        std::max<int64_t>(1, static_cast<int64_t>(kPiece / std::max<uint64_t>(1, to_bytes(1))));
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
    not_finite_.look_at(tensor_.name, tensor_.dtype, stored_.data(), stored_.size());
    if (!tensor_.row_map)
      return file_.write(place_ + to_bytes(begin + first), stored_.data(), stored_.size());
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
      file_.write(place_ + to_bytes(start), gathered_.data(), gathered_.size());
    }
  }

  const ExportedTensor& tensor_;
  uint64_t place_;
  SharedFile& file_;
  MemoryMover& mover_;
  NotFinite& not_finite_;
  int64_t width_ = 1;  // elements of a row
  std::vector<std::byte> fetched_, stored_, gathered_;
};

void make_files(const SafetensorsPlan& plan, const fs::path& incoming) {
  for (const SafetensorsPlan::File& planned : plan.files) {
    SharedFile file(incoming / planned.name, /*create=*/true);
    file.set_size(planned.bytes);
    file.write(0, planned.header.data(), planned.header.size());
    file.sync();
  }
}

void write_own_rows(const SafetensorsPlan& plan, const std::vector<ExportedTensor>& tensors,
                    const fs::path& incoming, MemoryMover& mover, NotFinite& not_finite) {
  for (size_t f = 0; f < plan.files.size(); ++f) {
    SharedFile file(incoming / plan.files[f].name, /*create=*/false);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (plan.places[i].file != f || tensors[i].tensor->placement.replica != 0) continue;
      RowWriter(tensors[i], plan.places[i].offset, file, mover, not_finite).write();
    }
    file.sync();
  }
}

void write_text(const fs::path& path, const std::string& text) {
  SharedFile file(path, /*create=*/true);
  file.write(0, text.data(), text.size());
  file.sync();
}

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
        make_files(plan, incoming);
      });
    });
    collectively(ranks, [&] {
      NotFinite not_finite;
      run_save_part([&] { write_own_rows(plan, tensors, incoming, mover, not_finite); });
      if (!not_finite.empty()) throw Error(ExitCode::kNonFinite, not_finite.text());
    });
    collectively(ranks, [&] {
      if (!lead) return;
      run_save_part([&] {
        for (const auto& [name, text] : more_files) write_text(incoming / name, text);
        if (!plan.index.empty()) write_text(incoming / kSafetensorsIndex, plan.index);
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

}  // namespace hyperion
