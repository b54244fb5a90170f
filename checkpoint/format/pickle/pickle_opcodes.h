// The opcodes of Python's pickle machine that occur in checkpoints.
#pragma once

#include <cstdint>

namespace hyperion::checkpoint {

enum class PickleOp : uint8_t {
  kProto = 0x80,
  kFrame = 0x95,
  kStop = '.',
  kNone = 'N',
  kTrue = 0x88,
  kFalse = 0x89,
  kInt1 = 'K',
  kInt2 = 'M',
  kInt4 = 'J',
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kDouble = 'G',
  kText1 = 0x8c,
  kText4 = 'X',
  kText8 = 0x8d,
  kBytes1 = 'C',
  kBytes4 = 'B',
  kBytes8 = 0x8e,
  kMark = '(',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kEmptyTuple = ')',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTuple = 't',
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kNewObject = 0x81,
  kNewObjectEx = 0x92,
  kReduce = 'R',
  kBuild = 'b',
  kPersistentId = 'Q',
  kMemoize = 0x94,
  kPut1 = 'q',
  kPut4 = 'r',
  kGet1 = 'h',
  kGet4 = 'j',
};

}  // namespace hyperion::checkpoint
