#include "checkpoint/format/pickle/pickle_object.h"

#include <algorithm>

#include "base/error.h"

namespace hyperion::checkpoint {
namespace {

constexpr size_t kMaxText = size_t{1} << 16;

class ObjectDecoder {
 public:
  using Kind = PickleValue::Kind;

  ObjectDecoder(const std::string& what, size_t input_bytes)
      : what_(what),
        // A value takes at least a byte of pickle; shared values count each time they are visited.
        budget_(std::min(64 * input_bytes + (size_t{1} << 20), 8 * input_bytes + (size_t{64} << 20))) {}

  Object unfold(PickleValue value, int depth) {
    if (depth > kMaxPickleDepth)
      throw_data("{}: its values are nested deeper than {}", what_, kMaxPickleDepth);
    spend(sizeof(Object));
    switch (value.kind()) {
      case Kind::kNone:
        return {};
      case Kind::kBool:
        return *value.boolean();
      case Kind::kInt:
        return *value.integer();
      case Kind::kDouble:
        return *value.number();
      case Kind::kText:
        return text(*value.text());
      case Kind::kBytes:
        spend(value.bytes()->size());
        return Bytes{std::string(*value.bytes())};
      case Kind::kList:
        return sequence(value, Sequence::Kind::kList, depth);
      case Kind::kTuple:
        return sequence(value, Sequence::Kind::kTuple, depth);
      case Kind::kSet:
        return sequence(value, Sequence::Kind::kSet, depth);
      case Kind::kDict: {
        Dict dict;
        value.for_each_item([&](PickleValue key, PickleValue item) {
          Object unfolded_key = unfold(key, depth + 1);
          dict.items.emplace_back(std::move(unfolded_key), unfold(item, depth + 1));
        });
        return dict;
      }
      case Kind::kInstance:
        return call(value, depth);
      default:
        throw_data("{}: it names a class where a plain value is expected", what_);
    }
  }

 private:
  void spend(size_t bytes) {
    if (bytes > budget_) throw_data("{}: it unfolds to far more than its own size", what_);
    budget_ -= bytes;
  }
  Object text(std::string_view value) {
    if (value.size() > kMaxText)
      throw_data("{}: a text of {} bytes; at most {} are read", what_, value.size(), kMaxText);
    spend(value.size());
    return std::string(value);
  }
  Object sequence(PickleValue value, Sequence::Kind kind, int depth) {
    Sequence sequence{.kind = kind, .items = {}};
    value.for_each([&](PickleValue item) { sequence.items.push_back(unfold(item, depth + 1)); });
    return sequence;
  }

  // The three calls by which protocol 2 writes bytes and sets.
  Object call(PickleValue value, int depth) {
    const PickleClass which = value.instance()->which;
    const std::vector<PickleValue> args = *value.instance_args()->tuple();
    if (which == PickleClass::kBytes && args.empty()) return Bytes{};
    if (which == PickleClass::kEncode && args.size() == 2 && args[0].text() &&
        (args[1].text() == "latin1" || args[1].text() == "latin-1"))
      return from_latin1(*args[0].text());
    if (which == PickleClass::kSet && args.empty())
      return Sequence{.kind = Sequence::Kind::kSet, .items = {}};
    if (which == PickleClass::kSet && args.size() == 1) return sequence(args[0], Sequence::Kind::kSet, depth);
    if (which == PickleClass::kRebuildTensorV2 || which == PickleClass::kRebuildTensorV3)
      throw_data(
          "{}: it holds a tensor inside a plain value, which is not read; save it under a key of its own",
          what_);
    throw_data("{}: it holds an instance of a class where a plain value is expected", what_);
  }
  Object from_latin1(std::string_view text) {
    spend(text.size());
    std::string value;
    value.reserve(text.size());
    // Valid UTF-8: U+0080 to U+00FF are C2 and C3 with one byte more.
    for (size_t i = 0; i < text.size(); ++i) {
      const auto lead = static_cast<unsigned char>(text[i]);
      if (lead > 0xC3) throw_data("{}: its bytes are not written as Latin-1 text", what_);
      value += lead < 0x80 ? text[i] : static_cast<char>((lead & 3) << 6 | (text[++i] & 0x3F));
    }
    return Bytes{std::move(value)};
  }

  const std::string& what_;
  size_t budget_;
};

// Writes the value that it visits.
struct ObjectWriter {
  PickleWriter& writer;

  void operator()(std::monostate) const { writer.none(); }
  void operator()(bool flag) const { writer.boolean(flag); }
  void operator()(int64_t integer) const { writer.integer(integer); }
  void operator()(double number) const { writer.number(number); }
  void operator()(const std::string& text) const { writer.text(text); }
  void operator()(const Bytes& bytes) const { writer.bytes(bytes.value); }
  void operator()(const Sequence& sequence) const {
    const std::vector<Object>& items = sequence.items;
    if (sequence.kind == Sequence::Kind::kTuple) {
      if (PickleWriter::tuple_needs_mark(items.size())) writer.op(PickleOp::kMark);
      for (const Object& item : items) write_object(writer, item);
      return writer.tuple(items.size());
    }
    const bool set = sequence.kind == Sequence::Kind::kSet;  // set(a list)
    if (set) writer.global("__builtin__", "set");
    writer.op(PickleOp::kEmptyList);
    if (!items.empty()) {
      writer.op(PickleOp::kMark);
      for (const Object& item : items) write_object(writer, item);
      writer.op(PickleOp::kAppends);
    }
    if (!set) return;
    writer.tuple(1);
    writer.op(PickleOp::kReduce);
  }
  void operator()(const Dict& dict) const {
    writer.op(PickleOp::kEmptyDict);
    if (dict.items.empty()) return;
    writer.op(PickleOp::kMark);
    for (const auto& [key, item] : dict.items) {
      write_object(writer, key);
      write_object(writer, item);
    }
    writer.op(PickleOp::kSetItems);
  }
};

}  // namespace

Object object_from_pickle(PickleValue value, const std::string& what, size_t input_bytes) {
  return ObjectDecoder(what, input_bytes).unfold(value, 0);
}

void write_object(PickleWriter& writer, const Object& object) {
  std::visit(ObjectWriter{writer}, object.value);
}

}  // namespace hyperion::checkpoint
