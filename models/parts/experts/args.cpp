#include "models/parts/experts/args.h"

#include <fmt/format.h>

namespace hyperion::models {

void check(const ExpertArgs& args, DimensionChecks& checks) {
  const int64_t experts = args.num_experts, groups = args.expert_groups, limited = args.limited_groups;
  checks.in_range({"num_experts"}, experts, 0, kMaxExperts);
  checks.in_range({"num_shared_experts"}, args.num_shared_experts, 0, kMaxExperts);
  checks.in_range({"moe_hidden_dim"}, args.hidden_dim, 0, kLargestDimension);
  checks.fits_float("route_scale", args.route_scale);
  checks.fits_float("load_balance_coeff", args.load_balance_coeff);
  checks.fits_float("router_z_loss_coeff", args.losses.z);
  checks.fits_float("sequence_aux_loss_coeff", args.losses.sequence);
  checks.fits_float("global_aux_loss_coeff", args.losses.global);
  if (!args.are_present()) return;
  checks.refuse_if(args.hidden_dim == 0, {"moe_hidden_dim"},
                   "moe_hidden_dim is 0, expected at least 1 with experts");
  checks.refuse_if(args.top_k > experts, {"top_k", "num_experts"},
                   fmt::format("top_k is {}, expected at most num_experts = {}", args.top_k, experts));
  if (groups == 0) return;
  if (experts % groups != 0 || experts / groups < 2)
    return checks.refuse_if(
        true, {"expert_groups", "num_experts"},
        fmt::format("expert_groups is {}, expected a divisor of num_experts = {} that leaves each "
                    "group two experts or more",
                    groups, experts));
  if (limited < 1 || limited > groups)
    return checks.refuse_if(
        true, {"limited_groups", "expert_groups"},
        fmt::format("limited_groups is {}, expected a value from 1 to expert_groups = {}", limited, groups));
  checks.refuse_if(limited * (experts / groups) < args.top_k, {"limited_groups", "top_k"},
                   fmt::format("{} groups of {} experts are fewer experts than top_k = {}: raise "
                               "limited_groups",
                               limited, experts / groups, args.top_k));
}

}  // namespace hyperion::models
