// SPDX-License-Identifier: Apache-2.0
#include "gateway/verify.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "finetune/verify.h"
#include "gateway/train_job.h"
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct verify_options {
    const char *model, *chat_template, *cache_dir;
    bool json;
};

#define AT(field) offsetof(struct verify_options, field)

static const struct opt_def defs[] = {
    {OPT_STRING, "model", AT(model), "PATH", NULL, 0, 0, NULL,
     "Base model to compare with: its digest, its tokenizer and template, and the adapter's "
     "shapes.",
     false},
    {OPT_STRING, "chat-template", AT(chat_template), "PATH", NULL, 0, 0, NULL,
     "With --model: Jinja file that the run used instead of the model's own chat template.", false},
    {OPT_STRING, "cache-dir", AT(cache_dir), "DIR", NULL, 0, 0, NULL,
     "Folder that remembers model digests. Default: $XDG_CACHE_HOME/graft or ~/.cache/graft.",
     false},
    {OPT_FLAG, "json", AT(json), NULL, "false", 0, 0, NULL, "One JSON object instead of lines.",
     false},
};

const struct opt_table verify_option_table = {
    .command = "graft verify",
    .usage = "graft verify DIR [options]",
    .summary =
        "Checks an exported set, a checkpoint, an adapter or a run's folder: every digest, the "
        "structure of adapters and moments, finite values. Exit status 1: something is wrong.",
    .defs = defs,
    .n = sizeof defs / sizeof *defs,
    .max_positional = 1,
};

struct printer {
    bool json;
    struct json_w w;
};

static void print_line(void *arg, const char *file, enum err e, const char *what) {
    struct printer *p = arg;
    if (!p->json) {
        printf("%-5s %s%s%s\n", e ? "WRONG" : "ok", file, *what ? ": " : "", what);
        return;
    }
    jw_obj(&p->w);
    jw_kstr(&p->w, "file", file);
    jw_kbool(&p->w, "ok", !e);
    jw_kstr(&p->w, "what", *what ? what : NULL);
    jw_obj_end(&p->w);
}

// Without its weights.
static enum err open_base(struct train_job *j, const struct verify_options *o,
                          struct ft_verify_base *base, struct err_info *info) {
    j->o.model = o->model;
    j->o.chat_template = o->chat_template;
    j->o.cache_dir = o->cache_dir;
    enum err e = train_job_identify(j, info);
    *base = (struct ft_verify_base){&j->config, j->base_digest, j->tokenizer_digest,
                                    j->template_digest};
    return e;
}

static void print_result(struct printer *p, const char *dir, const struct ft_verify_result *r) {
    if (!p->json) {
        printf("%s %s: %lld files, %lld wrong\n", r->kind, dir, (long long)r->files,
               (long long)r->wrong);
        return;
    }
    jw_arr_end(&p->w);
    jw_kstr(&p->w, "folder", dir);
    jw_kstr(&p->w, "kind", r->kind);
    jw_kint(&p->w, "wrong", r->wrong);
    jw_kbool(&p->w, "ok", !r->wrong);
    jw_obj_end(&p->w);
    if (!buf_err(p->w.out))
        puts(p->w.out->data);
}

static enum err verify(struct train_job *j, const struct verify_options *o, const char *dir,
                       struct ft_verify_result *r, struct err_info *info) {
    struct ft_verify_base base;
    struct buf out;
    buf_init(&out, 0);
    struct printer p = {o->json, json_w_begin(&out)};
    struct ft_verify v = {.tell = print_line, .arg = &p, .base = o->model ? &base : NULL};
    enum err e = o->model ? open_base(j, o, &base, info) : ERR_OK;
    if (o->json) {
        jw_obj(&p.w);
        jw_key(&p.w, "files");
        jw_arr(&p.w);
    }
    if (!e)
        e = ft_verify(dir, &v, r, info);
    if (!e)
        print_result(&p, dir, r);
    if (!e && buf_err(&out))
        e = err_set(info, buf_err(&out), NULL, "out of memory");
    buf_fini(&out);
    return e;
}

int verify_main(int argc, char **argv) {
    struct verify_options o = {0};
    struct opt_result res;
    struct err_info info = {0};
    struct ft_verify_result r = {0};
    if (opt_parse(&verify_option_table, argc, argv, &o, &res, &info)) {
        fprintf(stderr, "graft verify: %s\n", info.message);
        return 2;
    }
    int status = 0;
    json_set_alloc_funcs(mem_alloc, mem_free);
    struct train_job *j = mem_zalloc(sizeof *j);
    if (res.help) {
        opt_show_help(&verify_option_table);
    } else if (res.n_positional != 1) {
        fprintf(stderr, "usage: %s\nSee graft verify --help.\n", verify_option_table.usage);
        status = 2;
    } else if (!j || verify(j, &o, res.positional[0], &r, &info)) {
        fprintf(stderr, "graft verify: %s\n", j ? info.message : "out of memory");
        status = 1;
    } else {
        status = r.wrong != 0;
    }
    if (j)
        train_job_close(j);
    mem_free(j);
    opt_result_fini(&res);
    return status;
}
