/* AMD's management library as far as Coach asks it; what else its Python package wants to find is made by `tests.gpus`.

   HIP counts the GPUs from the end of the file, as it may count them in another order than the library does. */
#define FILE_VARIABLE "AMD_GPUS"
#include "gpus.h"

enum { NOT_FOUND = 31 };

typedef struct { unsigned render, card, hsa, hip; char uuid[256]; } Names;
typedef struct {
    char model[256]; unsigned vendor; char vendor_name[256]; unsigned subvendor; unsigned long long id;
    unsigned revision; char serial[256]; unsigned oam, units; unsigned long long graphics; unsigned subsystem, rest[21];
} Asic;
typedef struct { unsigned total, used, rest[2]; } Memory;
typedef struct { unsigned gfx, umc, mm, rest[13]; } Activity;
typedef struct {
    unsigned long long socket; unsigned now, average; unsigned long long gfx, soc, memory; unsigned limit;
    unsigned long long rest[18];
} Power;
typedef struct {
    char name[256]; unsigned pid; unsigned long long memory, gfx, enc; unsigned rest[12];
    unsigned long long gtt, cpu, vram; unsigned more[10]; char container[256]; unsigned units, last[11];
} Info;

static int state(Device *device) { return device && strcmp(device->state, "lost") ? SUCCESS : NOT_FOUND; }

int amdsmi_init(unsigned long long flags) { (void)flags; return look(0); }

int amdsmi_get_socket_handles(unsigned *found, void **sockets) {
    if (sockets) sockets[0] = (void *)1;
    *found = 1;
    return SUCCESS;
}
int amdsmi_get_processor_handles(void *socket, unsigned *found, void **handles) {
    (void)socket;
    look(0);
    for (int i = 0; handles && i < count; i++) handles[i] = (void *)(size_t)(i + 1);
    *found = count;
    return SUCCESS;
}
int amdsmi_get_gpu_enumeration_info(void *handle, Names *names) {
    Device *device = of(handle);
    if (state(device)) return NOT_FOUND;
    *names = (Names){.hip = count - (size_t)handle, .hsa = 1 + count - (size_t)handle};
    snprintf(names->uuid, sizeof names->uuid, "%s", device->uuid);
    return SUCCESS;
}
int amdsmi_get_gpu_asic_info(void *handle, Asic *asic) {
    Device *device = of(handle);
    if (state(device)) return NOT_FOUND;
    *asic = (Asic){.serial = "1"};
    snprintf(asic->model, sizeof asic->model, "%s", device->model);
    return SUCCESS;
}
int amdsmi_get_gpu_vram_usage(void *handle, Memory *memory) {
    Device *device = of(handle);
    if (!state(device)) *memory = (Memory){device->total, device->used, {0}};
    return state(device);
}
int amdsmi_get_gpu_activity(void *handle, Activity *activity) {
    Device *device = of(handle);
    if (!state(device)) *activity = (Activity){.gfx = device->busy};
    return state(device);
}
/* An MI300 has no average, others have nothing else. */
int amdsmi_get_power_info(void *handle, Power *power) {
    Device *device = of(handle);
    if (!state(device)) *power = (Power){.now = strstr(device->model, "MI3") ? device->watts : 0xFFFF, .average = 0xFFFF};
    if (!state(device) && power->now == 0xFFFF) power->average = device->watts;
    return state(device);
}
int amdsmi_get_gpu_process_list(void *handle, unsigned *room, Info *found) {
    Device *device = of(handle);
    unsigned here = 0;
    look(1);
    if (state(device)) return NOT_FOUND;
    for (int i = 0; i < running; i++)
        if (!strcmp(processes[i].uuid, device->uuid) && here < *room)
            found[here++] = (Info){.pid = processes[i].pid, .memory = processes[i].used << 20};
    *room = here;
    return SUCCESS;
}
