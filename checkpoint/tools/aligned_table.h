// Formats tables, numbers and JSON for the checkpoint tools.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace hyperion::checkpoint {

std::string format_age(int64_t seconds);  // "3 h ago"; "in the future" for a wrong clock
std::string format_number(double value);  // "1.234e-05", "nan"

// `text` in at most `width` printable columns, with "..." in its middle if it is longer.
std::string shorten(std::string_view text, size_t width);

// Aligns columns. If the table is too wide, the widest column is shortened.
constexpr size_t kTableWidth = 100;
class AlignedTable {
 public:
  // A heading that begins with '>' right-aligns its column.
  explicit AlignedTable(std::vector<std::string> headings);
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.size() == 1; }
  std::string text(size_t width = kTableWidth) const;  // each line ends with a line feed
  // The table at kTableWidth on a terminal; in a file or pipe no cell is shortened.
  std::string text_for(std::FILE* out) const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;  // the headings first
};

using Json = nlohmann::ordered_json;

// Names from files may hold bytes that are not UTF-8; they are replaced.
inline void print_json(const Json& json, std::FILE* out) {
  fmt::print(out, "{}\n", json.dump(1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace hyperion::checkpoint
