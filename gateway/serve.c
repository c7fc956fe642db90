// SPDX-License-Identifier: Apache-2.0
// The main thread owns the process: it sleeps in poll on a signalfd, and nothing else here blocks
// it once the model is loaded.
#include "gateway/serve.h"
#include "base/mem.h"
#include "base/thread.h"
#include "gateway/adapter_demand.h"
#include "gateway/api.h"
#include "gateway/api_adapters.h"
#include "gateway/api_data.h"
#include "gateway/data_host.h"
#include "gateway/model_files.h"
#include "gateway/model_host.h"
#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum { MAX_ROUTES = 64, DIGEST_STEP = 8 << 20 };

struct serve {
    struct serve_options options;
    struct log log, access_log;
    struct app app;
    struct model_host host;
    struct api_adapters adapters;
    struct adapter_demand demand;
    struct data_host data;
    struct gw_keys *keys;
    struct gw_route routes[MAX_ROUTES];
    int signal_fd;
    // digest thread
    struct mdl_digest *digest;
    struct thread digest_thread;
    bool digest_runs;
    char digest_error[256];
    _Atomic bool stopping;
};

static int64_t seconds(double s) {
    return (int64_t)(s * 1e9);
}

// ---- options that depend on one another

static bool is_loopback(const char *host) {
    return !strncmp(host, "127.", 4) || !strcmp(host, "localhost") || !strcmp(host, "::1") ||
           !strcmp(host, "[::1]");
}

static enum err open_keys(struct serve *s, struct err_info *info) {
    const struct serve_options *o = &s->options;
    enum err rc = gw_keys_create(&s->keys);
    if (rc)
        return err_set(info, rc, NULL, "out of memory");
    // A key given directly is the operator's own.
    for (size_t i = 0; !rc && i < o->api_keys.n; i++)
        rc = gw_keys_add(s->keys, o->api_keys.items[i], GW_TENANT_DEFAULT, true, info);
    if (!rc && o->api_key_file)
        rc = gw_keys_load_file(s->keys, o->api_key_file, info);
    // Whoever names a file wants keys to be asked for.
    if (!rc && o->api_key_file && gw_keys_count(s->keys) == 0)
        rc = err_set(info, ERR_INVALID, "api-key-file", "--api-key-file %s holds no key",
                     o->api_key_file);
    if (rc)
        return rc;
    if (gw_keys_count(s->keys) == 0 && !o->allow_anonymous && !is_loopback(o->host))
        return err_set(
            info, ERR_INVALID, "host",
            "--host %s is reachable from outside and no API key is set; set GRAFT_API_KEY "
            "or --api-key-file, or allow it with --allow-anonymous",
            o->host);
    return ERR_OK;
}

static void open_logs(struct serve *s) {
    enum log_level level = LOG_INFO;
    log_level_parse(s->options.log_level, &level);
    log_init(&s->log, STDERR_FILENO, level, !strcmp(s->options.log_format, "json"), &clock_system);
    log_init(&s->access_log, STDOUT_FILENO, LOG_INFO, true, &clock_system);
}

// ---- server

// Not ready from here on, whoever comes first; a later one does not open the door again.
static void set_draining(struct serve *s) {
    int ready = APP_READY;
    int64_t until = clock_mono_ns(&clock_system) + seconds(s->options.drain_delay), none = 0;
    atomic_compare_exchange_strong(&s->app.accept_until_ns, &none, until);
    if (atomic_compare_exchange_strong(&s->app.state, &ready, APP_DRAINING))
        log_write(&s->log, LOG_INFO, "draining: not ready from now on, %d requests in flight",
                  replicas_in_flight(&s->host.replicas));
}

static void begin_drain(struct app *app) {
    set_draining((struct serve *)((char *)app - offsetof(struct serve, app)));
}

static enum err open_server(struct serve *s, struct err_info *info) {
    const struct serve_options *o = &s->options;
    size_t n_routes = api_routes(&s->app, s->routes, MAX_ROUTES);
    s->adapters = (struct api_adapters){.app = &s->app, .host = &s->host.adapters};
    s->data.api.keys = s->keys;
    s->data.api.log = &s->log;
    if (s->data.api.home) {
        s->adapters.owner = data_host_owner;
        s->adapters.owner_arg = &s->data;
        s->demand = (struct adapter_demand){
            .host = &s->host.adapters, .find = data_host_checkpoint, .arg = &s->data};
        s->app.demand = &s->demand;
    }
    n_routes += api_adapters_routes(&s->adapters, s->routes + n_routes, MAX_ROUTES - n_routes);
    n_routes += api_data_routes(&s->data.api, s->routes + n_routes, MAX_ROUTES - n_routes);
    struct gw_config cfg = {
        .host = o->host,
        .port = (int)o->port,
        .metrics_host = o->metrics_port ? o->metrics_host : NULL,
        .metrics_port = (int)o->metrics_port,
        .loops = (int)o->http_threads,
        .ssl_certfile = o->ssl_certfile,
        .ssl_keyfile = o->ssl_keyfile,
        .max_header_bytes = (size_t)o->max_header,
        .max_body_bytes = (size_t)o->max_body,
        .max_inflight_bytes = (size_t)o->max_inflight,
        .max_connections = (int)o->max_connections,
        .header_timeout_ns = seconds(o->header_timeout),
        .body_timeout_ns = seconds(o->body_timeout),
        .idle_timeout_ns = seconds(o->idle_timeout),
        .write_timeout_ns = seconds(o->write_timeout),
        .stream_high_bytes = 64 << 10,
        .cors_origins = o->allowed_origins.items,
        .n_cors_origins = o->allowed_origins.n,
        .routes = s->routes,
        .n_routes = n_routes,
        .keys = gw_keys_count(s->keys) ? s->keys : NULL,
        .clock = &clock_system,
        .log = &s->log,
        .access_log = o->access_log ? &s->access_log : NULL,
        .metrics = s->app.metrics,
        .build = GRAFT_VERSION,
    };
    enum err rc = gw_server_create(&cfg, &s->app.server, info);
    return rc ? rc : gw_server_start(s->app.server, info);
}

// ---- digest in the background

// Jobs that need it must not wait for ever.
static void no_digest(struct serve *s, const char *why) {
    log_write(&s->log, LOG_WARN, "model digest: %s", why);
    snprintf(s->digest_error, sizeof s->digest_error, "%.200s", why);
    atomic_store_explicit(&s->app.digest_error, s->digest_error, memory_order_release);
}

static void *digest_main(void *arg) {
    struct serve *s = arg;
    bool done = false;
    struct err_info info;
    while (!done && !atomic_load(&s->stopping)) {
        if (mdl_digest_step(s->digest, DIGEST_STEP, &done, &info)) {
            no_digest(s, info.message);
            return NULL;
        }
    }
    if (done)
        atomic_store_explicit(&s->app.digest, mdl_digest_hex(s->digest), memory_order_release);
    return NULL;
}

static void start_digest(struct serve *s) {
    char buf[512];
    struct err_info info;
    if (mdl_digest_create(s->host.source, model_files_cache(s->options.cache_dir, buf, sizeof buf),
                          &s->digest, &info)) {
        no_digest(s, info.message);
        return;
    }
    s->digest_runs = !thread_start(&s->digest_thread, "graft-digest", digest_main, s);
    if (!s->digest_runs)
        no_digest(s, "no thread could be started");
}

// ---- life

static enum err block_signals(struct serve *s, struct err_info *info) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    s->signal_fd = -1;
    if (pthread_sigmask(SIG_BLOCK, &set, NULL))
        return err_set(info, ERR_INTERNAL, NULL, "cannot block signals");
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signal_fd < 0)
        return err_set(info, ERR_INTERNAL, NULL, "signalfd: %s", strerror(errno));
    return ERR_OK;
}

static bool is_over(int64_t deadline_ns) {
    return clock_mono_ns(&clock_system) >= deadline_ns;
}

// Waits for a signal, at most timeout_ms (-1: no limit). Returns it, or 0.
static int wait_signal(struct serve *s, int timeout_ms) {
    struct pollfd fd = {s->signal_fd, POLLIN, 0};
    struct signalfd_siginfo si;
    if (poll(&fd, 1, timeout_ms) > 0 && read(s->signal_fd, &si, sizeof si) == sizeof si)
        return (int)si.ssi_signo;
    return 0;
}

// Whoever stops the process while it loads does not have to wait for the rest.
static bool stop_asked(void *arg) {
    int sig = wait_signal(arg, 0);
    return sig == SIGTERM || sig == SIGINT;
}

static void reload_tls(struct serve *s) {
    struct err_info info;
    if (!s->options.ssl_certfile)
        log_write(&s->log, LOG_INFO, "SIGHUP: no TLS is configured, nothing to reload");
    else if (gw_server_reload_tls(s->app.server, &info))
        log_write(&s->log, LOG_ERROR, "SIGHUP: the old certificate stays: %s", info.message);
    else
        log_write(&s->log, LOG_INFO, "SIGHUP: certificate reloaded");
}

// Lets what runs finish. A second SIGTERM or SIGINT ends the wait.
static void drain(struct serve *s) {
    set_draining(s);
    int64_t now = clock_mono_ns(&clock_system), accept_until = atomic_load(&s->app.accept_until_ns);
    int64_t deadline =
        (now > accept_until ? now : accept_until) + seconds(s->options.drain_timeout);
    log_write(&s->log, LOG_INFO, "stopping when %d requests are answered",
              replicas_in_flight(&s->host.replicas));
    while (!is_over(accept_until)) {
        int sig = wait_signal(s, 20);
        if (sig == SIGTERM || sig == SIGINT)
            break;
    }
    replicas_drain(&s->host.replicas);
    gw_server_stop_accepting(s->app.server);
    while (!is_over(deadline)) {
        if (replicas_in_flight(&s->host.replicas) == 0 && gw_server_in_flight(s->app.server) == 0)
            break;
        int sig = wait_signal(s, 20);
        if (sig == SIGTERM || sig == SIGINT)
            break;
    }
    log_write(&s->log, LOG_INFO, "stopping: %d requests cut",
              replicas_in_flight(&s->host.replicas));
}

// A drain over HTTP leaves the process up, not ready, until the orchestrator sends SIGTERM.
static void run(struct serve *s) {
    for (;;) {
        int sig = wait_signal(s, -1);
        if (sig == SIGHUP) {
            reload_tls(s);
        } else if (sig == SIGTERM || sig == SIGINT) {
            drain(s);
            return;
        }
    }
}

static void say_ready(const struct serve *s, double load_seconds) {
    log_write(&s->log, LOG_INFO, "%s: context %d, weights %zu MiB, KV cache up to %zu MiB, %s",
              s->app.names[0], s->app.max_model_len, s->host.weights->bytes >> 20,
              s->host.kv_bytes * (size_t)s->host.replicas.n >> 20, s->app.kernel_set);
    if (s->host.replicas.n > 1)
        log_write(&s->log, LOG_INFO, "%d replicas share %d compute threads",
                  (int)s->host.replicas.n, s->host.threads);
    log_write(&s->log, LOG_INFO, "ready in %.2f s: %s://%s:%d/v1", load_seconds,
              s->options.ssl_certfile ? "https" : "http", s->options.host,
              gw_server_port(s->app.server));
}

static void close_all(struct serve *s) {
    atomic_store(&s->stopping, true);
    if (s->app.server)
        gw_server_stop(s->app.server);
    if (s->digest_runs)
        thread_join(&s->digest_thread);
    data_host_stop(&s->data);             // a job that ends publishes its adapter
    adapter_host_stop(&s->host.adapters); // its last changes are written into the data folder
    data_host_close(&s->data);            // its last tasks still post to the loops
    model_host_close(&s->host);
    data_host_fini(&s->data);
    if (s->app.server)
        gw_server_destroy(s->app.server);
    if (s->digest)
        mdl_digest_destroy(s->digest);
    gw_keys_destroy(s->keys);
    metrics_destroy(s->app.metrics);
    if (s->signal_fd >= 0)
        close(s->signal_fd);
}

static void fill_app(struct serve *s) {
    struct app *a = &s->app;
    a->created = clock_wall_ns(&clock_system) / 1000000000;
    a->drain_timeout_ns = seconds(s->options.drain_timeout);
    a->request_timeout_ns = seconds(s->options.request_timeout);
    a->stall_ns = seconds(s->options.stall_timeout);
    a->clock = &clock_system;
    a->begin_drain = begin_drain;
    a->max_prompts = (int)s->options.max_prompts;
    a->vllm_metrics = s->options.vllm_metrics;
}

static enum err start(struct serve *s, const char *model, struct err_info *info) {
    int64_t began = clock_mono_ns(&clock_system);
    enum err rc;
    open_logs(s);
    fill_app(s);
    s->host.cancelled = stop_asked;
    s->host.cancelled_arg = s;
    s->app.metrics = metrics_create();
    if (!s->app.metrics)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    if ((rc = serve_options_check(&s->options, info)) || (rc = block_signals(s, info)) ||
        (rc = open_keys(s, info)) ||
        (rc = data_host_open(&s->data, &s->options, &s->app, &s->host, &s->log, info)) ||
        (rc = open_server(s, info)))
        return rc;
    s->host.data_dir = s->data.api.home ? s->data.home.dir.fd : -1;
    rc = model_host_open(&s->host, model, &s->options, &s->log, s->app.metrics, &s->app, info);
    if (rc)
        return rc;
    atomic_store_explicit(&s->app.state, APP_READY, memory_order_release);
    say_ready(s, (double)(clock_mono_ns(&clock_system) - began) * 1e-9);
    start_digest(s);
    mdl_source_close(s->host.source);
    s->host.source = NULL;
    return ERR_OK;
}

static void print_help(void) {
    struct buf out;
    buf_init(&out, 0);
    opt_print_help(&serve_option_table, &out, 100);
    if (!buf_err(&out))
        fputs(out.data, stdout);
    buf_fini(&out);
}

int serve_main(int argc, char **argv) {
    struct serve *s = mem_zalloc(sizeof *s);
    struct opt_result res;
    struct err_info info = {0};
    if (!s) {
        fputs("graft: out of memory\n", stderr);
        return 1;
    }
    if (opt_parse(&serve_option_table, argc, argv, &s->options, &res, &info)) {
        fprintf(stderr, "graft serve: %s\n", info.message);
        mem_free(s);
        return 2;
    }
    int status = 0;
    bool stops = false;
    s->signal_fd = -1;
    if (res.help) {
        print_help();
    } else if (res.n_positional != 1) {
        fprintf(stderr, "usage: %s\nSee graft serve --help.\n", serve_option_table.usage);
        status = 2;
    } else {
        json_set_alloc_funcs(mem_alloc, mem_free);
        enum err rc = start(s, res.positional[0], &info);
        if (rc == ERR_CANCELLED) {
            log_write(&s->log, LOG_INFO, "stopped while loading");
        } else if (rc) {
            fprintf(stderr, "graft serve: %s\n", info.message);
            status = 1;
        } else {
            run(s);
            stops = true;
        }
        close_all(s);
        if (stops) // what is written at the end, a job's checkpoint for one, may take a while
            log_write(&s->log, LOG_INFO, "stopped");
    }
    opt_result_fini(&res);
    mem_free(s);
    return status;
}
