// Variables in job.dump_folder: one TOML file for many jobs, users and file systems.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "trainer/config/load.h"

namespace hyperion {

using VariableLookup = std::function<std::optional<std::string>(const std::string& name)>;

// `text` with every ${NAME} replaced by the environment variable of that name and every %j by the number of
// the SLURM job. Everything else stays as it is, another % or $ too. Throws Error(kUsage) when a variable is
// not set or empty, ${ has no end, or %j is used outside SLURM.
std::string expand_variables(const std::string& text, const VariableLookup& lookup);

// Expands job.dump_folder, naming its place in the file or on the command line when that fails.
void expand_dump_folder(ResolvedConfig& resolved, const VariableLookup& lookup);
void expand_dump_folder(ResolvedConfig& resolved);  // from the process's own environment

}  // namespace hyperion
