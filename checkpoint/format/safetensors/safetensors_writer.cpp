#include "checkpoint/format/safetensors/safetensors_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/format/safetensors/safetensors.h"

namespace hyperion {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

uint64_t bytes_of(const NamedTensor& tensor) {
  uint64_t bytes = size_of(tensor.dtype);
  for (const int64_t extent : tensor.shape) bytes *= static_cast<uint64_t>(extent);
  return bytes;
}

void check_names(const std::vector<NamedTensor>& tensors) {
  std::set<std::string_view> names;
  for (const NamedTensor& tensor : tensors) {
    if (safetensors_name(tensor.dtype).empty())
      throw_data("tensor \"{}\" is {}, which safetensors does not have: convert it to another dtype",
                 tensor.name, torch_name(tensor.dtype));
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second)
      throw_data("tensor \"{}\": safetensors takes each name once, and __metadata__ is its own", tensor.name);
  }
}

// Numbers of the tensors in each file.
std::vector<std::vector<size_t>> split(const std::vector<NamedTensor>& tensors, uint64_t max_file_bytes) {
  std::vector<std::vector<size_t>> files(1);
  uint64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t more = bytes_of(tensors[i]);
    if (!files.back().empty() && more > max_file_bytes - std::min(bytes, max_file_bytes)) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(i);
    bytes += more;
  }
  for (std::vector<size_t>& file : files)
    std::stable_sort(file.begin(), file.end(), [&](size_t a, size_t b) {
      return size_of(tensors[a].dtype) > size_of(tensors[b].dtype);
    });
  return files;
}

// Length, JSON and the spaces that align what follows.
std::string header_of(const std::vector<NamedTensor>& tensors, const std::vector<size_t>& members,
                      const std::map<std::string, std::string>& notes) {
  json metadata = notes;
  metadata["format"] = "pt";  // transformers asks for it
  std::string text = R"({"__metadata__":)" + metadata.dump();
  uint64_t begin = 0;
  for (const size_t i : members) {
    const NamedTensor& tensor = tensors[i];
    const uint64_t end = begin + bytes_of(tensor);
    text +=
        fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json(tensor.name).dump(),
                    safetensors_name(tensor.dtype), fmt::join(tensor.shape, ","), begin, end);
    begin = end;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();
  if (length > kMaxSafetensorsHeader)
    throw_data("the safetensors header of {} tensors has {} bytes, at most {} are read: write smaller files",
               members.size(), length, kMaxSafetensorsHeader);
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

[[noreturn]] void fail(const fs::path& path, const char* what) {
  throw Error(ExitCode::kSaveFailed,
              fmt::format("{}: {} failed: {}", path.string(), what, std::strerror(errno)));
}

}  // namespace

SafetensorsPlan plan_safetensors(const std::vector<NamedTensor>& tensors, uint64_t max_file_bytes,
                                 const std::map<std::string, std::string>& notes) try {
  check_names(tensors);
  const std::vector<std::vector<size_t>> files = split(tensors, max_file_bytes);
  SafetensorsPlan plan;
  plan.places.resize(tensors.size());
  json weight_map = json::object();
  uint64_t total = 0;
  for (size_t f = 0; f < files.size(); ++f) {
    SafetensorsPlan::File file{files.size() == 1
                                   ? kSafetensorsFile
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files.size()),
                               header_of(tensors, files[f], notes), 0};
    file.bytes = file.header.size();
    for (const size_t i : files[f]) {
      plan.places[i] = {f, file.bytes, bytes_of(tensors[i])};
      file.bytes += plan.places[i].bytes;
      weight_map[tensors[i].name] = file.name;
    }
    total += file.bytes - file.header.size();
    plan.files.push_back(std::move(file));
  }
  if (files.size() > 1)
    plan.index =
        json{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}}.dump(2) + "\n";
  return plan;
} catch (const json::exception&) {
  throw_data("a tensor's name or a note is not valid UTF-8, which safetensors needs");
}

// A file under a temporary name, which is removed unless it is kept under its own.
class SafetensorsWriter::TemporaryFile {
 public:
  explicit TemporaryFile(fs::path path) : path_(std::move(path)), file_(create_new_file(path_)) {
    if (!file_) fail(path_, "open");
  }
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(uint64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail(path_, "write");
      offset += static_cast<uint64_t>(n);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
  }
  void sync() {
    if (::fsync(file_.get()) != 0) fail(path_, "fsync");
    if (::close(file_.release()) != 0) fail(path_, "close");
  }
  void rename(const fs::path& to) {
    if (::rename(path_.c_str(), to.c_str()) != 0) fail(path_, "rename");
    path_.clear();
  }

 private:
  fs::path path_;
  Descriptor file_;
};

SafetensorsWriter::SafetensorsWriter(fs::path folder, SafetensorsPlan plan)
    : folder_(std::move(folder)), plan_(std::move(plan)) {
  std::error_code error;
  fs::create_directories(folder_, error);
  fs::directory_iterator entries(folder_, error);
  if (error)
    throw Error(ExitCode::kSaveFailed,
                fmt::format("{}: cannot be made or read: {}", folder_.string(), error.message()));
  for (const fs::directory_entry& entry : entries)
    if (entry.path().extension() == ".safetensors" || entry.path().filename() == kSafetensorsIndex)
      throw_config("{}: already holds {}; name another folder", folder_.string(),
                   entry.path().filename().string());
  for (const SafetensorsPlan::Place& place : plan_.places) missing_ += place.bytes;
  for (const SafetensorsPlan::File& file : plan_.files) {
    const fs::path temporary = folder_ / fmt::format("{}.tmp.{}", file.name, ::getpid());
    files_.push_back(std::make_unique<TemporaryFile>(temporary));
    files_.back()->write(0, std::as_bytes(std::span(file.header)));
  }
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
  const SafetensorsPlan::Place& place = plan_.places.at(tensor);
  if (offset > place.bytes || bytes.size() > place.bytes - offset || bytes.size() > missing_)
    throw_bug("safetensors writer: {} bytes at {} of tensor {} are more than its {}", bytes.size(), offset,
              tensor, place.bytes);
  files_[place.file]->write(place.offset + offset, bytes);
  missing_ -= bytes.size();
}

void SafetensorsWriter::finish() {
  if (missing_ != 0) throw_bug("safetensors writer: {} bytes were not written", missing_);
  for (const auto& file : files_) file->sync();
  for (size_t f = 0; f < files_.size(); ++f) files_[f]->rename(folder_ / plan_.files[f].name);
  sync_folder(folder_);
  if (plan_.index.empty()) return;
  write_file_atomic(folder_ / kSafetensorsIndex, plan_.index);
  sync_folder(folder_);
}

}  // namespace hyperion
