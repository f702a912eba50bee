/* Stands in for NVIDIA's management library: one device, with the processes that a test tells it. */
#include <string.h>

struct process {
  unsigned int pid;
  unsigned long long used;
  unsigned int gpu_instance, compute_instance;
};

static struct process processes[64];
static unsigned int number;
static char device[64];
int calls;

void tell(const char* name, unsigned int count, const unsigned int* pids, const unsigned long long* used) {
  strncpy(device, name, sizeof device - 1);
  number = count;
  calls = 0;
  for (unsigned int i = 0; i < count; ++i) processes[i] = (struct process){pids[i], used[i], 0xffffffff, 0xffffffff};
}

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetHandleByUUID(const char* name, void** handle) {
  *handle = device;
  return strcmp(name, device) ? 6 : 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned int* count, struct process* found) {
  unsigned int room = *count;
  ++calls;
  if (handle != device) return 2;
  *count = number;
  if (room < number) return 7;
  memcpy(found, processes, number * sizeof *found);
  return 0;
}
