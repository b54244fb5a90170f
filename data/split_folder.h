// Folders of Parquet and Arrow files as the Hugging Face Hub and its datasets library lay them out: several
// splits side by side, with files that describe them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "data/sources.h"

namespace hyperion::data {

// The split that a file belongs to by its name or that of a folder above it ("train-00000-of-00010.parquet",
// "test/0000.parquet"): "train", "validation" or "test"; "" if no name says.
std::string_view split_of(std::string_view name);

// Throws Error(kBadData) if Parquet or Arrow files of more than one split are there, unless the path is a
// pattern: a job would train on what it is to be judged by. `key` is the option that set the path.
void refuse_several_splits(std::span<const CorpusFile> files, const std::string& dataset_path,
                           const std::string& key);

// Returns whether the file describes a saved dataset or caches what was made of it, so holds no documents to
// read.
bool describes_dataset(const std::filesystem::path& path);

}  // namespace hyperion::data
