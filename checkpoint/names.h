// Names in checkpoints: one canonical form for all of them, the user's rename table, and the message about
// names that do not fit. Nothing else in the program changes a name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hyperion::checkpoint {

// `key` without the segments that wrappers add (torch.compile's _orig_mod, _checkpoint_wrapped_module,
// _fsdp_wrapped_module, DistributedDataParallel's module), at any depth, also inside optimizer and EMA keys:
// "optimizer.state.layers.0._orig_mod.norm.weight.exp_avg". Keys of the loader and the other components stay
// as they are.
std::string canonical_name(std::string_view key);

// Whether a weight of the model has an average where averages are kept: the experts' biases, which are no
// parameters, have none, and serve both.
inline bool is_averaged(std::string_view name) {
  return !name.ends_with(".moe.expert_bias");
}

// checkpoint.rename: old -> new, applied on load after canonical_name.
using RenameTable = std::vector<std::pair<std::string, std::string>>;

class NameMap {
 public:
  // An old name is a regular expression (PCRE2) that must match the whole name; the new one may use its
  // groups as $1. The first pattern that matches decides. Optimizer and EMA keys are renamed by the
  // parameter's name inside them. Throws Error(kUsage) for a pattern that cannot be used.
  explicit NameMap(const RenameTable& table = {});

  // The name that `key` of a checkpoint has in this job. Throws Error(kUsage) when a pattern needs too long
  // for it.
  std::string apply(const std::string& key) const;

  // Name in this job -> key in the checkpoint, for all `keys`. Throws Error(kBadData) naming both when two
  // keys get the same name. Logs the names at level debug.
  std::map<std::string, std::string> apply(const std::vector<std::string>& keys) const;

 private:
  struct Rule;
  std::optional<std::string> rename_parameter(const std::string& name) const;
  std::vector<std::shared_ptr<const Rule>> rules_;
};

// XXH3 over the sorted names: equal exactly when the names are.
uint64_t names_hash(std::vector<std::string> names);
// Logs at level debug the names after `stage` ("saving", "canonical names") with their hash, and says when it
// differs from `expected`. Returns the hash.
uint64_t trace_names(std::string_view stage, const std::vector<std::string>& names,
                     std::optional<uint64_t> expected = std::nullopt);

// A name on both sides whose shape or dtype differs, in words: "float32 [8, 4]".
struct Mismatch {
  std::string name, wanted, found;
};

struct NameDifferences {
  std::vector<std::string> missing;     // wanted, not found
  std::vector<std::string> unexpected;  // found, not wanted
  std::vector<Mismatch> mismatched{};   // filled by the caller
  bool empty() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};
// Both sorted.
NameDifferences compare_names(std::vector<std::string> wanted, std::vector<std::string> found);

// All differences in one message of bounded length, each missing name with the nearest unexpected one; ""
// when there are none. `where`: the checkpoint's folder; `subject`: what it is to fit; `advice`: what to do,
// the last sentence.
inline constexpr std::string_view kRenameAdvice =
    "Give names that only differ in spelling in [checkpoint.rename], and leave out whole parts with "
    "checkpoint.exclude_from_loading.";
std::string explain_differences(const std::string& where, const NameDifferences& differences,
                                std::string_view subject = "this job",
                                std::string_view advice = kRenameAdvice);

}  // namespace hyperion::checkpoint
