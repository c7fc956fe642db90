// SPDX-License-Identifier: Apache-2.0
// Fuzzes config.json and generation_config.json: the input is both, parted by a NUL. What is
// accepted must pass the config's own check and give finite RoPE frequencies.
#include "base/mem.h"
#include "model/config.h"
#include "tests/fuzz/fuzz.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct mdl_config c;
    struct err_info info;
    float freq[MDL_MAX_HEAD_DIM / 2];
    int64_t live = mem_live_blocks();
    const char *text = (const char *)data;
    const char *nul = size ? memchr(text, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - text) : size;
    if (mdl_config_from_hf(text, n, nul ? nul + 1 : NULL, nul ? size - n - 1 : 0, &c, &info) ==
        ERR_OK) {
        fuzz_require(mdl_config_check(&c, &info) == ERR_OK);
        mdl_rope_inv_freq(&c, freq);
        for (int i = 0; i < c.head_dim / 2; i++)
            fuzz_require(isfinite(freq[i]) && freq[i] >= 0);
    }
    fuzz_require(mem_live_blocks() == live);
    return 0;
}
