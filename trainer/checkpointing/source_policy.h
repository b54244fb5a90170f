// The sources of the data as settings that a resume compares.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "data/source_state.h"
#include "trainer/config/data_source.h"

namespace hyperion::checkpointing {

// The shares of a job without sources.
inline constexpr const char* kOneDataSet = "dataset_path";

// Returns "code=0.25,wiki=0.75", the sources' shares of the sequences; kOneDataSet without sources.
std::string shares_text(const std::vector<data::SourceState>& sources);

// Gives the sources the shares of such a text as their weights. Returns false if they are other sources.
bool take_shares(const std::string& text, config::DataSources& sources);

// Returns a text of each side for every source whose files, text field or tokenizer differ: a source that
// starts again from its beginning.
std::vector<std::pair<std::string, std::string>> sources_of_other_data(
    const std::vector<data::SourceState>& saved, const std::vector<data::SourceState>& now);

}  // namespace hyperion::checkpointing
