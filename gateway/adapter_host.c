// SPDX-License-Identifier: Apache-2.0
#include "gateway/adapter_host.h"
#include "base/mem.h"
#include "base/thread.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ADMIN_WAITING = 64, NUMBERS_AHEAD = 64 };
// Of the gentle thread, beside engines that compute. A step of theirs takes a few ms.
static const int64_t burst_ns = 200000, rest_ns = 2000000;

// ---- where a path may lead

static bool is_below(const char *path, const char *root) {
    size_t n = strlen(root);
    while (n > 1 && root[n - 1] == '/')
        n--;
    return !strncmp(path, root, n) && (path[n] == '/' || path[n] == '\0' || n == 1);
}

// The path without links, so that none leads out of the allowed folders. Without --lora-dir the
// caller's role is what protects.
static enum err find_folder(const struct adapter_host *h, const struct adapter_load *l,
                            char out[PATH_MAX], struct err_info *info) {
    static const struct opt_list none = {0};
    const struct opt_list *roots = l->own ? &none : &h->options->lora_dirs;
    const char *path = l->path;
    char root[PATH_MAX];
    bool found = realpath(path, out) != NULL;
    int why = errno;
    // Whoever may not look there does not learn what is there.
    for (size_t i = 0; i < roots->n; i++)
        if (found && realpath(roots->items[i], root) && is_below(out, root))
            return ERR_OK;
    if (roots->n)
        return err_set(info, ERR_NOT_FOUND, "lora_path",
                       "No adapter found for %.256s in the folders of --lora-dir", path);
    if (!found)
        return err_set(info, ERR_NOT_FOUND, "lora_path", "No adapter found for %.256s: %s", path,
                       strerror(why));
    return ERR_OK;
}

// ---- the gentle thread

// What takes long is done by a thread of the gentle pool, so that streams that run do not stand
// still meanwhile; the calling one waits.
struct gentle_work {
    struct io_job io; // first
    void (*run)(struct gentle_work *w);
    struct mailbox *wake;
    struct lock lock; // around ended and the wake that follows
    bool ended;
};

static void run_gentle(struct io_job *io) {
    struct gentle_work *w = (struct gentle_work *)(void *)io;
    w->run(w);
    lock_take(&w->lock);
    w->ended = true;
    mailbox_wake(w->wake);
    lock_drop(&w->lock);
}

static void do_gently(struct adapter_host *h, struct gentle_work *w) {
    bool ended = false;
    lock_init(&w->lock);
    w->io.run = run_gentle;
    w->wake = h->gentle_done;
    io_pool_go_on(h->gentle, &w->io);
    while (!ended) {
        (void)mailbox_wait(h->gentle_done, -1);
        lock_take(&w->lock);
        ended = w->ended;
        lock_drop(&w->lock);
    }
    lock_fini(&w->lock);
}

// Between two bursts of that thread: while the engines compute for somebody, it leaves them the
// CPUs.
static void rest(void *arg) {
    const struct adapter_host *h = arg;
    const struct replicas *r = h->rollout.replicas;
    for (int32_t i = 0; r && i < r->n; i++) {
        struct eng_health health;
        eng_health(r->engine[i], &health);
        if (health.running > 0) {
            pace_sleep(rest_ns);
            return;
        }
    }
}

struct cleaning {
    struct gentle_work work; // first
    struct adapter_host *h;
};

static void run_cleaning(struct gentle_work *w) {
    adapter_store_clean(((struct cleaning *)(void *)w)->h, w->io.pace);
}

static void clean_gently(struct adapter_host *h) {
    struct cleaning c = {{.run = run_cleaning}, h};
    do_gently(h, &c.work);
}

// ---- changes

static const struct adp_change no_change = {.kind = ADP_CHANGE_NONE};

// Written down, then made.
static enum err make(struct adapter_host *h, const struct adp_change *c, struct err_info *info) {
    enum err e = adp_check(h->registry, c, info);
    if (!e)
        e = adapter_store_save(h, c, info);
    if (!e && (e = adp_make(h->registry, c, info)))
        h->unsaved = true; // for want of memory
    if (!e || h->unsaved)
        clean_gently(h);
    return e;
}

static enum err reserve_number(struct adapter_host *h, struct err_info *info) {
    uint64_t next = adp_next_number(h->registry);
    if (h->dir < 0 || next < h->reserved)
        return ERR_OK;
    if (next >= ADAPTER_NUMBERS_END)
        return err_set(info, ERR_INVALID, NULL, "no version's number is left; the last one is %lld",
                       (long long)ADAPTER_NUMBERS_END - 1);
    uint64_t before = h->reserved;
    h->reserved =
        next + NUMBERS_AHEAD < ADAPTER_NUMBERS_END ? next + NUMBERS_AHEAD : ADAPTER_NUMBERS_END;
    enum err e = adapter_store_save(h, &no_change, info);
    if (e)
        h->reserved = before;
    return e;
}

struct rolled { // the version on its way over the replicas
    const struct adapter_host *h;
    const struct adapter_load *l; // NULL: it was good before
    bool promote;
};

static enum err on_verify(void *arg, struct eng *engine, struct adp_version *v,
                          struct err_info *info) {
    const struct rolled *x = arg;
    return x->l->verify(x->l->arg, engine, v, info);
}

static enum err on_ready(void *arg, struct eng *engine, struct adp_version *v, bool *promote,
                         struct err_info *info) {
    struct rolled *x = arg;
    log_write(x->h->log, LOG_INFO, "adapter %s@%llu is ready on each replica", adp_name(v),
              (unsigned long long)adp_number(v));
    enum err e = x->l && x->l->decide ? x->l->decide(x->l->arg, engine, v, promote, info) : ERR_OK;
    x->promote = *promote;
    *promote = false; // once it is written down
    return e;
}

// The version comes to every replica. *promote: whether the name shall move.
static enum err roll(struct adapter_host *h, const struct adapter_load *l, struct adp_version *v,
                     bool *promote, struct err_info *info) {
    struct rolled x = {h, l, false};
    h->rollout.verify = l && l->verify ? on_verify : NULL;
    h->rollout.decide = on_ready;
    h->rollout.hook_arg = &x;
    const struct rollout_ops ops = rollout_engines_ops(&h->rollout);
    enum err e = rollout_run(&ops, h->registry, v, promote, info);
    h->rollout.hook_arg = NULL;
    *promote = !e && x.promote;
    return e;
}

// What is tried or promoted has to be on all replicas, but not what one request has asked for.
static bool is_rolled(const struct adapter_host *h, const struct adapter_load *l) {
    return h->rollout.replicas && !l->in_its_folder && (l->promote || l->verify || l->decide);
}

struct reading {
    struct gentle_work work; // first
    struct adapter_host *h;
    const struct adapter_load *l;
    const char *path;
    struct adp_version *v; // NULL: it was not read
    enum err result;
    struct err_info *info;
};

static enum err read_and_keep(struct reading *x) {
    struct adapter_host *h = x->h;
    bool rolled = is_rolled(h, x->l);
    const struct adp_origin from = {
        .path = x->path, .source = x->l->path, .verify = rolled, .pace = x->work.io.pace};
    enum err e = adp_load(h->registry, x->l->name, &from, &x->v, x->info);
    if (e || h->dir < 0 || x->l->in_its_folder)
        return e;
    e = adapter_store_copy(h, x->v, x->path, x->work.io.pace, x->info);
    if (e && rolled)
        adp_verified(x->v, e, x->info);
    return e;
}

static void run_reading(struct gentle_work *w) {
    struct reading *x = (struct reading *)(void *)w;
    x->result = read_and_keep(x);
}

static enum err read_gently(struct reading *x) {
    x->work.run = run_reading;
    do_gently(x->h, &x->work);
    return x->result;
}

// Whatever fails takes the version away again.
static enum err publish(struct adapter_host *h, const struct adapter_load *l, struct adp_version *v,
                        enum err e, struct err_info *info) {
    bool promote = l->promote;
    struct adp_change c = {.name = l->name, .version = adp_number(v)};
    if (!e && is_rolled(h, l))
        e = roll(h, l, v, &promote, info);
    if (!e && promote)
        c.kind = ADP_CHANGE_PROMOTE;
    if (!e)
        e = make(h, &c, info);
    if (e)
        (void)adp_retire(h->registry, l->name, c.version, NULL);
    return e;
}

enum err adapter_host_load(struct adapter_host *h, const struct adapter_load *l, uint64_t *version,
                           struct err_info *info) {
    char path[PATH_MAX];
    struct reading x = {.h = h, .l = l, .path = path, .info = info};
    enum err e = adp_check_name(h->registry, l->name, info);
    if (e)
        return e;
    if (!l->in_place && adp_knows(h->registry, l->name))
        return err_set(info, ERR_INVALID, "lora_name",
                       "The lora adapter '%s' has already been loaded. If you want to load the "
                       "adapter in place, set 'load_inplace' to True.",
                       l->name);
    if ((e = find_folder(h, l, path, info)) || (e = reserve_number(h, info)))
        return e;
    e = l->in_its_folder ? read_and_keep(&x) : read_gently(&x); // a request waits for the former
    if (!x.v) {
        if (err_http_status(e) < 500 && info && !info->param[0])
            snprintf(info->param, sizeof info->param,
                     "lora_path"); // what its files are, or are not
        return e;
    }
    *version = adp_number(x.v);
    e = publish(h, l, x.v, e, info);
    adp_release(x.v);
    clean_gently(h);
    if (!e)
        log_write(h->log, LOG_INFO, "adapter %s@%llu loaded from %s", l->name,
                  (unsigned long long)*version, path);
    return e;
}

enum err adapter_host_promote(struct adapter_host *h, const char *name, uint64_t version,
                              struct err_info *info) {
    const struct adp_change c = {ADP_CHANGE_PROMOTE, name, version, NULL};
    char which[ADP_NAME_MAX + 32];
    struct adp_version *v;
    bool promote = true;
    snprintf(which, sizeof which, "%s@%llu", name, (unsigned long long)version);
    // What cannot be promoted is refused by the registry, with the reason.
    if (!h->rollout.replicas || adp_resolve(h->registry, which, &v, NULL))
        return make(h, &c, info);
    enum err e = roll(h, NULL, v, &promote, info);
    adp_unpin(v);
    return e ? e : make(h, &c, info);
}

enum err adapter_host_roll_back(struct adapter_host *h, const char *name, struct err_info *info) {
    return adp_roll_back(h->registry, name, info);
}

enum err adapter_host_keep(struct adapter_host *h, struct err_info *info) {
    enum err e = make(h, &no_change, info);
    if (e)
        h->unsaved = true; // what is in use is not what the file says
    return e;
}

enum err adapter_host_retire(struct adapter_host *h, const char *name, uint64_t version,
                             struct err_info *info) {
    const struct adp_change c = {ADP_CHANGE_RETIRE, name, version, NULL};
    enum err e = make(h, &c, info);
    if (h->rollout.replicas)
        replicas_wake(h->rollout.replicas); // their slots are free now
    return e;
}

enum err adapter_host_alias(struct adapter_host *h, const char *alias, const char *target,
                            struct err_info *info) {
    const struct adp_change c = {ADP_CHANGE_ALIAS, alias, 0, target};
    if (target && adapter_store_forgets(h, target))
        return err_set(info, ERR_INVALID, "target",
                       "`%.192s` is read where it lies, so its number ends with this process; an "
                       "alias of its name without the number lasts",
                       target);
    return make(h, &c, info);
}

// ---- start and end

// "name=path" of the command line. Read anew at each start, so not kept; what the data folder has
// under that name was loaded later, and stays.
static enum err load_module(struct adapter_host *h, const char *arg, struct err_info *info) {
    const char *eq = strchr(arg, '=');
    char name[ADP_NAME_MAX + 1];
    if (!eq || eq == arg || !eq[1] || (size_t)(eq - arg) > ADP_NAME_MAX)
        return err_set(info, ERR_INVALID, "lora-modules", "--lora-modules %.256s is not name=path",
                       arg);
    memcpy(name, arg, (size_t)(eq - arg));
    name[eq - arg] = '\0';
    char target[ADP_NAME_MAX + 32];
    if (adp_knows(h->registry, name) || adp_alias_target(h->registry, name, target)) {
        log_write(h->log, LOG_WARN,
                  "--lora-modules %s: what the data folder has under that name is served", arg);
        return ERR_OK;
    }
    struct adp_version *v;
    const struct adp_origin from = {.path = eq + 1};
    enum err e = reserve_number(h, info);
    if (!e)
        e = adp_load(h->registry, name, &from, &v, info);
    if (e) {
        err_prefix(info, "--lora-modules %s", name);
        return e;
    }
    e = adp_promote(h->registry, name, adp_number(v), info);
    adp_release(v);
    return e;
}

static enum err make_registry(struct adapter_host *h, const struct app *app, uint64_t next,
                              struct err_info *info) {
    const struct serve_options *o = h->options;
    const struct adp_config cfg = {
        .model = h->config,
        .max_rank = (int32_t)o->max_lora_rank,
        .max_host = (int32_t)(o->max_cpu_loras ? o->max_cpu_loras : o->max_loras),
        .replicas = (int32_t)o->replicas,
        .next_version = next,
        .base = app->names,
        .n_base = app->n_names,
        .log = h->log,
    };
    const struct io_gentle gentle = {burst_ns, rest, h};
    enum err e = adp_create(&cfg, &h->registry, info);
    if (!e && (io_pool_create(1, ADMIN_WAITING, &h->admin) ||
               io_pool_create(2, ADMIN_WAITING, &h->fetch) ||
               io_pool_create_gentle(1, ADMIN_WAITING, &gentle, &h->gentle) ||
               mailbox_create(1, 0, &h->gentle_done)))
        e = err_set(info, ERR_NOMEM, NULL, "cannot start the threads for adapters");
    return e;
}

enum err adapter_host_open(struct adapter_host *h, const struct serve_options *o, int data_dir,
                           const struct mdl_config *config, struct app *app, const struct log *log,
                           struct err_info *info) {
    h->dir = -1;
    if (!o->enable_lora && (o->lora_modules.n || o->lora_dirs.n))
        return err_set(info, ERR_INVALID, "enable-lora",
                       "--lora-modules and --lora-dir need --enable-lora");
    if (!o->enable_lora)
        return ERR_OK;
    h->options = o;
    h->config = config;
    h->log = log;
    uint64_t next = 1;
    enum err e = data_dir >= 0 ? adapter_store_open(h, data_dir, &next, info) : ERR_OK;
    if (!e)
        e = make_registry(h, app, next, info);
    if (!e && h->dir >= 0 && !(e = adapter_store_apply(h, info)))
        adapter_store_clean(h, NULL); // what a change that was cut short has left
    for (size_t i = 0; i < o->lora_modules.n && !e; i++)
        e = load_module(h, o->lora_modules.items[i], info);
    if (e)
        return e;
    app->adapters = h->registry;
    app->max_loras = (int32_t)o->max_loras;
    return ERR_OK;
}

struct active {
    struct adapter_host *h;
    int32_t left; // slots
    enum err e;
    struct err_info *info;
};

static void bring(void *arg, const struct adp_info *i) {
    struct active *a = arg;
    struct adp_version *v;
    char which[ADP_NAME_MAX + 32];
    bool promote = false;
    if (a->e || !i->active || !a->left)
        return;
    a->left--;
    snprintf(which, sizeof which, "%s@%llu", i->name, (unsigned long long)i->version);
    if ((a->e = adp_resolve(a->h->registry, which, &v, a->info)))
        return;
    if ((a->e = roll(a->h, NULL, v, &promote, a->info)))
        err_prefix(a->info, "adapter %s", which);
    adp_unpin(v);
}

enum err adapter_host_start(struct adapter_host *h, struct replicas *r, struct err_info *info) {
    if (!h->registry)
        return ERR_OK;
    enum err e = rollout_engines_init(&h->rollout, r, info);
    struct active a = {h, (int32_t)h->options->max_loras, ERR_OK, info};
    if (!e && (e = adp_list(h->registry, bring, &a)))
        err_set(info, e, NULL, "out of memory for the adapters");
    return e ? e : a.e;
}

void adapter_host_stop(struct adapter_host *h) {
    rollout_engines_stop(&h->rollout);
    io_pool_destroy(h->admin);
    h->admin = NULL;
    if (h->registry && h->unsaved)
        (void)adapter_store_save(h, &no_change, NULL); // the last chance
}

void adapter_host_close(struct adapter_host *h) {
    adapter_host_stop(h);
    io_pool_destroy(h->fetch);
    io_pool_destroy(h->gentle);
    mailbox_destroy(h->gentle_done);
    adp_destroy(h->registry);
    rollout_engines_fini(&h->rollout);
    if (h->registry && h->dir >= 0)
        close(h->dir);
    buf_fini(&h->saved);
    *h = (struct adapter_host){.dir = -1};
}
