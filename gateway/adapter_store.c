// SPDX-License-Identifier: Apache-2.0
// Adapters over a restart. A version's files are written and synced first, the state file that
// names them last; a folder that the state file does not name is left over and goes.
//
// Invariants
// 1. A change is in the state file, synced, before the registry makes it: what anybody has seen
//    lasts. Going back is the exception (adapter_host_roll_back).
// 2. Where a save fails, the file is put back to what it was (`saved`), so that the change does not
//    come with the next start either. Where that fails too, `unsaved` says that the file is not
//    known: it is written with the next change, and at the end, and until then no folder is
//    removed.
// 3. Nothing is removed for a state file that is lost, damaged or an older one: the process does
//    not start. Each folder that goes is named in the log.
#include "base/durable.h"
#include "base/json_load.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "finetune/manifest.h"
#include "gateway/adapter_host.h"
#include "gateway/api_json.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATE_MOST = 64 << 20 };
static const char state_name[] = "state.json";

// ---- the state file's text

// No file: an empty text, which no file has. `out` is the caller's, also after an error.
static enum err read_text(int dir, struct buf *out, struct err_info *info) {
    int fd;
    buf_init(out, STATE_MOST);
    enum err e = durable_open(dir, state_name, &fd, info);
    if (e)
        return e == ERR_NOT_FOUND ? ERR_OK : e;
    e = buf_read(out, fd);
    int why = errno;
    close(fd);
    if (e == ERR_IO)
        return durable_errno(info, why, "read", state_name);
    if (e)
        return err_set(info, e, NULL, "%s: %s", state_name,
                       e == ERR_LIMIT ? "it is too large" : "out of memory");
    return out->len ? ERR_OK
                    : err_set(info, ERR_FORMAT, NULL, "%s is empty, and is to be a JSON object",
                              state_name);
}

// NULL of an empty text.
static enum err parse(const struct buf *text, json_t **out, struct err_info *info) {
    json_error_t why;
    *out = text->len ? json_load_text(text->data, text->len, JSON_REJECT_DUPLICATES, &why) : NULL;
    if (*out || !text->len)
        return ERR_OK;
    enum err e = json_load_err(&why);
    return err_set(info, e, NULL, "%s: line %d: %s", state_name, why.line,
                   e == ERR_NOMEM ? err_text(e) : why.text);
}

// ---- writing

static bool is_kept(const struct adapter_host *h, const struct adp_info *i) {
    bool serves = i->state == ADP_READY || i->state == ADP_ACTIVE || i->state == ADP_ROLLED_BACK;
    size_t n = strlen(h->path);
    return serves && !strncmp(i->path, h->path, n) && i->path[n] == '/';
}

struct writer {
    const struct adapter_host *h;
    struct json_w w;
};

struct finding { // of one version
    const struct adapter_host *h;
    const char *name;
    size_t len;
    uint64_t version;
    bool kept;
};

static void write_version(void *arg, const struct adp_info *i) {
    struct writer *x = arg;
    if (!is_kept(x->h, i)) // of the command line, or on its way out
        return;
    jw_obj(&x->w);
    jw_kint(&x->w, "version", (int64_t)i->version);
    jw_kstr(&x->w, "name", i->name);
    jw_kstr(&x->w, "source", i->source);
    jw_kstr(&x->w, "sha256", i->digest);
    jw_kint(&x->w, "created", i->created);
    jw_kbool(&x->w, "active", i->active);
    jw_kbool(&x->w, "former", i->former);
    jw_kbool(&x->w, "rolled_back", i->state == ADP_ROLLED_BACK);
    jw_obj_end(&x->w);
}

static void write_alias(void *arg, const struct adp_alias_info *a) {
    struct writer *x = arg;
    jw_obj(&x->w);
    jw_kstr(&x->w, "alias", a->alias);
    jw_kstr(&x->w, "target", a->target);
    jw_kstr(&x->w, "former", a->former[0] ? a->former : NULL);
    jw_obj_end(&x->w);
}

static enum err write_state(const struct adapter_host *h, const struct adp_change *c,
                            struct buf *out) {
    struct writer x = {h, json_w_begin(out)};
    jw_obj(&x.w);
    jw_kint(&x.w, "next_version", (int64_t)h->reserved);
    jw_key(&x.w, "versions");
    jw_arr(&x.w);
    enum err e = adp_list_after(h->registry, c, write_version, &x);
    jw_arr_end(&x.w);
    jw_key(&x.w, "aliases");
    jw_arr(&x.w);
    if (!e)
        e = adp_aliases_after(h->registry, c, write_alias, &x);
    jw_arr_end(&x.w);
    jw_obj_end(&x.w);
    return e ? e : buf_err(out);
}

static enum err put_state(struct adapter_host *h, const struct buf *text, struct err_info *info) {
    enum err e = durable_put(h->dir, state_name, text->data, text->len, info);
    if (e == ERR_DISK_FULL && h->reserve && reserve_give(h->reserve)) // perhaps what frees room
        e = durable_put(h->dir, state_name, text->data, text->len, info);
    return e;
}

static bool is_same(const struct buf *a, const struct buf *b) {
    return a->len == b->len && (!a->len || !memcmp(a->data, b->data, a->len));
}

// After a save that failed, and perhaps has renamed the file.
static void put_back(struct adapter_host *h) {
    struct buf found;
    struct err_info info;
    enum err e = read_text(h->dir, &found, &info);
    // Read as it was: nothing was renamed, and after a power loss it is the same.
    if (e || !is_same(&found, &h->saved))
        e = h->saved.len ? put_state(h, &h->saved, &info)
                         : durable_remove(h->dir, state_name, &info);
    buf_fini(&found);
    h->unsaved = e != ERR_OK;
    if (e)
        log_write(h->log, LOG_ERROR,
                  "%s/%s: %s; a change that was refused may come back with the next start, unless "
                  "one is saved before",
                  h->path, state_name, info.message);
}

enum err adapter_store_save(struct adapter_host *h, const struct adp_change *c,
                            struct err_info *info) {
    struct buf text;
    if (h->dir < 0)
        return ERR_OK;
    buf_init(&text, STATE_MOST);
    enum err e = write_state(h, c, &text);
    if (e) {
        err_set(info, e, NULL, "the state of the adapters cannot be written: %s", err_text(e));
    } else if (h->unsaved || !is_same(&text, &h->saved)) {
        e = put_state(h, &text, info);
        if (e)
            put_back(h);
        else
            h->unsaved = false;
    }
    if (!e) {
        buf_fini(&h->saved);
        h->saved = text;
    } else {
        buf_fini(&text);
    }
    return e;
}

static void note_kept(void *arg, const struct adp_info *i) {
    struct finding *f = arg;
    if (!strncmp(i->name, f->name, f->len) && !i->name[f->len] && i->version == f->version)
        f->kept = is_kept(f->h, i);
}

bool adapter_store_forgets(const struct adapter_host *h, const char *name) {
    const char *at = strrchr(name, '@');
    if (h->dir < 0 || !at)
        return false;
    struct finding f = {h, name, (size_t)(at - name), strtoull(at + 1, NULL, 10), true};
    return !adp_list(h->registry, note_kept, &f) && !f.kept;
}

enum err adapter_store_copy(struct adapter_host *h, struct adp_version *v, const char *source,
                            struct pace *pace, struct err_info *info) {
    char name[32], path[sizeof h->path + 32];
    const struct mdl_adapter *a;
    int fd;
    snprintf(name, sizeof name, "v%llu", (unsigned long long)adp_number(v));
    snprintf(path, sizeof path, "%s/%s", h->path, name);
    enum err e = durable_folder(h->dir, name, &fd, info);
    if (e)
        return e;
    e = adp_host_take_paced(v, pace, &a, info);
    if (!e) {
        e = mdl_adapter_write_paced(path, h->config, a, a->base, pace, NULL, info);
        adp_host_drop(v);
    }
    if (!e)
        e = durable_sync_dir(fd, info);
    if (!e && h->seal)
        e = h->seal(h->seal_arg, fd, source, pace, info);
    close(fd);
    if (!e && (e = adp_set_path(v, path)))
        err_set(info, e, NULL, "out of memory for an adapter");
    return e;
}

// ---- cleaning

struct needed {
    uint64_t *numbers;
    size_t n, cap;
    bool failed;
};

static void note_needed(void *arg, const struct adp_info *i) {
    struct needed *x = arg;
    if (i->state == ADP_RETIRED || i->state == ADP_FAILED || x->failed)
        return;
    if (x->n == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 64;
        uint64_t *grown = mem_realloc(x->numbers, cap * sizeof *grown);
        x->failed = !grown;
        if (!grown)
            return;
        x->numbers = grown;
        x->cap = cap;
    }
    x->numbers[x->n++] = i->version;
}

static bool is_needed(const struct needed *x, const char *folder) {
    char name[32];
    for (size_t i = 0; i < x->n; i++) {
        snprintf(name, sizeof name, "v%llu", (unsigned long long)x->numbers[i]);
        if (!strcmp(name, folder))
            return true;
    }
    return false;
}

// The number of a version's folder; 0: the name is of something else.
static uint64_t folder_number(const char *name) {
    size_t n = strlen(name) - 1;
    if (name[0] != 'v' || name[1] == '0' || !n || n > 16 || strspn(name + 1, "0123456789") != n)
        return 0;
    return strtoull(name + 1, NULL, 10);
}

static bool is_complete(int dir, const char *folder) {
    char path[64];
    snprintf(path, sizeof path, "%s/" FT_COMPLETE_FILE, folder);
    return faccessat(dir, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static void remove_folder(const struct adapter_host *h, const char *name, struct pace *pace) {
    struct err_info info;
    bool complete = is_complete(h->dir, name);
    if (pace)
        durable_uncache_folder(h->dir, name, pace);
    if (durable_remove_folder(h->dir, name, FT_COMPLETE_FILE, &info))
        log_write(h->log, LOG_WARN, "%s: %s", h->path, info.message);
    else
        log_write(h->log, LOG_INFO, "%s/%s removed: %s", h->path, name,
                  complete ? "nothing names the version any more" : "it was not completed");
}

void adapter_store_clean(struct adapter_host *h, struct pace *pace) {
    // A save that failed may have named folders that are not needed any more.
    static const struct adp_change none = {.kind = ADP_CHANGE_NONE};
    if (h->dir < 0 || (h->unsaved && adapter_store_save(h, &none, NULL)))
        return;
    struct needed x = {0};
    x.failed = adp_list(h->registry, note_needed, &x) || x.failed;
    DIR *d = x.failed ? NULL : durable_list(h->dir, ".");
    for (struct dirent *entry; d && (entry = readdir(d));)
        if (folder_number(entry->d_name) && !is_needed(&x, entry->d_name))
            remove_folder(h, entry->d_name, pace);
    if (d)
        closedir(d);
    mem_free(x.numbers);
}

// ---- reading

// A number is promised before its folder is made. So a folder with a number that was not promised
// was not left by a change that was cut short: the state file is lost, or an older one.
static enum err check_folders(const struct adapter_host *h, int64_t next, struct err_info *info) {
    enum err e = ERR_OK;
    DIR *d = durable_list(h->dir, ".");
    if (!d)
        return durable_errno(info, errno, "read", "the folder");
    const struct dirent *entry;
    while (!e && (errno = 0, entry = readdir(d)) != NULL) {
        uint64_t number = folder_number(entry->d_name);
        if (number < (uint64_t)next || (h->saved.len && !is_complete(h->dir, entry->d_name)))
            continue;
        e = err_set(info, ERR_FORMAT, NULL,
                    "%s %s, and %s holds an adapter that it ought to know; put back the "
                    "%s that belongs to it, or move the folder away",
                    state_name, h->saved.len ? "is older" : "is missing", entry->d_name,
                    state_name);
    }
    if (!e && errno)
        e = durable_errno(info, errno, "read", "the folder");
    closedir(d);
    return e;
}

static enum err check_state(const json_t *state, int64_t *next, struct err_info *info) {
    const json_t *aliases = json_object_get(state, "aliases");
    enum err e;
    if (!json_is_object(state))
        return err_set(info, ERR_FORMAT, NULL, "%s must be a JSON object, not %s", state_name,
                       api_json_type_name(state));
    if ((e = api_json_int(state, "next_version", 1, ADAPTER_NUMBERS_END, 0, next, info))) {
        err_prefix(info, "%s", state_name);
        return e;
    }
    if (!*next)
        return err_set(info, ERR_FORMAT, NULL, "%s has no next_version, an integer from 1",
                       state_name);
    if (!json_is_array(json_object_get(state, "versions")))
        return err_set(info, ERR_FORMAT, NULL, "%s has no versions, an array of objects",
                       state_name);
    if (aliases && !json_is_array(aliases))
        return err_set(info, ERR_FORMAT, NULL, "aliases in %s must be an array of objects, not %s",
                       state_name, api_json_type_name(aliases));
    return ERR_OK;
}

static enum err read_state(struct adapter_host *h, int64_t *next, struct err_info *info) {
    json_t *state = NULL;
    enum err e = read_text(h->dir, &h->saved, info);
    if (!e)
        e = parse(&h->saved, &state, info);
    if (!e && state)
        e = check_state(state, next, info);
    json_decref(state);
    return e ? e : check_folders(h, *next, info);
}

enum err adapter_store_open(struct adapter_host *h, int data_dir, uint64_t *next_version,
                            struct err_info *info) {
    int64_t next = 1;
    int n = snprintf(h->path, sizeof h->path, "%s/adapters", h->options->data_dir);
    if (n < 0 || (size_t)n >= sizeof h->path)
        return err_set(info, ERR_INVALID, "data-dir", "--data-dir is too long");
    enum err e = durable_folder(data_dir, "adapters", &h->dir, info);
    if (e) {
        h->dir = -1;
        return e;
    }
    if (!(e = durable_clean(h->dir, info)))
        e = read_state(h, &next, info);
    if (e) {
        err_prefix(info, "%s", h->path);
        buf_fini(&h->saved);
        close(h->dir);
        h->dir = -1;
        return e;
    }
    *next_version = (uint64_t)next;
    h->reserved = (uint64_t)next;
    return ERR_OK;
}

// One version. If it cannot be read again, the process does not start: what was promised to last
// must not silently go.
static enum err restore(struct adapter_host *h, const json_t *v, struct err_info *info) {
    int64_t number, created;
    const char *name, *source, *digest;
    char path[sizeof h->path + 32];
    bool is;
    enum err e;
    if ((e = api_json_int(v, "version", 1, INT64_MAX, 0, &number, info)) ||
        (e = api_json_bool(v, "active", false, &is, info)) ||
        (e = api_json_bool(v, "former", false, &is, info)) ||
        (e = api_json_bool(v, "rolled_back", false, &is, info)) ||
        (e = api_json_int(v, "created", 0, INT64_MAX, 0, &created, info)) ||
        (e = api_json_str(v, "name", false, &name, NULL, info)) ||
        (e = api_json_str(v, "source", false, &source, NULL, info)) ||
        (e = api_json_str(v, "sha256", false, &digest, NULL, info)))
        return e;
    if (!number || !name || !source || !digest)
        return err_set(info, ERR_FORMAT, NULL,
                       "an item of versions must have version, name, source and sha256");
    if ((uint64_t)number >= h->reserved)
        return err_set(info, ERR_FORMAT, NULL, "version %lld is not below next_version, %llu",
                       (long long)number, (unsigned long long)h->reserved);
    snprintf(path, sizeof path, "%s/v%lld", h->path, (long long)number);
    const struct adp_origin from = {.path = path,
                                    .source = source,
                                    .version = (uint64_t)number,
                                    .digest = digest,
                                    .created = created,
                                    .rolled_back = is};
    struct adp_version *loaded;
    e = adp_load(h->registry, name, &from, &loaded, info);
    if (e)
        err_prefix(info, "adapter %s@%lld (v%lld)", name, (long long)number, (long long)number);
    else
        adp_release(loaded);
    return e;
}

static bool is_of(const json_t *v, const char *name, const char *which) {
    const char *s = json_string_value(json_object_get(v, "name"));
    return s && !strcmp(s, name) && json_is_true(json_object_get(v, which));
}

static uint64_t number_of(const json_t *list, const char *name, const char *which) {
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v) {
        if (is_of(v, name, which))
            return (uint64_t)json_integer_value(json_object_get(v, "version"));
    }
    return 0;
}

// Each name once: by its active version, or where it has none by its former one.
static enum err restore_names(struct adapter_host *h, const json_t *list, struct err_info *info) {
    enum err e = ERR_OK;
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v) {
        const char *name = json_string_value(json_object_get(v, "name"));
        uint64_t active = number_of(list, name, "active");
        if (!e && (is_of(v, name, "active") || (!active && is_of(v, name, "former"))))
            e = adp_name_again(h->registry, name, active, number_of(list, name, "former"), info);
    }
    return e;
}

static enum err again(struct adapter_host *h, const char *alias, const char *target,
                      const char *former, struct err_info *info) {
    if (!alias || !target)
        return err_set(info, ERR_FORMAT, NULL, "an item of aliases must have alias and target");
    enum err e = adp_alias_again(h->registry, alias, target, former, info);
    if (e)
        err_prefix(info, "alias %s", alias);
    return e;
}

enum err adapter_store_apply(struct adapter_host *h, struct err_info *info) {
    json_t *state;
    enum err e = parse(&h->saved, &state, info);
    const json_t *list = json_object_get(state, "versions"), *v;
    size_t i;
    json_array_foreach(list, i, v) {
        e = e ? e : restore(h, v, info);
    }
    if (!e)
        e = restore_names(h, list, info);
    json_array_foreach(json_object_get(state, "aliases"), i, v) {
        const char *alias = json_string_value(json_object_get(v, "alias"));
        const char *target = json_string_value(json_object_get(v, "target"));
        const char *former = json_string_value(json_object_get(v, "former"));
        // What it stands for may come later: by --lora-modules, or once somebody asks for it.
        if (!e)
            e = again(h, alias, target, former, info);
    }
    json_decref(state);
    if (e)
        err_prefix(info, "%s/%s", h->path, state_name);
    return e;
}
