// SPDX-License-Identifier: Apache-2.0
// TLS 1.2 and 1.3 for the listeners. One gw_tls holds the current certificate; new connections take
// it, old ones go on with theirs after a reload.
//
// gw_tls_reload and gw_tls_session: any thread. The I/O calls: the connection's loop thread.
#pragma once
#include "base/err.h"
#include <stddef.h>
#include <sys/types.h>

struct gw_tls;
struct ssl_st;

// Reads the certificate chain and the key (PEM). ERR_IO or ERR_INVALID name the file.
enum err gw_tls_create(const char *certfile, const char *keyfile, struct gw_tls **out,
                       struct err_info *info);
void gw_tls_destroy(struct gw_tls *t);                           // NULL is legal
enum err gw_tls_reload(struct gw_tls *t, struct err_info *info); // keeps the old on error
// A server session on a non-blocking socket, or NULL. The socket stays the caller's.
struct ssl_st *gw_tls_session(struct gw_tls *t, int fd);

// > 0: bytes; 0: the peer has ended; GW_IO_*.
enum { GW_IO_AGAIN = -1, GW_IO_FAILED = -2 };
ssize_t gw_tls_read(struct ssl_st *s, void *p, size_t n);
ssize_t gw_tls_write(struct ssl_st *s, const void *p, size_t n);
void gw_tls_shutdown(struct ssl_st *s); // says goodbye, once, without waiting
void gw_tls_session_free(struct ssl_st *s);
