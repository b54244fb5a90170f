// The checks of [[training.sources]] and [[validation.sources]].
#pragma once

#include <filesystem>
#include <string_view>

#include "trainer/config/load.h"

namespace hyperion::config {

// Adds problems of the lists of sources: a data set that is named twice, names that are equal or none.
void check_sources(const ResolvedConfig& resolved, Problems& problems);

// Adds a problem for each source in place of `key`, training.dataset_path or validation.dataset_path, whose
// files do not exist. `base` is as for resolve_input().
void check_source_paths(const ResolvedConfig& resolved, std::string_view key,
                        const std::filesystem::path& base, Problems& problems);

}  // namespace hyperion::config
