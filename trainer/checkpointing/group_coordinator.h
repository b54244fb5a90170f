// The checkpoint's exchanges of text over a process group.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/coordinator.h"
#include "parallel/communicator.h"

namespace hyperion {

class GroupCoordinator : public Coordinator {
 public:
  explicit GroupCoordinator(std::shared_ptr<Communicator> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::vector<std::string> all_gather(const std::string& text) override {
    return group_->all_gather_text(text);
  }

 private:
  std::shared_ptr<Communicator> group_;
};

}  // namespace hyperion
