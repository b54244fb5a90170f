// Variables in job.dump_folder: one TOML file for many jobs, users and file systems.
#pragma once

#include <string>

#include "trainer/config/load.h"

namespace hyperion::config {

// `text` with every ${NAME} replaced by the environment variable of that name and every %j by the number of
// the SLURM job. Everything else stays as it is, another % or $ too. Throws Error(kUsage) when a variable is
// not set or empty, ${ has no end, or %j is used outside SLURM.
std::string expand_variables(const std::string& text);

// Expands job.dump_folder. A failure names the place of the key in the file or on the command line.
void expand_dump_folder(ResolvedConfig& resolved);

}  // namespace hyperion::config
