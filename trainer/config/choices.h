// Declares the enumerations of configuration keys, each with its texts. Other folders declare AsyncMode
// (checkpoint/types/choices.h), Dtype and float8::Recipe.
#pragma once

#include "base/choice.h"
#include "checkpoint/types/choices.h"
#include "checkpoint/types/dtype.h"
#include "models/args/float8_recipe.h"

namespace hyperion::config {

enum class Converter { kFloat8, kMx, kGroupedFloat8, kGroupedMx, kFormerFloat8 };
constexpr auto choices(Converter) {
  return choice_list<Converter>({{Converter::kFloat8, "quantize.linear.float8"},
                                 {Converter::kMx, "quantize.linear.mx"},
                                 {Converter::kGroupedFloat8, "quantize.grouped_mm.float8"},
                                 {Converter::kGroupedMx, "quantize.grouped_mm.mx"},
                                 {Converter::kFormerFloat8, "float8"}});
}

enum class OptimizerName { kAdamW, kAdam, kMuon };
constexpr auto choices(OptimizerName) {
  return choice_list<OptimizerName>(
      {{OptimizerName::kAdamW, "AdamW"}, {OptimizerName::kAdam, "Adam"}, {OptimizerName::kMuon, "Muon"}});
}
// Returns whether the optimizer updates the matrices of blocks, each as a whole, and leaves the other
// parameters to AdamW. The ranks that share a matrix then exchange it.
constexpr bool updates_matrices(OptimizerName name) {
  return name == OptimizerName::kMuon;
}

enum class MuonScale { kMatchRmsAdamW, kOriginal, kSpectral };
constexpr auto choices(MuonScale) {
  return choice_list<MuonScale>({{MuonScale::kMatchRmsAdamW, "match_rms_adamw"},
                                 {MuonScale::kOriginal, "original"},
                                 {MuonScale::kSpectral, "spectral"}});
}

enum class MuonCoefficients { kQuintic, kPolarExpress };
constexpr auto choices(MuonCoefficients) {
  return choice_list<MuonCoefficients>(
      {{MuonCoefficients::kQuintic, "quintic"}, {MuonCoefficients::kPolarExpress, "polar_express"}});
}

// kFused is one kernel of libtorch. The others compute the formula operation by operation: kForeach on all
// tensors at once, kForLoop on one tensor at a time, which needs less temporary memory.
enum class OptimizerImplementation { kForLoop, kForeach, kFused };
constexpr auto choices(OptimizerImplementation) {
  return choice_list<OptimizerImplementation>({{OptimizerImplementation::kForLoop, "for-loop"},
                                               {OptimizerImplementation::kForeach, "foreach"},
                                               {OptimizerImplementation::kFused, "fused"}});
}

enum class DecayType { kLinear, kSqrt, kCosine };
constexpr auto choices(DecayType) {
  return choice_list<DecayType>(
      {{DecayType::kLinear, "linear"}, {DecayType::kSqrt, "sqrt"}, {DecayType::kCosine, "cosine"}});
}

enum class RampUnit { kSteps, kTokens };
constexpr auto choices(RampUnit) {
  return choice_list<RampUnit>({{RampUnit::kSteps, "steps"}, {RampUnit::kTokens, "tokens"}});
}

enum class Dataset { kC4Validation, kC4Test, kC4, kJsonl };
constexpr auto choices(Dataset) {
  return choice_list<Dataset>({{Dataset::kC4Validation, "c4_validation"},
                               {Dataset::kC4Test, "c4_test"},
                               {Dataset::kC4, "c4"},
                               {Dataset::kJsonl, "jsonl"}});
}

enum class ReshardAfterForward { kDefault, kAlways, kNever };
constexpr auto choices(ReshardAfterForward) {
  return choice_list<ReshardAfterForward>({{ReshardAfterForward::kDefault, "default"},
                                           {ReshardAfterForward::kAlways, "always"},
                                           {ReshardAfterForward::kNever, "never"}});
}

enum class ReduceGradients { kEveryMicrobatch, kOncePerStep };
constexpr auto choices(ReduceGradients) {
  return choice_list<ReduceGradients>({{ReduceGradients::kEveryMicrobatch, "every_microbatch"},
                                       {ReduceGradients::kOncePerStep, "once_per_step"}});
}

// On GPUs kAuto uses cuDNN's attention if a trial of it succeeds, kCudnn ends the job if the trial fails, and
// kFlash never uses cuDNN. On CPUs our kernel runs; with kFlash and without document masks libtorch's flash
// attention does.
enum class AttentionChoice { kAuto, kCudnn, kFlash };
constexpr auto choices(AttentionChoice) {
  return choice_list<AttentionChoice>({{AttentionChoice::kAuto, "auto"},
                                       {AttentionChoice::kCudnn, "cudnn"},
                                       {AttentionChoice::kFlash, "flash"}});
}

// OnSourceEnd says what happens when max_epochs of a source are read.
enum class OnSourceEnd { kStop, kRenormalize };
constexpr auto choices(OnSourceEnd) {
  return choice_list<OnSourceEnd>({{OnSourceEnd::kStop, "stop"}, {OnSourceEnd::kRenormalize, "renormalize"}});
}

// The preflight of a resumed job writes a full save or a probe.
enum class ResumePreflight { kFull, kProbe };
constexpr auto choices(ResumePreflight) {
  return choice_list<ResumePreflight>({{ResumePreflight::kFull, "full"}, {ResumePreflight::kProbe, "probe"}});
}

enum class OnNonFinite { kStop, kSkip };
constexpr auto choices(OnNonFinite) {
  return choice_list<OnNonFinite>({{OnNonFinite::kStop, "stop"}, {OnNonFinite::kSkip, "skip"}});
}

enum class OnBadDocument { kStop, kSkip };
constexpr auto choices(OnBadDocument) {
  return choice_list<OnBadDocument>({{OnBadDocument::kStop, "stop"}, {OnBadDocument::kSkip, "skip"}});
}

enum class OnSaveFailure { kStop, kContinue };
constexpr auto choices(OnSaveFailure) {
  return choice_list<OnSaveFailure>({{OnSaveFailure::kStop, "stop"}, {OnSaveFailure::kContinue, "continue"}});
}

// The replicas that write the shards they share. trainer/config/writers_choice.h decides for kAuto.
enum class WritersChoice { kAuto, kAll, kOneReplica };
constexpr auto choices(WritersChoice) {
  return choice_list<WritersChoice>({{WritersChoice::kAuto, "auto"},
                                     {WritersChoice::kAll, "all"},
                                     {WritersChoice::kOneReplica, "one_replica"}});
}

enum class ResumeMode { kRecover, kTransfer, kContinue };
constexpr auto choices(ResumeMode) {
  return choice_list<ResumeMode>({{ResumeMode::kRecover, "recover"},
                                  {ResumeMode::kTransfer, "transfer"},
                                  {ResumeMode::kContinue, "continue"}});
}

enum class OnConfigChange { kError, kKeep, kOverride };
constexpr auto choices(OnConfigChange) {
  return choice_list<OnConfigChange>({{OnConfigChange::kError, "error"},
                                      {OnConfigChange::kKeep, "keep"},
                                      {OnConfigChange::kOverride, "override"}});
}

// OnMeshMismatch says what to do if the configured mesh has another number of ranks than the job.
enum class OnMeshMismatch { kError, kFit };
constexpr auto choices(OnMeshMismatch) {
  return choice_list<OnMeshMismatch>({{OnMeshMismatch::kError, "error"}, {OnMeshMismatch::kFit, "fit"}});
}

enum class OnCorrupt { kPrevious, kError };
constexpr auto choices(OnCorrupt) {
  return choice_list<OnCorrupt>({{OnCorrupt::kPrevious, "previous"}, {OnCorrupt::kError, "error"}});
}

enum class EmaDevice { kSame, kCpu };
constexpr auto choices(EmaDevice) {
  return choice_list<EmaDevice>({{EmaDevice::kSame, "same"}, {EmaDevice::kCpu, "cpu"}});
}

enum class OnMissingEma { kError, kInitFromModel };
constexpr auto choices(OnMissingEma) {
  return choice_list<OnMissingEma>(
      {{OnMissingEma::kError, "error"}, {OnMissingEma::kInitFromModel, "init_from_model"}});
}

enum class RecomputeMode { kSelective, kFull, kMemoryBudget, kElementwise, kNone };
constexpr auto choices(RecomputeMode) {
  return choice_list<RecomputeMode>({{RecomputeMode::kSelective, "selective"},
                                     {RecomputeMode::kFull, "full"},
                                     {RecomputeMode::kMemoryBudget, "memory_budget"},
                                     {RecomputeMode::kElementwise, "elementwise"},
                                     {RecomputeMode::kNone, "none"}});
}

enum class CommMode { kDefault, kFakeBackend, kLocalTensor };
constexpr auto choices(CommMode) {
  return choice_list<CommMode>({{CommMode::kDefault, "default"},
                                {CommMode::kFakeBackend, "fake_backend"},
                                {CommMode::kLocalTensor, "local_tensor"}});
}

}  // namespace hyperion::config
