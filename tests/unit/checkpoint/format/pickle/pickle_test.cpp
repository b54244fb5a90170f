// The pickle machine and its writer, without any file format around them.
#include <limits>

#include "checkpoint/format/pickle/pickle_object.h"
#include "checkpoint/format/pickle/pickle_reader.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/checkpoint/format/format_fixtures.h"

namespace hyperion::checkpoint {

using namespace test;

namespace {

Object load(const std::string& pickle) {
  const PickleTree tree = read_pickle(bytes_of(pickle), "a.pkl");
  return object_from_pickle(tree.root(), "a.pkl", pickle.size());
}

std::string dump(const Object& object) {
  PickleWriter writer;
  write_object(writer, object);
  return writer.finish();
}

std::string load_refusal(const std::string& pickle) {
  return refusal([&] { load(pickle); });
}

}  // namespace

TEST_CASE("pickled plain values come back equal and of the same kind") {
  const Object nested = Object::list({1, 1.0, true, Object(), "text", Bytes{"a\0\xff"s}, Object::tuple({}),
                                      Object::tuple({0.9, 0.95}), Object::tuple({1, 2, 3, 4}),
                                      Dict{{{"k", 1}, {5, Object::list({Object::list({1})})}}},
                                      Sequence{Sequence::Kind::kSet, {1, 2}}});
  for (const Object& object : {nested, Object(), Object(Bytes{}), Object("h\xc3\xa9"), Object(-0.5),
                               Object(std::numeric_limits<double>::infinity()), Object(Dict{}),
                               Object(Sequence{Sequence::Kind::kSet, {}}), Object(std::string(40000, 'x'))})
    CHECK(load(dump(object)) == object);
  CHECK(!(Object(1) == Object(1.0)));
  CHECK(!(Object(1) == Object(true)));
}

TEST_CASE("pickled whole numbers of every width come back") {
  for (int bit = 0; bit < 64; ++bit)
    for (const int64_t near : {-1, 0, 1})
      for (const int64_t sign : {-1, 1}) {
        const auto value =
            static_cast<int64_t>((uint64_t{1} << bit) + static_cast<uint64_t>(near)) * (bit < 62 ? sign : 1);
        const std::string pickle = dump(value);
        CHECK(load(pickle) == Object(value));
      }
}

TEST_CASE("the instructions of other writers are read") {
  CHECK(load("\x80\x04\x95\x02\0\0\0\0\0\0\0K\x05."s) == Object(5));
  CHECK(load("\x80\x02\x8a\0."s) == Object(0));
  CHECK(load("\x80\x02\x8a\x01\xff."s) == Object(-1));
  CHECK(load("\x80\x02\x8b\x09\0\0\0\x01\0\0\0\0\0\0\0\0."s) == Object(1));
  CHECK(load("\x80\x04\x8d\x01\0\0\0\0\0\0\0z."s) == Object("z"));
  CHECK(load("\x80\x04\x43\x02\0\xff."s) == Object(Bytes{"\0\xff"s}));
  CHECK(load("\x80\x04\x8e\x01\0\0\0\0\0\0\0z."s) == Object(Bytes{"z"}));
  CHECK(load("\x80\x04\x8f(K\x01\x90."s) == Object(Sequence{Sequence::Kind::kSet, {1}}));
  CHECK(load("\x80\x04(K\x01\x91."s) == Object(Sequence{Sequence::Kind::kSet, {1}}));
  CHECK(load("\x80\x02K\x01(K\x02K\x03\x31."s) == Object(1));
  CHECK(load("\x80\x02K\x01K\x02\x30\x32\x86."s) == Object::tuple({1, 1}));
  CHECK(load("\x80\x02"
             "ccollections\nOrderedDict\n)RX\1\0\0\0aK\x01s."s) == Object(Dict{{{"a", 1}}}));
  CHECK(load("\x80\x02"
             "ctorch\nSize\nK\x02K\x03\x86\x85R."s) == Object::tuple({2, 3}));
}

TEST_CASE("the memo holds references so that containers filled later are seen") {
  CHECK(load("\x80\x04]\x94K\x01\x61h\0\x86."s) == Object::tuple({Object::list({1}), Object::list({1})}));
  CHECK(load("\x80\x02]r\0\0\0\0j\0\0\0\0K\x07\x61\x30."s) == Object::list({7}));
}

TEST_CASE("nesting and cycles and unfolding are bounded") {
  CHECK_THAT(load_refusal("\x80\x02" + std::string(100000, '(') + "."), Catch::Contains("deeper than 64"));
  CHECK_THAT(load_refusal("\x80\x02" + std::string(100, ']') + std::string(99, 'a') + "."),
             Catch::Contains("deeper than 64"));
  CHECK_THAT(load_refusal("\x80\x02]q\0h\0\x61."s), Catch::Contains("deeper than 64"));  // a list in itself
  std::string bomb = "\x80\x02]q\0\x30"s;  // 40 lists, each of twice the one before
  for (char i = 0; i < 40; ++i) bomb += "]q"s + static_cast<char>(i + 1) + "(h"s + i + "h"s + i + "e\x30";
  CHECK_THAT(load_refusal(bomb + "h\x28."), Catch::Contains("unfolds to far more"));
}

TEST_CASE("counts beyond the file are refused at once") {
  for (const std::string& claim :
       {"X\xff\xff\xff\x3f"s, "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"s, "B\xff\xff\xff\xff"s,
        "\x95\xff\xff\xff\xff\xff\xff\xff\x7f"s, "\x8b\xff\xff\xff\x7f"s})
    CHECK_THAT(load_refusal("\x80\x02" + claim), Catch::Contains("a.pkl: byte 2"));
  CHECK_THAT(load_refusal("\x80\x02Nr\xff\xff\xff\x3b."s), Catch::Contains("memo slot"));
}

TEST_CASE("pickles that are no pickles are refused with file and position and instruction") {
  CHECK_THAT(load_refusal(""), Catch::Contains("a.pkl: byte 0"));
  CHECK_THAT(load_refusal("\x80\x02I7\n."), Catch::Contains("byte 2 of the pickle (instruction 0x49)"));
  CHECK_THAT(load_refusal("\x80\x06N."), Catch::Contains("protocol"));
  CHECK_THAT(load_refusal("\x80\x02NN."), Catch::Contains("one value"));
  CHECK_THAT(load_refusal("\x80\x02N.N"), Catch::Contains("after the end"));
  CHECK_THAT(load_refusal("\x80\x02."), Catch::Contains("one value"));
  CHECK_THAT(load_refusal("\x80\x02h\x03."), Catch::Contains("memo slot 3 is empty"));
  CHECK_THAT(load_refusal("\x80\x02K\x01\x61."), Catch::Contains("too few") || Catch::Contains("container"));
  CHECK_THAT(load_refusal("\x80\x02X\x01\0\0\0\xff."s), Catch::Contains("UTF-8"));
  CHECK_THAT(load_refusal("\x80\x02\x8a\x09\0\0\0\0\0\0\0\x80\0."s), Catch::Contains("64 bits"));
  CHECK_THAT(load_refusal("\x80\x02}(K\x01u."), Catch::Contains("no value"));
  CHECK_THAT(load_refusal("\x80\x02K\x01(\x30K\x02\x85."), Catch::Contains("one value"));
  const std::string long_text(70000, 'x');
  CHECK_THAT(load_refusal(dump(Object(long_text))), Catch::Contains("70000 bytes"));
  CHECK(load(dump(Bytes{long_text})) == Object(Bytes{long_text}));
}

TEST_CASE("a pickle that names a function is refused by name and nothing runs") {
  const test::TemporaryFolder folder;
  const auto canary = folder.path() / "canary";
  for (const MaliciousPickle& pickle : malicious_pickles(canary))
    CHECK_THAT(load_refusal(pickle.bytes), Catch::Contains("it names " + pickle.name + ","));
  CHECK(!std::filesystem::exists(canary));
}

TEST_CASE("getattr is the member of an enum that checkpoints hold and nothing else") {
  using namespace std::string_literals;
  const std::string getattr =
                        "\x80\x02"
                        "cbuiltins\ngetattr\n",
                    name = "X\x01\0\0\0x"s;
  const std::string format = "ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n";
  const auto tree = [](const std::string& pickle) {
    return read_pickle(bytes_of(pickle), "a.pkl").root().is_instance_of(PickleClass::kMemoryFormat);
  };
  CHECK(tree(getattr + format + name + "\x86R."));
  for (const std::string& arguments :
       {"ctorch\nSize\n" + name + "\x86", format + name + name + "\x87", format + "K\x01\x86",
        name + name + "\x86", getattr.substr(2) + name + "\x86", "(t"s, format + "\x85"})
    for (const char* call : {"R.", "\x81."})
      CHECK_THAT(load_refusal(getattr + arguments + call), Catch::Contains("it calls builtins.getattr"));
}

TEST_CASE("a pickle inside the bytes of a plain value stays bytes") {
  const test::TemporaryFolder folder;
  const auto canary = folder.path() / "canary";
  const std::string inner = malicious_pickles(canary).front().bytes;
  CHECK(load(dump(Bytes{inner})) == Object(Bytes{inner}));
  CHECK(!std::filesystem::exists(canary));
}

TEST_CASE("every prefix of a pickle is refused") {
  const std::string pickle = dump(Dict{{{"betas", Object::tuple({0.9, 0.95})}, {"b", Bytes{"\xff"}}}});
  for (size_t length = 0; length < pickle.size(); ++length)
    CHECK_FALSE(is_accepted([&] { load(pickle.substr(0, length)); }));
}

TEST_CASE("memory stays in proportion to the pickle") {
  // One byte a value: refused before the values take more than four times the file.
  const std::string many = "\x80\x02" + std::string(4 << 20, ']');
  CHECK_THAT(load_refusal(many + "."), Catch::Contains("four times"));
}

TEST_CASE("more values than a checkpoint's files have in their size are refused before they are made") {
  const std::string refused = "hold too many values: more than ";
  const std::string waiting = "\x80\x02]("s + std::string(5 << 20, 'N') + "e.";
  CHECK_THAT(load_refusal(waiting), Catch::Contains(refused));
  std::string batches = "\x80\x02]";
  while (batches.size() < 10 << 20) batches += "(" + std::string(1000, 'N') + "e";
  CHECK_THAT(load_refusal(batches + "."), Catch::Contains(refused + "5242"));
  std::string numbers = "\x80\x02]";  // one in more than two bytes
  while (numbers.size() < 10 << 20) {
    numbers += "(";
    for (int i = 0; i < 1000; ++i) numbers += "K\x07";
    numbers += "e";
  }
  CHECK_THAT(load_refusal(numbers + "."), !Catch::Contains(refused));
}

}  // namespace hyperion::checkpoint
