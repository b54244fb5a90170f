// Every configuration key there is, in the order of torchtitan v0.2.2's tables. One table serves the TOML
// reader, the command line, `--help`, `hyperion config` and docs/configuration.md.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/option.h"

namespace hyperion::config {

// The features that a configuration can switch on, with the reason why one is refused that does not exist
// yet. A new feature gets the refusal "" in features.def: the check, --help and the reference follow.
#define FEATURE(name, ...) extern const Feature name;
#include "trainer/config/features.def"
const std::vector<const Feature*>& features();

struct Section {
  std::string name;  // "training.dataloader"
  std::string meaning;
  std::vector<Option> options;
};

const std::vector<Section>& schema();
// The options of all sections, in the order of the schema.
const std::vector<std::reference_wrapper<const Option>>& all_options();

// The option of this dotted name, or null.
const Option* find_option(std::string_view name);
// True for "training", "training.dataloader" and "quantize" (a table that only holds tables).
bool is_section(std::string_view name);

// For --help and the reference: "works", "not available", "no effect here".
std::string status_text(const Option& option);

}  // namespace hyperion::config
