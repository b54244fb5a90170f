// Options of the configuration on the command line: --a.b v, --a.b=v, and --a.b / --a.no_b for true and
// false.
#pragma once

#include <string>
#include <vector>

namespace hyperion::config {

// One option, in the order of the command line. `name` is dotted with underscores and need not exist; reading
// the configuration checks name and value (load.h), so that all mistakes are reported together.
struct Override {
  std::string name;
  std::string value;
  bool has_value = true;  // false: the value is missing
};

// How `key` gets `value` on the command line, ready to be pasted: "--optimizer.lr=0.1",
// "'--job.dump_folder=my runs'". Messages name their remedies in this form.
std::string override_text(const std::string& key, const std::string& value);

// Removes every option with a dot in its name from `arguments`, with its value, and returns them. In names
// `-` and `_` are alike. A value may be negative but, unless it follows '=', may not start with "--".
std::vector<Override> take_overrides(std::vector<std::string>& arguments);

}  // namespace hyperion::config
