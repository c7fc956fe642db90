// SPDX-License-Identifier: Apache-2.0
// Reads a PEFT adapter and writes it again, for tests that compare the two with peft itself:
//   graft_adapter_copy MODEL FROM TO
// TO is an existing folder. Prints the digest of the tensors.
#include "model/adapter.h"
#include "model/source.h"
#include <stdio.h>

int main(int argc, char **argv) {
    struct err_info info = {.code = ERR_OK};
    struct mdl_source *src = NULL;
    struct mdl_adapter *a = NULL;
    char digest[65];
    if (argc != 4) {
        fprintf(stderr, "usage: graft_adapter_copy MODEL FROM TO\n");
        return 2;
    }
    enum err e = mdl_source_open(argv[1], &src, &info);
    if (!e)
        e = mdl_adapter_read(argv[2], mdl_source_config(src), NULL, &a, &info);
    if (!e)
        e = mdl_adapter_write(argv[3], mdl_source_config(src), a, a->base, digest, &info);
    if (e)
        fprintf(stderr, "%s\n", info.message);
    else
        printf("%s\n", digest);
    mdl_adapter_destroy(a);
    mdl_source_close(src);
    return e ? 1 : 0;
}
