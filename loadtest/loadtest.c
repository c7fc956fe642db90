// SPDX-License-Identifier: Apache-2.0
#include "loadtest/loadtest.h"
#include "base/mem.h"
#include "loadtest/report.h"
#include "loadtest/run.h"
#include <curl/curl.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

static enum err write_json(const struct lt_options *o, const char *model, struct lt_stats *s,
                           struct err_info *info) {
    struct buf out;
    buf_init(&out, 0);
    lt_report_json(o, model, s, &out);
    FILE *f = !strcmp(o->json_path, "-") ? stdout : fopen(o->json_path, "we");
    bool ok = f && !buf_err(&out) && fwrite(out.data, 1, out.len, f) == out.len;
    if (f && f != stdout)
        ok = fclose(f) == 0 && ok;
    buf_fini(&out);
    return ok ? ERR_OK : err_set(info, ERR_IO, "json", "%s: %s", o->json_path, strerror(errno));
}

static enum err run(struct lt_options *o, struct lt_stats *s, struct err_info *info) {
    enum err rc = lt_options_check(o, info);
    char *found = NULL;
    if (!rc && curl_global_init(CURL_GLOBAL_DEFAULT))
        rc = err_set(info, ERR_INTERNAL, NULL, "libcurl does not start");
    if (!rc && !o->model)
        rc = lt_run_find_model(o, &found, info);
    const char *model = found ? found : o->model;
    if (!rc)
        rc = lt_run(o, model, s, info);
    if (!rc && !(o->json_path && !strcmp(o->json_path, "-"))) {
        struct buf out;
        buf_init(&out, 0);
        lt_report_text(o, s, &out);
        fputs(buf_err(&out) ? "out of memory\n" : out.data, stdout);
        buf_fini(&out);
    }
    if (!rc && !s->ok && *lt_url_hint(o))
        fprintf(stderr, "graft loadtest: no request was answered%s\n", lt_url_hint(o));
    if (!rc && o->json_path)
        rc = write_json(o, model, s, info);
    mem_free(found);
    curl_global_cleanup();
    return rc;
}

int loadtest_main(int argc, char **argv) {
    struct lt_options o = {0};
    struct opt_result res;
    struct err_info info = {0};
    if (opt_parse(&lt_option_table, argc, argv, &o, &res, &info)) {
        fprintf(stderr, "graft loadtest: %s\n", info.message);
        return 2;
    }
    json_set_alloc_funcs(mem_alloc, mem_free);
    int status = 0;
    if (res.help) {
        opt_show_help(&lt_option_table);
    } else {
        struct lt_stats stats = {0};
        if (run(&o, &stats, &info)) {
            fprintf(stderr, "graft loadtest: %s\n", info.message);
            status = 1;
        } else if (stats.ok < stats.sent) {
            status = 3; // some answers were wrong or missing
        }
        lt_stats_fini(&stats);
    }
    opt_result_fini(&res);
    return status;
}
