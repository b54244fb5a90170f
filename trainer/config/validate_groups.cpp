#include "trainer/config/validate_groups.h"

#include <algorithm>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/nearest.h"
#include "base/printable.h"
#include "models/description.h"
#include "trainer/config/list_checks.h"

namespace hyperion::config {
namespace {

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  for (size_t first = 0; first <= name.size();) {
    const size_t end = std::min(name.find('.', first), name.size());
    parts.push_back(name.substr(first, end - first));
    first = end + 1;
  }
  return parts;
}

// The names of a model's parameters, for messages.
class ParameterNames {
 public:
  explicit ParameterNames(const models::ModelArgs& model) {
    std::set<std::string> parts;
    models::for_each_named_parameter(
        models::describe_model(model), [&](const std::string& fqn, const models::ParameterShape& shape) {
          all_.push_back(fqn);
          const std::string form = fqn.starts_with("layers.") ? "layers.*." + shape.name : fqn;
          if (std::ranges::find(forms_, form) == forms_.end()) forms_.push_back(form);
          for (std::string& part : parts_of(fqn)) parts.insert(std::move(part));
        });
    parts_.assign(parts.begin(), parts.end());
  }

  bool any_matches(const std::string& pattern) const {
    return std::ranges::any_of(all_, [&](const std::string& fqn) { return matches(pattern, fqn); });
  }

  // Returns the pattern with each part that no name has replaced by the nearest part of a name; "" if none is
  // near.
  std::string nearest(const std::string& pattern) const {
    std::vector<std::string> parts = parts_of(pattern);
    bool changed = false;
    for (std::string& part : parts) {
      const size_t first = part.find_first_not_of('*'), last = part.find_last_not_of('*');
      if (first == part.npos) continue;
      const std::string word = part.substr(first, last + 1 - first);
      const auto has_word = [&](const std::string& known) { return known.find(word) != known.npos; };
      if (std::ranges::any_of(parts_, has_word)) continue;
      const std::string near = nearest_name(word, parts_);
      if (near.empty()) continue;
      part.replace(first, word.size(), near);
      changed = true;
    }
    const std::string text = fmt::format("{}", fmt::join(parts, "."));
    return changed && any_matches(text) ? text : "";
  }

  const std::vector<std::string>& forms() const { return forms_; }

 private:
  std::vector<std::string> all_, forms_, parts_;  // forms: with * for a block's number
};

class GroupChecks : public ListChecks {
 public:
  GroupChecks(const ResolvedConfig& resolved, Problems& problems)
      : ListChecks(resolved, "optimizer.groups", problems), groups_(resolved.config.optimizer.groups) {}

  void values() {
    constexpr double kLargest = std::numeric_limits<float>::max();
    for (size_t i = 0; i < groups_.size(); ++i) {
      const ParameterGroup& group = groups_[i];
      if (group.match.empty()) refuse(i, "match", "[]", "names no parameter");
      const double rate = group.lr_scale * resolved_.config.optimizer.lr;
      if (rate > kLargest)
        refuse(
            i, "lr_scale", fmt::format("{}", group.lr_scale),
            fmt::format("its learning rate {} is infinite in fp32, in which the update is computed", rate));
      if (group.weight_decay.value_or(0) > kLargest)
        refuse(
            i, "weight_decay", fmt::format("{}", *group.weight_decay),
            "expected at most 3.4e38: a larger number is infinite in fp32, in which the update is computed");
      for (const auto& [key, beta] : {std::pair("beta1", group.beta1), {"beta2", group.beta2}})
        if (static_cast<float>(beta.value_or(0)) == 1)
          refuse(
              i, key, fmt::format("{}", *beta),
              "expected at most 0.9999999: a larger number is 1 in fp32, and its average would never change");
    }
  }

  void names() {
    std::set<std::string> seen;
    for (size_t i = 0; i < groups_.size(); ++i) {
      const std::string name = name_of(groups_, i);
      if (!is_name(name))
        refuse(i, "name", fmt::format("\"{}\"", printable(name)), kNameRule);
      else if (!seen.insert(name).second)
        refuse(i, groups_[i].name ? "name" : "match", fmt::format("\"{}\"", name),
               "another group has this name, and metrics go by names");
    }
  }

  void patterns(const ParameterNames& names) {
    for (size_t i = 0; i < groups_.size(); ++i)
      for (const std::string& pattern : groups_[i].match)
        if (!names.any_matches(pattern))
          refuse(i, "match", fmt::format("\"{}\"", printable(pattern)),
                 fmt::format("matches no parameter{}; the model has {}", did_you_mean(names.nearest(pattern)),
                             fmt::join(names.forms(), ", ")));
  }

 private:
  const ParameterGroups& groups_;
};

}  // namespace

void check_groups(const ResolvedConfig& resolved, const std::optional<models::ModelArgs>& model,
                  Problems& problems) {
  if (resolved.config.optimizer.groups.empty()) return;
  GroupChecks checks(resolved, problems);
  checks.values();
  checks.names();
  if (model) checks.patterns(ParameterNames(*model));
}

}  // namespace hyperion::config
