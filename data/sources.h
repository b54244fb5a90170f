// Finds the files behind a dataset path, and opens each as a source of tokenized documents.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/document_source.h"
#include "data/text_field.h"
#include "data/token_file.h"

namespace hyperion::data {

class NodeDocuments;

// One source of documents: one of a list, or the only one, which has no name.
struct SourceOptions {
  std::string name{};                         // in messages, metrics and states; unique
  std::string path{};                         // see find_corpus()
  std::string key = "training.dataset_path";  // the option that set the path, for messages
  TextField text_field{};                     // for JSON lines, Parquet and Arrow
  double weight = 1;                          // above 0; in any unit
  std::optional<uint64_t> max_epochs{};       // the source has ended after these
  // If set, the ranks of this node share tokenization. Used if all files are text and the order repeats.
  std::shared_ptr<NodeDocuments> node{};
};

// Encodes one document's text, with BOS and EOS if the tokenizer has them.
using Encode = std::function<std::vector<int32_t>(std::string_view)>;

enum class CorpusFormat {
  kText,        // JSON lines
  kParquet,     // text in a column
  kArrow,       // the same
  kTokenShard,  // a folder of `hyperion tokenize`
  kMegatron,    // X.bin of Megatron-LM, with X.idx
  kDatatrove,   // X.ds with X.ds.index
  kNumpy,       // X.npy, of OLMo-core and dolma without a header, or numpy's own
  kLlmC,        // X.bin of llm.c
};

// Returns whether files of the format hold columns, one of which is the text.
inline bool holds_columns(CorpusFormat format) {
  return format == CorpusFormat::kParquet || format == CorpusFormat::kArrow;
}

// Returns whether files of the format hold text, which is encoded while it is read.
inline bool holds_text(CorpusFormat format) {
  return format == CorpusFormat::kText || holds_columns(format);
}

struct CorpusFile {
  std::filesystem::path path;
  std::string name;  // relative to the dataset path, so independent of where the data is stored
  uint64_t size;     // bytes on disk (for a shard: of its tokens)
  CorpusFormat format;
  TokenFacts facts{};  // of the job, for token_formats.h; set by the loader
};

// The files behind a dataset path, sorted by name. A path is a file of JSON lines, Parquet or Arrow, a token
// shard, a token file (token_formats.h) or X for X.bin and X.idx, a folder, or a glob pattern (* ? [...]
// {a,b}) of these. A folder is searched recursively for token shards, token files, and names that end in
// .parquet, .arrow, or .json, .jsonl or .ndjson, plain or with .gz, .zst or .zstd. Names in it that begin
// with a dot are left out, and so are such names that match a pattern component which does not begin with a
// dot. If `hidden` is not null, it receives the names left out in folders, without their content. Throws
// Error(kBadData) if there are no files, one is empty, or a folder has columns of several splits (see
// split_folder.h); `key` is the option that set the path.
std::vector<CorpusFile> find_corpus(const std::string& dataset_path,
                                    const std::string& key = "training.dataset_path",
                                    std::vector<std::filesystem::path>* hidden = nullptr);

// Calls find_corpus() and logs one line if something was left out: for the start of a job or command.
std::vector<CorpusFile> find_corpus_and_log(const std::string& dataset_path, const std::string& key);

// XXH3 of names, sizes and shard headers. Ranks compare it at start, and a restored loader requires it.
uint64_t corpus_fingerprint(const std::vector<CorpusFile>& files);

// Opens a file of texts; null for other formats.
std::unique_ptr<TextFile> open_text(const CorpusFile& file, const TextField& field,
                                    TextBlocks blocks = TextBlocks::kStretches);

// Returns whether the blocks of the file can be opened in any order, as far as its name tells, and whether
// they are opened in ascending order.
bool has_many_blocks(const CorpusFile& file);
bool is_sequential(const CorpusFile& file);
// Returns whether the file alone is one block, with its documents in any order.
bool is_one_block(const CorpusFile& file);

// Opens one file (see LineFile and ShardSource for the cost). `encode` and `field` are not used by shards.
// With `one_block` a file of plain text is one block, so that its documents can be in any order, and so is
// compressed text of at most 4 MiB on disk.
std::unique_ptr<DocumentSource> open_source(const CorpusFile& file, const Encode& encode,
                                            const TextField& field = {}, bool one_block = false);

// A file's first text that is not empty, of the first hundreds of documents, without reading the rest; "" if
// they are all empty. Throws as TextFile::text() does, with `skip_bad` only if all of them are bad. nullopt
// for formats that hold no text.
std::optional<std::string> sample_text(const CorpusFile& file, const TextField& field, bool skip_bad = false);

// Checks that the first document of each text file holds the field, as sample_text() does, and logs what
// find_corpus_and_log() logs.
void check_text_field(const SourceOptions& source, bool skip_bad = false);

}  // namespace hyperion::data
