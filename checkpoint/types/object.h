// Plain values that a checkpoint holds in addition to tensors (counters, options, the loader's position):
// Python's None, bool, int, float, str, bytes, list, tuple, dict and set. No value can refer to code.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hyperion::checkpoint {

struct Object;

struct Bytes {
  std::string value;
  bool operator==(const Bytes&) const = default;
};
struct Sequence {  // a list, tuple or set
  enum class Kind { kList, kTuple, kSet };
  Kind kind = Kind::kList;
  std::vector<Object> items;
  bool operator==(const Sequence&) const;
};
struct Dict {
  std::vector<std::pair<Object, Object>> items;  // in insertion order
  bool operator==(const Dict&) const;
};

// Numbers keep their kind: 1, 1.0 and true are three different values. Integers outside 64 bits cannot be
// represented.
struct Object {
  std::variant<std::monostate, bool, int64_t, double, std::string, Bytes, Sequence, Dict> value;

  Object() = default;  // None
  Object(bool v) : value(v) {}
  Object(int64_t v) : value(v) {}
  Object(int v) : value(int64_t{v}) {}
  Object(double v) : value(v) {}
  Object(std::string v) : value(std::move(v)) {}
  Object(const char* v) : value(std::string(v)) {}
  Object(Bytes v) : value(std::move(v)) {}
  Object(Sequence v) : value(std::move(v)) {}
  Object(Dict v) : value(std::move(v)) {}
  static Object list(std::vector<Object> items) { return Sequence{Sequence::Kind::kList, std::move(items)}; }
  static Object tuple(std::vector<Object> items) {
    return Sequence{Sequence::Kind::kTuple, std::move(items)};
  }

  bool is_none() const { return std::holds_alternative<std::monostate>(value); }
  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&value);
  }
  bool operator==(const Object&) const = default;
};

// Formats a value like Python's repr(): "(0.9, 0.95)". At most about `limit` characters.
std::string repr(const Object& object, size_t limit = 120);

}  // namespace hyperion::checkpoint
