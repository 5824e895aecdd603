/* NVIDIA's management library as far as Coach asks it, of GPUs that a file describes: the variable NVML_GPUS names it.

   A line each: `gpu UUID MODEL MIB USED_MIB PERCENT WATTS STATE`, `mig UUID GPU_UUID MODEL MIB`, `process UUID PID MIB`,
   and `file UUID PATH`: who has this file open is on that GPU, as it is for the driver with a file in /dev.
   STATE is `good`, `lost` or `cut` (into MIG instances). A model has _ for blanks. The file is read anew at each call. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NOT_LOADED = 9, LOST = 15, MOST = 64 };

typedef struct { char uuid[96], of[96], model[96], state[16]; unsigned long long total, used; unsigned busy, watts; } Device;
typedef struct { char uuid[96]; unsigned pid; unsigned long long used; } Process;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Use;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Info;

static Device devices[MOST];
static Process processes[MOST];
static int count, running;

/* Whether a process has a file open. */
static int has_open(const char *pid, const char *path) {
    char name[PATH_MAX], to[PATH_MAX];
    snprintf(name, sizeof name, "/proc/%.20s/fd", pid);
    DIR *files = opendir(name);
    int found = 0;
    for (struct dirent *one; files && !found && (one = readdir(files));) {
        snprintf(name, sizeof name, "/proc/%.20s/fd/%.20s", pid, one->d_name);
        ssize_t length = readlink(name, to, sizeof to - 1);
        found = length > 0 && (to[length] = 0, !strcmp(to, path));
    }
    if (files) closedir(files);
    return found;
}

static void find_open(const char *uuid, const char *path) {
    DIR *all = opendir("/proc");
    for (struct dirent *one; all && running < MOST && (one = readdir(all));)
        if (atoi(one->d_name) > 0 && has_open(one->d_name, path)) {
            Process process = {.pid = atoi(one->d_name)};
            snprintf(process.uuid, sizeof process.uuid, "%s", uuid);
            processes[running++] = process;
        }
    if (all) closedir(all);
}

static int look(int who) {
    char line[512], uuid[96], path[256];
    FILE *file = getenv("NVML_GPUS") ? fopen(getenv("NVML_GPUS"), "r") : NULL;
    count = running = 0;
    if (!file) return NOT_LOADED;
    while (fgets(line, sizeof line, file) && count < MOST && running < MOST) {
        Device one = {.state = "good"};
        Process process;
        if (sscanf(line, "gpu %95s %95s %llu %llu %u %u %15s", one.uuid, one.model, &one.total, &one.used, &one.busy,
                   &one.watts, one.state) == 7
            || sscanf(line, "mig %95s %95s %95s %llu", one.uuid, one.of, one.model, &one.total) == 4)
            devices[count++] = one;
        else if (sscanf(line, "process %95s %u %llu", process.uuid, &process.pid, &process.used) == 3)
            processes[running++] = process;
        else if (who && sscanf(line, "file %95s %255s", uuid, path) == 2)
            find_open(uuid, path);
    }
    fclose(file);
    for (int i = 0; i < count; i++)
        for (char *at = devices[i].model; *at; at++)
            if (*at == '_') *at = ' ';
    return SUCCESS;
}

/* A handle is a device's number from 1 on, in the order of the file. */
static Device *of(void *handle) {
    look(0);
    size_t at = (size_t)handle;
    return at >= 1 && at <= (size_t)count ? &devices[at - 1] : NULL;
}

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
