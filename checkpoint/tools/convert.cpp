// ckpt convert
#include <algorithm>
#include <cstring>
#include <map>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "base/counted.h"
#include "base/durable.h"
#include "base/error.h"
#include "base/files.h"
#include "base/printable.h"
#include "base/progress.h"
#include "checkpoint/cast.h"
#include "checkpoint/finite.h"
#include "checkpoint/format/safetensors/safetensors_writer.h"
#include "checkpoint/names.h"
#include "checkpoint/save_job.h"
#include "checkpoint/storage/checkpoint_folder.h"
#include "checkpoint/tools/aligned_table.h"
#include "checkpoint/tools/content.h"
#include "checkpoint/tools/folders.h"
#include "checkpoint/tools/tools.h"

namespace hyperion::checkpoint {
namespace fs = std::filesystem;
namespace {

using Take = ItemReader::Take;

// The keys of the model's weights, by name without the EMA prefix.
std::map<std::string, std::string> weights_of(const OpenCheckpoint& source, bool ema) {
  std::map<std::string, std::string> weights, without_average;
  for (const auto& [key, record] : source.index.tensors) {
    const std::string component = component_of(key);
    if (component == (ema ? kEmaComponent : kModelComponent))
      weights.emplace(ema ? key.substr(kEmaPrefix.size()) : key, key);
    if (ema && component == kModelComponent && !is_averaged(key)) without_average.emplace(key, key);
  }
  if (weights.empty())
    throw_data("{}: holds no {}", source.folder.string(),
               ema ? "averaged weights (ema.*): it was written without [ema]" : "model weights");
  weights.merge(without_average);
  return weights;
}

// A tensor of the destination and its sources.
struct Weight {
  struct Source {
    std::string key;  // key in the source's index
    std::shared_ptr<const TensorRecord> record;
    StoredPart part;  // position in this tensor
  };
  std::string to;
  Dims shape;
  Dtype from_dtype = Dtype::kFloat32, dtype = Dtype::kFloat32;
  RowMap row_map{};
  std::vector<Source> sources;  // several if they are transposed, else one

  const Source& source() const { return sources.front(); }
};

std::vector<Weight> plan_weights(const OpenCheckpoint& source, const ConvertOptions& options) {
  const std::map<std::string, std::string> keys = weights_of(source, options.ema);
  std::vector<ConvertedTensor> wanted;
  if (options.tensors)
    wanted = options.tensors(source);
  else
    for (const auto& [name, key] : keys) wanted.push_back({name, name});
  std::vector<Weight> weights;
  std::map<std::string, size_t> numbers;  // index of each tensor, by name
  for (ConvertedTensor& one : wanted) {
    const auto found = keys.find(one.from);
    if (found == keys.end() && !one.record)
      throw_data("{}: has no tensor {}, which {} is made of", source.folder.string(), one.from, one.to);
    const std::string& key = found == keys.end() ? one.from : found->second;
    std::shared_ptr<const TensorRecord> record = one.record;
    if (!record)
      record = std::shared_ptr<const TensorRecord>(std::shared_ptr<void>(), &source.index.tensors.at(key));
    if (!one.shape.empty() && record->shape != one.shape)
      throw_data("{}: {} is [{}], and the model has [{}]", source.folder.string(), key,
                 fmt::join(record->shape, ", "), fmt::join(one.shape, ", "));
    const Weight::Source from{key, record, one.part};
    const auto [number, is_new] = numbers.emplace(one.to, weights.size());
    if (!is_new) {
      if (!one.part.transposes()) throw_bug("convert: two tensors become {}", one.to);
      weights[number->second].sources.push_back(from);
      continue;
    }
    const bool cast = options.dtype && !one.keeps_dtype && can_cast(record->dtype, *options.dtype);
    weights.push_back({.to = one.to,
                       .shape = stored_shape(one.part, record->shape),
                       .from_dtype = record->dtype,
                       .dtype = cast ? *options.dtype : record->dtype,
                       .row_map = std::move(one.row_map),
                       .sources = {from}});
  }
  return weights;
}

// Streams weights in their new order and type.
class WeightReader : public ItemReader {
 public:
  WeightReader(const OpenCheckpoint& source, const std::vector<Weight>& weights, uint64_t total)
      : source_(source), contents_(source), weights_(weights), progress_("convert", total, "B") {}

  // The save's layout consists of the weights, in their order, not sharded.
  void read(const SaveItem& item, const Take& take) override {
    stream(item.entry, [&](const std::byte* data, uint64_t bytes) {
      reading_ = false;
      take(data, bytes);
      reading_ = true;
    });
  }
  // Returns whether the failure was in reading the source.
  bool failed_to_read() const { return reading_; }

  // Call after streaming everything. Throws for NaN and infinite numbers: Error(kBadData) if they were
  // read, Error(kNonFinite) if the new type produced them.
  void require_finite(const ConvertOptions& options) const {
    if (!read_.empty())
      throw_data("{}: holds NaN or infinite numbers, in {}: {} is not written", options.source.string(),
                 read_.text(), options.destination.string());
    if (!converted_.empty())
      throw_non_finite(
          "{}: numbers are too large for {} and would become infinite, in {}: {} is not "
          "written; choose another --dtype",
          options.source.string(), torch_name(*options.dtype), converted_.text(),
          options.destination.string());
  }

  void stream(size_t number, const Take& take) {
    const Weight& weight = weights_[number];
    reading_ = true;
    const size_t from = size_of(weight.from_dtype), to = size_of(weight.dtype);
    auto elements = static_cast<int64_t>(kContentPiece / std::max(from, to));
    // Columns of the sources are rows of the weight: with few rows per read each source would be read many
    // times.
    if (weight.source().part.transposes()) elements = std::max(elements, weight.shape[1] * weight.shape[2]);
    each_box(weight.shape, elements, [&](const Box& box) {
      const auto count = static_cast<uint64_t>(box.numel());
      rows_.resize(count * from);
      read_rows(weight, box);
      const bool finite = scan(weight, box);
      if (weight.dtype != weight.from_dtype) {
        cast_.resize(count * to);
        cast(weight.from_dtype, rows_.data(), weight.dtype, cast_.data(), count);
        if (finite) converted_.scan(weight.to, weight.dtype, cast_.data(), count * to);
      }
      take(weight.dtype == weight.from_dtype ? rows_.data() : cast_.data(), count * to);
      progress_.update(done_ += count * to);
    });
    reading_ = false;
  }

 private:
  // Returns whether the numbers of the box just read are finite. Non-finite ones count for the source tensor;
  // for a stack of several tensors, for the one that has the matrix.
  bool scan(const Weight& weight, const Box& box) {
    const auto& [key, record, part] = weight.source();
    const std::vector<Chunk>& chunks = record->chunks;
    const uint64_t total = count_not_finite(weight.from_dtype, rows_.data(), rows_.size());
    if (total == 0) return true;
    const bool is_stack =
        chunks.size() > 1 && source_.index.tensors.at(key).shape.size() < record->shape.size();
    if (!is_stack) {
      read_.add(key, total);
      return false;
    }
    const uint64_t bytes = rows_.size() / static_cast<uint64_t>(box.shape[0]);
    for (int64_t matrix = 0; matrix < box.shape[0]; ++matrix) {
      const std::byte* numbers = rows_.data() + static_cast<uint64_t>(matrix) * bytes;
      const uint64_t count = count_not_finite(weight.from_dtype, numbers, bytes);
      if (count > 0) read_.add(matrix_name(weight.source(), box.offset[0] + matrix), count);
    }
    return false;
  }

  const std::string& matrix_name(const Weight::Source& source, int64_t matrix) const {
    for (const Chunk& chunk : source.record->chunks) {
      if (chunk.offset.front() != matrix) continue;
      for (const auto& [name, stored] : source_.index.tensors)
        if (!stored.chunks.empty() && stored.chunks.front().where == chunk.where) return name;
    }
    return source.key;
  }

  // Reads the part's elements of a box of the weight that has all of the part's columns.
  void read_transposed(const Weight::Source& source, const Box& box) {
    const auto& [key, record, part] = source;
    const Dims& shape = record->shape;
    Box columns = box;
    columns.offset[2] = part.first;
    columns.shape[2] = shape[1];
    const Box source_box = job_box(part, columns);
    const size_t element = size_of(record->dtype);
    part_.resize(static_cast<size_t>(source_box.numel()) * element);
    turned_.resize(part_.size());
    contents_.read(key, *record, source_box, part_.data());
    transpose_matrices(source_box.shape, element, part_.data(), turned_.data());
    const auto run = static_cast<size_t>(shape[1]) * element;
    const auto width = static_cast<size_t>(part.width) * element;
    std::byte* to = rows_.data() + static_cast<size_t>(part.first) * element;
    for (size_t at = 0; at < turned_.size(); at += run, to += width)
      std::memcpy(to, turned_.data() + at, run);
  }

  void read_rows(const Weight& weight, Box box) {
    const auto& [key, record, part] = weight.source();
    if (record->chunks.empty()) {
      std::ranges::fill(rows_, std::byte{0});
      return;
    }
    if (part.transposes()) {
      for (const Weight::Source& source : weight.sources) read_transposed(source, box);
      return;
    }
    if (!weight.row_map || box.shape.empty())
      return contents_.read(key, *record, job_box(part, std::move(box)), rows_.data());
    const int64_t count = box.shape[0];
    read_mapped_rows(weight.row_map, box.offset[0], count, rows_.size() / static_cast<uint64_t>(count),
                     rows_.data(), [&](int64_t first, int64_t stored, std::byte* out) {
                       if (first < 0 || first + stored > weight.shape[0])
                         throw_bug("convert: rows of {} come from rows {} to {} of {}", weight.to, first,
                                   first + stored - 1, weight.source().key);
                       box.offset[0] = first;
                       box.shape[0] = stored;
                       contents_.read(weight.source().key, *weight.source().record, box, out);
                     });
  }

  const OpenCheckpoint& source_;
  ContentReader contents_;
  const std::vector<Weight>& weights_;
  Progress progress_;
  uint64_t done_ = 0;
  bool reading_ = false;
  std::vector<std::byte> rows_, cast_, part_, turned_;
  NotFinite read_, converted_;
};

// A temporary folder in the destination's parent; the destructor removes it with its content.
class WorkFolder {
 public:
  explicit WorkFolder(const fs::path& destination)
      : parent_(fs::absolute(destination).parent_path()),
        path_(parent_ / fmt::format(".convert-{}", ::getpid())) {
    make_folders(parent_);
    std::error_code error;
    if (!fs::create_directory(path_, error))
      throw_save_failed("{}: cannot be made: {}", printable(path_), error ? error.message() : "it exists");
  }
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const fs::path& path() const { return path_; }

  // Renames a finished folder to the destination.
  void publish(const fs::path& finished, const fs::path& destination) const {
    sync_folder(finished);
    int error = rename_entry(finished, destination, RenameMode::kNoReplace);
    if (error == EINVAL || error == ENOSYS) error = rename_entry(finished, destination, RenameMode::kReplace);
    if (error != 0)
      throw_save_failed("{}: cannot get its name: {}", printable(destination), errno_text(error));
    sync_folder(parent_);
  }

 private:
  fs::path parent_, path_;
};

fs::path write_safetensors(const std::vector<Weight>& weights, const ConvertOptions& options,
                           WeightReader& reader, const WorkFolder& work) {
  std::vector<NamedTensor> tensors;
  for (const Weight& weight : weights) tensors.push_back({weight.to, weight.dtype, weight.shape});
  const fs::path folder = work.path() / "safetensors";
  const SafetensorsPlan plan = plan_safetensors(tensors, kSafetensorsFileBytes, options.facts);
  make_folders(folder);
  create_safetensors(folder, plan);
  SafetensorsWriter writer(folder, plan);
  for (size_t i = 0; i < weights.size(); ++i) {
    uint64_t offset = 0;
    reader.stream(i, [&](const std::byte* data, uint64_t bytes) {
      writer.write(i, offset, {data, bytes});
      offset += bytes;
    });
  }
  reader.require_finite(options);
  writer.sync();
  for (const auto& [name, content] : options.more_files) write_file_atomic(folder / name, content);
  return folder;
}

// Writes like a save of one rank, equally durable.
fs::path write_dcp(const std::vector<Weight>& weights, const OpenCheckpoint& source,
                   const ConvertOptions& options, WeightReader& reader, const WorkFolder& work) {
  std::vector<TensorState> tensors;
  for (const Weight& weight : weights) {
    TensorState& tensor = tensors.emplace_back();
    tensor.key = weight.to;
    tensor.path = {weight.to};
    tensor.dtype = weight.dtype;
    tensor.shape = weight.shape;
  }
  const SaveLayout layout = save_layout(tensors);
  const SavePlan plan = make_save_plan(layout, {held_parts(layout, tensors)}, Writers::kAll, /*rank=*/0);
  SaveJob job;
  job.step = step_of_name(options.destination.filename().native())
                 .value_or(source.manifest ? source.manifest->step : 0);
  job.save_id = fmt::format("converted-{:x}-{}", ::time(nullptr), ::getpid());
  job.kind = CheckpointKind::kModel;
  job.facts = options.facts;
  if (source.manifest) job.facts.insert(source.manifest->facts.begin(), source.manifest->facts.end());
  job.facts["converted_from"] = fs::absolute(options.source).lexically_normal().string();
  job.layout = &layout;
  job.plan = &plan;
  CheckpointFolder folder(work.path());
  SoloCoordinator alone;
  try {
    return write_checkpoint(job, reader, folder, alone).path;
  } catch (const Error& error) {  // a save does not know whether its source or its disk has failed
    reader.require_finite(options);
    throw Error(reader.failed_to_read() ? ExitCode::kBadData : error.code(), error.what());
  }
}

}  // namespace

ExitCode convert_checkpoint(const ConvertOptions& asked, std::FILE* out) {
  ConvertOptions options = asked;
  if (!options.destination.has_filename()) options.destination = options.destination.parent_path();
  std::error_code error;
  if (fs::exists(fs::symlink_status(options.destination, error)))
    throw_config("{}: exists: give a name that is free", printable(options.destination));
  require_checkpoint(options.source);
  const OpenCheckpoint source = open_checkpoint(options.source);
  const std::vector<Weight> weights = plan_weights(source, options);
  uint64_t total = 0;
  for (const Weight& weight : weights) total += bytes_of(weight.dtype, weight.shape);
  const WorkFolder work(options.destination);
  {
    WeightReader reader(source, weights, total);
    const fs::path finished = options.format == WeightFormat::kSafetensors
                                  ? write_safetensors(weights, options, reader, work)
                                  : write_dcp(weights, source, options, reader, work);
    work.publish(finished, options.destination);
  }
  fmt::print(out, "{}: {}, {}\n", printable(options.destination), counted(weights.size(), "tensor"),
             format_bytes(total));
  return ExitCode::kOk;
}

}  // namespace hyperion::checkpoint
