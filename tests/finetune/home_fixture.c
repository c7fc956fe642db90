// SPDX-License-Identifier: Apache-2.0
#include "tests/finetune/home_fixture.h"
#include "base/json_load.h"
#include "base/mem.h"
#include "tests/support/assert_ok.h"
#include <stdio.h>
#include <string.h>

enum { PIECE = 100 };

void home_fixture_init(struct home_fixture *f, const char *name) {
    memset(f, 0, sizeof *f);
    temp_folder_in_memory(f->folder, name);
    clock_manual_init(&f->clock, 1, 1700000000LL * 1000000000);
}

void home_fixture_fini(struct home_fixture *f) {
    ft_home_close(&f->home);
    temp_remove(f->folder);
}

enum err home_try_open(struct home_fixture *f, const char *path, const struct ft_home_config *cfg,
                       struct err_info *info) {
    struct ft_home_config c = cfg ? *cfg : (struct ft_home_config){0};
    c.path = path;
    c.clock = &f->clock.clock;
    c.max_file_bytes = 1 << 20;
    return ft_home_open(&f->home, &c, info);
}

void home_open(struct home_fixture *f, const struct ft_home_config *cfg) {
    struct err_info info = {0};
    assert_ok(home_try_open(f, f->folder, cfg, &info), &info);
}

enum err home_upload(struct ft_home *h, const void *content, size_t n, char id[FT_ID_MAX],
                     struct err_info *info) {
    struct ft_upload u;
    struct ft_file f = {.filename = "a.jsonl", .purpose = "fine-tune"};
    enum err e = ft_upload_begin(h, &u, info);
    if (e)
        return e;
    for (size_t at = 0; at < n && !e; at += PIECE)
        e = ft_upload_write(&u, (const char *)content + at, n - at < PIECE ? n - at : PIECE, info);
    if (e)
        ft_upload_abort(&u);
    else
        e = ft_upload_commit(&u, &f, info);
    if (!e)
        strcpy(id, f.id);
    return e;
}

enum err home_job_create(struct ft_home *h, uint64_t tenant, const char *file, const char *fields,
                         char id[FT_ID_MAX], struct err_info *info) {
    char text[2048];
    struct ft_job_spec spec;
    struct ft_job j;
    char *request = NULL;
    snprintf(text, sizeof text, "{\"model\": \"tiny\", \"training_file\": \"%s\"%s}", file, fields);
    json_t *o = json_load_text(text, strlen(text), 0, NULL);
    if (!o) // what callers ask for is well formed
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = ft_job_spec_read(o, &spec, info);
    if (!e)
        e = ft_job_spec_store(o, 7, &request, info);
    if (!e)
        e = ft_job_create(h, tenant, &spec, 7, request, &j, info);
    if (!e) {
        strcpy(id, j.id);
        ft_job_fini(&j);
    }
    mem_free(request);
    json_decref(o);
    return e;
}

struct ft_job home_job(struct ft_home *h, const char *id) {
    struct err_info info = {0};
    struct ft_job j;
    assert_ok(ft_job_get(h, (struct ft_job_owner){.any = true}, id, &j, &info), &info);
    ft_job_fini(&j);
    return j;
}
