// group_ends() returns where the groups of rows of a dispatch end, read from the device if they are padded.
#pragma once

#include <cstdint>
#include <vector>

#include "models/parts/experts/exchange/dispatch.h"

namespace hyperion::test {

inline std::vector<int64_t> group_ends(const models::Dispatch& dispatch) {
  std::vector<int64_t> ends;
  if (dispatch.ends.defined()) {
    const at::Tensor on_host = dispatch.ends.cpu().to(at::kLong);
    ends.assign(on_host.const_data_ptr<int64_t>(), on_host.const_data_ptr<int64_t>() + on_host.numel());
  } else {
    for (const int64_t count : dispatch.counts) ends.push_back((ends.empty() ? 0 : ends.back()) + count);
  }
  return ends;
}

}  // namespace hyperion::test
