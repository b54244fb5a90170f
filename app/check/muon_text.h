// Describes Muon's work of a rank for `hyperion check`.
#pragma once

#include <string>

#include "app/check/check_table.h"
#include "trainer/plan/muon_work.h"

namespace hyperion::app {

// Returns "the fullest rank multiplies 1.20 TFLOP in a step, 1.05 times the mean, for 24 matrices; ...".
std::string describe_muon(const trainer::MuonWork& work);
// Returns the same numbers by name, in bytes and FLOPs.
CheckTable::Facts muon_facts(const trainer::MuonWork& work);

}  // namespace hyperion::app
