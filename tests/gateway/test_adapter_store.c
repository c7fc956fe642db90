// SPDX-License-Identifier: Apache-2.0
// Adapters over a power loss at every point of a change: after the next start they are as before the
// change or as after it, as after it once it was acknowledged, and nothing is left over. And changes with
// each call to the disk failing once.
#include "base/diskio.h"
#include "base/durable.h"
#include "gateway/adapter_host.h"
#include "model/source.h"
#include "tests/base/disk_replay.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN "tests/golden/adapters/"
enum { MARKS = 8, VIEW = 2048 };

struct world {
    char folder[TEMP_PATH];
    struct mdl_source *source;
    char views[MARKS + 1][VIEW]; // what there is at each mark
    uint64_t next[MARKS + 1];
    int marks;
};

// A process that serves adapters.
struct host {
    struct adapter_host adapters;
    struct serve_options options;
    struct app app;
    struct log log;
    int dir;
};

static enum err open_host(const struct world *w, struct host *h, const char *path,
                          struct err_info *info) {
    memset(h, 0, sizeof *h);
    h->log.fd = -1;
    h->options.enable_lora = true;
    h->options.max_loras = 4;
    h->options.max_lora_rank = 64;
    h->options.data_dir = path;
    h->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(h->dir >= 0);
    return adapter_host_open(&h->adapters, &h->options, h->dir, mdl_source_config(w->source),
                             &h->app, &h->log, info);
}

static void close_host(struct host *h) {
    adapter_host_close(&h->adapters);
    close(h->dir);
}

// ---- what a client sees

static void see_version(void *arg, const struct adp_info *i) {
    char *view = arg;
    size_t n = strlen(view);
    if (i->state == ADP_READY || i->state == ADP_ACTIVE || i->state == ADP_ROLLED_BACK)
        snprintf(view + n, VIEW - n, "%s@%llu %s%s\n", i->name, (unsigned long long)i->version,
                 i->digest, i->active ? " active" : "");
}

static void see_alias(void *arg, const struct adp_alias_info *a) {
    char *view = arg;
    size_t n = strlen(view);
    snprintf(view + n, VIEW - n, "%s -> %s\n", a->alias, a->target);
}

static void see(const struct host *h, char view[VIEW]) {
    view[0] = '\0';
    assert_int_equal(adp_list(h->adapters.registry, see_version, view), ERR_OK);
    assert_int_equal(adp_aliases(h->adapters.registry, see_alias, view), ERR_OK);
}

static int lines_with(const char *view, const char *what) {
    int n = 0;
    for (const char *at = view; (at = strstr(at, what)); at++)
        n++;
    return n;
}

// Folders of versions, and whatever stands beside them and state.json.
static void count(int dir, int *folders, int *others) {
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fdopendir(fd);
    assert_non_null(d);
    *folders = *others = 0;
    for (const struct dirent *x; (x = readdir(d));)
        if (x->d_name[0] == 'v')
            ++*folders;
        else if (strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0)
            *others += strcmp(x->d_name, "state.json") != 0;
    closedir(d);
}

// ---- changes

static enum err load(struct host *h, const char *name, const char *from, bool promote,
                     struct err_info *info) {
    const struct adapter_load l = {
        .name = name, .path = from, .in_place = true, .promote = promote};
    uint64_t version;
    return adapter_host_load(&h->adapters, &l, &version, info);
}

static enum err roll_back(struct host *h, struct err_info *info) {
    enum err e = adapter_host_roll_back(&h->adapters, "a", info);
    return e ? e : adapter_host_keep(&h->adapters, info);
}

static enum err change(struct host *h, int i, struct err_info *info) {
    switch (i) {
    case 0:
        return load(h, "a", GOLDEN "qv", true, info);
    case 1:
        return load(h, "a", GOLDEN "rslora", true, info);
    case 2:
        return roll_back(h, info);
    case 3:
        return load(h, "b", GOLDEN "patterns", false, info);
    case 4:
        return adapter_host_promote(&h->adapters, "b", 3, info);
    case 5:
        return adapter_host_alias(&h->adapters, "c", "a", info);
    case 6:
        return adapter_host_retire(&h->adapters, "b", 0, info);
    default:
        return adapter_host_alias(&h->adapters, "c", NULL, info);
    }
}

static int setup(void **state) {
    struct world *w = calloc(1, sizeof *w);
    struct err_info info = {0};
    temp_folder_in_memory(w->folder, "adapters");
    assert_ok(mdl_source_open("tests/golden/models/f32.gguf", &w->source, &info), &info);
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    mdl_source_close(w->source);
    temp_remove(w->folder);
    free(w);
    return 0;
}

static bool recovers(void *arg, const char *path, int mark, char why[REPLAY_WHY]) {
    const struct world *w = arg;
    struct host h;
    struct err_info info = {0};
    char view[VIEW];
    int folders, others;
    if (open_host(w, &h, path, &info)) {
        snprintf(why, REPLAY_WHY, "it does not start: %.400s", info.message);
        close_host(&h);
        return false;
    }
    see(&h, view);
    count(h.adapters.dir, &folders, &others);
    bool before = !strcmp(view, w->views[mark]);
    bool after = mark < MARKS && !strcmp(view, w->views[mark + 1]);
    const char *bad = !before && !after ? "neither as before nor as after"
                      : others || folders != lines_with(view, "@") ? "something is left over"
                      : adp_next_number(h.adapters.registry) < w->next[mark]
                          ? "a number is given again"
                          : NULL;
    if (bad)
        snprintf(why, REPLAY_WHY, "%s: %.300s", bad, view);
    close_host(&h);
    return !bad;
}

static void test_power_loss(void **state) {
    struct world *w = *state;
    struct host h;
    struct err_info info = {0};
    struct replay *r = replay_begin(w->folder);
    assert_ok(open_host(w, &h, w->folder, &info), &info);
    for (int i = 0; i <= MARKS; i++) {
        if (i)
            assert_ok(change(&h, i - 1, &info), &info);
        see(&h, w->views[i]);
        w->next[i] = adp_next_number(h.adapters.registry);
        replay_mark(r, i);
    }
    close_host(&h);
    replay_end(r);
    assert_int_equal(lines_with(w->views[2], "\n"), 2);
    assert_int_equal(lines_with(w->views[6], "\n"), 4);
    struct replay_result x = replay_run(r, 12, recovers, w);
    replay_free(r);
    assert_true(x.prefixes > 60 && x.states > 300);
    if (x.bad)
        fail_msg("%d of %d states: %s", x.bad, x.states, x.first);
}

struct fault {
    int at, n, with;
};

static int inject(void *arg, struct diskio_call *c) {
    struct fault *f = arg;
    (void)c;
    return ++f->n == f->at ? f->with : 0;
}

// A load that fails changes nothing that a client sees, now or after a restart; the next one succeeds.
static void test_errors(void **state) {
    struct world *w = *state;
    struct host h;
    struct err_info info = {0};
    char before[VIEW], after[VIEW];
    assert_ok(open_host(w, &h, w->folder, &info), &info);
    assert_ok(load(&h, "a", GOLDEN "qv", true, &info), &info);
    for (int at = 1;; at++) {
        struct fault f = {.at = at, .with = at % 2 ? ENOSPC : EIO};
        const struct diskio_hook hook = {.before = inject, .arg = &f};
        see(&h, before);
        diskio_set_hook(&hook);
        enum err e = load(&h, "a", GOLDEN "rslora", true, &info);
        diskio_set_hook(NULL);
        see(&h, after);
        if (!e && f.n < at)
            break;
        if (e) {
            assert_int_equal(e, at % 2 ? ERR_DISK_FULL : ERR_IO);
            assert_string_equal(before, after);
        }
        close_host(&h);
        assert_ok(open_host(w, &h, w->folder, &info), &info);
        see(&h, before);
        assert_string_equal(before, after);
    }
    assert_int_equal(lines_with(after, " active"), 1);
    close_host(&h);
}

// An alias lasts over starts that do not have what it stands for, and over what they save.
static void test_alias_without_target(void **state) {
    struct world *w = *state;
    struct host h;
    struct err_info info = {0};
    char view[VIEW];
    assert_ok(open_host(w, &h, w->folder, &info), &info);
    const struct adapter_load l = {
        .name = "there", .path = GOLDEN "qv", .promote = true, .in_its_folder = true};
    uint64_t version;
    assert_ok(adapter_host_load(&h.adapters, &l, &version, &info), &info);
    assert_ok(adapter_host_alias(&h.adapters, "c", "there", &info), &info);
    for (int i = 0; i < 3; i++) {
        close_host(&h);
        assert_ok(open_host(w, &h, w->folder, &info), &info);
        see(&h, view);
        assert_string_equal(view, i < 2 ? "c -> there\n" : "");
        assert_false(adp_knows(h.adapters.registry, "c"));
        if (i == 0)
            assert_ok(adapter_store_save(&h.adapters, &info), &info);
        if (i == 1)
            assert_ok(adapter_host_alias(&h.adapters, "c", NULL, &info), &info);
    }
    close_host(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_power_loss, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_alias_without_target, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
