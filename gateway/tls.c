// SPDX-License-Identifier: Apache-2.0
#include "gateway/tls.h"
#include "base/mem.h"
#include "base/thread.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>
#include <unistd.h>

struct gw_tls {
    char *certfile, *keyfile;
    struct lock lock; // around ctx
    SSL_CTX *ctx;
};

static enum err fail(struct err_info *info, const char *what, const char *file) {
    unsigned long code = ERR_peek_last_error();
    const char *why = code ? ERR_reason_error_string(code) : NULL;
    enum err e = err_set(info, ERR_INVALID, NULL, "TLS: cannot %s %.200s: %s", what, file,
                         why ? why : "unknown error");
    ERR_clear_error();
    return e;
}

static int select_http11(SSL *s, const unsigned char **out, unsigned char *out_len,
                         const unsigned char *in, unsigned in_len, void *arg) {
    (void)s;
    (void)arg;
    static const char want[] = "http/1.1";
    for (unsigned i = 0; i < in_len; i += 1u + in[i])
        if (in[i] == sizeof want - 1 && in_len - i > in[i] &&
            memcmp(in + i + 1, want, sizeof want - 1) == 0) {
            *out = in + i + 1;
            *out_len = in[i];
            return SSL_TLSEXT_ERR_OK;
        }
    return SSL_TLSEXT_ERR_NOACK;
}

// OpenSSL says little of a file that is not there or may not be read.
static enum err check_file(const char *what, const char *option, const char *file,
                           struct err_info *info) {
    char why[80];
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_set(info, ERR_INVALID, option, "TLS: cannot open the %s %.200s (--%s): %s", what,
                       file, option, strerror_r(errno, why, sizeof why));
    close(fd);
    return ERR_OK;
}

static enum err load(const struct gw_tls *t, SSL_CTX **out, struct err_info *info) {
    enum err e = check_file("certificate", "ssl-certfile", t->certfile, info);
    if (!e)
        e = check_file("key", "ssl-keyfile", t->keyfile, info);
    if (e)
        return e;
    ERR_clear_error();
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx)
        return err_set(info, ERR_NOMEM, NULL, "TLS: out of memory");
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_alpn_select_cb(ctx, select_http11, NULL);
    if (SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_cipher_list(ctx, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1)
        e = fail(info, "set", "protocol versions and ciphers");
    else if (SSL_CTX_use_certificate_chain_file(ctx, t->certfile) != 1)
        e = fail(info, "read a PEM certificate in", t->certfile);
    else if (SSL_CTX_use_PrivateKey_file(ctx, t->keyfile, SSL_FILETYPE_PEM) != 1)
        e = fail(info, "read a PEM key in", t->keyfile);
    else if (SSL_CTX_check_private_key(ctx) != 1)
        e = fail(info, "match the certificate with", t->keyfile);
    if (e)
        SSL_CTX_free(ctx);
    else
        *out = ctx;
    return e;
}

enum err gw_tls_create(const char *certfile, const char *keyfile, struct gw_tls **out,
                       struct err_info *info) {
    struct gw_tls *t = mem_zalloc(sizeof *t);
    if (!t)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    lock_init(&t->lock);
    t->certfile = mem_strdup(certfile);
    t->keyfile = mem_strdup(keyfile);
    enum err e = t->certfile && t->keyfile ? load(t, &t->ctx, info)
                                           : err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (e)
        gw_tls_destroy(t);
    else
        *out = t;
    return e;
}

void gw_tls_destroy(struct gw_tls *t) {
    if (!t)
        return;
    SSL_CTX_free(t->ctx);
    lock_fini(&t->lock);
    mem_free(t->certfile);
    mem_free(t->keyfile);
    mem_free(t);
}

enum err gw_tls_reload(struct gw_tls *t, struct err_info *info) {
    SSL_CTX *fresh = NULL;
    enum err e = load(t, &fresh, info);
    if (e)
        return e;
    lock_take(&t->lock);
    SSL_CTX *old = t->ctx;
    t->ctx = fresh;
    lock_drop(&t->lock);
    SSL_CTX_free(old); // sessions hold references of their own
    return ERR_OK;
}

struct ssl_st *gw_tls_session(struct gw_tls *t, int fd) {
    lock_take(&t->lock);
    SSL *s = SSL_new(t->ctx);
    lock_drop(&t->lock);
    if (s && SSL_set_fd(s, fd) != 1) {
        SSL_free(s);
        s = NULL;
    }
    if (s)
        SSL_set_accept_state(s);
    ERR_clear_error();
    return s;
}

static ssize_t failed(SSL *s, int rc) {
    int e = SSL_get_error(s, rc);
    ERR_clear_error();
    switch (e) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        // Both directions are watched all the time, edge-triggered: whichever is wanted, its event
        // comes and both are tried again.
        return GW_IO_AGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    default:
        SSL_set_quiet_shutdown(s, 1); // nothing may be sent after a fatal error
        return GW_IO_FAILED;
    }
}

ssize_t gw_tls_read(struct ssl_st *s, void *p, size_t n) {
    ERR_clear_error();
    int rc = SSL_read(s, p, n > INT_MAX ? INT_MAX : (int)n);
    return rc > 0 ? rc : failed(s, rc);
}

ssize_t gw_tls_write(struct ssl_st *s, const void *p, size_t n) {
    ERR_clear_error();
    int rc = SSL_write(s, p, n > INT_MAX ? INT_MAX : (int)n);
    if (rc > 0)
        return rc;
    ssize_t e = failed(s, rc);
    return e == 0 ? GW_IO_FAILED : e;
}

void gw_tls_shutdown(struct ssl_st *s) {
    ERR_clear_error();
    if (SSL_is_init_finished(s))
        (void)SSL_shutdown(s);
    ERR_clear_error();
}

void gw_tls_session_free(struct ssl_st *s) {
    SSL_free(s);
    ERR_clear_error();
}
