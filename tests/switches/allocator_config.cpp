// What torch's accelerators really read of the settings of their allocators: its getter gives only the last text.
#include <c10/core/AllocatorConfig.h>

extern "C" void in_effect(double* found) {
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  found[0] = static_cast<double>(Config::large_segment_size() >> 20);
  found[1] = Config::use_expandable_segments();
  found[2] = static_cast<double>(Config::max_split_size() >> 20);
  found[3] = Config::garbage_collection_threshold();
  found[4] = static_cast<double>(Config::roundup_power2_divisions(std::size_t{512} << 20));
}
