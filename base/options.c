// SPDX-License-Identifier: Apache-2.0
// Values are checked as they are set, with the option's name and range in the error. Lists grow in
// memory chained from opt_result.owned.
#include "base/options.h"
#include "base/mem.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 64, MAX_LIST = 4096, MIN_PREFIX = 3 };

struct owned { // header of each block that a result owns
    struct owned *next;
};

static void *own_alloc(struct opt_result *res, size_t bytes) {
    struct owned *o = mem_zalloc(sizeof *o + bytes);
    if (!o)
        return NULL;
    o->next = res->owned;
    res->owned = o;
    return o + 1;
}

void opt_result_fini(struct opt_result *res) {
    for (struct owned *o = res->owned, *next; o; o = next) {
        next = o->next;
        mem_free(o);
    }
    res->owned = NULL;
    res->given = NULL;
}

static void env_name(const char *name, char out[MAX_NAME]) {
    size_t n = (size_t)snprintf(out, MAX_NAME, "GRAFT_%s", name);
    for (size_t i = 0; i < n && i < MAX_NAME; i++)
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
}

static bool parse_bool(const char *s, bool *out) {
    static const char *const yes[] = {"1", "true", "yes", "on"};
    static const char *const no[] = {"0", "false", "no", "off"};
    for (int i = 0; i < 4; i++) {
        if (!strcasecmp(s, yes[i]))
            return *out = true, true;
        if (!strcasecmp(s, no[i]))
            return *out = false, true;
    }
    return false;
}

static bool parse_int(const char *s, int64_t *out) {
    char *end;
    errno = 0;
    *out = strtoll(s, &end, 10);
    return *s && !isspace((unsigned char)*s) && !*end && !errno;
}

static bool parse_float(const char *s, double *out, const char **rest) {
    char *end;
    errno = 0;
    *out = strtod(s, &end);
    *rest = end;
    return end != s && !isspace((unsigned char)*s) && !errno && isfinite(*out);
}

static bool parse_size(const char *s, int64_t *out) {
    const char *rest;
    double v, unit = 1;
    if (!parse_float(s, &v, &rest))
        return false;
    if (*rest) {
        static const char units[] = "KMGT";
        const char *u = strchr(units, toupper((unsigned char)*rest));
        if (!u)
            return false;
        unit = ldexp(1, 10 * (int)(u - units + 1));
        rest++;
        if (!strcasecmp(rest, "iB") || !strcasecmp(rest, "B"))
            rest += strlen(rest);
    }
    if (*rest || v * unit > 0x1p62 || v * unit < -0x1p62)
        return false;
    *out = (int64_t)(v * unit);
    return true;
}

static bool parse_seconds(const char *s, double *out) {
    const char *rest;
    if (!parse_float(s, out, &rest))
        return false;
    if (!*rest || !strcmp(rest, "s"))
        return true;
    double unit = !strcmp(rest, "ms")  ? 1e-3
                  : !strcmp(rest, "m") ? 60
                  : !strcmp(rest, "h") ? 3600
                                       : 0;
    *out *= unit;
    return unit > 0;
}

static bool in_range(const struct opt_def *d, double v) {
    return (d->min == 0 && d->max == 0) || (v >= d->min && v <= d->max);
}

static bool is_choice(const char *choices, const char *s) {
    size_t n = strlen(s);
    for (const char *c = choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL)
        if (!strncmp(c, s, n) && (c[n] == '|' || !c[n]))
            return true;
    return false;
}

static enum err list_add(struct opt_list *l, const char *value, struct opt_result *res) {
    if (l->n >= MAX_LIST)
        return ERR_LIMIT;
    if ((l->n & (l->n - 1)) == 0) { // full at each power of two
        const char **grown = own_alloc(res, (l->n ? l->n * 2 : 1) * sizeof *grown);
        if (!grown)
            return ERR_NOMEM;
        if (l->n)
            memcpy(grown, l->items, l->n * sizeof *grown);
        l->items = grown;
    }
    l->items[l->n++] = value;
    return ERR_OK;
}

static enum err bad_value(const struct opt_def *d, const char *value, const char *from,
                          struct err_info *info) {
    const char *shown = d->secret ? "(hidden)" : value;
    if (d->kind == OPT_ENUM)
        return err_set(info, ERR_INVALID, d->name, "%s%s: '%s' is not one of %s", from, d->name,
                       shown, d->choices);
    static const char *const wants[] = {
        [OPT_FLAG] = "true or false",
        [OPT_INT] = "a whole number",
        [OPT_SIZE] = "a size such as 512M",
        [OPT_FLOAT] = "a number",
        [OPT_SECONDS] = "a time such as 30 or 500ms",
    };
    if (d->min == 0 && d->max == 0)
        return err_set(info, ERR_INVALID, d->name, "%s%s: '%s' is not %s", from, d->name, shown,
                       wants[d->kind]);
    return err_set(info, ERR_INVALID, d->name, "%s%s: '%s' is not %s from %.15g to %.15g", from,
                   d->name, shown, wants[d->kind], d->min, d->max);
}

static enum err set_value(const struct opt_def *d, void *into, const char *value, const char *from,
                          struct opt_result *res, struct err_info *info) {
    void *field = (char *)into + d->offset;
    int64_t i = 0;
    double f = 0;
    bool b = false, ok = true;
    switch (d->kind) {
    case OPT_FLAG:
        if ((ok = parse_bool(value, &b)))
            *(bool *)field = b;
        break;
    case OPT_INT:
    case OPT_SIZE:
        ok = (d->kind == OPT_INT ? parse_int(value, &i) : parse_size(value, &i)) &&
             in_range(d, (double)i);
        if (ok)
            *(int64_t *)field = i;
        break;
    case OPT_FLOAT:
    case OPT_SECONDS: {
        const char *rest = "";
        ok = (d->kind == OPT_FLOAT ? parse_float(value, &f, &rest) && !*rest
                                   : parse_seconds(value, &f)) &&
             in_range(d, f);
        if (ok)
            *(double *)field = f;
        break;
    }
    case OPT_ENUM:
        ok = is_choice(d->choices, value);
        if (ok)
            *(const char **)field = value;
        break;
    case OPT_STRING:
    case OPT_OPTIONAL:
        *(const char **)field = value;
        break;
    case OPT_LIST: {
        enum err rc = list_add(field, value, res);
        if (rc)
            return err_set(info, rc, d->name, "%s%s: too many values", from, d->name);
        break;
    }
    case OPT_HEADING:
        break;
    }
    return ok ? ERR_OK : bad_value(d, value, from, info);
}

static enum err set_list_from_env(const struct opt_def *d, void *into, const char *value,
                                  struct opt_result *res, struct err_info *info) {
    while (*value) {
        size_t n = strcspn(value, ",");
        char *item = own_alloc(res, n + 1);
        if (!item)
            return err_set(info, ERR_NOMEM, d->name, "out of memory");
        memcpy(item, value, n);
        enum err rc = n ? set_value(d, into, item, "GRAFT_", res, info) : ERR_OK;
        if (rc)
            return rc;
        value += n + (value[n] == ',');
    }
    return ERR_OK;
}

static enum err set_defaults(const struct opt_table *t, void *into, struct opt_result *res,
                             struct err_info *info) {
    for (size_t i = 0; i < t->n; i++) {
        const struct opt_def *d = &t->defs[i];
        if (d->kind == OPT_HEADING)
            continue;
        char name[MAX_NAME];
        env_name(d->name, name);
        const char *env = getenv(name);
        enum err rc = ERR_OK;
        if (d->dflt && d->kind != OPT_LIST)
            rc = set_value(d, into, d->dflt, "default of --", res, info);
        res->given[i] = env && *env;
        if (!rc && res->given[i])
            rc = d->kind == OPT_LIST ? set_list_from_env(d, into, env, res, info)
                                     : set_value(d, into, env, "environment twin of --", res, info);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static size_t edit_distance(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b), row[MAX_NAME + 1];
    if (na > MAX_NAME || nb > MAX_NAME)
        return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            best = best < row[j] + 1 ? best : row[j] + 1;
            row[j] = best < row[j - 1] + 1 ? best : row[j - 1] + 1;
        }
    }
    return row[nb];
}

// How far a name is from what was typed; one that goes on behind it, or that it goes on behind, is
// near.
static size_t distance(const char *typed, const char *name) {
    size_t n = strlen(typed), m = strlen(name), most = 1 + n / 3;
    size_t d = edit_distance(typed, name);
    bool begins = n >= MIN_PREFIX && m >= MIN_PREFIX && !strncmp(typed, name, n < m ? n : m);
    return begins && d > most ? most : d;
}

static enum err unknown_option(const struct opt_table *t, const char *name, struct err_info *info) {
    const char *near = NULL;
    size_t best = SIZE_MAX;
    for (size_t i = 0; i < t->n; i++) {
        size_t d = t->defs[i].kind == OPT_HEADING ? SIZE_MAX : distance(name, t->defs[i].name);
        if (d < best) {
            best = d;
            near = t->defs[i].name;
        }
    }
    if (near && best <= 1 + strlen(name) / 3)
        return err_set(info, ERR_INVALID, NULL, "unknown option --%s; did you mean --%s?", name,
                       near);
    return err_set(info, ERR_INVALID, NULL, "unknown option --%s; see '%s --help'", name,
                   t->command);
}

static const struct opt_def *find_def(const struct opt_table *t, const char *name) {
    for (size_t i = 0; i < t->n; i++)
        if (t->defs[i].kind != OPT_HEADING && !strcmp(t->defs[i].name, name))
            return &t->defs[i];
    return NULL;
}

// Handles argv[*at] (without its dashes: `arg`), which may take argv[*at + 1] as its value.
static enum err take_option(const struct opt_table *t, char *arg, int argc, char **argv, int *at,
                            void *into, struct opt_result *res, struct err_info *info) {
    char name[MAX_NAME];
    char *value = strchr(arg, '=');
    size_t n = value ? (size_t)(value - arg) : strlen(arg);
    snprintf(name, sizeof name, "%.*s", (int)(n < MAX_NAME ? n : MAX_NAME - 1), arg);
    if (value)
        value++;
    const struct opt_def *d = find_def(t, name);
    if (!d && !value && !strncmp(name, "no-", 3)) {
        d = find_def(t, name + 3);
        if (d && d->kind == OPT_FLAG) {
            res->given[d - t->defs] = true;
            return set_value(d, into, "false", "--", res, info);
        }
        d = NULL;
    }
    if (!d)
        return unknown_option(t, name, info);
    res->given[d - t->defs] = true;
    if (!value && d->kind == OPT_FLAG)
        return set_value(d, into, "true", "--", res, info);
    if (!value && d->kind == OPT_OPTIONAL)
        return set_value(d, into, *at + 1 < argc && argv[*at + 1][0] != '-' ? argv[++*at] : "",
                         "--", res, info);
    if (!value) {
        if (*at + 1 >= argc)
            return err_set(info, ERR_INVALID, d->name, "--%s needs a value", d->name);
        value = argv[++*at];
    }
    if (d->secret) { // keep it out of ps
        char *copy = own_alloc(res, strlen(value) + 1);
        if (!copy)
            return err_set(info, ERR_NOMEM, d->name, "out of memory");
        memcpy(copy, value, strlen(value) + 1);
        memset(value, '*', strlen(value));
        value = copy;
    }
    return set_value(d, into, value, "--", res, info);
}

enum err opt_parse(const struct opt_table *t, int argc, char **argv, void *into,
                   struct opt_result *res, struct err_info *info) {
    *res = (struct opt_result){0};
    res->given = own_alloc(res, t->n * sizeof *res->given);
    if (!res->given)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err rc = set_defaults(t, into, res, info);
    // A list on the command line replaces the one from the environment.
    for (size_t i = 0; !rc && i < t->n; i++)
        if (t->defs[i].kind == OPT_LIST)
            for (int a = 1; a < argc; a++)
                if (!strncmp(argv[a], "--", 2) &&
                    !strncmp(argv[a] + 2, t->defs[i].name, strlen(t->defs[i].name)) &&
                    strchr("=", argv[a][2 + strlen(t->defs[i].name)]))
                    ((struct opt_list *)(void *)((char *)into + t->defs[i].offset))->n = 0;
    bool only_positional = false;
    for (int i = 1; !rc && i < argc; i++) {
        if (!only_positional && !strcmp(argv[i], "--")) {
            only_positional = true;
        } else if (!only_positional && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))) {
            res->help = true;
        } else if (!only_positional && !strncmp(argv[i], "--", 2)) {
            rc = take_option(t, argv[i] + 2, argc, argv, &i, into, res, info);
        } else if (!only_positional && argv[i][0] == '-' && argv[i][1]) {
            rc = err_set(info, ERR_INVALID, NULL, "unknown option %s; see '%s --help'", argv[i],
                         t->command);
        } else if (res->n_positional >= t->max_positional ||
                   res->n_positional >= sizeof res->positional / sizeof *res->positional) {
            rc = err_set(info, ERR_INVALID, NULL, "unexpected argument '%s'; usage: %s", argv[i],
                         t->usage);
        } else {
            res->positional[res->n_positional++] = argv[i];
        }
    }
    if (rc)
        opt_result_fini(res);
    return rc;
}

// ---- values from elsewhere

bool opt_given(const struct opt_table *t, const struct opt_result *res, const char *name) {
    const struct opt_def *d = find_def(t, name);
    return d && res->given[d - t->defs];
}

union field {
    bool b;
    int64_t i;
    double f;
    const char *s;
};

static size_t field_bytes(const struct opt_def *d) {
    return d->kind == OPT_FLAG                              ? sizeof(bool)
           : d->kind == OPT_INT || d->kind == OPT_SIZE      ? sizeof(int64_t)
           : d->kind == OPT_FLOAT || d->kind == OPT_SECONDS ? sizeof(double)
                                                            : sizeof(const char *);
}

static bool same_field(const struct opt_def *d, const union field *a, const union field *b) {
    switch (d->kind) {
    case OPT_FLAG:
        return a->b == b->b;
    case OPT_INT:
    case OPT_SIZE:
        return a->i == b->i;
    case OPT_FLOAT:
    case OPT_SECONDS:
        return a->f >= b->f && a->f <= b->f;
    default:
        return a->s && b->s ? !strcmp(a->s, b->s) : a->s == b->s;
    }
}

static void show_field(const struct opt_def *d, const union field *v, char *out, size_t cap) {
    if (d->kind == OPT_FLAG)
        snprintf(out, cap, "%s", v->b ? "true" : "false");
    else if (d->kind == OPT_INT || d->kind == OPT_SIZE)
        snprintf(out, cap, "%lld", (long long)v->i);
    else if (d->kind == OPT_FLOAT || d->kind == OPT_SECONDS)
        snprintf(out, cap, "%.10g", v->f);
    else
        snprintf(out, cap, "%s", v->s ? v->s : "none");
}

enum err opt_take(const struct opt_table *t, const char *name, const char *value, const char *from,
                  void *into, struct opt_result *res, struct err_info *info) {
    enum { SHOWN = 96 };
    const struct opt_def *d = find_def(t, name);
    union field is = {0}, was = {0};
    char prefix[SHOWN], here[SHOWN], there[SHOWN], *copy;
    if (!d || d->kind == OPT_LIST)
        return err_set(info, ERR_INTERNAL, NULL, "%s: there is no single option %s", from, name);
    copy = own_alloc(res, strlen(value) + 1);
    if (!copy)
        return err_set(info, ERR_NOMEM, d->name, "out of memory");
    memcpy(copy, value, strlen(value) + 1);
    struct opt_def alone = *d; // the field by itself
    alone.offset = 0;
    snprintf(prefix, sizeof prefix, "%s: ", from);
    enum err rc = set_value(&alone, &is, copy, prefix, res, info);
    if (rc)
        return rc;
    void *field = (char *)into + d->offset;
    if (!res->given[d - t->defs]) {
        memcpy(field, &is, field_bytes(d));
        return ERR_OK;
    }
    memcpy(&was, field, field_bytes(d));
    if (same_field(d, &was, &is))
        return ERR_OK;
    show_field(d, &was, here, sizeof here);
    show_field(d, &is, there, sizeof there);
    return err_set(info, ERR_INVALID, d->name, "--%s is %s, and %s in %s; leave it out", d->name,
                   here, there, from);
}
