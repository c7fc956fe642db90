// SPDX-License-Identifier: Apache-2.0
// TLS: versions, streams, large bodies, clients that go away, certificate reload. The certificates
// are made here.
#include "base/mem.h"
#include "tests/gateway/http_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/temp_folder.h"
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GET_HEALTH "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"

static char dir[TEMP_PATH], cert[TEMP_PATH + 16], key[TEMP_PATH + 16];

static void make_cert(const char *name) {
    EVP_PKEY *pair = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    assert_true(pair && x);
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -60);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, pair);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    assert_true(X509_sign(x, pair, EVP_sha256()) > 0);
    FILE *f = fopen(cert, "w");
    assert_true(f && PEM_write_X509(f, x));
    fclose(f);
    f = fopen(key, "w");
    assert_true(f && PEM_write_PrivateKey(f, pair, NULL, NULL, 0, NULL, NULL));
    fclose(f);
    X509_free(x);
    EVP_PKEY_free(pair);
}

struct tls {
    SSL_CTX *ctx;
    SSL *ssl;
    int fd;
};

static bool tls_connect(struct tls *t, int port, int min, int max) {
    t->ctx = SSL_CTX_new(TLS_client_method());
    assert_non_null(t->ctx);
    SSL_CTX_set_security_level(t->ctx, 0);
    assert_true(SSL_CTX_set_min_proto_version(t->ctx, min) &&
                SSL_CTX_set_max_proto_version(t->ctx, max));
    static const unsigned char protocols[] = "\x02h2\x08http/1.1";
    SSL_CTX_set_alpn_protos(t->ctx, protocols, sizeof protocols - 1);
    t->ssl = SSL_new(t->ctx);
    t->fd = cl_connect(port);
    SSL_set_fd(t->ssl, t->fd);
    return SSL_connect(t->ssl) == 1;
}

static void tls_close(struct tls *t) {
    SSL_free(t->ssl);
    SSL_CTX_free(t->ctx);
    close(t->fd);
    ERR_clear_error();
}

static void tls_puts(const struct tls *t, const char *s) {
    int n = (int)strlen(s);
    assert_int_equal(SSL_write(t->ssl, s, n), n);
}

static void tls_expect(const struct tls *t, const char *status) {
    char text[4096];
    int n = 0;
    while (n < (int)sizeof text - 1) {
        int got = SSL_read(t->ssl, text + n, (int)sizeof text - 1 - n);
        assert_true(got > 0);
        n += got;
        text[n] = '\0';
        if (strstr(text, "}") || strstr(text, "0\r\n\r\n"))
            break;
    }
    assert_non_null(strstr(text, status));
}

static void peer_name(const struct tls *t, char *out, int cap) {
    X509 *x = SSL_get1_peer_certificate(t->ssl);
    assert_non_null(x);
    X509_NAME_get_text_by_NID(X509_get_subject_name(x), NID_commonName, out, cap);
    X509_free(x);
}

static int setup(void **state) {
    temp_folder(dir, "tls");
    snprintf(cert, sizeof cert, "%s/cert.pem", dir);
    snprintf(key, sizeof key, "%s/key.pem", dir);
    make_cert("one");
    struct fx *f = calloc(1, sizeof *f);
    fx_start(f, &(struct gw_config){.ssl_certfile = cert,
                                    .ssl_keyfile = key,
                                    .loops = 2,
                                    .header_timeout_ns = 2000000000,
                                    .metrics_host = "127.0.0.1"});
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fx_stop(*state);
    free(*state);
    temp_remove(dir);
    return 0;
}

static void test_versions(void **state) {
    const struct fx *f = *state;
    struct tls t;
    static const int good[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    for (size_t i = 0; i < 2; i++) {
        assert_true(tls_connect(&t, f->port, good[i], good[i]));
        const unsigned char *alpn;
        unsigned len;
        SSL_get0_alpn_selected(t.ssl, &alpn, &len);
        assert_int_equal(len, 8);
        assert_memory_equal(alpn, "http/1.1", 8);
        for (int k = 0; k < 3; k++) {
            tls_puts(&t, GET_HEALTH);
            tls_expect(&t, "HTTP/1.1 200 OK");
        }
        tls_puts(&t, GET_HEALTH GET_HEALTH); // one record, two requests
        tls_expect(&t, "HTTP/1.1 200 OK");
        tls_close(&t);
    }
    static const int old[] = {TLS1_VERSION, TLS1_1_VERSION};
    for (size_t i = 0; i < 2; i++) {
        assert_false(tls_connect(&t, f->port, old[i], old[i]));
        tls_close(&t);
    }
}

static void test_not_tls(void **state) {
    const struct fx *f = *state;
    int fd = cl_connect(f->port);
    cl_puts(fd, GET_HEALTH);
    char text[64];
    ssize_t n = recv(fd, text, sizeof text, 0);
    assert_true(n <= 0 || strncmp(text, "HTTP", 4) != 0);
    close(fd);
    fd = cl_connect(f->port); // a handshake that does not come
    cl_puts(fd, "\x16\x03\x01");
    assert_true(cl_eof(fd));
    close(fd);
    cl_assert_status(f->metrics_port, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 200); // plain
}

static void test_large_body(void **state) {
    const struct fx *f = *state;
    enum { N = 3 << 20 };
    struct tls t;
    char *body = malloc(N), *back = malloc(N + 4096), head[128];
    assert_true(body && back);
    for (size_t i = 0; i < N; i++)
        body[i] = (char)(i * i >> 7);
    assert_true(tls_connect(&t, f->port, TLS1_2_VERSION, TLS1_3_VERSION));
    int n = snprintf(head, sizeof head,
                     "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", N);
    assert_int_equal(SSL_write(t.ssl, head, n), n);
    assert_int_equal(SSL_write(t.ssl, body, N), N);
    size_t got = 0, want = SIZE_MAX;
    while (got < want) {
        int r = SSL_read(t.ssl, back + got, N + 4096 - (int)got);
        assert_true(r > 0);
        got += (size_t)r;
        const char *end = memmem(back, got < 1024 ? got : 1024, "\r\n\r\n", 4);
        if (want == SIZE_MAX && end)
            want = (size_t)(end - back) + 4 + N;
    }
    assert_int_equal(got, want);
    assert_memory_equal(back + got - N, body, N);
    tls_close(&t);
    free(body);
    free(back);
}

static void begin(struct gw_request *r, void *arg) {
    (void)arg;
    assert_true(gw_stream_begin(r, 200, "text/event-stream"));
    gw_stream_write(r, "x", 1);
}

static void end(struct gw_request *r, void *arg) {
    (void)arg;
    gw_stream_end(r);
}

static void test_stream_and_leaving(void **state) {
    struct fx *f = *state;
    struct tls t;
    assert_true(tls_connect(&t, f->port, TLS1_3_VERSION, TLS1_3_VERSION));
    tls_puts(&t, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    fx_on_loop(f, false, begin, NULL);
    fx_on_loop(f, true, end, NULL);
    tls_expect(&t, "text/event-stream");
    tls_close(&t);
    for (int polite = 0; polite < 2; polite++) {
        int closed = f->closed;
        assert_true(tls_connect(&t, f->port, TLS1_2_VERSION, TLS1_3_VERSION));
        tls_puts(&t, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
        fx_on_loop(f, false, begin, NULL);
        if (polite)
            SSL_shutdown(t.ssl);
        tls_close(&t);
        fx_wait_closed(f, closed + 1);
    }
}

static void test_reload(void **state) {
    struct fx *f = *state;
    struct tls old, fresh;
    struct err_info info = {0};
    char name[64];
    assert_true(tls_connect(&old, f->port, TLS1_2_VERSION, TLS1_3_VERSION));
    peer_name(&old, name, sizeof name);
    assert_string_equal(name, "one");
    make_cert("two");
    assert_int_equal(gw_server_reload_tls(f->server, &info), ERR_OK);
    assert_true(tls_connect(&fresh, f->port, TLS1_2_VERSION, TLS1_3_VERSION));
    peer_name(&fresh, name, sizeof name);
    assert_string_equal(name, "two");
    tls_puts(&old, GET_HEALTH); // goes on with its own
    tls_expect(&old, "HTTP/1.1 200 OK");
    tls_close(&old);
    tls_close(&fresh);
    // A bad file changes nothing: a certificate of another key, then none at all.
    char keep[TEMP_PATH + 16];
    snprintf(keep, sizeof keep, "%s/keep.pem", dir);
    assert_int_equal(rename(key, keep), 0);
    make_cert("three");
    assert_int_equal(rename(keep, key), 0);
    assert_int_equal(gw_server_reload_tls(f->server, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "key.pem"));
    assert_int_equal(unlink(cert), 0);
    assert_int_equal(gw_server_reload_tls(f->server, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "cert.pem (--ssl-certfile): No such file"));
    assert_true(tls_connect(&fresh, f->port, TLS1_2_VERSION, TLS1_3_VERSION));
    peer_name(&fresh, name, sizeof name);
    assert_string_equal(name, "two");
    tls_close(&fresh);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions),   cmocka_unit_test(test_not_tls),
        cmocka_unit_test(test_large_body), cmocka_unit_test(test_stream_and_leaving),
        cmocka_unit_test(test_reload),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
