// ckpt digest
#include <algorithm>
#include <bit>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/progress.h"
#include "checkpoint/tools/content.h"
#include "checkpoint/tools/folders.h"
#include "checkpoint/tools/tools.h"

namespace hyperion::checkpoint {
namespace {

// The canonical text of the value that it visits.
struct CanonicalText {
  std::string operator()(std::monostate) const { return "none"; }
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
  std::string operator()(int64_t integer) const { return fmt::format("{}", integer); }
  std::string operator()(double number) const {
    if (number != number) return "float(nan)";
    return fmt::format("float({:016x})", std::bit_cast<uint64_t>(number));
  }
  std::string operator()(const std::string& text) const {
    std::string out = "\"";
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\' || byte < 0x20 || byte >= 0x7F)
        out += fmt::format("\\x{:02x}", byte);
      else
        out += c;
    }
    return out + "\"";
  }
  std::string operator()(const Bytes& bytes) const { return "bytes" + (*this)(bytes.value); }
  std::string operator()(const Sequence& sequence) const {
    std::vector<std::string> items;
    for (const Object& item : sequence.items) items.push_back(canonical_text(item));
    const bool set = sequence.kind == Sequence::Kind::kSet;
    if (set) std::ranges::sort(items);
    const std::string list = fmt::format("{}", fmt::join(items, ","));
    if (sequence.kind == Sequence::Kind::kList) return "[" + list + "]";
    return set ? "set{" + list + "}" : "(" + list + ")";
  }
  std::string operator()(const Dict& dict) const {
    std::vector<std::string> items;
    for (const auto& [key, value] : dict.items)
      items.push_back(canonical_text(key) + ":" + canonical_text(value));
    std::ranges::sort(items);
    return fmt::format("{{{}}}", fmt::join(items, ","));
  }
};

// Throws that no name begins so, with the nearest one.
[[noreturn]] void refuse_prefix(const CheckpointIndex& index, const std::string& prefix) {
  std::set<std::string> beginnings, heads;  // of names, up to each of their dots
  const auto add = [&](const std::string& key) {
    if (key.starts_with(prefix))
      throw_config(
          "--prefix {}: {} and all else that begins so is left out: it describes the run, not the "
          "state of training",
          printable(prefix), printable(key));
    heads.insert(printable(key.substr(0, key.find('.')), 60));
    for (size_t dot = key.find('.'); dot != key.npos; dot = key.find('.', dot + 1))
      beginnings.insert(key.substr(0, dot));
    beginnings.insert(key);
  };
  for (const auto& [key, record] : index.tensors) add(key);
  for (const auto& [key, record] : index.objects) add(key);
  const std::string nearest = nearest_name(prefix, std::vector(beginnings.begin(), beginnings.end()));
  throw_config("--prefix {}: no name begins so{}", printable(prefix),
               nearest.empty() ? fmt::format("; names begin with {}", fmt::join(heads, ", "))
                               : did_you_mean(printable(nearest)));
}

}  // namespace

std::string canonical_text(const Object& object) {
  return std::visit(CanonicalText{}, object.value);
}

std::string DigestEntry::line() const {
  const std::string name = printable(key, key.size() * 4);
  if (!is_tensor) return fmt::format("{:016x}  {:8}  {}", hash, "value", name);
  return fmt::format("{:016x}  {:8}  {}  [{}]", hash, torch_name(dtype), name, fmt::join(shape, ", "));
}

uint64_t Digest::total() const {
  std::string text;
  for (const DigestEntry& entry : entries) text += entry.line() + "\n";
  return hash_text(text);
}

Digest digest_of(const OpenCheckpoint& checkpoint, const Selection& only) {
  Digest digest;
  ContentReader contents(checkpoint);
  const std::vector<std::string> keys = keys_in_file_order(checkpoint.index, only);
  uint64_t total = 0, done = 0;
  for (const std::string& key : keys) {
    const TensorRecord& record = checkpoint.index.tensors.at(key);
    total += bytes_of(record.dtype, record.shape);
  }
  Progress progress("digest", total, "B");
  for (const std::string& key : keys) {
    const TensorRecord& record = checkpoint.index.tensors.at(key);
    const size_t width = size_of(record.dtype);
    RunningHash hash;
    contents.stream(key, static_cast<int64_t>(kContentPiece / width),
                    [&](const Box& box, const std::byte* data) {
                      const uint64_t bytes = static_cast<uint64_t>(box.numel()) * width;
                      hash.add(data, bytes);
                      progress.update(done += bytes);
                    });
    digest.entries.push_back(
        {.key = key, .dtype = record.dtype, .shape = record.shape, .hash = hash.value()});
  }
  for (const auto& [key, value] :
       load_objects(checkpoint, [&](const std::string& key) { return only.has(key); }))
    digest.entries.push_back(
        {.key = key, .is_tensor = false, .shape = {}, .hash = hash_text(canonical_text(value))});
  std::ranges::sort(digest.entries, {}, &DigestEntry::key);
  return digest;
}

ExitCode print_digest(const DigestOptions& options, std::FILE* out) {
  require_checkpoint(options.path);
  const OpenCheckpoint checkpoint = open_checkpoint(options.path);
  const Digest digest = digest_of(checkpoint, options.only);
  // An empty selection is an error: its hash would mean nothing.
  if (digest.entries.empty() && !options.only.prefix.empty())
    refuse_prefix(checkpoint.index, options.only.prefix);
  const auto tensors = static_cast<uint64_t>(std::ranges::count_if(digest.entries, &DigestEntry::is_tensor));
  const uint64_t values = digest.entries.size() - tensors;
  if (options.json) {
    Json list = Json::array();
    for (const DigestEntry& entry : digest.entries) {
      Json item = {{"key", entry.key}, {"hash", fmt::format("{:016x}", entry.hash)}};
      if (entry.is_tensor) {
        item["dtype"] = torch_name(entry.dtype);
        item["shape"] = entry.shape;
      }
      list.push_back(std::move(item));
    }
    print_json({{"entries", std::move(list)},
                {"tensors", tensors},
                {"values", values},
                {"total", fmt::format("{:016x}", digest.total())}},
               out);
    return ExitCode::kOk;
  }
  for (const DigestEntry& entry : digest.entries) fmt::print(out, "{}\n", entry.line());
  fmt::print(out, "{:016x}  total     {}, {}\n", digest.total(), counted(tensors, "tensor"),
             counted(values, "value"));
  return ExitCode::kOk;
}

}  // namespace hyperion::checkpoint
