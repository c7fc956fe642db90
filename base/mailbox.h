// SPDX-License-Identifier: Apache-2.0
// A bounded FIFO of pointers between threads: any number of senders, one receiver. Order is kept
// per sender. A full mailbox answers ERR_AGAIN and the message stays the sender's. `reserved`
// places are kept for urgent messages (cancel, end), so that those never find it full while
// ordinary ones are bounded.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mailbox;

enum err mailbox_create(size_t capacity, size_t reserved, struct mailbox **out);
void mailbox_destroy(struct mailbox *m); // must be empty or its messages owned elsewhere
enum err mailbox_send(struct mailbox *m, void *msg);        // ERR_AGAIN when full
enum err mailbox_send_urgent(struct mailbox *m, void *msg); // may use the reserved places
// Receiver only. NULL when empty.
void *mailbox_take(struct mailbox *m);
// Waits until a message is there, mailbox_wake was called or the time has passed (< 0: no limit).
// True if there is a message.
bool mailbox_wait(struct mailbox *m, int64_t timeout_ns);
void mailbox_wake(struct mailbox *m); // any thread; the next or current wait returns
size_t mailbox_count(const struct mailbox *m);
