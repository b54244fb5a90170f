// Where documents come from: the files behind a dataset path, and a source of tokenised documents for each of
// them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/json_lines.h"

namespace hyperion::data {

// The tokens of one document's text, BOS and EOS included where the tokenizer has them.
using Encode = std::function<std::vector<int32_t>(std::string_view)>;

// The documents of one file or token shard, in random order. Not for use by two threads at once.
class DocumentSource {
 public:
  virtual ~DocumentSource() = default;

  virtual uint64_t documents() const = 0;  // at least 1
  // The document's line in the file (in a token shard: its number), counted from 1.
  virtual uint64_t line(uint64_t document) const = 0;
  // Makes a document the current one and returns its length in tokens. Throws Error(kBadData) naming
  // file:line.
  virtual uint64_t open(uint64_t document) = 0;
  // Tokens [offset, offset + out.size()) of the current document.
  virtual void copy(uint64_t offset, std::span<int64_t> out) const = 0;
};

enum class CorpusFormat { kText, kTokenShard };  // JSON lines, a folder of `hyperion tokenize`

struct CorpusFile {
  std::filesystem::path path;
  std::string name;  // relative to the dataset path: the same wherever the data is stored
  uint64_t size;     // bytes on disk (of a shard: of its tokens)
  CorpusFormat format;
};

// The files behind a dataset path, sorted by name. A path is a file of JSON lines, a token shard, a folder,
// or a glob pattern (* ? [...] {a,b}) of these. A folder is searched recursively for token shards and for
// names that end in .json, .jsonl or .ndjson, plain or with .gz or .zst. Files and folders in it whose names
// begin with a dot are left out, and so are those that a part of a pattern matches that does not begin with
// one; `hidden`, unless it is null, is given those in folders, without what is in them. Throws
// Error(kBadData) when there are no files or one is empty; `key`: the option that set the path.
std::vector<CorpusFile> find_corpus(const std::string& dataset_path,
                                    const std::string& key = "training.dataset_path",
                                    std::vector<std::filesystem::path>* hidden = nullptr);

// find_corpus(), with one line in the log when something was left out: for the start of a job or command.
std::vector<CorpusFile> find_corpus_and_log(const std::string& dataset_path, const std::string& key);

// XXH3 of names, sizes and shard headers: what ranks compare at start and a restored loader expects.
uint64_t corpus_fingerprint(const std::vector<CorpusFile>& files);

// The first line of each text file holds the field: see JsonLines::check_first_line(). `key`: as for
// find_corpus_and_log().
void check_text_field(const std::string& dataset_path, const TextField& field, const std::string& key);

// Opens one file (see JsonLines and ShardSource for what that costs). `encode` and `field` are not used by
// shards.
std::unique_ptr<DocumentSource> open_source(const CorpusFile& file, const Encode& encode,
                                            const TextField& field = {});

}  // namespace hyperion::data
