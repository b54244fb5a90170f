// How the ranks of a save or load agree: two small exchanges of text. trainer/ implements it over a process
// group of its own; one process alone needs no group.
#pragma once

#include <string>
#include <vector>

namespace hyperion {

class Coordinator {
 public:
  virtual ~Coordinator() = default;
  virtual int rank() const = 0;  // rank 0 coordinates
  virtual int size() const = 0;
  // Every rank's text, by rank, on every rank. All ranks must call it in the same order. Throws
  // Error(kCommunication).
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;
};

class SoloCoordinator : public Coordinator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> all_gather(const std::string& text) override { return {text}; }
};

}  // namespace hyperion
