// `hyperion tokenize --out DIR [--tokenizer DIR] [--text-field NAME] INPUT...`: text corpora to one token
// shard (token_shards.h), so that training reads tokens instead of text.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace hyperion {

// `out`: the folder to write; must be missing or empty. `tokenizer`: as Tokenizer::load takes it. `inputs`:
// as find_corpus takes them, read in this order, files of one input by name; `text_field` of each line. Logs
// what was written and returns ExitCode::kOk. Throws Error(kUsage, kBadData); then nothing is left at `out`.
ExitCode tokenize_command(const std::string& out, const std::string& tokenizer,
                          const std::vector<std::string>& inputs, const std::string& text_field = "text");

}  // namespace hyperion
