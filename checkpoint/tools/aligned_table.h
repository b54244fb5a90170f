// Tables, numbers and JSON, as the checkpoint tools print them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace hyperion::checkpoint {

std::string format_age(int64_t seconds);  // "3 h ago"; "in the future" for a clock that was wrong
std::string human_number(double value);   // "1.234e-05", "nan"

// `text` in at most `width` columns: printable, and with "..." in its middle when it is longer.
std::string shorten(std::string_view text, size_t width);

// Aligned columns; where the table is too wide, the widest column is shortened.
constexpr size_t kTableWidth = 100;
class AlignedTable {
 public:
  // A heading that begins with '>' makes its column flush right.
  explicit AlignedTable(std::vector<std::string> headings);
  void add(std::vector<std::string> cells);
  bool empty() const { return rows_.size() == 1; }
  std::string text(size_t width = kTableWidth) const;  // lines with their ends
  // On a terminal kTableWidth wide; in a file or pipe no cell is shortened.
  std::string text_for(std::FILE* out) const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;  // the headings first
};

using Json = nlohmann::ordered_json;

// Names from files may hold bytes that are no UTF-8: they are replaced.
inline void print_json(const Json& json, std::FILE* out) {
  fmt::print(out, "{}\n", json.dump(1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace hyperion::checkpoint
