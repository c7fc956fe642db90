// SPDX-License-Identifier: Apache-2.0
// Memory that somebody else may want back: a range of device memory with an image of equal layout
// in a file. The lower part of the range, "out", is in the file alone; its memory may be given
// away. Whoever owns the range says how much shall be out, and a thread of the pager's moves pieces
// until it is so.
//
//   [ out: in the file | in memory, perhaps in the file as well ]
//   base                                                base + bytes
//
//   at first everything is out, and zero
//   ft_pager_out(n)  the lower n bytes shall be out, and nothing comes in: pieces go from the
//                    lowest one upwards. A piece that has not changed since it was last in the
//                    file, or that nobody needs, is out at once
//   ft_pager_in()    everything shall be in memory: the highest piece first
//
// Threads: the owner's (whoever uses the range; it never waits for a disk), the trainer's (create,
// stop, destroy, and reading and writing wherever the bytes are), and the pager's own. The owner
// uses the range only while ft_pager_there says so, the trainer's thread reads and writes only
// while the owner does not.
//
// Why a file: anonymous memory would take elsewhere what the range gives back, and a checkpoint has
// neither the sums of a step that has begun nor the time to be complete. The file has no name, so
// it ends with the process; what a process that died goes on from is its checkpoint. README.md,
// rules 42 to 48.
#pragma once
#include "kernels/device.h"
#include <stdbool.h>
#include <stddef.h>

// Where the file lies, and who is told.
struct ft_spill {
    int dir;      // an open folder; borrowed until create returns
    size_t piece; // bytes that move at a time; 0: 1 MiB
    // Whether it may be written to now; NULL: always. The pager's thread, and that of create.
    enum err (*room)(void *arg, struct err_info *info);
    // Bytes of the range are out because they were asked for; they are all back. The pager's
    // thread; NULL: nobody.
    void (*taken)(void *arg, bool taken);
    void *arg;
};

struct ft_pager_config {
    const struct kn_ops *ops;
    struct kn_device *device;
    kn_addr base;
    size_t bytes;
    struct ft_spill spill;
    // More is out, all is in memory, or a copy failed: the owner may want to look. The pager's
    // thread.
    void (*moved)(void *arg);
    void *arg;
};

struct ft_pager;
// ERR_NOMEM, ERR_IO, ERR_DISK_FULL.
enum err ft_pager_create(const struct ft_pager_config *cfg, struct ft_pager **out,
                         struct err_info *info);
void ft_pager_stop(struct ft_pager *p); // nothing moves any more; returns when nothing does
void ft_pager_destroy(struct ft_pager *p);

// ---- the owner's
void ft_pager_out(struct ft_pager *p, size_t bytes);
void ft_pager_in(struct ft_pager *p);
size_t ft_pager_free(
    struct ft_pager *p); // of the lower end: bytes whose memory is not used, nor about to be
bool ft_pager_there(struct ft_pager *p); // all is in memory, and nobody else uses it
bool ft_pager_busy(struct ft_pager *p);  // pieces are on their way
// Before [from, to) is changed; after its content has become of no use.
void ft_pager_changes(struct ft_pager *p, size_t from, size_t to);
void ft_pager_unneeded(struct ft_pager *p, size_t from, size_t to);
// A copy has failed: content is lost, and every later call gives the same error.
enum err ft_pager_failed(struct ft_pager *p, struct err_info *info);
uint64_t ft_pager_times(struct ft_pager *p); // any thread: how often it was taken

// ---- the trainer's: n bytes at an offset, wherever they are; blocks on the disk
enum err ft_pager_read(struct ft_pager *p, size_t at, void *to, size_t n, struct err_info *info);
enum err ft_pager_write(struct ft_pager *p, size_t at, const void *from, size_t n,
                        struct err_info *info);
enum err ft_pager_clear(struct ft_pager *p, size_t at, size_t n, struct err_info *info);
