#include "trainer/config/validate_sources.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/printable.h"
#include "trainer/config/input_path.h"
#include "trainer/config/list_checks.h"

namespace hyperion::config {
namespace {

class SourceChecks : public ListChecks {
 public:
  SourceChecks(const ResolvedConfig& resolved, const char* list, const DataSources& sources,
               Problems& problems)
      : ListChecks(resolved, list, problems), sources_(sources) {}

  void names() {
    std::map<std::string, size_t> seen;
    for (size_t i = 0; i < sources_.size(); ++i) {
      const std::string name = name_of(sources_[i]);
      const bool valid = is_name(name);
      if (!valid && sources_[i].name)
        refuse(i, "name", name, kNameRule);
      else if (!valid)
        refuse(i, "path", sources_[i].path, "has no part that can name the source: give it a name");
      else if (const auto [first, fresh] = seen.emplace(name, i); !fresh)
        refuse(i, sources_[i].name ? "name" : "path", sources_[i].name ? name : sources_[i].path,
               fmt::format("the source {} is called {} too, and metrics and checkpoints go by names: give it "
                           "another name",
                           first->second, name));
    }
  }

  void one_of(const std::string& key, bool is_set) {
    if (!sources_.empty() && is_set)
      problems_.add(
          resolved_, key,
          fmt::format("{} ({}) name the data too: keep one of them", list_, resolved_.origin(list_)));
  }

  void paths(const std::filesystem::path& base) {
    for (size_t i = 0; i < sources_.size(); ++i) {
      const std::string& path = sources_[i].path;
      if (matches_an_input(resolve_input(path, base))) continue;
      refuse(i, "path", path,
             fmt::format("no such file or folder, neither in {} nor in {}",
                         std::filesystem::current_path().string(), base.string()));
    }
  }

 private:
  void refuse(size_t index, const char* key, const std::string& text, const std::string& problem) {
    ListChecks::refuse(index, key, fmt::format("\"{}\"", printable(text)), problem);
  }

  const DataSources& sources_;
};

}  // namespace

void check_sources(const ResolvedConfig& resolved, Problems& problems) {
  const JobConfig& config = resolved.config;
  SourceChecks training(resolved, "training.sources", config.training.sources, problems);
  training.one_of("training.dataset_path", config.training.dataset_path.has_value());
  training.names();
  SourceChecks validation(resolved, "validation.sources", config.validation.sources, problems);
  validation.one_of("validation.dataset_path", config.validation.dataset_path.has_value());
  validation.names();
}

void check_source_paths(const ResolvedConfig& resolved, std::string_view key,
                        const std::filesystem::path& base, Problems& problems) {
  const JobConfig& config = resolved.config;
  if (key == "training.dataset_path")
    SourceChecks(resolved, "training.sources", config.training.sources, problems).paths(base);
  if (key == "validation.dataset_path" && config.validation.enable)
    SourceChecks(resolved, "validation.sources", config.validation.sources, problems).paths(base);
}

}  // namespace hyperion::config
