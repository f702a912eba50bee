// Which algorithm runs, and what was measured.
#include "common/choices.cpp"
#include "common/measure.cpp"
#include "common/policy.cpp"
#include "common/policy_rows.cpp"
#include "common/tuning.cpp"
