// SPDX-License-Identifier: Apache-2.0
#include "gateway/adapter_manifest.h"
#include "base/clock.h"
#include "finetune/manifest.h"
#include <fcntl.h>
#include <unistd.h>

static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
enum { FILES = sizeof files / sizeof *files };

// The source's own manifest, if it is about these files. NULL: there is none that can be believed.
static enum err read_source(const struct adapter_manifest *a, const char *source, struct pace *pace,
                            json_t **out, struct err_info *info) {
    struct err_info why = {0};
    *out = NULL;
    int dir = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return ERR_OK;
    enum err e = ft_manifest_read(dir, out, &why);
    for (int i = 0; i < FILES && !e; i++)
        e = ft_manifest_check_paced(dir, *out, files[i], pace, &why);
    close(dir);
    if (!e)
        return ERR_OK;
    json_decref(*out);
    *out = NULL;
    if (e == ERR_NOMEM) {
        *info = why;
        return e;
    }
    if (e != ERR_NOT_FOUND)
        log_write(a->log, LOG_WARN, "the manifest in %s is not taken over: %s", source,
                  why.message);
    return ERR_OK;
}

enum err adapter_manifest_write(void *arg, int dir, const char *source, struct pace *pace,
                                struct err_info *info) {
    const struct adapter_manifest *a = arg;
    struct ft_manifest m = {.base_model = a->app->n_names ? a->app->names[0] : NULL,
                            .base_digest =
                                atomic_load_explicit(&a->app->digest, memory_order_acquire),
                            .no_seed = true};
    struct ft_manifest_json own = {0};
    json_t *from;
    enum err e = read_source(a, source, pace, &from, info);
    if (!e && from)
        e = ft_manifest_take(from, &m, &own, info);
    else
        m.code_version = GRAFT_VERSION; // of who wrote it; a trained one's is that which trained
    m.pace = pace;
    m.created_at = clock_wall_ns(&clock_system) / 1000000000;
    if (!e)
        e = ft_manifest_write(dir, FT_MANIFEST_ADAPTER, &m, NULL, files, FILES, info);
    ft_manifest_drop(&own);
    json_decref(from);
    return e;
}
