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

// Appends the value that it visits to `out`, as long as that is short enough.
struct Representation {
  std::string& out;
  size_t limit;

  void operator()(std::monostate) const { out += "None"; }
  void operator()(bool flag) const { out += flag ? "True" : "False"; }
  void operator()(int64_t integer) const { out += fmt::format("{}", integer); }
  void operator()(double number) const {
    const std::string digits = fmt::format("{}", number);
    out += digits.find_first_of(".en") == std::string::npos ? digits + ".0" : digits;  // "inf", "1e+30"
  }
  void operator()(const std::string& text) const { out += "'" + printable(text, limit) + "'"; }
  void operator()(const Bytes& bytes) const { out += fmt::format("<{} bytes>", bytes.value.size()); }
  void operator()(const Object& object) const { std::visit(*this, object.value); }
  void operator()(const std::pair<Object, Object>& item) const {
    (*this)(item.first);
    out += ": ";
    (*this)(item.second);
  }
  void operator()(const Dict& dict) const { list("{", dict.items, "}"); }
  void operator()(const Sequence& sequence) const {
    const auto& [kind, items] = sequence;
    using Kind = Sequence::Kind;
    if (kind == Kind::kTuple)
      list("(", items, items.size() == 1 ? ",)" : ")");
    else if (kind == Kind::kSet && items.empty())
      out += "set()";
    else
      list(kind == Kind::kSet ? "{" : "[", items, kind == Kind::kSet ? "}" : "]");
  }

  // "[a, b]": ends with "..." once `out` is long enough.
  template <typename Items>
  void list(const char* open, const Items& items, const char* close) const {
    out += open;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += ", ";
      if (out.size() > limit) {
        out += "...";
        break;
      }
      (*this)(items[i]);
    }
    out += close;
  }
};

}  // namespace

std::string repr(const Object& object, size_t limit) {
  std::string out;
  Representation{out, limit}(object);
  return out;
}

}  // namespace hyperion::checkpoint
