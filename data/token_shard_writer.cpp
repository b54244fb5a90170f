#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/durable.h"
#include "base/error.h"
#include "base/json.h"
#include "data/megatron.h"
#include "data/token_shards.h"

namespace hyperion::data {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kMegatronNarrowVocabulary = 65500;  // Megatron-LM writes uint16 below it
constexpr const char* kProgress = "progress.json";
constexpr size_t kMaxProgress = 4096;

// RecordedProgress is what record() stores.
struct RecordedProgress {
  std::string job;
  uint64_t inputs = 0, tokens = 0, documents = 0;
};

std::optional<RecordedProgress> read_progress(const fs::path& folder) {
  const fs::path path = folder / kProgress;
  if (!regular_file_exists(path)) return std::nullopt;
  const auto json = parse_json(read_file(path, kMaxProgress), path.string());
  const JsonNode fields(json, path.string());
  return RecordedProgress{fields["job"].text(), fields["inputs"].count(), fields["tokens"].count(),
                          fields["documents"].count()};
}

void rename_to(const fs::path& from, const fs::path& to, RenameMode mode) {
  if (const int error = rename_entry(from, to, mode); error != 0)
    throw_save_failed("{}: cannot be renamed to {}: {}", from.string(), to.string(), errno_text(error));
}

}  // namespace

TokenShardWriter::TokenShardWriter(const fs::path& folder, uint64_t vocab_size, std::string tokenizer,
                                   std::string tokenizer_path, ShardOutput output)
    : folder_(folder), output_(std::move(output)) {
  if (!folder_.has_filename()) folder_ = folder_.parent_path();
  header_.wide = output_.megatron ? vocab_size >= kMegatronNarrowVocabulary : vocab_size > kNarrowVocabulary;
  header_.vocab_size = vocab_size;
  header_.tokenizer = std::move(tokenizer);
  header_.tokenizer_path = std::move(tokenizer_path);
  fs::path temporary = folder_;
  temporary += output_.job.empty() ? fmt::format(".tmp.{}", ::getpid()) : ".partial";
  std::error_code error;
  if (output_.job.empty()) fs::remove_all(temporary, error);  // left by a killed process with the same pid
  temporary_ = std::move(temporary);
  continue_or_begin();
}

TokenShardWriter::~TokenShardWriter() {
  std::error_code ignored;
  if (!temporary_.empty() && recorded_ == 0) fs::remove_all(temporary_, ignored);
}

fs::path TokenShardWriter::megatron_file(const char* suffix) const {
  fs::path path = folder_;
  return path += suffix;
}

void TokenShardWriter::require_free_place() const {
  std::error_code error;
  const auto exists = [&](const fs::path& path) { return fs::exists(fs::symlink_status(path, error)); };
  if (!output_.megatron && exists(folder_) && !fs::is_empty(folder_, error))
    throw_config("output folder {}: exists and is not empty: give another one or remove it",
                 folder_.string());
  for (const char* suffix : {".bin", ".idx"})
    if (output_.megatron && exists(megatron_file(suffix)))
      throw_config("output file {}: exists: give another --out or remove it", megatron_file(suffix).string());
}

TokenShardWriter::File TokenShardWriter::open(const char* name) const {
  Descriptor file(::open((temporary_ / name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  File stream(file ? ::fdopen(file.get(), "r+b") : nullptr);
  if (!stream)
    throw_save_failed("token shard {}: cannot be created: {}", (temporary_ / name).string(),
                      std::strerror(errno));
  file.release();
  return stream;
}

// Opens the files behind what was recorded for the same job, else starts again.
void TokenShardWriter::continue_or_begin() {
  std::optional<RecordedProgress> progress = output_.job.empty() ? std::nullopt : read_progress(temporary_);
  // A process that was killed in finish() has moved the tokens already.
  if (progress && progress->job == output_.job && output_.megatron &&
      !name_exists(temporary_ / "tokens.bin") && name_exists(megatron_file(".bin")) &&
      !name_exists(megatron_file(".idx")))
    rename_to(megatron_file(".bin"), temporary_ / "tokens.bin", RenameMode::kNoReplace);
  require_free_place();
  if (progress && progress->job != output_.job)
    throw_config(
        "{}: holds the beginning of other work (other inputs, another tokenizer or other options): repeat "
        "that command, remove the folder or give another --out",
        temporary_.string());
  make_folders(temporary_);
  ends_ = open("documents.bin");
  const Descriptor locked(::dup(::fileno(ends_.get())));
  if (::flock(locked.get(), LOCK_EX | LOCK_NB) != 0 || !is_same_file(temporary_ / "documents.bin", locked))
    throw_config("{}: is being written by another process: wait for it or give another --out",
                 temporary_.string());
  tokens_ = open("tokens.bin");
  const size_t width = header_.wide ? 4 : 2;
  const auto size_of = [](const File& file) { return regular_size(::fileno(file.get()), "documents"); };
  if (progress && (size_of(tokens_) < progress->tokens * width || size_of(ends_) < progress->documents * 8))
    progress.reset();  // the machine went down: start again
  recorded_ = progress ? progress->inputs : 0;
  header_.tokens = progress ? progress->tokens : 0;
  header_.documents = progress ? progress->documents : 0;
  const auto cut = [&](const File& file, uint64_t bytes) {
    if (::ftruncate(::fileno(file.get()), static_cast<off_t>(bytes)) != 0 ||
        std::fseek(file.get(), 0, SEEK_END) != 0)
      throw_save_failed("token shard {}: cannot be continued: {}", temporary_.string(), std::strerror(errno));
  };
  cut(tokens_, header_.tokens * width);
  cut(ends_, header_.documents * 8);
}

void TokenShardWriter::write(File& file, const void* data, size_t size) {
  if (std::fwrite(data, 1, size, file.get()) != size)
    throw_save_failed("token shard {}: write failed: {}", temporary_.string(), std::strerror(errno));
}

void TokenShardWriter::append(std::span<const int64_t> tokens) {
  for (const int64_t token : tokens) {
    if (token < 0 || static_cast<uint64_t>(token) >= header_.vocab_size)
      throw_bug("token {} does not fit a vocabulary of {} entries", token, header_.vocab_size);
  }
  const auto write_as = [&]<typename Token>(Token) {
    const std::vector<Token> narrow(tokens.begin(), tokens.end());
    write(tokens_, narrow.data(), narrow.size() * sizeof(Token));
  };
  header_.wide ? write_as(uint32_t{}) : write_as(uint16_t{});
  header_.tokens += tokens.size();
}

void TokenShardWriter::end_document() {
  header_.documents += 1;
  write(ends_, &header_.tokens, sizeof(header_.tokens));
}

void TokenShardWriter::flush(File& file) {
  if (std::fflush(file.get()) != 0 || ::fsync(::fileno(file.get())) != 0)
    throw_save_failed("token shard {}: write failed: {}", temporary_.string(), std::strerror(errno));
}

void TokenShardWriter::record(uint64_t inputs) {
  flush(tokens_);
  flush(ends_);
  const nlohmann::ordered_json json = {
      {"job", output_.job}, {"inputs", inputs}, {"tokens", header_.tokens}, {"documents", header_.documents}};
  write_file_atomic(temporary_ / kProgress, json.dump() + "\n");
  recorded_ = inputs;
}

ShardHeader TokenShardWriter::finish() {
  if (header_.tokens == 0) throw_data("token shard {}: the input holds no tokens", folder_.string());
  flush(tokens_);
  flush(ends_);
  std::error_code ignored;
  if (output_.megatron) {
    const fs::path index = temporary_ / "documents.idx";
    write_megatron_index(InputFile(temporary_ / "documents.bin"),
                         header_.wide ? TokenType::kI32 : TokenType::kU16, index);
    rename_to(temporary_ / "tokens.bin", megatron_file(".bin"), RenameMode::kNoReplace);
    rename_to(index, megatron_file(".idx"), RenameMode::kNoReplace);
    fs::remove_all(temporary_, ignored);
  } else {
    header_.tokens_xxh3 = hash_hex(InputFile(temporary_ / "tokens.bin"));
    header_.documents_xxh3 = hash_hex(InputFile(temporary_ / "documents.bin"));
    write_file_atomic(temporary_ / "index.json", shard_header_json(header_));
    // rename(2) replaces an empty folder, and refuses one that was filled in the meantime.
    rename_to(temporary_, folder_, RenameMode::kReplace);
    fs::remove(folder_ / kProgress, ignored);
  }
  temporary_.clear();
  return header_;
}

}  // namespace hyperion::data
