// ckpt diff
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/progress.h"
#include "checkpoint/cast.h"
#include "checkpoint/names.h"
#include "checkpoint/tools/aligned_table.h"
#include "checkpoint/tools/compare.h"
#include "checkpoint/tools/content.h"
#include "checkpoint/tools/digest.h"
#include "checkpoint/tools/folders.h"
#include "checkpoint/tools/json_text.h"
#include "checkpoint/tools/tools.h"
#include "checkpoint/types/object.h"

namespace hyperion::checkpoint {
namespace {

constexpr size_t kShown = 40;  // rows of a table; --json has all

struct TensorDifference {
  std::string name;
  ValueDifference values;
};
struct ObjectDifference {
  std::string name, a, b;  // values as repr() shows them
};

struct Differences {
  std::string label_a, label_b;
  uint64_t tensors = 0, objects = 0;              // on both sides
  std::map<std::string, uint64_t> group_options;  // option -> parameter groups that have it on both sides
  std::vector<std::string> only_a, only_b;
  std::vector<Mismatch> mismatched;  // in shape or type: "wanted" is a's
  std::vector<TensorDifference> values;
  std::vector<ObjectDifference> object_values;
  bool empty() const {
    return only_a.empty() && only_b.empty() && mismatched.empty() && values.empty() && object_values.empty();
  }
};

// The tensors that both lists have; adds those of one list alone, and other shapes and types, to
// `differences`.
std::vector<std::pair<const NamedTensor*, const NamedTensor*>> match_names(const NameList& a,
                                                                           const NameList& b,
                                                                           Differences& differences) {
  std::map<std::string, const NamedTensor*> names_b;
  for (const NamedTensor& tensor : b.tensors) names_b.emplace(tensor.name, &tensor);
  std::vector<std::pair<const NamedTensor*, const NamedTensor*>> both;
  for (const NamedTensor& tensor : a.tensors) {
    const auto found = names_b.find(tensor.name);
    if (found == names_b.end()) {
      differences.only_a.push_back(tensor.name);
      continue;
    }
    both.emplace_back(&tensor, found->second);
    if (tensor.shape != found->second->shape || tensor.dtype != found->second->dtype)
      differences.mismatched.push_back({tensor.name, describe_tensor(tensor.dtype, tensor.shape),
                                        describe_tensor(found->second->dtype, found->second->shape)});
    names_b.erase(found);
  }
  for (const auto& [name, tensor] : names_b) differences.only_b.push_back(name);
  differences.tensors = both.size();
  return both;
}

NameList names_of(const OpenCheckpoint& checkpoint, const Selection& only) {
  NameList list{checkpoint.folder.string(), {}};
  for (const auto& [key, record] : checkpoint.index.tensors)
    if (only.has(key)) list.tensors.push_back({key, record.dtype, record.shape});
  return list;
}

// "lr" of "optimizer.param_groups.layers.0.attention.wq.weight.lr": each parameter is a group of its own.
std::optional<std::string> option_of_group(const std::string& key) {
  if (!key.starts_with(kParameterGroupPrefix)) return std::nullopt;
  return key.substr(key.rfind('.') + 1);
}

// --- reading both ---

// Both tensors side by side, piece by piece.
ValueDifference compare_values(const NamedTensor& a, const NamedTensor& b, ContentReader& from_a,
                               ContentReader& from_b) {
  ValueDifference difference(a.dtype, b.dtype);
  const size_t width_a = size_of(a.dtype), width_b = size_of(b.dtype);
  std::vector<std::byte> bytes_a, bytes_b;
  const auto most = static_cast<int64_t>(kContentPiece / std::max(width_a, width_b));
  each_box(a.shape, most, [&](const Box& box) {
    const auto count = static_cast<uint64_t>(elements_of(box.shape));
    bytes_a.resize(count * width_a);
    bytes_b.resize(count * width_b);
    from_a.read(a.name, box, bytes_a.data());
    from_b.read(b.name, box, bytes_b.data());
    difference.add(bytes_a.data(), bytes_b.data(), count);
  });
  return difference;
}

void compare_tensors(const OpenCheckpoint& a, const OpenCheckpoint& b, const Selection& only,
                     Differences& found) {
  const NameList list_a = names_of(a, only), list_b = names_of(b, only);
  std::map<std::string, std::pair<const NamedTensor*, const NamedTensor*>> both;
  uint64_t total = 0, done = 0;
  for (const auto& pair : match_names(list_a, list_b, found)) {
    if (pair.first->shape != pair.second->shape) continue;
    if (pair.first->dtype != pair.second->dtype && !can_cast(pair.first->dtype, pair.second->dtype)) continue;
    both.emplace(pair.first->name, pair);
    total += static_cast<uint64_t>(elements_of(pair.first->shape));
  }
  ContentReader from_a(a), from_b(b);
  Progress progress("diff", total, "numbers");
  for (const std::string& key : keys_in_file_order(a.index)) {
    const auto pair = both.find(key);
    if (pair == both.end()) continue;
    ValueDifference difference = compare_values(*pair->second.first, *pair->second.second, from_a, from_b);
    if (difference.different() > 0) found.values.push_back({key, difference});
    progress.update(done += static_cast<uint64_t>(elements_of(pair->second.first->shape)));
  }
  std::ranges::sort(found.values, {}, &TensorDifference::name);
}

void compare_objects(const OpenCheckpoint& a, const OpenCheckpoint& b, const Selection& only,
                     Differences& found) {
  const auto wanted = [&](const std::string& key) { return only.has(key); };
  const auto values_a = load_objects(a, wanted);
  auto values_b = load_objects(b, wanted);
  for (const auto& [key, value] : values_a) {
    const auto other = values_b.find(key);
    if (other == values_b.end()) {
      found.only_a.push_back(key);
      continue;
    }
    ++found.objects;
    if (const auto option = option_of_group(key)) ++found.group_options[*option];
    if (canonical_text(value) != canonical_text(other->second))
      found.object_values.push_back({key, repr(value, 300), repr(other->second, 300)});
    values_b.erase(other);
  }
  for (const auto& [key, value] : values_b) found.only_b.push_back(key);
}

// --- printing ---

Json number_json(double value) {
  return std::isfinite(value) ? Json(value) : Json(human_number(value));  // JSON has no NaN
}

void print_differences_json(const Differences& found, std::FILE* out) {
  Json json = {{"a", found.label_a},       {"b", found.label_b},      {"equal", found.empty()},
               {"tensors", found.tensors}, {"values", found.objects}, {"only_a", found.only_a},
               {"only_b", found.only_b}};
  json["mismatched"] = json["different_tensors"] = json["different_values"] = Json::array();
  for (const Mismatch& one : found.mismatched)
    json["mismatched"].push_back({{"key", one.name}, {"a", one.wanted}, {"b", one.found}});
  for (const auto& [name, values] : found.values) {
    Json item = {{"key", name}, {"different", values.different()}};
    if (values.is_float()) {
      item["max_abs"] = number_json(values.max_abs());
      item["relative_l2"] = number_json(values.relative_l2());
    }
    json["different_tensors"].push_back(std::move(item));
  }
  for (const ObjectDifference& one : found.object_values)
    json["different_values"].push_back({{"key", one.name}, {"a", one.a}, {"b", one.b}});
  print_json(json, out);
}

// The first rows of a list, as a table.
template <typename List, typename Row>
void print_rows(const std::vector<std::string>& headings, const List& list, const Row& row, std::FILE* out) {
  if (list.empty()) return;
  AlignedTable table(headings);
  for (size_t i = 0; i < std::min(list.size(), kShown); ++i) table.add(row(list[i]));
  fmt::print(out, "{}", table.text_for(out));
  if (list.size() > kShown)
    fmt::print(out, "... and {} more (--json has all)\n", human_count(list.size() - kShown));
  fmt::print(out, "\n");
}

// Each name with the nearest one that only the other side has.
void print_names(const std::string& label, const std::vector<std::string>& names,
                 const std::vector<std::string>& others, std::FILE* out) {
  print_rows(
      {fmt::format("only in {} ({})", label, human_count(names.size())), "like there"}, names,
      [&](const std::string& name) {
        const std::string nearest = nearest_name(name, others);
        return std::vector<std::string>{name, nearest.empty() ? "-" : nearest};
      },
      out);
}

// An option that differs alike in several parameter groups is one line; returns what is left for a table.
std::vector<ObjectDifference> print_groups(const Differences& found, std::FILE* out) {
  std::map<std::tuple<std::string, std::string, std::string>, uint64_t> alike;
  const auto likeness = [](const ObjectDifference& one) {
    return std::tuple(option_of_group(one.name).value_or(""), one.a, one.b);
  };
  for (const ObjectDifference& one : found.object_values) ++alike[likeness(one)];
  std::erase_if(alike, [](const auto& one) { return std::get<0>(one.first).empty() || one.second == 1; });
  for (const auto& [what, count] : alike) {
    const auto& [option, a, b] = what;
    const uint64_t all = found.group_options.at(option);
    fmt::print(out, "{} differs in {} parameter groups: {} -> {}\n", option,
               count == all ? fmt::format("all {}", human_count(all))
                            : fmt::format("{} of {}", human_count(count), human_count(all)),
               a, b);
  }
  if (!alike.empty()) fmt::print(out, "\n");
  std::vector<ObjectDifference> rest;
  for (const ObjectDifference& one : found.object_values)
    if (!alike.contains(likeness(one))) rest.push_back(one);
  return rest;
}

void print_differences(const Differences& found, std::FILE* out) {
  fmt::print(out, "A: {}\nB: {}\n", escape_control_bytes(found.label_a), escape_control_bytes(found.label_b));
  fmt::print(out, "on both sides: {}, {}\n\n", counted(found.tensors, "tensor"),
             counted(found.objects, "value"));
  print_names("A", found.only_a, found.only_b, out);
  print_names("B", found.only_b, found.only_a, out);
  print_rows(
      {"shape or type differs", "A", "B"}, found.mismatched,
      [](const Mismatch& one) {
        return std::vector<std::string>{one.name, one.wanted, one.found};
      },
      out);
  print_rows(
      {"tensor", ">different numbers", ">max |A-B|", ">|A-B|/|A|"}, found.values,
      [](const TensorDifference& one) {
        const bool figures = one.values.is_float();
        return std::vector<std::string>{one.name, human_count(one.values.different()),
                                        figures ? human_number(one.values.max_abs()) : "-",
                                        figures ? human_number(one.values.relative_l2()) : "-"};
      },
      out);
  print_rows(
      {"value", "A", "B"}, print_groups(found, out),
      [](const ObjectDifference& one) {
        return std::vector<std::string>{one.name, one.a, one.b};
      },
      out);
}

// The last line: the answer in one sentence.
std::string summarize(const Differences& found, bool with_values) {
  std::vector<std::string> parts;
  const auto add = [&](size_t count, const char* noun, const char* what) {
    if (count > 0) parts.push_back(counted(count, noun) + what);
  };
  if (found.empty()) {
    const std::string tensors = counted(found.tensors, "tensor");
    return with_values ? fmt::format("equal: {} and {}", tensors, counted(found.objects, "value"))
                       : fmt::format("equal names, shapes and types: {}", tensors);
  }
  add(found.only_a.size(), "name", " only in A");
  add(found.only_b.size(), "name", " only in B");
  add(found.mismatched.size(), "tensor", " of another shape or type");
  add(found.values.size(), "tensor", " with other numbers");
  add(found.object_values.size(), "other value", "");
  return fmt::format("different: {}", fmt::join(parts, ", "));
}

ExitCode print_differences(Differences& found, bool json, bool with_values, std::FILE* out) {
  std::ranges::sort(found.only_a);
  std::ranges::sort(found.only_b);
  if (json) {
    print_differences_json(found, out);
  } else {
    print_differences(found, out);
    fmt::print(out, "{}\n", summarize(found, with_values));
  }
  return found.empty() ? ExitCode::kOk : ExitCode::kBadData;
}

}  // namespace

NameList names_in(const std::filesystem::path& checkpoint) {
  require_checkpoint(checkpoint);
  return names_of(open_checkpoint(checkpoint), {});
}

ExitCode diff_names(const NameList& a, const NameList& b, bool json, std::FILE* out) {
  Differences found;
  found.label_a = a.label;
  found.label_b = b.label;
  match_names(a, b, found);
  return print_differences(found, json, /*with_values=*/false, out);
}

ExitCode diff_checkpoints(const DiffOptions& options, std::FILE* out) {
  for (const auto& path : {options.a, options.b}) require_checkpoint(path);
  const OpenCheckpoint a = open_checkpoint(options.a), b = open_checkpoint(options.b);
  Differences found;
  found.label_a = options.a.string();
  found.label_b = options.b.string();
  compare_tensors(a, b, options.only, found);
  compare_objects(a, b, options.only, found);
  return print_differences(found, options.json, /*with_values=*/true, out);
}

}  // namespace hyperion::checkpoint
