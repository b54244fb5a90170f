#include "checkpoint/format/pickle/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "checkpoint/format/pickle/pickle_opcodes.h"
#include "checkpoint/types/object.h"

namespace hyperion::checkpoint {
namespace {

constexpr size_t kMostMarks = 64;
constexpr size_t kManyValues = size_t{1} << 22;  // that any pickle may have, as JSON may (base/json.h)

template <typename T>
T little_endian(std::string_view bytes) {
  T value;
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace

class PickleMachine {
 public:
  using Kind = PickleValue::Kind;

  PickleMachine(std::string_view input, const std::string& name) {
    tree_.name_ = name;
    tree_.input_ = input;
    if (input.size() > kMostPickleBytes)
      throw_data("{}: a pickle of {} bytes; at most {} are read", name, input.size(), kMostPickleBytes);
    none_ = add(PickleNode());
    false_ = add(PickleNode(Kind::kBool));
    true_ = add(PickleNode(Kind::kBool));
    tree_.nodes_[true_].integer = 1;
    empty_tuple_ = add(PickleNode(Kind::kTuple));
    most_bytes_ = 4 * input.size() + (size_t{1} << 16);
    most_values_ = std::max(kManyValues, input.size() / 2);
    most_waiting_ = std::max(kManyValues, input.size() / 16);
    // What big files need; untouched pages cost nothing, but addresses may be limited.
    tree_.nodes_.reserve(input.size() / 8);
    tree_.links_.reserve(input.size() / 4);
  }

  PickleTree run() {
    for (PickleOp op = next(); op != PickleOp::kStop; op = next()) {
      execute(op);
      const size_t words = tree_.links_.size() + memo_.size() + stack_.size();
      if (tree_.nodes_.size() * sizeof(PickleNode) + words * sizeof(uint32_t) > most_bytes_)
        fail("its values need more than four times its own size");
    }
    if (stack_.size() != 1 || !marks_.empty()) fail("the end leaves something else than one value");
    if (at_ != tree_.input_.size()) fail("there are bytes after the end");
    tree_.root_ = stack_.back();
    return std::move(tree_);
  }

 private:
  // The instruction at at_.
  PickleOp next() {
    begin_ = at_;
    opcode_ = static_cast<unsigned char>(take(1)[0]);
    ++steps_;
    return static_cast<PickleOp>(opcode_);
  }

  void execute(PickleOp op) {
    switch (op) {
      case PickleOp::kProto:
        if (operand<uint8_t>() > 5) fail("it is of a protocol beyond 5");
        return;
      case PickleOp::kFrame: {
        const auto bytes = operand<uint64_t>();
        if (bytes > left()) fail("a frame goes beyond the end of the file");
        return;
      }

      case PickleOp::kNone:
        return push(none_);
      case PickleOp::kTrue:
        return push(true_);
      case PickleOp::kFalse:
        return push(false_);
      case PickleOp::kInt1:
        return push_integer(operand<uint8_t>());
      case PickleOp::kInt2:
        return push_integer(operand<uint16_t>());
      case PickleOp::kInt4:
        return push_integer(operand<int32_t>());
      case PickleOp::kLong1:
        return push_long(operand<uint8_t>());
      case PickleOp::kLong4:
        return push_long(operand<uint32_t>());
      case PickleOp::kDouble: {
        const uint64_t bits = __builtin_bswap64(operand<uint64_t>());  // the one big-endian operand
        PickleNode node(Kind::kDouble);
        node.number = std::bit_cast<double>(bits);
        return push(add(node));
      }
      case PickleOp::kText1:
        return push_run(Kind::kText, operand<uint8_t>());
      case PickleOp::kText4:
        return push_run(Kind::kText, operand<uint32_t>());
      case PickleOp::kText8:
        return push_run(Kind::kText, operand<uint64_t>());
      case PickleOp::kBytes1:
        return push_run(Kind::kBytes, operand<uint8_t>());
      case PickleOp::kBytes4:
        return push_run(Kind::kBytes, operand<uint32_t>());
      case PickleOp::kBytes8:
        return push_run(Kind::kBytes, operand<uint64_t>());

      case PickleOp::kMark:
        if (marks_.size() == kMostMarks) fail("values are nested deeper than 64");
        return marks_.push_back(stack_.size());
      case PickleOp::kPop:
        if (marks_.empty() || marks_.back() != stack_.size()) return void(pop());
        return marks_.pop_back();
      case PickleOp::kPopMark:
        return stack_.resize(pop_mark());
      case PickleOp::kDup:
        return push(top());

      case PickleOp::kEmptyTuple:
        return push(empty_tuple_);
      case PickleOp::kTuple1:
        return push_tuple(top_values(1));
      case PickleOp::kTuple2:
        return push_tuple(top_values(2));
      case PickleOp::kTuple3:
        return push_tuple(top_values(3));
      case PickleOp::kTuple:
        return push_tuple(pop_mark());
      case PickleOp::kEmptyList:
        return push(add(PickleNode(Kind::kList)));
      case PickleOp::kAppend:
        return fill(Kind::kList, top_values(1));
      case PickleOp::kAppends:
        return fill(Kind::kList, pop_mark());
      case PickleOp::kEmptySet:
        return push(add(PickleNode(Kind::kSet)));
      case PickleOp::kAddItems:
        return fill(Kind::kSet, pop_mark());
      case PickleOp::kFrozenSet: {
        const size_t first = pop_mark();
        stack_.insert(stack_.begin() + static_cast<ptrdiff_t>(first), add(PickleNode(Kind::kSet)));
        return fill(Kind::kSet, first + 1);
      }
      case PickleOp::kEmptyDict:
        return push(add(PickleNode(Kind::kDict)));
      case PickleOp::kSetItem:
        return fill(Kind::kDict, top_values(2));
      case PickleOp::kSetItems:
        return fill(Kind::kDict, pop_mark());

      case PickleOp::kGlobal: {
        const std::string_view module = take_line();
        return push_global(module, take_line());
      }
      case PickleOp::kStackGlobal: {
        const auto name = value(pop()).text();
        const auto module = value(pop()).text();
        if (!module || !name) fail("a class is named by something else than two texts");
        return push_global(*module, *name);
      }
      case PickleOp::kNewObjectEx:
        if (value(top()).kind() != Kind::kDict || value(top()).size() > 0) fail("it has keyword arguments");
        pop();
        return push_instance();
      case PickleOp::kNewObject:
        return push_instance();
      case PickleOp::kReduce:
        return reduce();
      case PickleOp::kBuild:
        return build();
      case PickleOp::kPersistentId: {
        PickleNode node(Kind::kPersistentId);
        node.at = {pop(), 0};
        node.depth = deeper(node.at.first, 0);
        return push(add(node));
      }

      case PickleOp::kMemoize:
        return put(memo_.size());
      case PickleOp::kPut1:
        return put(operand<uint8_t>());
      case PickleOp::kPut4:
        return put(operand<uint32_t>());
      case PickleOp::kGet1:
        return get(operand<uint8_t>());
      case PickleOp::kGet4:
        return get(operand<uint32_t>());
      default:
        fail("this instruction does not occur in checkpoints and is refused");
    }
  }

  template <typename... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    throw_data("{}: byte {} of the pickle (instruction {:#04x}): {}", tree_.name_, begin_, opcode_,
               fmt::format(format, std::forward<Args>(args)...));
  }

  // --- the input ---

  size_t left() const { return tree_.input_.size() - at_; }
  std::string_view take(uint64_t bytes) {
    if (bytes > left()) fail("{} bytes are wanted, but only {} are left", bytes, left());
    at_ += bytes;
    return tree_.input_.substr(at_ - bytes, bytes);
  }
  template <typename T>
  T operand() {
    return little_endian<T>(take(sizeof(T)));
  }
  std::string_view take_line() {
    const size_t end = tree_.input_.substr(at_, 256).find('\n');
    if (end == std::string_view::npos) fail("a name does not end");
    const std::string_view line = take(end);
    take(1);
    return line;
  }

  // --- the stack ---

  size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }  // no instruction reaches below a mark
  uint32_t top() const {
    if (stack_.size() <= bottom()) fail("there is no value to work on");
    return stack_.back();
  }
  uint32_t pop() {
    const uint32_t ref = top();
    stack_.pop_back();
    return ref;
  }
  // torch's files and ours have a value in 2.6 bytes or more, and one that waits for its container in 50.
  void push(uint32_t ref) {
    if (++values_ > most_values_ || stack_.size() == most_waiting_)
      fail("its {} bytes hold too many values: more than {}, or more than {} that no container has taken yet",
           tree_.input_.size(), most_values_, most_waiting_);
    stack_.push_back(ref);
  }
  // Where the last `count` values begin.
  size_t top_values(size_t count) const {
    if (stack_.size() - bottom() < count) fail("there are too few values to work on");
    return stack_.size() - count;
  }
  size_t pop_mark() {
    if (marks_.empty()) fail("there is no mark");
    const size_t first = marks_.back();
    marks_.pop_back();
    return first;
  }

  // --- values ---

  PickleValue value(uint32_t ref) const { return {tree_, ref}; }
  uint32_t add(const PickleNode& node) {
    tree_.nodes_.push_back(node);
    return static_cast<uint32_t>(tree_.nodes_.size() - 1);
  }
  // The depth of something at least `depth` deep that gets `child`.
  uint8_t deeper(uint32_t child, uint8_t depth) const {
    const uint8_t below = child & PickleTree::kSmallInt ? 0 : tree_.nodes_[child].depth;
    if (below >= kMostPickleDepth) fail("values are nested deeper than {}", kMostPickleDepth);
    return std::max<uint8_t>(depth, below + 1);
  }

  void push_integer(int64_t integer) {
    if (integer >= -(1 << 30) && integer < (1 << 30)) {
      push(PickleTree::kSmallInt | static_cast<uint32_t>(integer));
    } else {
      PickleNode node(Kind::kInt);
      node.integer = integer;
      push(add(node));
    }
  }
  // Two's complement of any length.
  void push_long(uint32_t length) {
    const std::string_view digits = take(length);
    const bool negative = !digits.empty() && static_cast<signed char>(digits.back()) < 0;
    const char sign = static_cast<char>(negative ? 0xFF : 0);
    uint64_t integer = negative ? ~uint64_t{0} : 0;
    std::memcpy(&integer, digits.data(), std::min<size_t>(digits.size(), 8));
    const bool fits = std::all_of(digits.begin() + std::min<ptrdiff_t>(8, std::ssize(digits)), digits.end(),
                                  [&](char digit) { return digit == sign; });
    if (!fits || (static_cast<int64_t>(integer) < 0) != negative)
      fail("a whole number needs more than 64 bits");
    push_integer(static_cast<int64_t>(integer));
  }
  void push_run(Kind kind, uint64_t length) {
    const std::string_view run = take(length);
    if (kind == Kind::kText && !is_valid_utf8(run)) fail("a text is not UTF-8");
    PickleNode node(kind);
    node.count = static_cast<uint32_t>(length);
    node.at = {static_cast<uint32_t>(at_ - length), 0};
    push(add(node));
  }
  // Makes room for `count` more links: at once for as many as most_values_ allows in lists that are not tiny,
  // because doubling twice would take more addresses.
  void reserve_links(size_t count) {
    if (tree_.links_.size() + count > tree_.links_.capacity())
      tree_.links_.reserve(tree_.input_.size() / 16 * 9);
  }
  // A tuple of the values from `first` on replaces them.
  void push_tuple(size_t first) {
    PickleNode node(Kind::kTuple);
    node.count = static_cast<uint32_t>(stack_.size() - first);
    node.at = {static_cast<uint32_t>(tree_.links_.size()), 0};
    for (size_t i = first; i < stack_.size(); ++i) node.depth = deeper(stack_[i], node.depth);
    reserve_links(node.count);
    tree_.links_.insert(tree_.links_.end(), stack_.begin() + static_cast<ptrdiff_t>(first), stack_.end());
    stack_.resize(first);
    push(add(node));
  }
  // The values from `first` on become one more segment of the container below them.
  void fill(Kind kind, size_t first) {
    const auto count = static_cast<uint32_t>(stack_.size() - first);
    if (first <= bottom() || value(stack_[first - 1]).kind() != kind)
      fail("the values do not follow a container that takes them");
    if (kind == Kind::kDict && count % 2 != 0) fail("a key has no value");
    if (count == 0) return;
    std::vector<uint32_t>& links = tree_.links_;
    const auto segment = static_cast<uint32_t>(links.size());
    PickleNode& node = tree_.nodes_[stack_[first - 1]];
    for (size_t i = first; i < stack_.size(); ++i) node.depth = deeper(stack_[i], node.depth);
    reserve_links(2 + count);
    links.push_back(0);
    links.push_back(count);
    links.insert(links.end(), stack_.begin() + static_cast<ptrdiff_t>(first), stack_.end());
    if (node.at.first == 0)
      node.at.first = segment;
    else
      links[node.at.second] = segment;
    node.at.second = segment;
    node.count += count;
    stack_.resize(first);
  }

  // --- classes ---

  void push_global(std::string_view module, std::string_view name) {
    const auto global = find_pickle_global(module, name);
    if (!global)
      fail("it names {}.{}, which is none of the classes a checkpoint consists of; refused, nothing was run",
           printable(module), printable(name));
    push(add(PickleNode(Kind::kGlobal, *global)));
  }
  void push_instance() {
    const uint32_t args = pop();
    auto global = value(pop()).global();
    if (!global || value(args).kind() != Kind::kTuple)
      fail("it makes an instance of something that is no class");
    if (global->which == PickleClass::kGetAttribute) global = owner_of_member(*value(args).tuple());
    PickleNode node(Kind::kInstance, *global);
    node.at = {args, PickleTree::kAbsent};
    node.depth = deeper(args, 0);
    push(add(node));
  }
  // getattr(class, "NAME") is a member of the one enum that checkpoints hold, and nothing else.
  PickleGlobal owner_of_member(const std::vector<PickleValue>& args) {
    const auto owner = args.empty() ? std::nullopt : args[0].global();
    if (args.size() != 2 || !owner || owner->which != PickleClass::kMemoryFormat || !args[1].text())
      fail("it calls builtins.getattr for something else than a member of an enum; refused, nothing was run");
    return *owner;
  }
  // A call, written down as an instance of the function. The two that only wrap a container become it.
  void reduce() {
    const uint32_t args = top();
    const auto function = value(stack_[top_values(2)]).global();
    if (value(args).kind() != Kind::kTuple || !function) return push_instance();
    if (function->which == PickleClass::kSize) {
      const uint32_t inner = value(args).size() == 1 ? tree_.links_[tree_.nodes_[args].at.first] : none_;
      if (value(inner).kind() != Kind::kTuple) fail("torch.Size takes one tuple");
      stack_.resize(stack_.size() - 2);
      push(inner);
    } else if (function->which == PickleClass::kOrderedDict) {
      if (value(args).size() > 0) fail("collections.OrderedDict takes no arguments here");
      stack_.resize(stack_.size() - 2);
      push(add(PickleNode(Kind::kDict)));
    } else {
      push_instance();
    }
  }
  void build() {
    const uint32_t state = pop();
    PickleNode* node = value(top()).kind() == Kind::kInstance ? &tree_.nodes_[top()] : nullptr;
    if (!node || node->at.second != PickleTree::kAbsent) fail("a state is set on something that takes none");
    node->depth = deeper(state, node->depth);
    node->at.second = state;
  }

  // --- the memo: slot -> reference ---

  void put(size_t slot) {
    if (slot > steps_) fail("memo slot {} is beyond the number of values", slot);
    if (slot >= memo_.size()) memo_.resize(slot + 1, PickleTree::kAbsent);
    memo_[slot] = top();
  }
  void get(size_t slot) {
    if (slot >= memo_.size() || memo_[slot] == PickleTree::kAbsent) fail("memo slot {} is empty", slot);
    push(memo_[slot]);
  }

  PickleTree tree_;
  size_t at_ = 0, begin_ = 0;  // the next byte; the begin of the instruction at work
  unsigned opcode_ = 0;
  size_t steps_ = 0, values_ = 0;
  size_t most_bytes_ = 0, most_values_ = 0, most_waiting_ = 0;
  uint32_t none_ = 0, false_ = 0, true_ = 0, empty_tuple_ = 0;
  std::vector<uint32_t> stack_, memo_;
  std::vector<size_t> marks_;  // sizes of the stack
};

PickleTree read_pickle(std::span<const std::byte> input, const std::string& name) {
  return PickleMachine({reinterpret_cast<const char*>(input.data()), input.size()}, name).run();
}

}  // namespace hyperion::checkpoint
