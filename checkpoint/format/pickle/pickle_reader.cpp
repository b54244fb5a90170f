#include "checkpoint/format/pickle/pickle_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "checkpoint/format/pickle/pickle_opcodes.h"

namespace hyperion::checkpoint {
namespace {

constexpr size_t kMaxMarks = 64;
constexpr size_t kAllowedValues = size_t{1} << 22;  // allowed in any pickle, as in JSON (base/json.h)

}  // namespace

class PickleMachine {
 public:
  using Kind = PickleValue::Kind;

  PickleMachine(std::string_view input, const std::string& name) {
    tree_.name_ = name;
    tree_.input_ = input;
    if (input.size() > kMaxPickleBytes)
      throw_data("{}: a pickle of {} bytes; at most {} are read", name, input.size(), kMaxPickleBytes);
    none_ = add(PickleNode());
    false_ = add(PickleNode(Kind::kBool));
    true_ = add(PickleNode(Kind::kBool));
    tree_.nodes_[true_].integer = 1;
    empty_tuple_ = add(PickleNode(Kind::kTuple));
    max_bytes_ = 4 * input.size() + (size_t{1} << 16);
    max_values_ = std::max(kAllowedValues, input.size() / 2);
    max_waiting_ = std::max(kAllowedValues, input.size() / 16);
    // Reserves for large files: untouched pages cost nothing, but addresses may be limited.
    tree_.nodes_.reserve(input.size() / 8);
    tree_.links_.reserve(input.size() / 4);
  }

  PickleTree run() {
    while (next() != PickleOp::kStop) {
      const Instruction instruction = kInstructions[opcode_];
      if (instruction == nullptr) fail("this instruction does not occur in checkpoints and is refused");
      instruction(*this);
      const size_t words = tree_.links_.size() + memo_.size() + stack_.size();
      if (tree_.nodes_.size() * sizeof(PickleNode) + words * sizeof(uint32_t) > max_bytes_)
        fail("its values need more than four times its own size");
    }
    if (stack_.size() != 1 || !marks_.empty()) fail("the end leaves something else than one value");
    if (at_ != tree_.input_.size()) fail("there are bytes after the end");
    tree_.root_ = stack_.back();
    return std::move(tree_);
  }

 private:
  // Executes the instruction at at_.
  PickleOp next() {
    begin_ = at_;
    opcode_ = static_cast<unsigned char>(take(1)[0]);
    ++steps_;
    return static_cast<PickleOp>(opcode_);
  }

  // The handler of each instruction; null for instructions that do not occur in checkpoints.
  using Instruction = void (*)(PickleMachine& machine);
  static const std::array<Instruction, 256> kInstructions;

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
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view take_line() {
    const size_t end = tree_.input_.substr(at_, 256).find('\n');
    if (end == std::string_view::npos) fail("a name does not end");
    const std::string_view line = take(end);
    take(1);
    return line;
  }

  void check_protocol(uint8_t protocol) const {
    if (protocol > 5) fail("it is of a protocol beyond 5");
  }
  void check_frame(uint64_t bytes) const {
    if (bytes > left()) fail("a frame goes beyond the end of the file");
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
  // torch's files and ours have a value per 2.6 bytes or more, and one waiting for its container per 50.
  void push(uint32_t ref) {
    if (++values_ > max_values_ || stack_.size() == max_waiting_)
      fail("its {} bytes hold too many values: more than {}, or more than {} that no container has taken yet",
           tree_.input_.size(), max_values_, max_waiting_);
    stack_.push_back(ref);
  }
  // The stack index of the last `count` values.
  size_t top_values(size_t count) const {
    if (stack_.size() - bottom() < count) fail("there are too few values to work on");
    return stack_.size() - count;
  }
  void push_mark() {
    if (marks_.size() == kMaxMarks) fail("values are nested deeper than {}", kMaxMarks);
    marks_.push_back(stack_.size());
  }
  void pop_value_or_mark() {
    if (marks_.empty() || marks_.back() != stack_.size())
      pop();
    else
      marks_.pop_back();
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
  // The depth of a container of depth `depth` after adding `child`.
  uint8_t deeper(uint32_t child, uint8_t depth) const {
    const uint8_t below = child & PickleTree::kSmallInt ? 0 : tree_.nodes_[child].depth;
    if (below >= kMaxPickleDepth) fail("values are nested deeper than {}", kMaxPickleDepth);
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
  void push_double(uint64_t big_endian) {  // the only big-endian operand
    PickleNode node(Kind::kDouble);
    node.number = std::bit_cast<double>(__builtin_bswap64(big_endian));
    push(add(node));
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
  // Reserves `count` more links: at once for as many as max_values_ allows if lists are not tiny, because
  // doubling twice would take more addresses.
  void reserve_links(size_t count) {
    if (tree_.links_.size() + count > tree_.links_.capacity())
      tree_.links_.reserve(tree_.input_.size() / 16 * 9);
  }
  // Replaces the values from `first` on by a tuple of them.
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
  // Moves the values from `first` on into a new segment of the container below them.
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

  void push_frozen_set(size_t first) {
    stack_.insert(stack_.begin() + static_cast<ptrdiff_t>(first), add(PickleNode(Kind::kSet)));
    fill(Kind::kSet, first + 1);
  }

  // --- classes ---

  void push_named_global() {
    const std::string_view module = take_line();
    push_global(module, take_line());
  }
  void push_stack_global() {
    const auto name = value(pop()).text();
    const auto module = value(pop()).text();
    if (!module || !name) fail("a class is named by something else than two texts");
    push_global(*module, *name);
  }
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
  void push_instance_with_keywords() {
    if (value(top()).kind() != Kind::kDict || value(top()).size() > 0) fail("it has keyword arguments");
    pop();
    push_instance();
  }
  void push_persistent_id(uint32_t id) {
    PickleNode node(Kind::kPersistentId);
    node.at = {id, 0};
    node.depth = deeper(id, 0);
    push(add(node));
  }
  // getattr(class, "NAME") is a member of the one enum that checkpoints hold, and nothing else.
  PickleGlobal owner_of_member(const std::vector<PickleValue>& args) {
    const auto owner = args.empty() ? std::nullopt : args[0].global();
    if (args.size() != 2 || !owner || owner->which != PickleClass::kMemoryFormat || !args[1].text())
      fail("it calls builtins.getattr for something else than a member of an enum; refused, nothing was run");
    return *owner;
  }
  // Records a call as an instance of the function. The two functions that only wrap a container are
  // replaced by it.
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
  size_t at_ = 0, begin_ = 0;  // the next byte; the start of the current instruction
  unsigned opcode_ = 0;
  size_t steps_ = 0, values_ = 0;
  size_t max_bytes_ = 0, max_values_ = 0, max_waiting_ = 0;
  uint32_t none_ = 0, false_ = 0, true_ = 0, empty_tuple_ = 0;
  std::vector<uint32_t> stack_, memo_;
  std::vector<size_t> marks_;  // stack sizes at marks
};

constexpr std::array<PickleMachine::Instruction, 256> PickleMachine::kInstructions = [] {
  std::array<Instruction, 256> all{};
  using Op = PickleOp;
  using M = PickleMachine;
  const auto set = [&](Op op, Instruction instruction) { all[static_cast<uint8_t>(op)] = instruction; };
  set(Op::kProto, [](M& m) { m.check_protocol(m.operand<uint8_t>()); });
  set(Op::kFrame, [](M& m) { m.check_frame(m.operand<uint64_t>()); });

  set(Op::kNone, [](M& m) { m.push(m.none_); });
  set(Op::kTrue, [](M& m) { m.push(m.true_); });
  set(Op::kFalse, [](M& m) { m.push(m.false_); });
  set(Op::kInt1, [](M& m) { m.push_integer(m.operand<uint8_t>()); });
  set(Op::kInt2, [](M& m) { m.push_integer(m.operand<uint16_t>()); });
  set(Op::kInt4, [](M& m) { m.push_integer(m.operand<int32_t>()); });
  set(Op::kLong1, [](M& m) { m.push_long(m.operand<uint8_t>()); });
  set(Op::kLong4, [](M& m) { m.push_long(m.operand<uint32_t>()); });
  set(Op::kDouble, [](M& m) { m.push_double(m.operand<uint64_t>()); });
  set(Op::kText1, [](M& m) { m.push_run(Kind::kText, m.operand<uint8_t>()); });
  set(Op::kText4, [](M& m) { m.push_run(Kind::kText, m.operand<uint32_t>()); });
  set(Op::kText8, [](M& m) { m.push_run(Kind::kText, m.operand<uint64_t>()); });
  set(Op::kBytes1, [](M& m) { m.push_run(Kind::kBytes, m.operand<uint8_t>()); });
  set(Op::kBytes4, [](M& m) { m.push_run(Kind::kBytes, m.operand<uint32_t>()); });
  set(Op::kBytes8, [](M& m) { m.push_run(Kind::kBytes, m.operand<uint64_t>()); });

  set(Op::kMark, [](M& m) { m.push_mark(); });
  set(Op::kPop, [](M& m) { m.pop_value_or_mark(); });
  set(Op::kPopMark, [](M& m) { m.stack_.resize(m.pop_mark()); });
  set(Op::kDup, [](M& m) { m.push(m.top()); });

  set(Op::kEmptyTuple, [](M& m) { m.push(m.empty_tuple_); });
  set(Op::kTuple1, [](M& m) { m.push_tuple(m.top_values(1)); });
  set(Op::kTuple2, [](M& m) { m.push_tuple(m.top_values(2)); });
  set(Op::kTuple3, [](M& m) { m.push_tuple(m.top_values(3)); });
  set(Op::kTuple, [](M& m) { m.push_tuple(m.pop_mark()); });
  set(Op::kEmptyList, [](M& m) { m.push(m.add(PickleNode(Kind::kList))); });
  set(Op::kAppend, [](M& m) { m.fill(Kind::kList, m.top_values(1)); });
  set(Op::kAppends, [](M& m) { m.fill(Kind::kList, m.pop_mark()); });
  set(Op::kEmptySet, [](M& m) { m.push(m.add(PickleNode(Kind::kSet))); });
  set(Op::kAddItems, [](M& m) { m.fill(Kind::kSet, m.pop_mark()); });
  set(Op::kFrozenSet, [](M& m) { m.push_frozen_set(m.pop_mark()); });
  set(Op::kEmptyDict, [](M& m) { m.push(m.add(PickleNode(Kind::kDict))); });
  set(Op::kSetItem, [](M& m) { m.fill(Kind::kDict, m.top_values(2)); });
  set(Op::kSetItems, [](M& m) { m.fill(Kind::kDict, m.pop_mark()); });

  set(Op::kGlobal, [](M& m) { m.push_named_global(); });
  set(Op::kStackGlobal, [](M& m) { m.push_stack_global(); });
  set(Op::kNewObjectEx, [](M& m) { m.push_instance_with_keywords(); });
  set(Op::kNewObject, [](M& m) { m.push_instance(); });
  set(Op::kReduce, [](M& m) { m.reduce(); });
  set(Op::kBuild, [](M& m) { m.build(); });
  set(Op::kPersistentId, [](M& m) { m.push_persistent_id(m.pop()); });

  set(Op::kMemoize, [](M& m) { m.put(m.memo_.size()); });
  set(Op::kPut1, [](M& m) { m.put(m.operand<uint8_t>()); });
  set(Op::kPut4, [](M& m) { m.put(m.operand<uint32_t>()); });
  set(Op::kGet1, [](M& m) { m.get(m.operand<uint8_t>()); });
  set(Op::kGet4, [](M& m) { m.get(m.operand<uint32_t>()); });
  return all;
}();

PickleTree read_pickle(std::span<const std::byte> input, const std::string& name) {
  return PickleMachine({reinterpret_cast<const char*>(input.data()), input.size()}, name).run();
}

}  // namespace hyperion::checkpoint
