#include "checkpoint/types/object.h"

#include <fmt/format.h>

#include "base/printable.h"

namespace hyperion::checkpoint {

bool Sequence::operator==(const Sequence& other) const {
  return kind == other.kind && items == other.items;
}
bool Dict::operator==(const Dict& other) const {
  return items == other.items;
}

namespace {

void append(std::string& out, const Object& object, size_t limit);

// "[a, b]": stops with "..." once `out` is long enough.
template <typename Items, typename AppendItem>
void append_items(std::string& out, const Items& items, const char* open, const char* close, size_t limit,
                  const AppendItem& append_item) {
  out += open;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    if (out.size() > limit) {
      out += "...";
      break;
    }
    append_item(items[i]);
  }
  out += close;
}

void append(std::string& out, const Object& object, size_t limit) {
  const auto append_object = [&](const Object& item) { append(out, item, limit); };
  if (object.is_none()) {
    out += "None";
  } else if (const bool* flag = object.get_if<bool>()) {
    out += *flag ? "True" : "False";
  } else if (const int64_t* integer = object.get_if<int64_t>()) {
    out += fmt::format("{}", *integer);
  } else if (const double* number = object.get_if<double>()) {
    const std::string digits = fmt::format("{}", *number);
    out += digits.find_first_of(".en") == std::string::npos ? digits + ".0" : digits;  // "inf", "1e+30"
  } else if (const std::string* text = object.get_if<std::string>()) {
    out += "'" + printable(*text, limit) + "'";
  } else if (const Bytes* bytes = object.get_if<Bytes>()) {
    out += fmt::format("<{} bytes>", bytes->value.size());
  } else if (const Sequence* sequence = object.get_if<Sequence>()) {
    using Kind = Sequence::Kind;
    const char *open = "[", *close = "]";
    if (sequence->kind == Kind::kTuple) {
      open = "(";
      close = sequence->items.size() == 1 ? ",)" : ")";
    } else if (sequence->kind == Kind::kSet) {
      open = sequence->items.empty() ? "set(" : "{";
      close = sequence->items.empty() ? ")" : "}";
    }
    append_items(out, sequence->items, open, close, limit, append_object);
  } else if (const Dict* dict = object.get_if<Dict>()) {
    append_items(out, dict->items, "{", "}", limit, [&](const auto& item) {
      append_object(item.first);
      out += ": ";
      append_object(item.second);
    });
  }
}

}  // namespace

std::string repr(const Object& object, size_t limit) {
  std::string out;
  append(out, object, limit);
  return out;
}

}  // namespace hyperion::checkpoint
