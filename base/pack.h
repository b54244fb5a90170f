// Packs values as bytes, for messages between processes of one job: numbers, texts, lists, maps, pairs,
// optionals, variants, and structs that list their members:
//
//   struct Candidate {
//     std::string path;
//     int64_t step = 0;
//     static auto members(auto& self) { return std::tie(self.path, self.step); }
//   };
//
// Numbers are stored as in memory, sizes with 7 bits per byte: both sides are the same program on the same
// kind of machine, and files never use this format.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/error.h"

namespace hyperion {

namespace packing {

template <typename T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;
template <typename T>
concept Struct = requires(T& value) {
  T::members(value);
};
template <typename T>
concept Tuple = requires {
  std::tuple_size<T>::value;
};
template <typename T>
concept Optional = requires(T& value) {
  value.has_value();
};
template <typename T>
concept Variant = requires {
  std::variant_size<T>::value;
};

void write_size(std::string& out, uint64_t size);

template <typename T>
void write(std::string& out, const T& value) {
  const auto write_each = [&](const auto&... member) { (write(out, member), ...); };
  if constexpr (Number<T>) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  } else if constexpr (Struct<T>) {
    std::apply(write_each, T::members(value));
  } else if constexpr (Tuple<T>) {
    std::apply(write_each, value);
  } else if constexpr (Optional<T>) {
    write(out, value.has_value());
    if (value) write(out, *value);
  } else if constexpr (Variant<T>) {
    write(out, static_cast<uint8_t>(value.index()));
    std::visit(write_each, value);
  } else {
    write_size(out, value.size());
    if constexpr (std::is_same_v<T, std::string>)
      out += value;
    else
      for (const auto& element : value) write(out, element);
  }
}

// Reads from the front of `bytes`. Throws Error(kBug) for bytes that pack() has not written for the type;
// allocations until then are proportional to their number.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  std::string_view take(uint64_t bytes);
  uint64_t take_size();  // number of elements that follow, each of at least one byte
  void require_end() const;
  [[noreturn]] static void refuse(const char* what);

  template <typename T>
  T read() {
    const auto read_each = [&](auto&... member) { ((member = read<std::decay_t<decltype(member)>>()), ...); };
    T value{};
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = read<uint8_t>();
      if (byte > 1) refuse("a truth value that is neither 0 nor 1");
      value = byte == 1;
    } else if constexpr (Number<T>) {
      std::memcpy(&value, take(sizeof value).data(), sizeof value);
    } else if constexpr (Struct<T>) {
      std::apply(read_each, T::members(value));
    } else if constexpr (Tuple<T>) {
      std::apply(read_each, value);
    } else if constexpr (Optional<T>) {
      if (read<bool>()) value = read<typename T::value_type>();
    } else if constexpr (Variant<T>) {
      read_variant(value, read<uint8_t>(), std::make_index_sequence<std::variant_size_v<T>>());
    } else if constexpr (std::is_same_v<T, std::string>) {
      value = take(take_size());
    } else if constexpr (requires { typename T::mapped_type; }) {
      for (uint64_t left = take_size(); left > 0; --left)
        value.insert(read<std::pair<typename T::key_type, typename T::mapped_type>>());
    } else {
      for (uint64_t left = take_size(); left > 0; --left) value.push_back(read<typename T::value_type>());
    }
    return value;
  }

 private:
  template <typename T, size_t... I>
  void read_variant(T& value, uint8_t index, std::index_sequence<I...>) {
    if (index >= sizeof...(I)) refuse("an alternative that the type does not have");
    ((index == I ? void(value = read<std::variant_alternative_t<I, T>>()) : void()), ...);
  }

  std::string_view rest_;
};

}  // namespace packing

template <typename T>
std::string pack(const T& value) {
  std::string bytes;
  packing::write(bytes, value);
  return bytes;
}

// Throws Error(kBug) unless the bytes are exactly one value.
template <typename T>
T unpack(std::string_view bytes) {
  packing::Reader in(bytes);
  T value = in.read<T>();
  in.require_end();
  return value;
}

}  // namespace hyperion
