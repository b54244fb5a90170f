#include "data/sources.h"

#include <algorithm>
#include <exception>
#include <span>

#include <glob.h>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/printable.h"
#include "data/arrow/arrow_file.h"
#include "data/arrow/parquet_file.h"
#include "data/file_formats.h"
#include "data/json_lines.h"
#include "data/split_folder.h"
#include "data/token_formats.h"
#include "data/token_shards.h"

namespace hyperion::data {
namespace fs = std::filesystem;
namespace {

constexpr size_t kCheckedFooters = 16;
constexpr uint64_t kLargestWhole = uint64_t{4} << 20;  // of compressed text

// Tokenizes the texts of a file one document at a time.
class TextSource : public DocumentSource {
 public:
  TextSource(const fs::path& path, std::unique_ptr<TextFile> file, Encode encode)
      : path_(path), file_(std::move(file)), encode_(std::move(encode)) {}

  std::optional<uint64_t> blocks() const override { return file_->blocks(); }
  std::optional<uint64_t> open_block(uint64_t block) override { return file_->open_block(block); }
  uint64_t bytes_after_block() const override { return file_->bytes_after_block(); }
  uint64_t location(uint64_t document) const override { return file_->location(document); }
  uint64_t open(uint64_t document) override {
    const std::string_view text = file_->text(document);
    tokens_.clear();
    if (text.empty()) return 0;  // not even BOS and EOS
    try {
      tokens_ = encode_(text);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kBadData) throw;
      throw BadDocument(fmt::format("{}: {}", describe_location(path_, location(document)), error.what()));
    }
    return tokens_.size();
  }
  void copy(uint64_t offset, std::span<int64_t> out) const override {
    std::copy_n(tokens_.begin() + static_cast<ptrdiff_t>(offset), out.size(), out.begin());
  }

 private:
  fs::path path_;
  std::unique_ptr<TextFile> file_;
  Encode encode_;
  std::vector<int32_t> tokens_;
};

bool is_hidden(const fs::path& path) {
  return path.filename().native().starts_with('.');
}

bool named_like_documents(const fs::path& path) {
  if (is_named(path, FormatUse::kColumns)) return true;
  return is_named(is_named(path, FormatUse::kCompressed) ? fs::path(path).replace_extension() : path,
                  FormatUse::kText);
}

bool named_like_tokens(const fs::path& path) {
  const fs::path suffix = path.extension();
  return suffix == ".idx" || suffix == ".npy" || suffix == ".ds";
}

CorpusFormat format_of_content(const fs::path& path) {
  const FileFormat* format = format_by_name(path);
  if (format == nullptr) format = format_of(InputFile(path));  // given by its own path
  if (format == nullptr || format->use != FormatUse::kColumns) return CorpusFormat::kText;
  return format->name == "Parquet" ? CorpusFormat::kParquet : CorpusFormat::kArrow;
}

CorpusFile make_corpus_file(const fs::path& named, const fs::path& root) {
  const bool shard = is_token_shard(named);
  const auto tokens = shard ? std::nullopt : token_file_of(named, Named::kByUser);
  const fs::path path = tokens ? tokens->first : named;
  const fs::path content = shard ? path / "tokens.bin" : path;
  std::error_code error;
  uint64_t size = 0;
  if (fs::is_regular_file(content, error))
    size = fs::file_size(content, error);
  else
    InputFile{content};  // throws naming what it is
  if (error) throw_data("dataset file {}: cannot be examined: {}", path.string(), error.message());
  if (size == 0) throw_data("dataset file {}: is empty: remove it or write it again", path.string());
  return {path, path.lexically_relative(root).generic_string(), size,
          tokens  ? tokens->second
          : shard ? CorpusFormat::kTokenShard
                  : format_of_content(path)};
}

// Adds the file, the shard, or the content of the folder, in which links to folders are not followed; names
// are relative to `root`. Entries that would be read if their names did not begin with a dot go to
// `hidden`.
void add_path(const fs::path& path, const fs::path& root, std::vector<CorpusFile>& files,
              std::vector<fs::path>& hidden) {
  if (!is_folder(path) || is_token_shard(path)) {
    files.push_back(make_corpus_file(path, root));
    return;
  }
  std::error_code ignored;
  const auto is_token_file = [](const fs::path& entry) {
    const auto tokens = token_file_of(entry, Named::kByFolder);
    return tokens && tokens->first == entry;  // Megatron's X.idx stands for X.bin, which is an entry too
  };
  for (const fs::path& entry : list_folder(path)) {
    if (describes_dataset(entry)) continue;
    const bool folder = fs::is_directory(fs::symlink_status(entry, ignored));
    if (is_hidden(entry) || entry.extension() == ".partial") {  // of a `hyperion tokenize` that was killed
      if (folder || named_like_documents(entry) || named_like_tokens(entry)) hidden.push_back(entry);
    } else if (folder) {
      add_path(entry, root, files, hidden);
    } else if (is_token_shard(entry) ||
               ((named_like_documents(entry) || is_token_file(entry)) && !is_folder(entry))) {
      files.push_back(make_corpus_file(entry, root));
    }
  }
}

// The literal prefix of a pattern.
std::string fixed_part(const std::string& pattern) {
  return pattern.substr(0, pattern.find_first_of("*?[{"));
}

std::vector<fs::path> expand_glob(const std::string& pattern) {
  glob_t matches{};
  const int status = ::glob(pattern.c_str(), GLOB_BRACE, nullptr, &matches);
  const std::unique_ptr<glob_t, void (*)(glob_t*)> guard(&matches, globfree);
  if (status != 0 && status != GLOB_NOMATCH) throw_data("dataset pattern {}: cannot be expanded", pattern);
  // ".*" also matches "." and "..", which a pattern means only if it spells them out.
  const size_t fixed = fixed_part(pattern).size();
  const bool writes_dots = pattern.find("./", fixed) != pattern.npos;
  std::vector<fs::path> paths;
  for (const char* text : std::span(matches.gl_pathv, matches.gl_pathc)) {
    const std::string_view path = text;
    const fs::path matched = path.substr(std::min(path.rfind('/', fixed) + 1, path.size()));
    if (writes_dots ||
        std::ranges::none_of(matched, [](const fs::path& part) { return part == "." || part == ".."; }))
      paths.emplace_back(path);
  }
  return paths;
}

std::string describe_hidden(const std::vector<fs::path>& hidden) {
  if (hidden.size() == 1)
    return fmt::format("1 file or folder whose name begins with a dot ({})", printable(hidden.front()));
  return fmt::format("{} files and folders whose names begin with a dot ({} ...)", hidden.size(),
                     printable(hidden.front()));
}

// A file in the folder whose format is refused; "" if there is none.
fs::path refused_file(const fs::path& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (is_hidden(it->path()))
      it.disable_recursion_pending();
    else if (is_named(it->path(), FormatUse::kRefused))
      return it->path();
  }
  return {};
}

}  // namespace

std::vector<CorpusFile> find_corpus(const std::string& dataset_path, const std::string& key,
                                    std::vector<fs::path>* hidden) {
  std::vector<fs::path> left_out;
  if (dataset_path.empty()) throw_config("{} is empty, expected a path", key);
  std::vector<CorpusFile> files;
  if (path_exists(dataset_path)) {
    // "folder/" and "." name the folder itself
    fs::path path = fs::path(dataset_path).lexically_normal();
    if (!path.has_filename() && path.has_relative_path()) path = path.parent_path();
    add_path(path, is_folder(path) && !is_token_shard(path) ? path : path.parent_path(), files, left_out);
  } else {
    const fs::path fixed = fixed_part(dataset_path);
    std::vector<fs::path> paths = expand_glob(dataset_path);
    if (paths.empty())
      paths = expand_glob(dataset_path + ".idx");  // Megatron's options name X.bin and X.idx as X
    for (const fs::path& path : paths) add_path(path, fixed.parent_path(), files, left_out);
  }
  if (files.empty()) {
    if (const fs::path other = refused_file(dataset_path); !other.empty()) {
      try {
        JsonLines{other};  // names the format and how to convert it
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{} {}: {}", key, dataset_path, error.what()));
      }
    }
    throw_data(
        "{} {}: no such file, and no folder or pattern with files named *.parquet, *.arrow, *.json, *.jsonl "
        "or *.ndjson (these plain, .gz, .zst or .zstd), token shards or token files (*.bin with *.idx, *.ds, "
        "*.npy){}",
        key, dataset_path,
        left_out.empty()
            ? ""
            : fmt::format("; left out {}: give the path itself to read one", describe_hidden(left_out)));
  }
  std::sort(files.begin(), files.end(),
            [](const CorpusFile& a, const CorpusFile& b) { return a.name < b.name; });
  const auto again = std::ranges::unique(files, {}, &CorpusFile::path);  // X.bin and X.idx are one
  files.erase(again.begin(), again.end());
  refuse_several_splits(files, dataset_path, key);
  if (hidden != nullptr) *hidden = std::move(left_out);
  return files;
}

std::vector<CorpusFile> find_corpus_and_log(const std::string& dataset_path, const std::string& key) {
  std::vector<fs::path> hidden;
  std::vector<CorpusFile> files = find_corpus(dataset_path, key, &hidden);
  if (!hidden.empty())
    log_info("{} {}: left out {}; give the path itself to read one", key, dataset_path,
             describe_hidden(hidden));
  return files;
}

uint64_t corpus_fingerprint(const std::vector<CorpusFile>& files) {
  uint64_t hash = hash_text("hyperion corpus 1");
  for (const CorpusFile& file : files) {
    hash = hash_text(file.name, hash);
    hash = hash_bytes(&file.size, sizeof(file.size), hash);
    if (file.format == CorpusFormat::kTokenShard) hash = hash_text(read_file(file.path / "index.json"), hash);
    if (const auto index = token_index_of(file); !index.empty()) {
      const uint64_t size = InputFile(index).size();
      hash = hash_bytes(&size, sizeof(size), hash);
    }
  }
  return hash;
}

std::unique_ptr<TextFile> open_text(const CorpusFile& file, const TextField& field, TextBlocks blocks) {
  switch (file.format) {
    case CorpusFormat::kText:
      return std::make_unique<JsonLines>(file.path, field, blocks);
    case CorpusFormat::kParquet:
      return std::make_unique<ParquetFile>(file.path, field);
    case CorpusFormat::kArrow:
      return std::make_unique<ArrowFile>(file.path, field);
    default:
      return nullptr;  // tokens
  }
}

bool is_sequential(const CorpusFile& file) {
  return file.format == CorpusFormat::kText && is_named(file.path, FormatUse::kCompressed);
}

bool has_many_blocks(const CorpusFile& file) {
  return (holds_text(file.format) && !is_sequential(file)) || file.format == CorpusFormat::kNumpy ||
         file.format == CorpusFormat::kLlmC;
}

bool is_one_block(const CorpusFile& file) {
  if (file.format != CorpusFormat::kText) return !has_many_blocks(file);
  return file.size <= kLargestWhole || !is_compressed(InputFile(file.path));
}

std::unique_ptr<DocumentSource> open_source(const CorpusFile& file, const Encode& encode,
                                            const TextField& field, bool one_block) {
  if (!holds_text(file.format)) return open_tokens(file);
  if (!encode) throw_bug("{}: holds text, but no tokenizer was given", file.path.string());
  auto text =
      open_text(file, field, one_block && is_one_block(file) ? TextBlocks::kWhole : TextBlocks::kStretches);
  return std::make_unique<TextSource>(file.path, std::move(text), encode);
}

std::optional<std::string> sample_text(const CorpusFile& file, const TextField& field, bool skip_bad) {
  constexpr uint64_t kMaxLooked = 256;
  const std::unique_ptr<TextFile> texts = open_text(file, field, TextBlocks::kSample);
  if (!texts) return std::nullopt;
  uint64_t looked = 0, bad = 0;
  std::exception_ptr first_bad;
  for (uint64_t block = 0; looked < kMaxLooked; ++block) {
    const std::optional<uint64_t> documents = texts->open_block(block);
    if (!documents) break;
    for (uint64_t i = 0; i < *documents && looked < kMaxLooked; ++i, ++looked) {
      try {
        if (const std::string_view text = texts->text(i); !text.empty()) return std::string(text);
      } catch (const BadDocument&) {
        if (!skip_bad) throw;
        if (bad++ == 0) first_bad = std::current_exception();
      }
    }
  }
  if (looked > 0 && bad == looked) std::rethrow_exception(first_bad);
  return "";
}

void check_text_field(const SourceOptions& source, bool skip_bad) {
  const std::vector<CorpusFile> files = find_corpus_and_log(source.path, source.key);
  const size_t step = files.size() / kCheckedFooters + 1;
  for (size_t i = 0; i < files.size(); ++i)
    if (files[i].format == CorpusFormat::kText || i % step == 0 || i + 1 == files.size())
      sample_text(files[i], source.text_field, skip_bad);
}

}  // namespace hyperion::data
