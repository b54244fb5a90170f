// The schema lists every configuration key in the order of torchtitan v0.2.2's tables. The TOML reader, the
// command line, `--help`, `hyperion config` and docs/configuration.md use it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/option.h"

namespace hyperion::config {

// Lists the features that a configuration can switch on, each with the reason for its refusal if it does not
// exist yet. A new feature gets the refusal "" in features.def; the check, --help and the reference follow.
#define FEATURE(name, ...) extern const Feature name;
#include "trainer/config/features.def"
const std::vector<const Feature*>& features();

struct Section {
  std::string name;  // "training.dataloader"
  std::string meaning;
  std::vector<Option> options;
};

// The keys of one table of "training.sources" or "validation.sources", named "training.sources.path".
const TableKeys& source_keys(std::string_view list);
// The keys of one table of "optimizer.groups".
const TableKeys& group_keys();

const std::vector<Section>& schema();
// Returns the options of all sections in the schema's order.
const std::vector<std::reference_wrapper<const Option>>& all_options();

// Returns the option of this dotted name, or null.
const Option* find_option(std::string_view name);
// Returns whether `name` is a table: "training", "training.dataloader" or "quantize" (a table of tables).
bool is_section(std::string_view name);

// Returns "works", "not available" or "no effect here" for --help and the reference.
std::string status_text(const Option& option);

}  // namespace hyperion::config
