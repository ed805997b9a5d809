/* A driver's library for machines without one: three GPUs, of which the first has fallen off the bus and
   the third is split and tells no processes. */
#include <stddef.h>
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gpu_instance, compute_instance; } process_t;

enum { SUCCESS = 0, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };
static char handles[3];

int nvmlInitWithFlags(unsigned int flags) { return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int error) { return "not supported"; }

int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 3; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
  *handle = &handles[index];
  return index == 0 ? GPU_IS_LOST : SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned int size) { strncpy(name, "NVIDIA H200", size); return SUCCESS; }
int nvmlDeviceGetNameV2(void *handle, char *name, unsigned int size) { return nvmlDeviceGetName(handle, name, size); }

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
  memory->total = 150754820096ULL;
  memory->used = handle == &handles[1] ? 60000000000ULL : 600000000ULL;
  memory->free = memory->total - memory->used;
  return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned int *milliwatts) {
  *milliwatts = handle == &handles[1] ? 655500 : 70250;
  return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, process_t *processes) {
  if (handle != &handles[1]) return NOT_SUPPORTED;
  if (*count < 2) { *count = 2; return INSUFFICIENT_SIZE; }
  *count = 2;
  memset(processes, 0, 2 * sizeof *processes);
  processes[0].pid = 912;
  processes[1].pid = 34;
  return SUCCESS;
}
