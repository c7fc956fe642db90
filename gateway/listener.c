// SPDX-License-Identifier: Apache-2.0
// Listening sockets. They are watched by the first loop alone, which hands each connection to the
// loop that has the fewest: long streams stay evenly spread, which a kernel hash over a few dozen
// connections would not give. Socket options set on a listener pass to what it accepts.
#include "gateway/conn.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 4096, ACCEPTS = 64 };
static const struct timeval pause_time = {.tv_usec = 100000};

static void set_option(int fd, int level, int name, int value) {
    (void)setsockopt(fd, level, name, &value, sizeof value); // each is an improvement, none a need
}

static enum err open_one(struct gw_server *s, const struct addrinfo *ai, bool any, int *out) {
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return ERR_IO;
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1); // not REUSEPORT: a second server must not start
    if (ai->ai_family == AF_INET6)
        set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, !any);
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    // A peer that vanished without a word is noticed, in the middle of a long prefill too.
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(s->cfg.write_timeout_ns / 1000000));
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0) {
        int why = errno;
        close(fd);
        errno = why;
        return ERR_IO;
    }
    *out = fd;
    return ERR_OK;
}

static int bound_port(int fd) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0)
        return 0;
    return a.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&a)->sin6_port)
                                   : ntohs(((struct sockaddr_in *)&a)->sin_port);
}

static void set_port(struct sockaddr *a, int port) {
    if (a->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)a)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)a)->sin_port = htons((uint16_t)port);
}

enum err gw__listen(struct gw_server *s, enum gw_port kind, const char *host, int *port,
                    struct err_info *info) {
    bool any = !host || !*host || strcmp(host, "::") == 0;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *all = NULL;
    char text[16];
    snprintf(text, sizeof text, "%d", *port);
    int rc = getaddrinfo(any ? "::" : host, text, &hints, &all);
    if (rc != 0)
        return err_set(info, ERR_INVALID, "host", "cannot resolve the host %s: %s",
                       host ? host : "::", gai_strerror(rc));
    int opened = 0, why = 0;
    for (const struct addrinfo *ai = all; ai && s->n_listeners < GW_MAX_LISTENERS;
         ai = ai->ai_next) {
        if (ai->ai_family != AF_INET && ai->ai_family != AF_INET6)
            continue;
        set_port(ai->ai_addr, *port); // the second address takes the port that the first got
        struct gw_listener *l = &s->listeners[s->n_listeners];
        *l = (struct gw_listener){.server = s, .fd = -1, .port = kind};
        if (open_one(s, ai, any, &l->fd)) {
            why = errno;
            // A name with an address that this machine does not have is normal (::1 in a
            // container).
            if (why == EADDRNOTAVAIL || why == EAFNOSUPPORT)
                continue;
            break;
        }
        *port = bound_port(l->fd);
        s->n_listeners++;
        opened++;
        why = 0;
    }
    freeaddrinfo(all);
    if (any && !opened && (why == EAFNOSUPPORT || why == EADDRNOTAVAIL)) // a kernel without IPv6
        return gw__listen(s, kind, "0.0.0.0", port, info);
    if (!opened || (why && why != EADDRNOTAVAIL && why != EAFNOSUPPORT))
        return err_set(info, ERR_IO, "port", "cannot listen on %s port %d: %s",
                       host ? host : "::", *port, strerror(why));
    return ERR_OK;
}

// Does accepting wait until something is freed? The kernel keeps new connections in its backlog.
static void pause_accepting(struct gw_listener *l) {
    if (l->watching)
        event_del(&l->event);
    l->watching = false;
    (void)event_add(&l->resume, &pause_time);
}

static void on_resume(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    struct gw_listener *l = arg;
    if (l->fd < 0 || l->watching)
        return;
    if (event_add(&l->event, NULL) == 0)
        l->watching = true;
    else
        (void)event_add(&l->resume, &pause_time);
}

static void log_exhausted(struct gw_server *s, int why) {
    int64_t now = gw__now(s);
    if (s->emfile_logged_ns && now - s->emfile_logged_ns < (int64_t)10000000000)
        return;
    s->emfile_logged_ns = now;
    log_write(s->cfg.log, LOG_WARN, "accepting connections waits: %s", strerror(why));
}

static void describe(const struct sockaddr_storage *a, char ip[INET6_ADDRSTRLEN], bool *loopback) {
    *loopback = false;
    ip[0] = '\0';
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)a;
        inet_ntop(AF_INET, &in->sin_addr, ip, INET6_ADDRSTRLEN);
        *loopback = ntohl(in->sin_addr.s_addr) >> 24 == 127;
    } else if (a->ss_family == AF_INET6) {
        const struct in6_addr *in = &((const struct sockaddr_in6 *)a)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(in)) {
            inet_ntop(AF_INET, &in->s6_addr[12], ip, INET6_ADDRSTRLEN);
            *loopback = in->s6_addr[12] == 127;
        } else {
            inet_ntop(AF_INET6, in, ip, INET6_ADDRSTRLEN);
            *loopback = IN6_IS_ADDR_LOOPBACK(in);
        }
    }
}

static void on_accept(evutil_socket_t listen_fd, short what, void *arg) {
    (void)what;
    struct gw_listener *l = arg;
    struct gw_server *s = l->server;
    int max = s->cfg.max_connections, hard = max + max / 8 + 16;
    for (int i = 0; i < ACCEPTS && l->watching; i++) {
        if (atomic_load_explicit(&s->n_conns, memory_order_relaxed) >= hard) {
            pause_accepting(l);
            return;
        }
        struct sockaddr_storage peer;
        socklen_t len = sizeof peer;
        int fd = accept4(listen_fd, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                log_exhausted(s, errno);
                pause_accepting(l);
            }
            if (errno == EINTR || errno == ECONNABORTED)
                continue;
            return;
        }
        char ip[INET6_ADDRSTRLEN];
        bool loopback;
        describe(&peer, ip, &loopback);
        gw__accepted(s, fd, ip, loopback, l->port);
    }
}

enum err gw__listeners_watch(struct gw_server *s, struct err_info *info) {
    struct event_base *base = s->workers[0].loop.base;
    for (int i = 0; i < s->n_listeners; i++) {
        struct gw_listener *l = &s->listeners[i];
        if (event_assign(&l->event, base, l->fd, EV_READ | EV_PERSIST, on_accept, l) != 0 ||
            event_assign(&l->resume, base, -1, 0, on_resume, l) != 0 ||
            event_add(&l->event, NULL) != 0)
            return err_set(info, ERR_IO, NULL, "cannot watch a listening socket");
        l->watching = true;
    }
    return ERR_OK;
}

void gw__listeners_close(struct gw_server *s, bool all) {
    for (int i = 0; i < s->n_listeners; i++) {
        struct gw_listener *l = &s->listeners[i];
        if (l->fd < 0 || (!all && l->port == GW_PORT_METRICS))
            continue;
        if (event_initialized(&l->event))
            event_del(&l->event);
        if (event_initialized(&l->resume))
            event_del(&l->resume);
        l->watching = false;
        close(l->fd);
        l->fd = -1;
    }
}
