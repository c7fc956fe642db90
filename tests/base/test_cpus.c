// SPDX-License-Identifier: Apache-2.0
// Limits of cgroups and NUMA nodes, from folders that stand for /proc and /sys.
#include "base/cpus.h"
#include "base/mem.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/temp_folder.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct tree {
    char root[TEMP_PATH];
};

static int setup(void **state) {
    static struct tree t;
    temp_folder(t.root, "cpus");
    *state = &t;
    return 0;
}

static int teardown(void **state) {
    struct tree *t = *state;
    temp_remove(t->root);
    return 0;
}

// Writes a file below the root, and the folders above it.
static void put(const struct tree *t, const char *path, const char *text) {
    char full[512];
    int n = snprintf(full, sizeof full, "%s%s", t->root, path);
    assert_true(n > 0 && n < (int)sizeof full);
    for (char *p = full + strlen(t->root) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static struct cpus read_tree(const struct tree *t) {
    static struct cpus c;
    cpus_read(&c, t->root);
    return c;
}

static void test_nothing_there(void **state) {
    struct cpus c = read_tree(*state);
    cpu_set_t own;
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    assert_int_equal(c.n, CPU_COUNT(&own));
    assert_true(c.quota == 0);
    assert_int_equal(c.n_nodes, 1);
    assert_int_equal(c.memory, (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE));
    assert_int_equal(cpus_threads(&c), c.n);
}

static void test_v2(void **state) {
    put(*state, "/proc/self/cgroup", "0::/kube/pod7\n");
    put(*state, "/sys/fs/cgroup/kube/pod7/cpu.max", "max 100000\n");
    put(*state, "/sys/fs/cgroup/kube/cpu.max", "150000 100000\n"); // a parent's limit counts
    put(*state, "/sys/fs/cgroup/kube/pod7/memory.max", "300000000\n");
    put(*state, "/sys/fs/cgroup/kube/memory.max", "max\n");
    struct cpus c = read_tree(*state);
    assert_true(c.quota > 1.499 && c.quota < 1.501);
    assert_int_equal(c.memory, 300000000);
    assert_int_equal(cpus_threads(&c), 1);
}

// In a container the path names a folder that only the host sees.
static void test_v2_container(void **state) {
    put(*state, "/proc/self/cgroup", "0::/host/only\n");
    put(*state, "/sys/fs/cgroup/cpu.max", "50000 100000\n");
    put(*state, "/sys/fs/cgroup/memory.max", "1000000\n");
    struct cpus c = read_tree(*state);
    assert_true(c.quota == 0.5);
    assert_int_equal(c.memory, 1000000);
    assert_int_equal(cpus_threads(&c), 1);
}

static void test_v1(void **state) {
    put(*state, "/proc/self/cgroup",
        "12:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n3:cpuset:/docker/x\n");
    put(*state, "/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "250000\n");
    put(*state, "/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
    put(*state, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put(*state, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    put(*state, "/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "123456789\n");
    put(*state, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    struct cpus c = read_tree(*state);
    assert_true(c.quota == 2.5);
    assert_int_equal(c.memory, 123456789);
    c.n = 8;
    assert_int_equal(cpus_threads(&c), 2);
}

static void test_garbage(void **state) {
    static char line[9000];
    memset(line, 'a', sizeof line - 1);
    line[0] = ':';
    line[1] = ':';
    put(*state, "/proc/self/cgroup", line);
    put(*state, "/sys/fs/cgroup/cpu.max", "-5 0\n");
    put(*state, "/sys/fs/cgroup/memory.max", "many\n");
    put(*state, "/sys/devices/system/node/node0/cpulist", "0-,x\n");
    put(*state, "/sys/devices/system/node/node1/cpulist", "5-2,-3-1,99999999999999999999\n");
    struct cpus c = read_tree(*state);
    assert_true(c.quota == 0);
    assert_true(c.n >= 1);
    put(*state, "/proc/self/cgroup", "nonsense\n::\n1:cpu\n");
    put(*state, "/sys/fs/cgroup/cpu.max", "");
    c = read_tree(*state);
    assert_true(c.quota == 0);
}

static void test_nodes(void **state) {
    cpu_set_t own;
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    if (CPU_COUNT(&own) < 2)
        skip();
    int first = 0, second;
    while (!CPU_ISSET((size_t)first, &own))
        first++;
    for (second = first + 1; !CPU_ISSET((size_t)second, &own); second++)
        ;
    char text[64];
    snprintf(text, sizeof text, "%d\n", first);
    put(*state, "/sys/devices/system/node/node3/cpulist", text);
    snprintf(text, sizeof text, "%d-1023\n", second);
    put(*state, "/sys/devices/system/node/node1/cpulist", text);
    struct cpus c = read_tree(*state);
    assert_int_equal(c.n_nodes, 2);
    assert_int_equal(c.node_mask, 1u << 3 | 1u << 1);
    assert_int_equal(c.n, CPU_COUNT(&own));
    // One of each node in turn.
    assert_int_equal(c.node[0], 1);
    assert_int_equal(c.cpu[0], second);
    assert_int_equal(c.node[1], 3);
    assert_int_equal(c.cpu[1], first);
    for (int i = 2; i < c.n; i++)
        assert_int_equal(c.node[i], 1);
    // Nodes that are not there are refused, and memory still works.
    char *p = mem_map(1 << 20);
    assert_non_null(p);
    (void)cpus_interleave(&c, p, 1 << 20);
    p[0] = 1;
    mem_unmap(p, 1 << 20);
    c.n_nodes = 1;
    assert_true(cpus_interleave(&c, NULL, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_there, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v2, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v2_container, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v1, setup, teardown),
        cmocka_unit_test_setup_teardown(test_garbage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nodes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
