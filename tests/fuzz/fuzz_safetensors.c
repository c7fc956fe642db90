// SPDX-License-Identifier: Apache-2.0
// Fuzzes the header of safetensors files: the input is the file. What is accepted must keep the
// format's rules, checked here once more in another way.
#include "base/mem.h"
#include "model/safetensors.h"
#include "tests/fuzz/fuzz.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

__extension__ typedef unsigned __int128 wide;

static void check_rules(const struct st_header *h, size_t json, size_t size) {
    uint64_t at = 8 + json;
    for (size_t i = 0; i < h->n_tensors; i++) {
        const struct st_tensor *t = &h->tensors[i];
        wide bytes = st_dtype_bytes(t->dtype);
        fuzz_require(t->begin == at && t->end >= at && t->end <= size);
        for (int j = 0; j < t->n_dims; j++)
            bytes = (bytes * t->dims[j]) & (((wide)1 << 100) - 1);
        fuzz_require(bytes == t->end - t->begin);
        fuzz_require(strlen(t->name) <= ST_MAX_NAME);
        for (size_t j = 0; j < i && h->n_tensors < 100; j++)
            fuzz_require(strcmp(t->name, h->tensors[j].name) != 0);
        at = t->end;
    }
    fuzz_require(at == size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct st_header h;
    struct err_info info;
    size_t n;
    int64_t live = mem_live_blocks();
    if (size < 8 || st_header_length(data, size, &n, &info))
        return 0;
    char *json = mem_alloc(n); // of exactly this size, so that reading beyond it is seen
    fuzz_require(json != NULL);
    memcpy(json, data + 8, n);
    if (st_parse(json, n, size, &h, &info) == ERR_OK) {
        check_rules(&h, n, size);
        st_fini(&h);
    }
    fuzz_require(mem_live_blocks() == live);
    return 0;
}
