#include "checkpoint/tools/aligned_table.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include <fmt/format.h>
#include <unistd.h>

#include "base/printable.h"

namespace hyperion::checkpoint {
namespace {

constexpr std::string_view kGap = "  ";
constexpr size_t kMinWidth = 12;  // minimum width of a shortened column

bool continues_character(char c) {
  return (c & 0xC0) == 0x80;
}

size_t count_columns(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return !continues_character(c); }));
}

}  // namespace

std::string format_age(int64_t seconds) {
  if (seconds < -60) return "in the future";
  if (seconds < 60) return "just now";
  struct Unit {
    int64_t seconds;
    const char* name;
  };
  static constexpr std::array<Unit, 4> kUnits = {
      {{86400 * 365, "y"}, {86400, "d"}, {3600, "h"}, {60, "min"}}};
  for (const Unit& unit : kUnits)
    if (seconds >= unit.seconds) return fmt::format("{} {} ago", seconds / unit.seconds, unit.name);
  return {};
}

std::string format_number(double value) {
  return fmt::format("{:.4g}", value);
}

std::string shorten(std::string_view text, size_t width) {
  const std::string clean = printable(text, text.size() * 4);
  const size_t total = count_columns(clean);
  if (total <= width) return clean;
  const size_t head = (width - 3) / 2, tail = width - 3 - head;
  std::string begin, end;
  size_t column = 0;
  for (const char c : clean) {
    if (!continues_character(c)) ++column;
    if (column <= head) begin += c;
    if (column > total - tail) end += c;
  }
  return begin + "..." + end;
}

AlignedTable::AlignedTable(std::vector<std::string> headings) {
  for (std::string& heading : headings) {
    right_.push_back(heading.starts_with('>'));
    if (right_.back()) heading.erase(0, 1);
  }
  rows_.push_back(std::move(headings));
}

void AlignedTable::add(std::vector<std::string> cells) {
  cells.resize(right_.size());
  for (std::string& cell : cells) cell = printable(cell, cell.size() * 4);
  rows_.push_back(std::move(cells));
}

std::string AlignedTable::text_for(std::FILE* out) const {
  const int file = ::fileno(out);
  return text(file >= 0 && ::isatty(file) ? kTableWidth : std::numeric_limits<size_t>::max());
}

std::string AlignedTable::text(size_t width) const {
  std::vector<size_t> widths(right_.size(), 0);
  for (const auto& row : rows_)
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], count_columns(row[c]));
  const size_t gaps = kGap.size() * (widths.size() - 1);
  size_t total = std::accumulate(widths.begin(), widths.end(), gaps);
  while (total > width) {
    size_t& widest = *std::ranges::max_element(widths);
    if (widest <= kMinWidth) break;
    --widest;
    --total;
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string cell = shorten(row[c], widths[c]);
      const std::string padding(widths[c] - count_columns(cell), ' ');
      if (c > 0) line += kGap;
      line += right_[c] ? padding + cell : cell + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace hyperion::checkpoint
