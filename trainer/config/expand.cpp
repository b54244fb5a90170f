#include "trainer/config/expand.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/error.h"
#include "base/printable.h"
#include "trainer/config/input_path.h"

namespace hyperion::config {
namespace {

bool is_name(const std::string& text) {
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) == 0 &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

std::string environment_value(const std::string& name, const char* remedy) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr || *value == '\0')
    throw_config("the environment variable {} is {}: {}", name, value != nullptr ? "empty" : "not set",
                 remedy);
  return value;
}

}  // namespace

std::string expand_variables(const std::string& text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    if (text.compare(at, 2, "%j") == 0) {
      result += environment_value("SLURM_JOB_ID",
                                  "%j is the number of a SLURM job, and this is none; write it out");
      at += 2;
    } else if (text.compare(at, 2, "${") == 0) {
      const size_t end = text.find('}', at);
      const std::string name = end == std::string::npos ? "" : text.substr(at + 2, end - at - 2);
      if (!is_name(name)) throw_config("'{}': expected ${{NAME}}", printable(text.substr(at)));
      result += environment_value(name, "set it, or write the value instead");
      at = end + 1;
    } else {
      result += text[at++];
    }
  }
  return result;
}

void expand_dump_folder(ResolvedConfig& resolved) {
  std::string& folder = resolved.config.job.dump_folder;
  try {
    folder = expand_variables(folder);
    if (const std::string problem = url_problem(folder); !problem.empty()) throw_config("{}", problem);
  } catch (const Error& error) {
    throw_config("{}: job.dump_folder = \"{}\": {}", resolved.origin("job.dump_folder"),
                 printable(std::filesystem::path(folder)), error.what());
  }
}

}  // namespace hyperion::config
