// SPDX-License-Identifier: Apache-2.0
#include "base/cpus.h"
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 4096 };

// First line of a small file, without its newline. False if there is no such file.
static bool read_line(char out[LINE_MAX_BYTES], const char *path) {
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fgets(out, LINE_MAX_BYTES, f) != NULL;
    fclose(f);
    if (ok)
        out[strcspn(out, "\n")] = '\0';
    return ok;
}

// "root" + dir + "/" + file into out; false where it does not fit.
static bool join(char out[PATH_MAX], const char *root, const char *dir, const char *file) {
    int n = snprintf(out, PATH_MAX, "%s%s/%s", root, dir, file);
    return n > 0 && n < PATH_MAX;
}

// ---- cgroups

// The smallest limits found so far.
struct limits {
    double cpus;   // 0: none
    size_t memory; // SIZE_MAX: none
};

static void limit_cpus(struct limits *l, double quota, double period) {
    if (quota <= 0 || period <= 0)
        return;
    double cpus = quota / period;
    if (l->cpus <= 0 || cpus < l->cpus)
        l->cpus = cpus;
}

static void limit_memory(struct limits *l, const char *text) {
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10); // "max" leaves end at text
    if (end != text && errno == 0 && v > 0 && v < l->memory)
        l->memory = (size_t)v;
}

static void read_v2(struct limits *l, const char *root, const char *dir) {
    char path[PATH_MAX], line[LINE_MAX_BYTES];
    double quota, period;
    if (join(path, root, dir, "cpu.max") && read_line(line, path) &&
        sscanf(line, "%lf %lf", &quota, &period) == 2) // "max 100000" does not match
        limit_cpus(l, quota, period);
    if (join(path, root, dir, "memory.max") && read_line(line, path))
        limit_memory(l, line);
}

static void read_v1_cpu(struct limits *l, const char *root, const char *dir) {
    char path[PATH_MAX], quota[LINE_MAX_BYTES], period[LINE_MAX_BYTES];
    if (!join(path, root, dir, "cpu.cfs_quota_us") || !read_line(quota, path))
        return;
    if (join(path, root, dir, "cpu.cfs_period_us") && read_line(period, path))
        limit_cpus(l, strtod(quota, NULL), strtod(period, NULL)); // quota -1: none
}

static void read_v1_memory(struct limits *l, const char *root, const char *dir) {
    char path[PATH_MAX], line[LINE_MAX_BYTES];
    if (join(path, root, dir, "memory.limit_in_bytes") && read_line(line, path))
        limit_memory(l, line);
}

// Applies `read` to mount + path and to each of its parents: limits hold for all below, and inside
// a container the path may name folders that only the host sees.
static void walk_up(struct limits *l, const char *root, const char *mount, const char *path,
                    void (*read)(struct limits *, const char *, const char *)) {
    char dir[PATH_MAX];
    int n = snprintf(dir, sizeof dir, "%s%s", mount, path);
    if (n < 0 || n >= (int)sizeof dir)
        return;
    size_t end = strlen(mount);
    for (;;) {
        read(l, root, dir);
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < end)
            return;
        *slash = '\0';
    }
}

static bool has_controller(const char *list, const char *name) {
    size_t len = strlen(name);
    for (const char *p = list; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, name, len) == 0 && (p[len] == ',' || p[len] == '\0'))
            return true;
    }
    return false;
}

// One line of /proc/self/cgroup: "id:controllers:path"; v2 has no controllers.
static void read_cgroup_line(struct limits *l, const char *root, char *line) {
    char *list = strchr(line, ':');
    char *path = list ? strchr(list + 1, ':') : NULL;
    if (!path)
        return;
    *path++ = '\0';
    list++;
    if (strcmp(path, "/") == 0)
        *path = '\0';
    char mount[PATH_MAX];
    if (*list == '\0') {
        walk_up(l, root, "/sys/fs/cgroup", path, read_v2);
        walk_up(l, root, "/sys/fs/cgroup/unified", path, read_v2);
        return;
    }
    if (strlen(list) > 200)
        return;
    snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", list);
    if (has_controller(list, "cpu")) {
        walk_up(l, root, mount, path, read_v1_cpu);
        walk_up(l, root, "/sys/fs/cgroup/cpu", path, read_v1_cpu);
    }
    if (has_controller(list, "memory"))
        walk_up(l, root, mount, path, read_v1_memory);
}

static struct limits read_cgroups(const char *root) {
    struct limits l = {.memory = SIZE_MAX};
    char path[PATH_MAX], line[LINE_MAX_BYTES];
    if (!join(path, root, "/proc/self", "cgroup"))
        return l;
    FILE *f = fopen(path, "re");
    if (!f)
        return l;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        read_cgroup_line(&l, root, line);
    }
    fclose(f);
    return l;
}

// ---- NUMA

// "0-3,8,10-11": marks node_of[cpu] = node.
static void mark_cpus(int8_t node_of[CPUS_MAX], int node, const char *list) {
    for (const char *p = list; *p;) {
        char *end;
        long a = strtol(p, &end, 10), b = a;
        if (end == p)
            return;
        if (*end == '-') {
            p = end + 1;
            b = strtol(p, &end, 10);
            if (end == p)
                return;
        }
        for (long i = a < 0 ? 0 : a; i <= b && i < CPUS_MAX; i++)
            node_of[i] = (int8_t)node;
        p = *end == ',' ? end + 1 : end;
        if (p == end && *p)
            return;
    }
}

static void read_nodes(int8_t node_of[CPUS_MAX], const char *root) {
    memset(node_of, 0, CPUS_MAX);
    for (int node = 0; node < CPUS_MAX_NODES; node++) {
        char dir[64], path[PATH_MAX], line[LINE_MAX_BYTES];
        snprintf(dir, sizeof dir, "/sys/devices/system/node/node%d", node);
        if (join(path, root, dir, "cpulist") && read_line(line, path))
            mark_cpus(node_of, node, line);
    }
}

static bool in_set(int cpu, const cpu_set_t *set) {
    return cpu < CPU_SETSIZE && CPU_ISSET((size_t)cpu, set);
}

// The allowed CPUs, one of each node in turn.
static void list_cpus(struct cpus *c, const cpu_set_t *set, const int8_t node_of[CPUS_MAX]) {
    int at[CPUS_MAX_NODES] = {0}; // where the search in each node goes on
    for (int i = 0; i < CPUS_MAX; i++)
        if (in_set(i, set))
            c->node_mask |= (uint64_t)1 << node_of[i];
    c->n_nodes = __builtin_popcountll(c->node_mask);
    for (bool more = true; more;) {
        more = false;
        for (int node = 0; node < CPUS_MAX_NODES; node++) {
            if (!(c->node_mask >> node & 1))
                continue;
            int i = at[node];
            while (i < CPUS_MAX && !(in_set(i, set) && node_of[i] == node))
                i++;
            at[node] = i + 1;
            if (i >= CPUS_MAX)
                continue;
            c->cpu[c->n] = (int16_t)i;
            c->node[c->n++] = (int8_t)node;
            more = true;
        }
    }
}

void cpus_read(struct cpus *c, const char *root) {
    memset(c, 0, sizeof *c);
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) { // more CPUs than the set can name
        CPU_ZERO(&set);
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        for (size_t i = 0; n > 0 && i < (size_t)n && i < CPU_SETSIZE; i++)
            CPU_SET(i, &set);
    }
    int8_t node_of[CPUS_MAX];
    read_nodes(node_of, root);
    list_cpus(c, &set, node_of);
    struct limits l = read_cgroups(root);
    c->quota = l.cpus;
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    c->memory = pages > 0 && page > 0 ? (size_t)pages * (size_t)page : SIZE_MAX;
    if (l.memory < c->memory)
        c->memory = l.memory;
}

int cpus_threads(const struct cpus *c) {
    int n = c->n < 1 ? 1 : c->n;
    if (c->quota > 0 && c->quota < n)
        n = c->quota < 1 ? 1 : (int)c->quota;
    return n;
}

bool cpus_interleave(const struct cpus *c, void *p, size_t bytes) {
    enum { MPOL_INTERLEAVE_MODE = 3 };
    if (c->n_nodes < 2)
        return true;
    unsigned long mask[2] = {(unsigned long)c->node_mask, 0};
    return syscall(SYS_mbind, p, bytes, MPOL_INTERLEAVE_MODE, mask, CPUS_MAX_NODES + 1, 0) == 0;
}
