#include "data/json_scan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <simdjson.h>

namespace hyperion::data {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Takes tokens from the front of a text. Each take_*() returns the token, or "" if there is none of that
// kind.
class TokenReader {
 public:
  explicit TokenReader(std::string_view text) : rest_(text) {}

  void skip_space() { take(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }
  bool at_end() const { return rest_.empty(); }
  char front() const { return rest_.empty() ? '\0' : rest_[0]; }
  bool take_char(char c) {
    skip_space();
    return front() == c && !take(1).empty();
  }

  std::string_view take_string() {
    if (front() != '"') return {};
    for (size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == '"') return take(i + 1);
      if (static_cast<unsigned char>(rest_[i]) < 0x20) return {};
      if (rest_[i] != '\\') continue;
      ++i;
      if (i == rest_.size() || std::string_view("\"\\/bfnrtu").find(rest_[i]) == std::string_view::npos)
        return {};
      if (rest_[i] != 'u') continue;
      if (rest_.substr(i + 1, 4).find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos ||
          i + 4 >= rest_.size())
        return {};
      i += 4;
    }
    return {};
  }

  // A number, true, false or null.
  std::string_view take_scalar() {
    for (const std::string_view word : {"true", "false", "null"})
      if (rest_.starts_with(word)) return take(word.size());
    size_t at = front() == '-' ? 1 : 0;
    const auto digits = [&] {
      const size_t begin = at;
      while (at < rest_.size() && is_digit(rest_[at])) ++at;
      return at - begin;
    };
    const auto is = [&](std::string_view any) {
      return at < rest_.size() && any.find(rest_[at]) != any.npos;
    };
    const bool zero = is("0");
    const size_t whole = digits();
    if (whole == 0 || (zero && whole > 1)) return {};
    if (is(".") && (++at, digits() == 0)) return {};
    if (is("eE")) {
      ++at;
      if (is("+-")) ++at;
      if (digits() == 0) return {};
    }
    return take(at);
  }

 private:
  std::string_view take(size_t size) {
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::string_view rest_;
};

// Takes a list or object, without recursion.
bool skip_structure(TokenReader& in) {
  std::string open;  // the open brackets
  do {
    // A value begins here.
    in.skip_space();
    const char c = in.front();
    bool value_ended = true;
    if (c == '[' || c == '{') {
      in.take_char(c);
      open += c;
      value_ended = in.take_char(c == '[' ? ']' : '}');
      if (value_ended) open.pop_back();
    } else if (in.take_string().empty() && in.take_scalar().empty()) {
      return false;
    }
    while (value_ended && !open.empty()) {
      if (in.take_char(',')) break;
      if (!in.take_char(open.back() == '[' ? ']' : '}')) return false;
      open.pop_back();
    }
    if (open.empty()) return true;
    if (open.back() == '{') {
      in.skip_space();
      if (in.take_string().empty() || !in.take_char(':')) return false;
    }
  } while (true);
}

// The text that a string token represents; nullopt if it has a lone surrogate.
std::optional<std::string> unescaped(std::string_view token, simdjson::dom::parser& parser) {
  if (token.find('\\') == token.npos) return std::string(token.substr(1, token.size() - 2));
  std::string_view text;
  if (parser.parse(std::string(token)).get(text)) return std::nullopt;
  return std::string(text);
}

// Copies an object to `out` with 0 in place of every value except those that `field` may lead to.
bool reduce_object(TokenReader& in, std::string_view field, simdjson::dom::parser& parser, std::string& out) {
  if (!in.take_char('{')) return false;
  out += '{';
  bool more = !in.take_char('}'), first = true;
  while (more) {
    in.skip_space();
    const std::string_view key = in.take_string();
    if (key.empty() || !in.take_char(':')) return false;
    in.skip_space();
    const std::optional<std::string> name = unescaped(key, parser);
    if (!std::exchange(first, false)) out += ',';
    for (size_t i = 0; i < key.size(); ++i) {  // a key that is not text becomes one that no field matches
      const bool inner_quote = key[i] == '"' && i > 0 && i + 1 < key.size();
      if (!name && (key[i] == '\\' || inner_quote)) out += '\\';
      out += key[i];
    }
    out += ':';
    const bool leads_in = name && field.size() > name->size() && field.starts_with(*name + '.');
    if (leads_in && in.front() == '{') {  // not deeper than `field` has dots
      if (!reduce_object(in, field.substr(name->size() + 1), parser, out)) return false;
    } else {
      std::string_view value = in.take_string();
      const bool is_text = !value.empty() && name == field;
      if (value.empty()) value = in.take_scalar();
      const bool is_null = value == "null" && (leads_in || name == field);
      if (value.empty() && !skip_structure(in)) return false;
      out += is_text || is_null ? value : "0";
    }
    more = in.take_char(',');
    if (!more && !in.take_char('}')) return false;
  }
  out += '}';
  return true;
}

}  // namespace

std::string without_other_values(std::string_view json, std::string_view field) {
  TokenReader in(json);
  simdjson::dom::parser parser;
  std::string object;
  if (!reduce_object(in, field, parser, object)) return {};
  in.skip_space();
  return in.at_end() ? object : std::string();
}

}  // namespace hyperion::data
