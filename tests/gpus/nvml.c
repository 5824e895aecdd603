/* NVIDIA's management library as far as Coach asks it. */
#define FILE_VARIABLE "NVML_GPUS"
#include "gpus.h"

enum { INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15 };

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Use;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Info;

static int state(Device *device) {
    if (!device) return NOT_FOUND;
    return strcmp(device->state, "lost") ? SUCCESS : LOST;
}

/* The index-th GPU, or instance of one. */
static void *at(const char *gpu, unsigned index) {
    for (int i = 0; i < count; i++)
        if (!strcmp(devices[i].of, gpu) && index-- == 0) return (void *)(size_t)(i + 1);
    return NULL;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return look(0); }
int nvmlInit_v2(void) { return look(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int error) { return error == LOST ? "GPU is lost" : error == NOT_FOUND ? "Not Found" : "Error"; }

int nvmlDeviceGetCount_v2(unsigned *found) {
    look(0);
    for (*found = 0; at("", *found); ++*found) {}
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    look(0);
    *handle = at("", index);
    return *handle ? state(of(*handle)) : INVALID;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    look(0);
    for (int i = 0; i < count; i++)
        if (!strcmp(devices[i].uuid, uuid)) { *handle = (void *)(size_t)(i + 1); return state(&devices[i]); }
    return NOT_FOUND;
}
static int text(void *handle, char *to, unsigned length, int uuid) {
    Device *device = of(handle);
    if (!state(device)) snprintf(to, length, "%s", uuid ? device->uuid : device->model);
    return state(device);
}
int nvmlDeviceGetUUID(void *handle, char *to, unsigned length) { return text(handle, to, length, 1); }
int nvmlDeviceGetName(void *handle, char *to, unsigned length) { return text(handle, to, length, 0); }
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    Device *device = of(handle);
    if (!state(device)) {
        memory->total = device->total << 20;
        memory->used = device->used << 20;
        memory->free = memory->total - memory->used;
    }
    return state(device);
}
int nvmlDeviceGetUtilizationRates(void *handle, Use *use) {
    Device *device = of(handle);
    if (!state(device) && device->of[0]) return NOT_SUPPORTED;
    if (!state(device)) use->gpu = use->memory = device->busy;
    return state(device);
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    Device *device = of(handle);
    if (!state(device)) *milliwatts = device->watts * 1000;
    return state(device);
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *room, Info *found) {
    Device *device = of(handle);
    unsigned here = 0;
    look(1);
    if (state(device)) return state(device);
    for (int i = 0; i < running; i++)
        if (!strcmp(processes[i].uuid, device->uuid)) {
            if (found && here < *room) found[here] = (Info){processes[i].pid, processes[i].used << 20, 0, 0};
            here++;
        }
    int fits = here <= *room;
    *room = here;
    return fits ? SUCCESS : TOO_SMALL;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *next) {
    Device *device = of(handle);
    if (!state(device)) *now = *next = !strcmp(device->state, "cut");
    return state(device);
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *most) { *most = 7; return state(of(handle)); }
int nvmlDeviceGetMigDeviceHandleByIndex(void *gpu, unsigned index, void **handle) {
    Device *device = of(gpu);
    *handle = device ? at(device->uuid, index) : NULL;
    return *handle ? SUCCESS : NOT_FOUND;
}
static int number(void *handle, unsigned *id) {
    Device *device = of(handle);
    if (state(device) || !device->of[0]) return NOT_SUPPORTED;
    for (*id = 1; at(device->of, *id - 1) != handle; ++*id) {}
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id) { return number(handle, id); }
int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *id) { *id = 0; return state(of(handle)); }
