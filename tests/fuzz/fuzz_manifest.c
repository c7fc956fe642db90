// SPDX-License-Identifier: Apache-2.0
// manifest.json of a folder from outside: whatever it says, the files that it names lie below the
// folder and have digests, or an error says why not.
#include "finetune/manifest.h"
#include <stdlib.h>
#include <string.h>

static void require(int ok) {
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct err_info info = {0};
    json_t *m, *v;
    const char *name;
    enum err e = ft_manifest_parse((const char *)data, size, &m, &info);
    require(!e == (m != NULL));
    require(!e || info.message[0]);
    if (e)
        return 0;
    require(ft_manifest_kind_of(m) < FT_MANIFEST_KIND_COUNT);
    json_object_foreach(json_object_get(m, "files"), name, v) {
        require(ft_path_ok(name) && name[0] != '/' && name[0] != '.' && !strstr(name, "/."));
        require(json_string_length(json_object_get(v, "sha256")) == FT_SHA256_HEX - 1);
        require(json_integer_value(json_object_get(v, "bytes")) >= 0);
    }
    json_decref(m);
    return 0;
}
