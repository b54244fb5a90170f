#include "checkpoint/types/object.h"

#include <limits>

#include <catch2/catch.hpp>

#include "checkpoint/types/dtype.h"

namespace hyperion::checkpoint {

TEST_CASE("values are printed as Python prints them") {
  CHECK(repr(Object()) == "None");
  CHECK(repr(true) == "True");
  CHECK(repr(7) == "7");
  CHECK(repr(1.0) == "1.0");
  CHECK(repr(3e-4) == "0.0003");
  CHECK(repr(1e30) == "1e+30");
  CHECK(repr(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(repr(Object::tuple({0.9, 0.95})) == "(0.9, 0.95)");
  CHECK(repr(Object::tuple({1})) == "(1,)");
  CHECK(repr(Object::list({"a", Object()})) == "['a', None]");
  CHECK(repr(Dict{{{"k", 1}}}) == "{'k': 1}");
  CHECK(repr(Sequence{Sequence::Kind::kSet, {1}}) == "{1}");
  CHECK(repr(Sequence{Sequence::Kind::kSet, {}}) == "set()");
  CHECK(repr(Bytes{"abc"}) == "<3 bytes>");
}

TEST_CASE("long and hostile texts are fit for a message") {
  CHECK(repr(std::string(500, 'x')).size() < 140);
  CHECK(repr(Object::list(std::vector<Object>(1000, 7))).size() < 140);
}

TEST_CASE("every dtype is found under its own names") {
  for (int i = 0; i <= static_cast<int>(Dtype::kFloat8E8M0FNU); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    const DtypeTraits& traits = traits_of(dtype);
    CHECK(traits.dtype == dtype);
    CHECK(choice_of<Dtype>(traits.torch) == dtype);
    for (const auto naming : {&DtypeTraits::safetensors, &DtypeTraits::storage})
      if (!(traits.*naming).empty()) CHECK(find_dtype(traits.*naming, naming) == dtype);
  }
  CHECK_FALSE(choice_of<Dtype>("float128"));
  CHECK_FALSE(find_dtype("", &DtypeTraits::safetensors));
}

}  // namespace hyperion::checkpoint
