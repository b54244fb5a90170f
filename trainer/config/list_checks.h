// The base class of the checks of a list of tables, [[training.sources]] or [[optimizer.groups]].
#pragma once

#include <cstddef>
#include <string>

#include "trainer/config/load.h"

namespace hyperion::config {

// Checks of one list add problems, each under a key of one of its tables.
class ListChecks {
 public:
  ListChecks(const ResolvedConfig& resolved, const char* list, Problems& problems)
      : resolved_(resolved), list_(list), problems_(problems) {}

 protected:
  static constexpr const char* kNameRule = "expected 1 to 100 letters, digits, '-', '.' or '_'";
  // Returns whether metrics and checkpoints can go by this name.
  static bool is_name(const std::string& name);
  // `value` is as TOML writes it.
  void refuse(size_t index, const char* key, const std::string& value, const std::string& text);

  const ResolvedConfig& resolved_;
  const std::string list_;
  Problems& problems_;
};

}  // namespace hyperion::config
