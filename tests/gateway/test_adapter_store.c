// SPDX-License-Identifier: Apache-2.0
// Adapters over a power loss at every point of a change: after the next start they are as before
// the change or as after it, as after it once it was acknowledged, and nothing is left over. And
// changes with each call to the disk failing once.
#include "base/diskio.h"
#include "base/durable.h"
#include "finetune/manifest.h"
#include "finetune/verify.h"
#include "gateway/adapter_host.h"
#include "gateway/adapter_manifest.h"
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
#include <sys/stat.h>
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
    struct adapter_manifest manifest;
    int dir;
};

static const char *const served_names[] = {"served"};

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
    h->app.names = served_names;
    h->app.n_names = 1;
    h->manifest = (struct adapter_manifest){&h->app, &h->log};
    h->adapters.seal = adapter_manifest_write;
    h->adapters.seal_arg = &h->manifest;
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
        snprintf(view + n, VIEW - n, "%s@%llu %s %s%s%s %lld\n", i->name,
                 (unsigned long long)i->version, i->digest, adp_state_name(i->state),
                 i->active ? " current" : "", i->former ? " former" : "", (long long)i->created);
}

static void see_alias(void *arg, const struct adp_alias_info *a) {
    char *view = arg;
    size_t n = strlen(view);
    snprintf(view + n, VIEW - n, "%s -> %s%s%s\n", a->alias, a->target,
             a->former[0] ? ", former " : "", a->former);
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

// A load that fails changes nothing that a client sees, now or after a restart; the next one
// succeeds.
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
    assert_int_equal(lines_with(after, " current"), 1);
    close_host(&h);
}

// ---- each change, with each call to the disk failing

static enum err promote(struct host *h, const char *name, uint64_t version, struct err_info *info) {
    return adapter_host_promote(&h->adapters, name, version, info);
}

// What is there: a@1 former, a@2 active, b@3 active, b@4 ready, c -> a.
static void populate(struct host *h) {
    struct err_info info = {0};
    assert_ok(load(h, "a", GOLDEN "qv", true, &info), &info);
    assert_ok(load(h, "a", GOLDEN "rslora", true, &info), &info);
    assert_ok(load(h, "b", GOLDEN "patterns", true, &info), &info);
    assert_ok(load(h, "b", GOLDEN "qv", false, &info), &info);
    assert_ok(adapter_host_alias(&h->adapters, "c", "a", &info), &info);
}

static enum err faulty_change(struct host *h, int i, struct err_info *info) {
    switch (i) {
    case 0:
        return promote(h, "b", 4, info);
    case 1:
        return promote(h, "a", 1, info);
    case 2:
        return adapter_host_retire(&h->adapters, "a", 2, info);
    case 3:
        return adapter_host_retire(&h->adapters, "b", 0, info);
    case 4:
        return adapter_host_alias(&h->adapters, "d", "b@4", info);
    case 5:
        return adapter_host_alias(&h->adapters, "c", "b", info);
    case 6:
        return adapter_host_alias(&h->adapters, "c", NULL, info);
    case 7:
        return load(h, "a", GOLDEN "patterns", true, info);
    default:
        return load(h, "e", GOLDEN "qv", false, info);
    }
}
enum { FAULTY_CHANGES = 9 };

static int inject_from(void *arg, struct diskio_call *c) {
    struct fault *f = arg;
    (void)c;
    return ++f->n >= f->at ? f->with : 0;
}

static void start_anew(const struct world *w, struct host *h, bool populated) {
    struct err_info info = {0};
    assert_ok(open_host(w, h, w->folder, &info), &info);
    if (populated)
        populate(h);
}

static void end_all(struct world *w, struct host *h) {
    close_host(h);
    temp_remove(w->folder);
    temp_folder_in_memory(w->folder, "adapters");
}

// False: the call did not come any more, and the change was made.
static bool fails_without_effect(struct world *w, int i, struct fault f, bool for_good) {
    struct host h;
    struct err_info info = {0};
    char before[VIEW], after[VIEW];
    start_anew(w, &h, true);
    see(&h, before);
    const struct diskio_hook hook = {.before = for_good ? inject_from : inject, .arg = &f};
    diskio_set_hook(&hook);
    enum err e = faulty_change(&h, i, &info);
    bool unsaved = h.adapters.unsaved;
    diskio_set_hook(NULL);
    see(&h, after);
    assert_int_equal(strcmp(before, after) == 0, e != ERR_OK);
    // What was put back is there even if the process ends without a last word.
    if (!for_good)
        assert_false(unsaved);
    close_host(&h);
    start_anew(w, &h, false);
    see(&h, before);
    assert_string_equal(before, after);
    end_all(w, &h);
    return f.n >= f.at;
}

// An error means that nothing has changed, for who asks now and after a restart; no error means the
// opposite.
static void test_no_effect(void **state) {
    struct world *w = *state;
    for (int i = 0; i < FAULTY_CHANGES; i++)
        for (int for_good = 0; for_good < 2; for_good++) {
            int at = 1;
            while (fails_without_effect(w, i, (struct fault){.at = at, .with = EIO}, for_good))
                at++;
            assert_true(at > 4);
        }
}

// Going back helps at once, whatever the disk does; it lasts as soon as the disk takes it.
static void test_roll_back_first(void **state) {
    struct world *w = *state;
    struct host h;
    struct err_info info = {0};
    char after[VIEW], again[VIEW];
    for (int at = 1, met = 1; met; at++) {
        struct fault f = {.at = at, .with = EIO};
        const struct diskio_hook hook = {.before = inject_from, .arg = &f};
        start_anew(w, &h, true);
        diskio_set_hook(&hook);
        enum err e = roll_back(&h, &info);
        diskio_set_hook(NULL);
        met = f.n >= at;
        assert_true(met || !e);
        see(&h, after);
        assert_int_equal(lines_with(after, "rolled_back"), 1);
        if (e && at % 2)
            assert_ok(adapter_host_alias(&h.adapters, "d", "b", &info), &info); // the next change
        see(&h, after);
        close_host(&h);
        start_anew(w, &h, false);
        see(&h, again);
        assert_string_equal(after, again);
        end_all(w, &h);
    }
}

// States outlast the process one by one, and what may be done from them does too.
static void test_states_last(void **state) {
    struct world *w = *state;
    struct host h;
    struct err_info info = {0};
    char before[VIEW], after[VIEW];
    start_anew(w, &h, true);
    assert_ok(roll_back(&h, &info), &info);       // a@2 rolled back, a@1 active
    assert_ok(promote(&h, "b", 4, &info), &info); // b@3 is the former
    assert_ok(adapter_host_retire(&h.adapters, "b", 4, &info), &info); // b stands for nothing
    for (int i = 0; i < 3; i++) {
        see(&h, before);
        close_host(&h);
        start_anew(w, &h, false);
        see(&h, after);
        assert_string_equal(before, after);
        assert_int_equal(lines_with(after, "rolled_back"), i < 2);
        assert_int_equal(adp_knows(h.adapters.registry, "b"), i == 2);
        if (i == 0)
            assert_int_equal(adapter_host_roll_back(&h.adapters, "a", &info), ERR_INVALID);
        if (i == 1) {
            assert_ok(promote(&h, "a", 2, &info), &info);
            assert_ok(promote(&h, "b", 3, &info), &info);
        }
    }
    close_host(&h);
}

// A number that the next process does not know again is no target that lasts.
static void test_alias_of_number(void **state) {
    struct world *w = *state;
    struct host h;
    struct err_info info = {0};
    start_anew(w, &h, true);
    const struct adapter_load l = {
        .name = "there", .path = GOLDEN "qv", .promote = true, .in_its_folder = true};
    uint64_t version;
    char target[64];
    assert_ok(adapter_host_load(&h.adapters, &l, &version, &info), &info);
    snprintf(target, sizeof target, "there@%llu", (unsigned long long)version);
    assert_true(adp_knows(h.adapters.registry, target));
    assert_int_equal(adapter_host_alias(&h.adapters, "d", target, &info), ERR_INVALID);
    assert_string_equal(info.param, "target");
    assert_non_null(strstr(info.message, "lasts"));
    assert_false(adp_knows(h.adapters.registry, "d"));
    assert_int_equal(adapter_host_alias(&h.adapters, "d", "there@99", &info), ERR_NO_MODEL);
    assert_ok(adapter_host_alias(&h.adapters, "d", "there", &info), &info);
    assert_ok(adapter_host_alias(&h.adapters, "d", "b@4", &info), &info);
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
            assert_ok(adapter_host_keep(&h.adapters, &info), &info);
        if (i == 1)
            assert_ok(adapter_host_alias(&h.adapters, "c", NULL, &info), &info);
    }
    close_host(&h);
}

// ---- a state file that is not one

// A text, and what the error says of it.
static const struct {
    const char *text, *says;
} bad_states[] = {
    {"", "is empty"},
    {" ", "line 1"},
    {"{", "line 1"},
    {"[]", "must be a JSON object, not an array"},
    {"null", "line 1"},
    {"{}", "no next_version"},
    {"{\"versions\":[],\"versions\":[]}", "duplicate"},
    {"{\"next_version\":65}", "no versions"},
    {"{\"next_version\":65,\"versions\":null}", "no versions"},
    {"{\"next_version\":65,\"versions\":{}}", "no versions"},
    {"{\"next_version\":65,\"versions\":[],\"aliases\":{}}", "aliases"},
    {"{\"next_version\":65,\"versions\":[],\"aliases\":[{}]}", "alias and target"},
    {"{\"next_version\":65,\"versions\":[1]}", "version, name, source and sha256"},
    {"{\"next_version\":65,\"versions\":[{}]}", "version, name, source and sha256"},
    {"{\"next_version\":1,\"versions\":[]}", "is older, and v"},
    {"{\"next_version\":4,\"versions\":[]}", "is older, and v4"},
    {"{\"next_version\":9007199254740993,\"versions\":[]}", "next_version must be from 1"},
    {"{\"next_version\":9223372036854775807,\"versions\":[]}", "next_version must be from 1"},
    {"{\"next_version\":9223372036854775808,\"versions\":[]}", "line 1"},
    {"{\"next_version\":-1,\"versions\":[]}", "next_version must be from 1"},
    {"{\"next_version\":0,\"versions\":[]}", "next_version must be from 1"},
    {"{\"next_version\":\"65\",\"versions\":[]}", "next_version must be an integer"},
    {"{\"next_version\":65,\"versions\":[{\"version\":65,\"name\":\"a\",\"source\":\"\","
     "\"sha256\":\"0\"}]}",
     "version 65 is not below next_version"},
    {"{\"next_version\":65,\"versions\":[{\"version\":1,\"name\":\"a\",\"source\":\"\","
     "\"sha256\":\"0\",\"active\":1}]}",
     "active must be a boolean"},
};

static void put_text(const char *folder, const char *text, size_t n) {
    struct err_info info = {0};
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir >= 0);
    assert_ok(durable_put(dir, "state.json", text, n, &info), &info);
    close(dir);
}

// The process does not start, says of which file and why, and has removed nothing.
static void expect_refused(const struct world *w, const char *says, int folders) {
    struct host h;
    struct err_info info = {0};
    int found, others;
    assert_int_not_equal(open_host(w, &h, w->folder, &info), ERR_OK);
    close_host(&h);
    if (!strstr(info.message, "/adapters") || !strstr(info.message, "state.json") ||
        !strstr(info.message, says))
        fail_msg("%s: %s", says, info.message);
    char path[TEMP_PATH + 16];
    snprintf(path, sizeof path, "%s/adapters", w->folder);
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    count(dir, &found, &others);
    close(dir);
    assert_int_equal(found, folders);
    assert_int_equal(others, 0);
}

// Nothing that was published goes because the file that names it is lost or damaged.
static void test_bad_state(void **state) {
    struct world *w = *state;
    struct host h;
    char before[VIEW], after[VIEW], folder[TEMP_PATH + 16], file[TEMP_PATH + 32];
    start_anew(w, &h, true);
    see(&h, before);
    size_t n = h.adapters.saved.len;
    char *good = malloc(n);
    memcpy(good, h.adapters.saved.data, n);
    close_host(&h);
    snprintf(folder, sizeof folder, "%s/adapters", w->folder);
    snprintf(file, sizeof file, "%s/state.json", folder);
    for (size_t i = 0; i < sizeof bad_states / sizeof *bad_states; i++) {
        put_text(folder, bad_states[i].text, strlen(bad_states[i].text));
        expect_refused(w, bad_states[i].says, 4);
    }
    for (size_t cut = 1; cut < n; cut += 37) { // as a file that was cut short
        put_text(folder, good, cut);
        expect_refused(w, "line 1", 4);
    }
    unlink(file);
    expect_refused(w, "is missing, and v", 4);
    assert_int_equal(mkfifo(file, 0600), 0);
    expect_refused(w, "is not a file", 4);
    unlink(file);
    assert_int_equal(mkdir(file, 0700), 0);
    expect_refused(w, "is not a file", 4);
    rmdir(file);
    assert_int_equal(symlink("/dev/zero", file), 0);
    expect_refused(w, "is not a file", 4);
    put_text(folder, good, n);
    free(good);
    start_anew(w, &h, false);
    see(&h, after);
    assert_string_equal(before, after);
    close_host(&h);
}

// What a change that was cut short has left goes; what is no version's folder stays.
static void test_left_over(void **state) {
    struct world *w = *state;
    struct host h;
    struct err_info info = {0};
    char path[TEMP_PATH + 32];
    start_anew(w, &h, true);
    static const char *const names[] = {"v9", "v64", "vim", "v", "v07"};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(mkdirat(h.adapters.dir, names[i], 0700), 0);
        snprintf(path, sizeof path, "%s/COMPLETE", names[i]);
        if (i != 1)
            close(openat(h.adapters.dir, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    }
    close_host(&h);
    assert_ok(open_host(w, &h, w->folder, &info), &info);
    for (int i = 0; i < 5; i++)
        assert_int_equal(faccessat(h.adapters.dir, names[i], F_OK, 0) == 0, i >= 2);
    close_host(&h);
}

// The last number is given, and the one behind it never.
static void test_last_number(void **state) {
    struct world *w = *state;
    struct host h;
    struct err_info info = {0};
    char folder[TEMP_PATH + 16];
    static const char text[] = "{\"next_version\":9007199254740991,\"versions\":[]}";
    start_anew(w, &h, false);
    close_host(&h);
    snprintf(folder, sizeof folder, "%s/adapters", w->folder);
    put_text(folder, text, strlen(text));
    start_anew(w, &h, false);
    assert_ok(load(&h, "a", GOLDEN "qv", true, &info), &info);
    for (int i = 0; i < 2; i++) {
        assert_true(adp_knows(h.adapters.registry, "a@9007199254740991"));
        assert_int_equal(load(&h, "a", GOLDEN "rslora", true, &info), ERR_INVALID);
        assert_non_null(strstr(info.message, "number"));
        assert_ok(adapter_host_alias(&h.adapters, i ? "d" : "c", "a", &info), &info); // saves
        assert_non_null(strstr(h.adapters.saved.data, "\"next_version\":9007199254740992,"));
        close_host(&h);
        start_anew(w, &h, false);
    }
    close_host(&h);
}

// The way back of an alias outlasts the process, and so does its having been taken.
static void test_alias_goes_back(void **state) {
    struct world *w = *state;
    struct host h;
    struct err_info info = {0};
    char view[VIEW];
    start_anew(w, &h, true);
    assert_ok(adapter_host_alias(&h.adapters, "c", "b", &info), &info);
    close_host(&h);
    assert_ok(open_host(w, &h, w->folder, &info), &info);
    see(&h, view);
    assert_non_null(strstr(view, "c -> b, former a\n"));
    assert_ok(adapter_host_roll_back(&h.adapters, "c", &info), &info);
    assert_ok(adapter_host_keep(&h.adapters, &info), &info);
    close_host(&h);
    assert_ok(open_host(w, &h, w->folder, &info), &info);
    see(&h, view);
    assert_non_null(strstr(view, "c -> a, former b\n"));
    close_host(&h);
}

// ---- manifests

static void no_flaw(void *arg, const char *file, enum err e, const char *what) {
    (void)arg;
    if (e)
        fail_msg("%s: %s", file, what);
}

static json_t *manifest_of(const struct host *h, uint64_t version) {
    char path[sizeof h->adapters.path + 32];
    const struct ft_verify v = {.tell = no_flaw};
    struct ft_verify_result r;
    struct err_info info = {0};
    json_t *m;
    snprintf(path, sizeof path, "%s/v%llu", h->adapters.path, (unsigned long long)version);
    assert_ok(ft_verify(path, &v, &r, &info), &info);
    assert_string_equal(r.kind, "adapter");
    assert_int_equal(r.wrong, 0);
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(dir >= 0);
    assert_ok(ft_manifest_read(dir, &m, &info), &info);
    close(dir);
    return m;
}

static const char *text_in(const json_t *m, const char *key) {
    return json_string_value(json_object_get(m, key));
}

static void copy_file(const char *from, int to, const char *name) {
    struct err_info info = {0};
    int dir = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_ok(ft_file_copy(dir, name, to, name, &info), &info);
    close(dir);
}

// A folder as a run leaves it; `damaged`: its adapter is not what its manifest is about.
static void make_source(const char *path, bool damaged) {
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    const struct ft_manifest origin = {.run_id = "run-1",
                                       .base_model = "elsewhere",
                                       .base_digest = "abc",
                                       .code_version = "0.0.1",
                                       .method = "supervised",
                                       .hyperparameters = "{\"learning_rate\":0.1}",
                                       .metrics = "{\"train_loss\":0.25}",
                                       .seed = 7};
    struct err_info info = {0};
    int dir;
    assert_ok(durable_make(path, 0700, &dir, &info), &info);
    for (int i = 0; i < 2; i++)
        copy_file(damaged && i ? GOLDEN "all" : GOLDEN "qv", dir, names[i]);
    assert_ok(ft_manifest_write(dir, FT_MANIFEST_ADAPTER, &origin, NULL, names, 2, &info), &info);
    if (damaged)
        copy_file(GOLDEN "qv", dir, names[1]);
    close(dir);
}

// Each version says what it comes from, and graft verify accepts its folder.
static void test_manifests(void **state) {
    struct world *w = *state;
    struct host h;
    struct err_info info = {0};
    char from[TEMP_PATH + 16];
    start_anew(w, &h, false);
    assert_ok(load(&h, "a", GOLDEN "qv", true, &info), &info);
    json_t *m = manifest_of(&h, 1);
    assert_string_equal(text_in(m, "base_model"), "served");
    assert_true(json_is_null(json_object_get(m, "run_id")));
    assert_true(json_is_null(json_object_get(m, "seed")));
    assert_true(json_integer_value(json_object_get(m, "created_at")) > 0);
    json_decref(m);
    snprintf(from, sizeof from, "%s/from", w->folder);
    make_source(from, false);
    assert_ok(load(&h, "a", from, true, &info), &info);
    m = manifest_of(&h, 2);
    assert_string_equal(text_in(m, "run_id"), "run-1");
    assert_string_equal(text_in(m, "base_digest"), "abc");
    assert_string_equal(text_in(m, "code_version"), "0.0.1");
    assert_int_equal(json_integer_value(json_object_get(m, "seed")), 7);
    const json_t *rate = json_object_get(json_object_get(m, "hyperparameters"), "learning_rate");
    assert_true(json_real_value(rate) == 0.1);
    const json_t *loss = json_object_get(json_object_get(m, "metrics"), "train_loss");
    assert_true(json_real_value(loss) == 0.25);
    json_decref(m);
    temp_remove(from);
    make_source(from, true);
    assert_ok(load(&h, "a", from, true, &info), &info);
    m = manifest_of(&h, 3);
    assert_true(json_is_null(json_object_get(m, "run_id"))); // it is of another adapter
    json_decref(m);
    close_host(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_power_loss, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_alias_without_target, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_effect, setup, teardown),
        cmocka_unit_test_setup_teardown(test_roll_back_first, setup, teardown),
        cmocka_unit_test_setup_teardown(test_states_last, setup, teardown),
        cmocka_unit_test_setup_teardown(test_alias_of_number, setup, teardown),
        cmocka_unit_test_setup_teardown(test_alias_goes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_state, setup, teardown),
        cmocka_unit_test_setup_teardown(test_left_over, setup, teardown),
        cmocka_unit_test_setup_teardown(test_last_number, setup, teardown),
        cmocka_unit_test_setup_teardown(test_manifests, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
