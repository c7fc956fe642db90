// SPDX-License-Identifier: Apache-2.0
// Invariants
// 1. Pieces [0, n_out) are in the file. Piece i >= n_out is in memory; it is in the file too if
//    clean[i].
// 2. `edge` guards everything between the owner and the copiers, and is never held over a copy.
//    `io` is the copiers' (the pager's thread, the trainer's): one of them at a time. The owner
//    never takes it.
// 3. While `copying`, a copier uses the range or the file, and n_out stays, whatever the owner
//    asks. A piece on its way in has its memory in use although it counts as out (n_free).
#include "finetune/pager.h"
#include "base/diskio.h"
#include "base/durable.h"
#include "base/mailbox.h"
#include "base/mem.h"
#include "base/thread.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// About a millisecond of copying: memory comes back in such steps.
enum { DEFAULT_PIECE = 1 << 20, STAGE_ALIGN = 64 };

struct ft_pager {
    struct ft_pager_config cfg;
    int fd;
    struct kn_queue *queue;
    char *stage; // [piece], of whoever has `io`
    struct lock io, edge;
    size_t piece; // bytes
    size_t pieces;
    // under `edge`
    bool *clean; // [pieces]
    size_t n_out, n_want;
    bool copying, coming_in; // the piece below n_out is on its way into memory
    bool pressed;            // something was asked for since all was in memory
    uint64_t times;
    enum err result;
    struct err_info info;
    bool quit;
    // the thread's
    bool told;
    struct mailbox *todo; // only ever woken
    struct thread thread;
    bool threaded;
};

static size_t place(const struct ft_pager *p, size_t piece) {
    size_t at = piece * p->piece;
    return at < p->cfg.bytes ? at : p->cfg.bytes;
}

static size_t pieces_of(const struct ft_pager *p, size_t bytes) {
    return bytes / p->piece + (bytes % p->piece != 0);
}

// ---- the file

static enum err failed(const char *what, struct err_info *info) {
    return durable_errno(info, errno, what,
                         "the file that a job's state is kept in while serving "
                         "uses its memory");
}

static enum err file_write(struct ft_pager *p, size_t at, const char *from, size_t n,
                           struct err_info *info) {
    if (lseek(p->fd, (off_t)at, SEEK_SET) < 0)
        return failed("seek in", info);
    while (n) {
        ssize_t put = diskio_write(p->fd, from, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return failed("write", info);
        from += put;
        n -= (size_t)put;
    }
    return ERR_OK;
}

static enum err file_read(struct ft_pager *p, size_t at, char *to, size_t n,
                          struct err_info *info) {
    while (n) {
        ssize_t got = pread(p->fd, to, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got == 0)
            errno = EIO; // it is as long as the range
        if (got <= 0)
            return failed("read", info);
        to += got;
        at += (size_t)got;
        n -= (size_t)got;
    }
    return ERR_OK;
}

static enum err file_clear(struct ft_pager *p, size_t at, size_t n, struct err_info *info) {
    if (!fallocate(p->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)n))
        return ERR_OK;
    enum err e = ERR_OK;
    memset(p->stage, 0, p->piece);
    for (size_t put = 0; put < n && !e; put += p->piece)
        e = file_write(p, at + put, p->stage, n - put < p->piece ? n - put : p->piece, info);
    return e;
}

static int open_nameless(int dir) {
    static const char name[] = ".state";
    int fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL))
        return fd;
    (void)diskio_unlink(dir, name); // of a process that died just here
    fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        (void)diskio_unlink(dir, name);
    return fd;
}

// ---- memory

static enum err memory_read(struct ft_pager *p, size_t at, void *to, size_t n,
                            struct err_info *info) {
    enum err e = p->cfg.ops->download(p->queue, to, p->cfg.base + at, n);
    enum err waited = p->cfg.ops->queue_wait(p->queue, info);
    return e ? err_set(info, e, NULL, "a job's state: %s", err_text(e)) : waited;
}

static enum err memory_write(struct ft_pager *p, size_t at, const void *from, size_t n,
                             struct err_info *info) {
    enum err e = p->cfg.ops->upload(p->queue, p->cfg.base + at, from, n);
    enum err waited = p->cfg.ops->queue_wait(p->queue, info);
    return e ? err_set(info, e, NULL, "a job's state: %s", err_text(e)) : waited;
}

// ---- the thread

// Pieces that the file has already. With `edge`, while nobody copies.
static void skip_clean(struct ft_pager *p) {
    while (p->n_out < p->n_want && p->clean[p->n_out])
        p->n_out++;
}

static bool settled(const struct ft_pager *p) {
    return p->n_out == p->n_want || p->result;
}

// With `io`. False: nothing to move.
static bool begin_piece(struct ft_pager *p, size_t *piece, bool *in) {
    lock_take(&p->edge);
    skip_clean(p);
    bool some = !p->quit && !settled(p);
    if (some) {
        *in = p->n_out > p->n_want;
        *piece = *in ? p->n_out - 1 : p->n_out;
        p->copying = true;
        p->coming_in = *in;
    }
    lock_drop(&p->edge);
    return some;
}

static void end_piece(struct ft_pager *p, size_t piece, bool in, enum err e,
                      const struct err_info *info) {
    lock_take(&p->edge);
    p->copying = p->coming_in = false;
    if (e) {
        p->result = e;
        p->info = *info;
    } else {
        p->clean[piece] = true;
        if (in)
            p->n_out--;
        else if (p->n_out < p->n_want)
            p->n_out++;
        skip_clean(p);
    }
    lock_drop(&p->edge);
}

static enum err copy_piece(struct ft_pager *p, size_t piece, bool in, bool first,
                           struct err_info *info) {
    size_t at = place(p, piece), n = place(p, piece + 1) - at;
    const struct ft_spill *s = &p->cfg.spill;
    enum err e = !in && first && s->room ? s->room(s->arg, info) : ERR_OK;
    if (!e)
        e = in ? file_read(p, at, p->stage, n, info) : memory_read(p, at, p->stage, n, info);
    if (!e)
        e = in ? memory_write(p, at, p->stage, n, info) : file_write(p, at, p->stage, n, info);
    return e;
}

// True if a piece was moved.
static bool move_one(struct ft_pager *p, bool *first) {
    struct err_info info = {0};
    size_t piece = 0;
    bool in = false;
    lock_take(&p->io);
    bool some = begin_piece(p, &piece, &in);
    if (some)
        end_piece(p, piece, in, copy_piece(p, piece, in, *first, &info), &info);
    lock_drop(&p->io);
    *first = !some || in;
    if (some)
        p->cfg.moved(p->cfg.arg);
    return some;
}

// Once nothing is left to move: what was asked for is told of last, since it may take its time.
static void tell(struct ft_pager *p) {
    lock_take(&p->edge);
    bool taken = p->pressed && p->n_out > 0 && !p->result;
    lock_drop(&p->edge);
    if (taken == p->told || !p->cfg.spill.taken)
        return;
    p->told = taken;
    p->cfg.spill.taken(p->cfg.spill.arg, taken);
}

static bool quits(struct ft_pager *p) {
    lock_take(&p->edge);
    bool quit = p->quit;
    lock_drop(&p->edge);
    return quit;
}

static void *pager_main(void *arg) {
    struct ft_pager *p = arg;
    bool first = true; // the next piece out is the first one of its run
    while (!quits(p)) {
        if (move_one(p, &first))
            continue;
        tell(p);
        (void)mailbox_wait(p->todo, -1);
    }
    return NULL;
}

// ---- create

static enum err open_file(struct ft_pager *p, struct err_info *info) {
    const struct ft_spill *s = &p->cfg.spill;
    enum err e = s->room ? s->room(s->arg, info) : ERR_OK;
    if (e)
        return e;
    p->fd = open_nameless(s->dir);
    if (p->fd < 0)
        return failed("make", info);
    return ftruncate(p->fd, (off_t)p->cfg.bytes) ? failed("make", info) : ERR_OK;
}

enum err ft_pager_create(const struct ft_pager_config *cfg, struct ft_pager **out,
                         struct err_info *info) {
    struct ft_pager *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    p->cfg = *cfg;
    p->fd = -1;
    lock_init(&p->io);
    lock_init(&p->edge);
    p->piece = cfg->spill.piece ? cfg->spill.piece : DEFAULT_PIECE;
    p->pieces = p->n_out = p->n_want = pieces_of(p, cfg->bytes);
    p->clean = mem_calloc(p->pieces, sizeof *p->clean);
    p->stage = mem_aligned(STAGE_ALIGN, p->piece);
    enum err e = p->clean && p->stage && !mailbox_create(1, 0, &p->todo) &&
                         !cfg->ops->queue_create(cfg->device, &p->queue)
                     ? ERR_OK
                     : err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (!e)
        e = open_file(p, info);
    if (!e && (e = thread_start(&p->thread, "graft-pager", pager_main, p)))
        err_set(info, e, NULL, "no thread for training");
    p->threaded = !e;
    if (e) {
        ft_pager_destroy(p);
        return e;
    }
    *out = p;
    return ERR_OK;
}

void ft_pager_stop(struct ft_pager *p) {
    if (!p || !p->threaded)
        return;
    lock_take(&p->edge);
    p->quit = true;
    lock_drop(&p->edge);
    mailbox_wake(p->todo);
    thread_join(&p->thread);
    p->threaded = false;
}

void ft_pager_destroy(struct ft_pager *p) {
    if (!p)
        return;
    ft_pager_stop(p);
    if (p->fd >= 0)
        close(p->fd);
    if (p->queue)
        p->cfg.ops->queue_destroy(p->queue);
    if (p->todo)
        mailbox_destroy(p->todo);
    mem_free(p->stage);
    mem_free(p->clean);
    lock_fini(&p->io);
    lock_fini(&p->edge);
    mem_free(p);
}

// ---- the owner's

// Pieces whose memory nobody uses. With `edge`.
static size_t unused(const struct ft_pager *p) {
    return p->n_out - (p->coming_in ? 1 : 0);
}

void ft_pager_out(struct ft_pager *p, size_t bytes) {
    size_t want = pieces_of(p, bytes < p->cfg.bytes ? bytes : p->cfg.bytes);
    lock_take(&p->edge);
    want = want > unused(p) ? want : unused(p); // nothing more comes in
    if (want > p->n_want) {
        p->times += !p->pressed;
        p->pressed = true;
        p->n_want = want;
    }
    if (!p->copying)
        skip_clean(p);
    lock_drop(&p->edge);
    mailbox_wake(p->todo);
}

void ft_pager_in(struct ft_pager *p) {
    lock_take(&p->edge);
    p->n_want = 0;
    lock_drop(&p->edge);
    mailbox_wake(p->todo);
}

size_t ft_pager_free(struct ft_pager *p) {
    lock_take(&p->edge);
    size_t n = unused(p);
    n = n < p->n_want ? n : p->n_want;
    lock_drop(&p->edge);
    return place(p, n);
}

bool ft_pager_there(struct ft_pager *p) {
    lock_take(&p->edge);
    bool there = !p->n_out && !p->n_want && !p->copying;
    if (there)
        p->pressed = false;
    lock_drop(&p->edge);
    return there;
}

bool ft_pager_busy(struct ft_pager *p) {
    lock_take(&p->edge);
    bool busy = p->copying || !settled(p);
    lock_drop(&p->edge);
    return busy;
}

void ft_pager_changes(struct ft_pager *p, size_t from, size_t to) {
    lock_take(&p->edge);
    for (size_t i = from / p->piece; from < to && i < pieces_of(p, to); i++)
        p->clean[i] = false;
    lock_drop(&p->edge);
}

void ft_pager_unneeded(struct ft_pager *p, size_t from, size_t to) {
    lock_take(&p->edge);
    for (size_t i = pieces_of(p, from); i < to / p->piece; i++)
        p->clean[i] = true;
    lock_drop(&p->edge);
}

enum err ft_pager_failed(struct ft_pager *p, struct err_info *info) {
    lock_take(&p->edge);
    enum err e = p->result;
    if (e && info)
        *info = p->info;
    lock_drop(&p->edge);
    return e;
}

uint64_t ft_pager_times(struct ft_pager *p) {
    lock_take(&p->edge);
    uint64_t n = p->times;
    lock_drop(&p->edge);
    return n;
}

// ---- the trainer's

// Nothing moves until release; *out: bytes that are in the file alone.
static enum err acquire(struct ft_pager *p, size_t *out, struct err_info *info) {
    lock_take(&p->io);
    lock_take(&p->edge);
    enum err e = p->result;
    if (e && info)
        *info = p->info;
    p->copying = !e;
    *out = place(p, p->n_out);
    lock_drop(&p->edge);
    if (e)
        lock_drop(&p->io);
    return e;
}

static void release(struct ft_pager *p) {
    lock_take(&p->edge);
    p->copying = false;
    lock_drop(&p->edge);
    lock_drop(&p->io);
    mailbox_wake(p->todo); // what was asked meanwhile
}

// Of n bytes at `at`: those in the file.
static size_t below(size_t at, size_t n, size_t out) {
    return at >= out ? 0 : out - at < n ? out - at : n;
}

enum err ft_pager_read(struct ft_pager *p, size_t at, void *to, size_t n, struct err_info *info) {
    size_t out;
    enum err e = acquire(p, &out, info);
    if (e)
        return e;
    size_t low = below(at, n, out);
    if (low)
        e = file_read(p, at, to, low, info);
    if (!e && low < n)
        e = memory_read(p, at + low, (char *)to + low, n - low, info);
    release(p);
    return e;
}

enum err ft_pager_write(struct ft_pager *p, size_t at, const void *from, size_t n,
                        struct err_info *info) {
    size_t out;
    enum err e = acquire(p, &out, info);
    if (e)
        return e;
    size_t low = below(at, n, out);
    if (low)
        e = file_write(p, at, from, low, info);
    if (!e && low < n) {
        ft_pager_changes(p, at + low, at + n);
        e = memory_write(p, at + low, (const char *)from + low, n - low, info);
    }
    release(p);
    return e;
}

enum err ft_pager_clear(struct ft_pager *p, size_t at, size_t n, struct err_info *info) {
    size_t out;
    enum err e = acquire(p, &out, info);
    if (e)
        return e;
    size_t low = below(at, n, out);
    if (low)
        e = file_clear(p, at, low, info);
    ft_pager_changes(p, at + low, at + n);
    memset(p->stage, 0, p->piece);
    for (size_t put = low; put < n && !e; put += p->piece)
        e = memory_write(p, at + put, p->stage, n - put < p->piece ? n - put : p->piece, info);
    release(p);
    return e;
}
