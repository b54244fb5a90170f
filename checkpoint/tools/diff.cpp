// ckpt diff
#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/counted.h"
#include "base/nearest.h"
#include "base/printable.h"
#include "base/progress.h"
#include "checkpoint/names.h"
#include "checkpoint/tools/aligned_table.h"
#include "checkpoint/tools/content.h"
#include "checkpoint/tools/folders.h"
#include "checkpoint/tools/tools.h"
#include "checkpoint/types/object.h"

namespace hyperion::checkpoint {
namespace {

constexpr size_t kShown = 40;  // maximum rows of a table; --json has all

struct TensorDifference {
  std::string name;
  ValueDifference values;
};
struct Differences {
  std::string label_a, label_b;
  uint64_t tensors = 0, objects = 0;                // on both sides
  std::map<std::string, uint64_t> group_options{};  // option -> parameter groups that have it on both sides
  std::vector<std::string> only_a{}, only_b{};
  // "wanted" is a's, "found" b's.
  std::vector<Mismatch> mismatched{};  // in shape or type
  std::vector<TensorDifference> values{};
  std::vector<Mismatch> object_values{};  // formatted by repr()
  bool empty() const {
    return only_a.empty() && only_b.empty() && mismatched.empty() && values.empty() && object_values.empty();
  }
};

using Tensors = std::map<std::string, TensorRecord>;

// Calls both(name, a's, b's) for the selected names on both sides; adds all other names to `found`.
template <typename Value, typename Both>
void match_names(const std::map<std::string, Value>& a, const std::map<std::string, Value>& b,
                 const Selection& only, Differences& found, const Both& both) {
  for (const auto& [name, value] : a) {
    if (!only.has(name)) continue;
    if (const auto other = b.find(name); other != b.end())
      both(name, value, other->second);
    else
      found.only_a.push_back(name);
  }
  for (const auto& [name, value] : b)
    if (only.has(name) && !a.contains(name)) found.only_b.push_back(name);
}

void compare_shapes(const Tensors& a, const Tensors& b, const Selection& only, Differences& found) {
  match_names(
      a, b, only, found, [&](const std::string& name, const TensorRecord& one, const TensorRecord& other) {
        ++found.tensors;
        if (one.shape != other.shape || one.dtype != other.dtype)
          found.mismatched.push_back(
              {name, describe_tensor(one.dtype, one.shape), describe_tensor(other.dtype, other.shape)});
      });
}

// "lr" of "optimizer.param_groups.layers.0.attention.wq.weight.lr": each parameter is a group of its own.
std::optional<std::string> option_of_group(const std::string& key) {
  if (!key.starts_with(kParameterGroupPrefix)) return std::nullopt;
  return key.substr(key.rfind('.') + 1);
}

// Streams both tensors together, in pieces.
void compare_values(const OpenCheckpoint& a, const OpenCheckpoint& b, const Selection& only,
                    Differences& found) {
  const Tensors &tensors_a = a.index.tensors, &tensors_b = b.index.tensors;
  std::vector<std::string> keys = keys_in_file_order(a.index, only);
  std::erase_if(keys, [&](const std::string& key) {
    const auto other = tensors_b.find(key);
    const TensorRecord& record_a = tensors_a.at(key);
    return other == tensors_b.end() || other->second.shape != record_a.shape ||
           (other->second.dtype != record_a.dtype && !can_cast(record_a.dtype, other->second.dtype));
  });
  uint64_t total = 0, done = 0;
  for (const std::string& key : keys)
    total += static_cast<uint64_t>(whole_box(tensors_a.at(key).shape).numel());
  Progress progress("diff", total, "numbers");
  ContentReader from_a(a), from_b(b);
  std::vector<std::byte> bytes_b;
  for (const std::string& key : keys) {
    const Dtype dtype_a = tensors_a.at(key).dtype, dtype_b = tensors_b.at(key).dtype;
    const auto max_count = static_cast<int64_t>(kContentPiece / std::max(size_of(dtype_a), size_of(dtype_b)));
    ValueDifference difference(dtype_a, dtype_b);
    from_a.stream(key, max_count, [&](const Box& box, const std::byte* bytes_a) {
      const auto count = static_cast<uint64_t>(box.numel());
      bytes_b.resize(count * size_of(dtype_b));
      from_b.read(key, box, bytes_b.data());
      difference.add(bytes_a, bytes_b.data(), count);
      progress.update(done += count);
    });
    if (difference.different() > 0) found.values.push_back({key, difference});
  }
  std::ranges::sort(found.values, {}, &TensorDifference::name);
}

void compare_objects(const OpenCheckpoint& a, const OpenCheckpoint& b, const Selection& only,
                     Differences& found) {
  const auto wanted = [&](const std::string& key) { return only.has(key); };
  match_names(load_objects(a, wanted), load_objects(b, wanted), only, found,
              [&](const std::string& key, const Object& one, const Object& other) {
                ++found.objects;
                if (const auto option = option_of_group(key)) ++found.group_options[*option];
                if (canonical_text(one) != canonical_text(other))
                  found.object_values.push_back({key, repr(one, 300), repr(other, 300)});
              });
}

// --- printing ---

Json number_json(double value) {
  return std::isfinite(value) ? Json(value) : Json(format_number(value));  // JSON has no NaN
}

void print_differences_json(const Differences& found, std::FILE* out) {
  Json json = {{"a", found.label_a},       {"b", found.label_b},      {"equal", found.empty()},
               {"tensors", found.tensors}, {"values", found.objects}, {"only_a", found.only_a},
               {"only_b", found.only_b}};
  json["mismatched"] = json["different_tensors"] = json["different_values"] = Json::array();
  for (const auto& [list, differences] :
       {std::pair("mismatched", &found.mismatched), {"different_values", &found.object_values}})
    for (const Mismatch& one : *differences)
      json[list].push_back({{"key", one.name}, {"a", one.wanted}, {"b", one.found}});
  for (const auto& [name, values] : found.values) {
    Json item = {{"key", name}, {"different", values.different()}};
    if (values.is_float()) {
      item["max_abs"] = number_json(values.max_abs());
      item["relative_l2"] = number_json(values.relative_l2());
    }
    json["different_tensors"].push_back(std::move(item));
  }
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
    fmt::print(out, "... and {} more (--json has all)\n", format_count(list.size() - kShown));
  fmt::print(out, "\n");
}

// Each name with the nearest one that only the other side has.
void print_names(const std::string& label, const std::vector<std::string>& names,
                 const std::vector<std::string>& others, std::FILE* out) {
  print_rows(
      {fmt::format("only in {} ({})", label, format_count(names.size())), "like there"}, names,
      [&](const std::string& name) {
        const std::string nearest = nearest_name(name, others);
        return std::vector<std::string>{name, nearest.empty() ? "-" : nearest};
      },
      out);
}

// An option that differs alike in several parameter groups is one line; returns what is left for a table.
std::vector<Mismatch> print_groups(const Differences& found, std::FILE* out) {
  std::map<std::tuple<std::string, std::string, std::string>, uint64_t> alike;
  const auto likeness = [](const Mismatch& one) {
    return std::tuple(option_of_group(one.name).value_or(""), one.wanted, one.found);
  };
  for (const Mismatch& one : found.object_values) ++alike[likeness(one)];
  std::erase_if(alike, [](const auto& one) { return std::get<0>(one.first).empty() || one.second == 1; });
  for (const auto& [what, count] : alike) {
    const auto& [option, a, b] = what;
    const uint64_t all = found.group_options.at(option);
    fmt::print(out, "{} differs in {} parameter groups: {} -> {}\n", option,
               count == all ? fmt::format("all {}", format_count(all))
                            : fmt::format("{} of {}", format_count(count), format_count(all)),
               a, b);
  }
  if (!alike.empty()) fmt::print(out, "\n");
  std::vector<Mismatch> rest = found.object_values;
  std::erase_if(rest, [&](const Mismatch& one) { return alike.contains(likeness(one)); });
  return rest;
}

void print_differences(const Differences& found, std::FILE* out) {
  fmt::print(out, "A: {}\nB: {}\n", escape_control_bytes(found.label_a), escape_control_bytes(found.label_b));
  fmt::print(out, "on both sides: {}, {}\n\n", counted(found.tensors, "tensor"),
             counted(found.objects, "value"));
  print_names("A", found.only_a, found.only_b, out);
  print_names("B", found.only_b, found.only_a, out);
  const auto sides = [](const Mismatch& one) {
    return std::vector<std::string>{one.name, one.wanted, one.found};
  };
  print_rows({"shape or type differs", "A", "B"}, found.mismatched, sides, out);
  print_rows(
      {"tensor", ">different numbers", ">max |A-B|", ">|A-B|/|A|"}, found.values,
      [](const TensorDifference& one) {
        const bool figures = one.values.is_float();
        return std::vector<std::string>{one.name, format_count(one.values.different()),
                                        figures ? format_number(one.values.max_abs()) : "-",
                                        figures ? format_number(one.values.relative_l2()) : "-"};
      },
      out);
  print_rows({"value", "A", "B"}, print_groups(found, out), sides, out);
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

ExitCode diff_names(const NameList& a, const NameList& b, bool json, std::FILE* out) {
  Differences found{.label_a = a.label, .label_b = b.label};
  compare_shapes(a.tensors, b.tensors, {}, found);
  return print_differences(found, json, /*with_values=*/false, out);
}

ExitCode diff_checkpoints(const DiffOptions& options, std::FILE* out) {
  for (const auto& path : {options.a, options.b}) require_checkpoint(path);
  const OpenCheckpoint a = open_checkpoint(options.a), b = open_checkpoint(options.b);
  Differences found{.label_a = options.a.string(), .label_b = options.b.string()};
  compare_shapes(a.index.tensors, b.index.tensors, options.only, found);
  compare_values(a, b, options.only, found);
  compare_objects(a, b, options.only, found);
  return print_differences(found, options.json, /*with_values=*/true, out);
}

}  // namespace hyperion::checkpoint
