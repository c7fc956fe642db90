// SPDX-License-Identifier: Apache-2.0
#include "tests/base/disk_replay.h"
#include "base/diskio.h"
#include "tests/support/temp_folder.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH = 1024, NAME = 256, NEVER = 1 << 30 };
enum choice { KEEP, DROP, TORN, ZEROS };

struct link { // a name in a folder
    int dir, node;
    char name[NAME];
};

struct links {
    struct link *all;
    int n, cap;
};

struct node {
    bool dir;
    char *base; // what a file held when recording began
    size_t base_n, size;
};

struct entry {
    enum diskio_op op;
    int dir, node; // the folder of a change of names; what is written, synced or named
    char name[NAME], to[NAME];
    char *data;   // of a write, or the database
    size_t n, at; // at: where the write begins
    char *wal;    // of a commit
    size_t wal_n;
    int covered_at; // the entry that makes it last
    int mark;       // in force behind this entry
};

struct replay {
    char root[PATH], db[PATH];
    struct diskio_hook hook;
    pthread_mutex_t mutex;
    struct links names; // as they are
    struct node *nodes;
    struct entry *log;
    int n_nodes, n_log, cap_log, mark;
};

static void must(bool ok, const char *what) {
    if (ok)
        return;
    fprintf(stderr, "disk_replay: %s: %s\n", what, strerror(errno));
    abort();
}

static void join(char *out, size_t cap, const char *path, const char *name) {
    int n = snprintf(out, cap, "%s%s%s", path, *name ? "/" : "", name);
    must(n > 0 && (size_t)n < cap, "a path is too long");
}

// ---- names

static struct link *find(const struct links *l, int dir, const char *name) {
    for (int i = 0; i < l->n; i++)
        if (l->all[i].dir == dir && !strcmp(l->all[i].name, name))
            return &l->all[i];
    return NULL;
}

static void drop(struct links *l, int dir, const char *name) {
    struct link *x = find(l, dir, name);
    if (x)
        *x = l->all[--l->n];
}

static void set(struct links *l, int dir, const char *name, int node) {
    drop(l, dir, name);
    if (l->n == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 64;
        l->all = realloc(l->all, (size_t)l->cap * sizeof *l->all);
        must(l->all, "memory");
    }
    struct link *x = &l->all[l->n++];
    x->dir = dir;
    x->node = node;
    snprintf(x->name, sizeof x->name, "%s", name);
}

static int new_node(struct replay *r, bool dir) {
    r->nodes = realloc(r->nodes, (size_t)(r->n_nodes + 1) * sizeof *r->nodes);
    must(r->nodes, "memory");
    r->nodes[r->n_nodes] = (struct node){.dir = dir};
    return r->n_nodes++;
}

// The node of a path below the root; -1: not below it, or not known.
static int node_of(const struct replay *r, const char *path) {
    size_t n = strlen(r->root);
    int node = 0;
    if (strncmp(path, r->root, n) != 0 || (path[n] && path[n] != '/'))
        return -1;
    char copy[PATH], *save;
    snprintf(copy, sizeof copy, "%s", path + n);
    for (char *part = strtok_r(copy, "/", &save); part; part = strtok_r(NULL, "/", &save)) {
        const struct link *x = find(&r->names, node, part);
        if (!x)
            return -1;
        node = x->node;
    }
    return node;
}

static int node_of_fd(const struct replay *r, int fd) {
    char link[64], path[PATH];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return -1;
    path[n] = '\0';
    return node_of(r, path);
}

// ---- files of the tool itself

char *replay_read(const char *path, const char *name, size_t *n) {
    char whole[2 * PATH];
    join(whole, sizeof whole, path, name);
    int fd = open(whole, O_RDONLY | O_CLOEXEC);
    struct stat st;
    *n = 0;
    if (fd < 0)
        return NULL;
    must(!fstat(fd, &st) && S_ISREG(st.st_mode), whole);
    char *data = malloc((size_t)st.st_size + 1);
    must(data && read(fd, data, (size_t)st.st_size) == st.st_size, whole);
    data[st.st_size] = '\0';
    close(fd);
    *n = (size_t)st.st_size;
    return data;
}

static void put_file(const char *path, const char *data, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    must(fd >= 0 && write(fd, data, n) == (ssize_t)n, path);
    close(fd);
}

static bool is_db(const char *name) {
    return strstr(name, ".db") != NULL || !strcmp(name, "lock");
}

static void snapshot(struct replay *r, int node, const char *path) {
    DIR *d = opendir(path);
    must(d, path);
    for (struct dirent *x; (x = readdir(d));) {
        char inner[PATH + NAME];
        struct stat st;
        join(inner, sizeof inner, path, x->d_name);
        if (!strcmp(x->d_name, ".") || !strcmp(x->d_name, "..") || is_db(x->d_name))
            continue;
        must(!lstat(inner, &st), inner);
        int child = new_node(r, S_ISDIR(st.st_mode));
        set(&r->names, node, x->d_name, child);
        if (S_ISDIR(st.st_mode)) {
            snapshot(r, child, inner);
        } else {
            size_t n;
            char *data = replay_read(inner, "", &n);
            r->nodes[child].base = data;
            r->nodes[child].base_n = r->nodes[child].size = n;
        }
    }
    closedir(d);
}

// ---- recording

static struct entry *push(struct replay *r, enum diskio_op op) {
    if (r->n_log == r->cap_log) {
        r->cap_log = r->cap_log ? 2 * r->cap_log : 256;
        r->log = realloc(r->log, (size_t)r->cap_log * sizeof *r->log);
        must(r->log, "memory");
    }
    struct entry *e = &r->log[r->n_log++];
    *e = (struct entry){.op = op, .dir = -1, .node = -1, .covered_at = NEVER, .mark = r->mark};
    return e;
}

static void record_commit(struct replay *r, const struct diskio_call *c) {
    struct entry *e = push(r, c->op);
    char wal[PATH];
    snprintf(r->db, sizeof r->db, "%s", c->name);
    snprintf(wal, sizeof wal, "%s-wal", c->name);
    e->data = replay_read(c->name, "", &e->n);
    e->wal = replay_read(wal, "", &e->wal_n);
}

static void record_write(struct replay *r, const struct diskio_call *c, int node) {
    struct entry *e = push(r, c->op);
    e->node = node;
    e->n = c->n;
    e->at = r->nodes[node].size;
    e->data = malloc(c->n + 1);
    must(e->data, "memory");
    memcpy(e->data, c->p, c->n);
    r->nodes[node].size += c->n;
}

static void record_name(struct replay *r, const struct diskio_call *c, int dir) {
    const struct link *was = find(&r->names, dir, c->name);
    int node = was ? was->node : -1;
    if (c->op == DISKIO_CREATE || c->op == DISKIO_MKDIR)
        node = new_node(r, c->op == DISKIO_MKDIR);
    must(node >= 0, c->name);
    struct entry *e = push(r, c->op);
    e->dir = dir;
    e->node = node;
    snprintf(e->name, sizeof e->name, "%s", c->name);
    snprintf(e->to, sizeof e->to, "%s", c->to ? c->to : "");
    drop(&r->names, dir, c->name);
    if (c->op == DISKIO_CREATE || c->op == DISKIO_MKDIR)
        set(&r->names, dir, c->name, node);
    else if (c->op == DISKIO_RENAME)
        set(&r->names, dir, c->to, node);
}

static void record(void *arg, const struct diskio_call *c) {
    struct replay *r = arg;
    pthread_mutex_lock(&r->mutex);
    int node = c->op == DISKIO_COMMIT ? 0 : node_of_fd(r, c->fd);
    if (c->op == DISKIO_COMMIT)
        record_commit(r, c);
    else if (node >= 0 && c->op == DISKIO_WRITE)
        record_write(r, c, node);
    else if (node >= 0 && c->op == DISKIO_SYNC)
        push(r, c->op)->node = node;
    else if (node >= 0)
        record_name(r, c, node);
    pthread_mutex_unlock(&r->mutex);
}

struct replay *replay_begin(const char *root) {
    struct replay *r = calloc(1, sizeof *r);
    must(r && realpath(root, r->root), root);
    pthread_mutex_init(&r->mutex, NULL);
    snapshot(r, new_node(r, true), r->root);
    // The names of the start are the record's first part; they last.
    for (int i = 0; i < r->names.n; i++) {
        struct entry *e = push(r, DISKIO_CREATE);
        e->dir = r->names.all[i].dir;
        e->node = r->names.all[i].node;
        e->covered_at = 0;
        memcpy(e->name, r->names.all[i].name, NAME);
    }
    r->hook = (struct diskio_hook){.after = record, .arg = r};
    diskio_set_hook(&r->hook);
    return r;
}

void replay_mark(struct replay *r, int mark) {
    pthread_mutex_lock(&r->mutex);
    r->mark = mark;
    if (r->n_log)
        r->log[r->n_log - 1].mark = mark;
    pthread_mutex_unlock(&r->mutex);
}

void replay_end(struct replay *r) {
    diskio_set_hook(NULL);
    for (int i = 0; i < r->n_log; i++) {
        struct entry *e = &r->log[i];
        int what = e->op == DISKIO_WRITE ? e->node : e->dir;
        for (int j = i + 1; j < r->n_log && e->covered_at == NEVER; j++)
            if (r->log[j].op == DISKIO_SYNC && r->log[j].node == what)
                e->covered_at = j;
    }
}

void replay_free(struct replay *r) {
    for (int i = 0; i < r->n_log; i++) {
        free(r->log[i].data);
        free(r->log[i].wal);
    }
    for (int i = 0; i < r->n_nodes; i++)
        free(r->nodes[i].base);
    free(r->log);
    free(r->nodes);
    free(r->names.all);
    pthread_mutex_destroy(&r->mutex);
    free(r);
}

// ---- one state

struct state {
    const struct replay *r;
    int prefix; // entries that took place
    const enum choice *choices;
    struct links names;
};

static void apply_name(struct links *l, const struct entry *e, enum choice c) {
    if (c == DROP)
        return;
    if (e->op == DISKIO_CREATE || e->op == DISKIO_MKDIR)
        set(l, e->dir, e->name, e->node);
    else if (c == KEEP)
        drop(l, e->dir, e->name);
    if (e->op == DISKIO_RENAME)
        set(l, e->dir, e->to, e->node);
}

static void build_file(const struct state *s, int node, const char *path) {
    const struct node *f = &s->r->nodes[node];
    char *data = calloc(1, f->size + 1);
    size_t n = f->base_n;
    must(data, "memory");
    if (n)
        memcpy(data, f->base, n);
    for (int i = 0; i < s->prefix; i++) {
        const struct entry *e = &s->r->log[i];
        if (e->op != DISKIO_WRITE || e->node != node || s->choices[i] == DROP)
            continue;
        size_t part = s->choices[i] == TORN ? e->n / 2 : e->n;
        if (s->choices[i] != ZEROS)
            memcpy(data + e->at, e->data, part);
        n = e->at + part > n ? e->at + part : n;
    }
    put_file(path, data, n);
    free(data);
}

static void build_folder(const struct state *s, int node, const char *path, int depth) {
    must(depth < 16 && (!mkdir(path, 0700) || errno == EEXIST), path);
    for (int i = 0; i < s->names.n; i++) {
        const struct link *x = &s->names.all[i];
        char inner[PATH + NAME];
        if (x->dir != node)
            continue;
        join(inner, sizeof inner, path, x->name);
        if (s->r->nodes[x->node].dir)
            build_folder(s, x->node, inner, depth + 1);
        else
            build_file(s, x->node, inner);
    }
}

static void build_db(const struct state *s, const char *path) {
    const struct entry *last = NULL;
    char file[2 * PATH];
    for (int i = 0; i < s->prefix; i++)
        if (s->r->log[i].op == DISKIO_COMMIT)
            last = &s->r->log[i];
    if (!last)
        return;
    const char *name = strrchr(s->r->db, '/');
    snprintf(file, sizeof file, "%s%s", path, name);
    put_file(file, last->data, last->n);
    snprintf(file, sizeof file, "%s%s-wal", path, name);
    if (last->wal)
        put_file(file, last->wal, last->wal_n);
}

static void build(struct state *s, const char *path) {
    s->names.n = 0;
    for (int i = 0; i < s->prefix; i++)
        if (s->r->log[i].dir >= 0)
            apply_name(&s->names, &s->r->log[i], s->choices[i]);
    build_folder(s, 0, path, 0);
    build_db(s, path);
}

// ---- all states

static uint64_t mix(uint64_t x) { // splitmix64
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9U;
    x = (x ^ x >> 27) * 0x94d049bb133111ebU;
    return x ^ x >> 31;
}

static unsigned choices_of(const struct entry *e) {
    return e->op == DISKIO_WRITE ? 4 : e->op == DISKIO_RENAME ? 3 : e->dir >= 0 ? 2 : 1;
}

struct run {
    struct state state;
    int open[1024]; // entries of the prefix that nothing covers
    int n_open;
    enum choice *choices;
    char path[PATH];
    replay_check check;
    void *arg;
    struct replay_result result;
};

static void try_one(struct run *x) {
    char why[REPLAY_WHY] = "", text[128];
    const struct replay *r = x->state.r;
    int mark = x->state.prefix ? r->log[x->state.prefix - 1].mark : 0;
    must(!mkdir(x->path, 0700), x->path);
    build(&x->state, x->path);
    x->result.states++;
    if (!x->check(x->arg, x->path, mark, why) && !x->result.bad++) {
        size_t n = 0;
        text[0] = '\0';
        for (int i = 0; i < x->n_open && n < sizeof text - 16; i++)
            n += (size_t)snprintf(text + n, sizeof text - n, " %d%c", x->open[i],
                                  "kdtz"[x->choices[x->open[i]]]);
        snprintf(x->result.first, sizeof x->result.first, "prefix %d of %d, mark %d, open%s: %s",
                 x->state.prefix, r->n_log, mark, text, why);
    }
    temp_remove(x->path);
}

// All combinations, or the extremes and a sample.
static void try_prefix(struct run *x, int most) {
    const struct entry *log = x->state.r->log;
    uint64_t all = 1;
    for (int i = 0; i < x->n_open && all <= (uint64_t)most; i++)
        all *= choices_of(&log[x->open[i]]);
    int n = all <= (uint64_t)most ? (int)all : most;
    for (int k = 0; k < n; k++) {
        uint64_t rest = (uint64_t)k;
        for (int i = 0; i < x->n_open; i++) {
            unsigned ways = choices_of(&log[x->open[i]]), way;
            if (all <= (uint64_t)most) {
                way = (unsigned)(rest % ways);
                rest /= ways;
            } else if (k < 4) {
                way = (unsigned)k < ways ? (unsigned)k : ways - 1;
            } else {
                way = (unsigned)(mix(((uint64_t)x->state.prefix << 40) + ((uint64_t)k << 16) +
                                     (uint64_t)i) %
                                 ways);
            }
            x->choices[x->open[i]] = (enum choice)way;
        }
        try_one(x);
    }
}

struct replay_result replay_run(struct replay *r, int most, replay_check check, void *arg) {
    struct run x = {.state.r = r, .check = check, .arg = arg};
    char folder[TEMP_PATH];
    temp_folder_in_memory(folder, "replay");
    snprintf(x.path, sizeof x.path, "%s/d", folder);
    x.choices = calloc((size_t)r->n_log + 1, sizeof *x.choices);
    must(x.choices, "memory");
    x.state.choices = x.choices;
    int first = 0;
    while (first < r->n_log && r->log[first].covered_at == 0)
        first++;
    for (x.state.prefix = first; x.state.prefix <= r->n_log; x.state.prefix++) {
        x.n_open = 0;
        memset(x.choices, 0, (size_t)r->n_log * sizeof *x.choices);
        for (int i = 0; i < x.state.prefix; i++)
            if (r->log[i].covered_at >= x.state.prefix && choices_of(&r->log[i]) > 1) {
                must(x.n_open < (int)(sizeof x.open / sizeof *x.open), "too many open writes");
                x.open[x.n_open++] = i;
            }
        try_prefix(&x, most);
        x.result.prefixes++;
    }
    rmdir(folder);
    free(x.choices);
    free(x.state.names.all);
    return x.result;
}
