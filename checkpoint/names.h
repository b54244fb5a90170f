// Names in checkpoints: their canonical form, the user's rename table, and the message about mismatches.
// Nothing else in the program changes a name.
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

// Removes from `key` the segments that wrappers add (torch.compile's _orig_mod, _checkpoint_wrapped_module,
// _fsdp_wrapped_module, DistributedDataParallel's module), at any depth, also inside optimizer and EMA
// keys: "optimizer.state.layers.0._orig_mod.norm.weight.exp_avg". Keys of the loader and the other
// components are not changed.
std::string canonical_name(std::string_view key);

// Returns whether a model weight has an EMA if EMAs are kept. The experts' biases are not parameters and have
// none.
inline bool is_averaged(std::string_view name) {
  return !name.ends_with(".moe.expert_bias");
}

// checkpoint.rename: old -> new, applied on load after canonical_name().
using RenameTable = std::vector<std::pair<std::string, std::string>>;

class NameMap {
 public:
  // An old name is a regular expression (PCRE2) that must match the entire name; the new one may use its
  // groups as $1. The first match wins. Optimizer and EMA keys are renamed by the parameter's name inside
  // them. Throws Error(kUsage) for an invalid pattern.
  explicit NameMap(const RenameTable& table = {});

  // The name in this job of a checkpoint's `key`. Throws Error(kUsage) if a pattern takes too long on it.
  std::string apply(const std::string& key) const;

  // Name in this job -> key in the checkpoint, for all `keys`. Throws Error(kBadData) naming both keys if
  // two get the same name. Logs the names at level debug.
  std::map<std::string, std::string> apply(const std::vector<std::string>& keys) const;

 private:
  struct Rule;
  std::optional<std::string> rename_parameter(const std::string& name) const;
  std::vector<std::shared_ptr<const Rule>> rules_;
};

// XXH3 over the sorted names: equal exactly if the names are.
uint64_t names_hash(std::vector<std::string> names);
// Logs at level debug the names after `stage` ("saving", "canonical names") with their hash, and whether it
// differs from `expected`. Returns the hash.
uint64_t trace_names(std::string_view stage, const std::vector<std::string>& names,
                     std::optional<uint64_t> expected = std::nullopt);

// A name on both sides whose shape or dtype differs, as text: "float32 [8, 4]".
struct Mismatch {
  std::string name, wanted, found;
};

struct NameDifferences {
  std::vector<std::string> missing;     // wanted but not found
  std::vector<std::string> unexpected;  // found but not wanted
  std::vector<Mismatch> mismatched{};   // filled by the caller
  bool empty() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};
// Both results are sorted.
NameDifferences compare_names(std::vector<std::string> wanted, std::vector<std::string> found);

// All differences in one message of bounded length, each missing name with the nearest unexpected one; ""
// if there are none. `where` is the checkpoint's folder, `subject` what it must fit, `advice` the last
// sentence: what to do.
inline constexpr std::string_view kRenameAdvice =
    "Give names that only differ in spelling in [checkpoint.rename], and leave out whole parts with "
    "checkpoint.exclude_from_loading.";
std::string explain_differences(const std::string& where, const NameDifferences& differences,
                                std::string_view subject = "this job",
                                std::string_view advice = kRenameAdvice);

}  // namespace hyperion::checkpoint
