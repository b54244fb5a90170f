// Failpoints are named points in the program where a test can kill the process, stop it, or make a system
// call fail. They are always compiled; nothing happens until faults are armed, which main() refuses without
// --allow-faults.
//
// A fault is "rank=1;point=ckpt.after_data;nth=2;action=kill"; several are joined by commas. rank: all if
// left out. nth: which call of the point on that rank, counted from 1 (default); 0: every call. on=TEXT:
// only calls for a file whose path contains TEXT are counted. Actions:
//   kill, stop, abort        SIGKILL, SIGSTOP (and a warning), SIGABRT to this process
//   throw                    Error(kBug) that names the point
//   sleep:SECONDS            sleeps, with a warning unless nth=0
//   wait:PATH                the calling thread waits until this file exists (and a warning)
//   errno:ENOSPC             the system call fails so        } only where a file is written or read,
//   short                    it transfers less than asked    } or memory allocated: see kErrnoPoints
//   flip                     one bit of its data is wrong    }
#pragma once

#include <string_view>

namespace hyperion {

struct FaultEffect {
  int error_number = 0;
  bool short_write = false;
  bool flip = false;
};

// Replaces the armed faults; an empty text disarms. Throws Error(kUsage) for a malformed one, listing the
// known points or actions.
void arm_faults(std::string_view spec, int rank);

// Arms the faults of the environment variable FAULT. Throws Error(kUsage) if it is set and not allowed.
void arm_faults_from_environment(bool allowed, int rank);

// Passes a point. `subject` is the file's path, if any. Costs one relaxed load if nothing is armed.
// Thread-safe.
FaultEffect failpoint(std::string_view point, std::string_view subject = {});

}  // namespace hyperion
