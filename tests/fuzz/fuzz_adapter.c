// SPDX-License-Identifier: Apache-2.0
// Fuzzes PEFT adapters: the input is adapter_config.json and adapter_model.safetensors, parted by a
// NUL. What is accepted must have ranks in bounds and all of its matrices, inside its memory and
// finite.
#include "base/mem.h"
#include "kernels/lora.h"
#include "model/adapter_internal.h"
#include "tests/fuzz/fuzz.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct mdl_config shape = {
    .n_layers = 2, .hidden = 4, .intermediate = 6, .n_heads = 1, .n_kv_heads = 1, .head_dim = 4};

static void check_module(const struct mdl_adapter *a, const struct mdl_adapter_module *m,
                         enum mdl_target t) {
    int32_t n, k;
    const float *first = a->memory;
    mdl_target_shape(&shape, t, &n, &k);
    fuzz_require(m->r >= 0 && m->r <= a->max_r);
    if (!m->r)
        return;
    fuzz_require(isfinite(m->alpha));
    fuzz_require(m->a >= first && m->b == m->a + m->r * k && m->b + m->r * n <= first + a->values);
    for (int32_t i = 0; i < m->r * (n + k); i++)
        fuzz_require(isfinite(m->a[i]));
}

// The file in memory, opened as any other.
static enum err read_tensors(const uint8_t *data, size_t size, struct mdl_adapter *a) {
    char path[64];
    struct err_info info;
    struct mdl_file f;
    int fd = memfd_create("adapter", MFD_CLOEXEC);
    fuzz_require(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    enum err e = mdl_file_open(-1, path, path, &f, &info);
    fuzz_require(e == ERR_OK);
    e = mdl__adapter_read_tensors(&f, &shape, a, NULL, &info);
    mdl_file_close(&f);
    close(fd);
    return e;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err_info info;
    struct mdl_adapter *a;
    int64_t live = mem_live_blocks();
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    if (mdl__adapter_read_config((const char *)data, n, &shape, NULL, &a, &info) == ERR_OK) {
        fuzz_require(a->max_r >= 1 && a->max_r <= KN_LORA_MAX_RANK);
        if (nul && read_tensors(nul + 1, size - n - 1, a) == ERR_OK)
            for (int32_t i = 0; i < shape.n_layers; i++)
                for (int t = 0; t < MDL_TARGETS; t++)
                    check_module(a, &a->modules[i][t], (enum mdl_target)t);
        mdl_adapter_destroy(a);
    }
    fuzz_require(mem_live_blocks() == live);
    return 0;
}
