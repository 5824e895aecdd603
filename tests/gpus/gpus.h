/* GPUs that a file describes: the variable FILE_VARIABLE names it.

   A line each: `gpu UUID MODEL MIB USED_MIB PERCENT WATTS STATE`, `mig UUID GPU_UUID MODEL MIB`, `process UUID PID MIB`,
   and `file UUID PATH`: who has this file open is on that GPU, as it is for the driver with a file in /dev.
   STATE is `good`, `lost` or `cut` (into MIG instances). A model has _ for blanks. The file is read anew at each call. */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NO_FILE = 9, MOST = 64 };

typedef struct { char uuid[96], of[96], model[96], state[16]; unsigned long long total, used; unsigned busy, watts; } Device;
typedef struct { char uuid[96]; unsigned pid; unsigned long long used; } Process;

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
    FILE *file = getenv(FILE_VARIABLE) ? fopen(getenv(FILE_VARIABLE), "r") : NULL;
    count = running = 0;
    if (!file) return NO_FILE;
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
