// Parses configuration options of the command line: --a.b v, --a.b=v, and --a.b / --a.no_b for true and
// false.
#pragma once

#include <string>
#include <vector>

namespace hyperion::config {

// One option of the command line. `name` is dotted, with underscores, and need not exist: load.h checks name
// and value, so that all mistakes are reported together.
struct Override {
  std::string name;
  std::string value;
  bool has_value = true;  // false: the value is missing
};

// Returns the option that sets `key` to `value`, quoted for a shell: "--optimizer.lr=0.1",
// "'--job.dump_folder=my runs'". Messages name their remedies in this form.
std::string override_text(const std::string& key, const std::string& value);

// Removes every option with a dot in its name from `arguments`, with its value, and returns them in order.
// `-` and `_` are equal in names. A value may be negative but may not start with "--" unless it follows '='.
std::vector<Override> take_overrides(std::vector<std::string>& arguments);

}  // namespace hyperion::config
