// Finds files of tokens by their names and first bytes, and describes them for the start of a job.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "data/sources.h"

namespace hyperion::data {

enum class Named { kByUser, kByFolder };  // a path or pattern names the file, or it was found in a folder

// The file of tokens that a path stands for, and its format; X.bin for Megatron's X.idx. nullopt if it is no
// token file. In a folder, numpy's own .npy (Megatron's cache has some) and a .bin of another program are
// none. Throws Error(kBadData) if half of a pair is missing.
std::optional<std::pair<std::filesystem::path, CorpusFormat>> token_file_of(const std::filesystem::path& path,
                                                                            Named named);

// The file with the documents' ends that belongs to a token file; "" if there is none.
std::filesystem::path token_index_of(const CorpusFile& file);

// Opens a token shard or a token file.
std::unique_ptr<TokenFileSource> open_tokens(const CorpusFile& file);

// Opens every token file and samples up to 16 of them: one log line says format, type, the largest token
// with the vocabularies and how many documents end with EOS. Throws Error(kBadData) for a file that cannot
// be read or a token outside of the model's vocabulary. `key` is the option that named the files.
void check_token_files(std::span<const CorpusFile> files, const TokenFacts& facts, const std::string& key);

}  // namespace hyperion::data
