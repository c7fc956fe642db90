// SPDX-License-Identifier: Apache-2.0
// Fuzzes models in one GGUF file: the input is the file. Whatever opens has its tensors read and
// its tokenizer built. The structure is also parsed from a part of the file, as the reader does
// while it does not know how long the header is.
#include "base/mem.h"
#include "model/gguf.h"
#include "model/source.h"
#include "tests/fuzz/fuzz.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse_part(const uint8_t *data, size_t size) {
    struct gguf whole, part;
    struct err_info info;
    enum err e = gguf_parse(data, size, size, &whole, &info);
    fuzz_require(e != ERR_AGAIN);
    enum err half = gguf_parse(data, size / 2, size, &part, &info);
    fuzz_require(e == ERR_OK ? half == (whole.len <= size / 2 ? ERR_OK : ERR_AGAIN)
                             : half != ERR_OK);
    if (!half)
        gguf_fini(&part);
    if (!e)
        gguf_fini(&whole);
}

static void use(const struct mdl_source *s) {
    struct err_info info;
    struct tokenizer *t;
    char last[32];
    for (size_t i = 0; i < mdl_source_tensor_count(s); i++) {
        const struct mdl_tensor *x = mdl_source_tensor_at(s, i);
        size_t n = x->bytes < sizeof last ? x->bytes : sizeof last;
        fuzz_require(mdl_source_read(s, x, x->bytes - n, n, last, &info) == ERR_OK);
        fuzz_require(mdl_source_tensor(s, x->name) == x);
    }
    if (mdl_source_tokenizer(s, &t, &info) == ERR_OK)
        tokenizer_destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1; // one file for all inputs
    char path[64];
    struct mdl_source *s;
    struct err_info info;
    int64_t live = mem_live_blocks();
    if (fd < 0)
        fd = memfd_create("model", MFD_CLOEXEC);
    fuzz_require(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    fuzz_require(pwrite(fd, data, size, 0) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    parse_part(data, size);
    if (mdl_source_open(path, &s, &info) == ERR_OK) {
        use(s);
        mdl_source_close(s);
    }
    fuzz_require(mem_live_blocks() == live);
    return 0;
}
