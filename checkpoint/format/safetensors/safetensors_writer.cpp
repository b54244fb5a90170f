#include "checkpoint/format/safetensors/safetensors_writer.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include <fcntl.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/files.h"
#include "base/printable.h"
#include "checkpoint/format/safetensors/safetensors.h"

namespace hyperion::checkpoint {
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
    if (traits_of(tensor.dtype).safetensors.empty())
      throw_data("tensor \"{}\" is {}, which safetensors does not have: convert it to another dtype",
                 tensor.name, torch_name(tensor.dtype));
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second)
      throw_data("tensor \"{}\": safetensors takes each name once, and __metadata__ is its own", tensor.name);
  }
}

// The numbers of the tensors in each file.
std::vector<std::vector<size_t>> assign_files(const std::vector<NamedTensor>& tensors,
                                              uint64_t max_file_bytes) {
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

// The header: length, JSON and spaces that align the data.
std::string make_header(const std::vector<NamedTensor>& tensors, const std::vector<size_t>& members,
                        const std::map<std::string, std::string>& notes) {
  json metadata = notes;
  metadata["format"] = "pt";  // transformers requires it
  std::string text = R"({"__metadata__":)" + metadata.dump();
  uint64_t begin = 0;
  for (const size_t i : members) {
    const NamedTensor& tensor = tensors[i];
    const uint64_t end = begin + bytes_of(tensor);
    text +=
        fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json(tensor.name).dump(),
                    traits_of(tensor.dtype).safetensors, fmt::join(tensor.shape, ","), begin, end);
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

}  // namespace

SafetensorsPlan plan_safetensors(const std::vector<NamedTensor>& tensors, uint64_t max_file_bytes,
                                 const std::map<std::string, std::string>& notes) try {
  check_names(tensors);
  const std::vector<std::vector<size_t>> files = assign_files(tensors, max_file_bytes);
  SafetensorsPlan plan;
  plan.places.resize(tensors.size());
  json weight_map = json::object();
  uint64_t total = 0;
  for (size_t f = 0; f < files.size(); ++f) {
    SafetensorsPlan::File file{files.size() == 1
                                   ? kSafetensorsFile
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files.size()),
                               make_header(tensors, files[f], notes), 0};
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

class SafetensorsWriter::File {
 public:
  File(fs::path path, int flags)
      : path_(std::move(path)),
        file_(::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | flags, 0666)) {
    if (!file_) fail("open");
  }
  void write(uint64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("write");
      offset += static_cast<uint64_t>(n);
      bytes = bytes.subspan(static_cast<size_t>(n));
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
    throw_save_failed("cannot {} {}: {}", what, printable(path_), errno_text(error));
  }
  fs::path path_;
  Descriptor file_;
};

void create_safetensors(const fs::path& folder, const SafetensorsPlan& plan) {
  for (const SafetensorsPlan::File& planned : plan.files) {
    SafetensorsWriter::File file(folder / planned.name, O_CREAT | O_EXCL);
    file.set_size(planned.bytes);
    file.write(0, std::as_bytes(std::span(planned.header)));
    file.sync();
  }
  if (!plan.index.empty()) write_file_atomic(folder / kSafetensorsIndex, plan.index);
}

SafetensorsWriter::SafetensorsWriter(const fs::path& folder, SafetensorsPlan plan) : plan_(std::move(plan)) {
  for (const SafetensorsPlan::File& file : plan_.files) files_.emplace_back(folder / file.name, 0);
}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(size_t tensor, uint64_t offset, std::span<const std::byte> bytes) {
  const SafetensorsPlan::Place& place = plan_.places.at(tensor);
  if (offset > place.bytes || bytes.size() > place.bytes - offset)
    throw_bug("safetensors writer: {} bytes at {} of tensor {} are more than its {}", bytes.size(), offset,
              tensor, place.bytes);
  files_[place.file].write(place.offset + offset, bytes);
}

void SafetensorsWriter::sync() {
  for (File& file : files_) file.sync();
}

}  // namespace hyperion::checkpoint
