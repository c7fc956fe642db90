// SPDX-License-Identifier: Apache-2.0
// Sample prompts: what the base answers before training, and the new version before it is promoted,
// so that a person sees what has changed. jobs/<id>/samples.json keeps both.
#include "base/durable.h"
#include "base/json_load.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "gateway/job_runner_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// ---- the file

static void write_item(struct json_w *w, const json_t *item) {
    const json_t *messages = json_object_get(item, "messages");
    const json_t *prompt = json_is_string(item) ? item : json_object_get(item, "prompt");
    if (!messages) {
        jw_key(w, "prompt");
        jw_strn(w, json_string_value(prompt), json_string_length(prompt));
        return;
    }
    jw_key(w, "messages");
    size_t n = json_dumpb(messages, NULL, 0, JSON_COMPACT);
    char *text = n ? mem_alloc(n) : NULL;
    if (text && json_dumpb(messages, text, n, JSON_COMPACT) == n)
        jw_raw(w, text, n);
    else
        w->out->failed = ERR_NOMEM;
    mem_free(text);
}

static void write_sample(const struct job_run *run, size_t i, struct json_w *w) {
    const struct job_prompt *p = &run->samples.list[i];
    jw_obj(w);
    write_item(w, p->item);
    jw_kstr(w, "before", run->before[i]);
    jw_key(w, "after");
    if (p->answer)
        jw_strn(w, p->answer, p->answer_len);
    else
        jw_null(w);
    jw_obj_end(w);
}

static enum err save(const struct job_runner *r, struct err_info *info) {
    const struct job_run *run = r->run;
    struct buf b;
    buf_init(&b, 0);
    struct json_w w = json_w_begin(&b);
    jw_obj(&w);
    jw_kstr(&w, "model", run->name);
    jw_kint(&w, "max_tokens", run->spec.answer_tokens);
    jw_key(&w, "samples");
    jw_arr(&w);
    for (size_t i = 0; i < run->samples.n; i++)
        write_sample(run, i, &w);
    jw_arr_end(&w);
    jw_obj_end(&w);
    enum err e = buf_err(&b) ? err_set(info, ERR_NOMEM, NULL, "out of memory")
                             : ft_home_room(job__home(r), info);
    int dir = e ? -1 : open(run->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!e && dir < 0)
        e = durable_errno(info, errno, "open", run->path);
    if (!e)
        e = durable_put(dir, FT_SAMPLES_FILE, b.data, b.len, info);
    if (dir >= 0)
        close(dir);
    buf_fini(&b);
    return e;
}

// What an earlier run of the job has asked; false: nothing that is of use.
static bool load(struct job_run *run) {
    char path[TRAIN_PATH + 32];
    snprintf(path, sizeof path, "%s/" FT_SAMPLES_FILE, run->path);
    int fd;
    json_t *doc =
        !durable_open(AT_FDCWD, path, &fd, NULL) ? json_load_fd(fd, FT_SAMPLES_BYTES, 0) : NULL;
    if (fd >= 0)
        close(fd);
    const json_t *list = json_object_get(doc, "samples");
    bool ok = json_array_size(list) == run->samples.n;
    for (size_t i = 0; ok && i < run->samples.n; i++) {
        const char *s = json_string_value(json_object_get(json_array_get(list, i), "before"));
        run->before[i] = s ? mem_strdup(s) : NULL;
        ok = run->before[i] != NULL;
    }
    json_decref(doc);
    return ok;
}

// ---- before and after

enum err job__samples_before(struct job_runner *r, struct err_info *info) {
    struct job_run *run = r->run;
    const struct ask a = {r->place.engine, NULL, run->tenant, &run->train.stop};
    if (!run->samples.n || load(run))
        return ERR_OK;
    enum err e = job_prompts_ask(&run->samples, &a, r->app->tokenizer,
                                 (int32_t)run->spec.answer_tokens, info);
    for (size_t i = 0; i < run->samples.n && !e; i++) {
        mem_free(run->before[i]);
        run->before[i] = run->samples.list[i].answer;
        run->samples.list[i].answer = NULL;
    }
    return e ? e : save(r, info);
}

static void tell(const struct job_runner *r) {
    const struct job_run *run = r->run;
    for (size_t i = 0; i < run->samples.n; i++) {
        struct buf b;
        char message[64];
        buf_init(&b, 0);
        struct json_w w = json_w_begin(&b);
        write_sample(run, i, &w);
        snprintf(message, sizeof message, "Sample %zu of %zu, before and after training", i + 1,
                 run->samples.n);
        job__tell(r, "info", "message", message, buf_err(&b) ? NULL : b.data);
        buf_fini(&b);
    }
}

enum err job__samples_after(struct job_runner *r, struct eng *engine, struct adp_version *v,
                            struct err_info *info) {
    struct job_run *run = r->run;
    const struct ask a = {engine, v, run->tenant, &run->train.stop};
    if (!run->samples.n)
        return ERR_OK;
    enum err e = job_prompts_ask(&run->samples, &a, r->app->tokenizer,
                                 (int32_t)run->spec.answer_tokens, info);
    if (!e)
        e = save(r, info);
    if (!e)
        tell(r);
    return e;
}

void job__samples_fini(struct job_run *run) {
    for (size_t i = 0; i < FT_SAMPLES_MAX; i++)
        mem_free(run->before[i]);
    job_prompts_fini(&run->samples);
}
