// SPDX-License-Identifier: Apache-2.0
#include "model/template/unicode.h"
#include "base/utf8.h"
#include "model/template/unicode_data.h"

// Membership by the parity of the toggles at or before cp.
static bool in_table(const uint32_t *t, size_t n, uint32_t cp) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (t[mid] <= cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo % 2 == 1;
}

static bool is_space(uint32_t cp) {
    return (cp >= 0x09 && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

bool tpl_uc_is(enum tpl_uc_prop prop, uint32_t cp) {
    switch (prop) {
    case TPL_UC_ALPHA:
        return in_table(tpl_uc_alpha, tpl_uc_alpha_n, cp);
    case TPL_UC_DECIMAL:
        return in_table(tpl_uc_decimal, tpl_uc_decimal_n, cp);
    case TPL_UC_DIGIT:
        return in_table(tpl_uc_digit, tpl_uc_digit_n, cp);
    case TPL_UC_NUMERIC:
        return in_table(tpl_uc_numeric, tpl_uc_numeric_n, cp);
    case TPL_UC_ALNUM:
        return in_table(tpl_uc_alpha, tpl_uc_alpha_n, cp) ||
               in_table(tpl_uc_numeric, tpl_uc_numeric_n, cp) ||
               in_table(tpl_uc_digit, tpl_uc_digit_n, cp);
    case TPL_UC_SPACE:
        return is_space(cp);
    case TPL_UC_PRINTABLE:
        return in_table(tpl_uc_printable, tpl_uc_printable_n, cp);
    case TPL_UC_UPPER:
        return in_table(tpl_uc_upper, tpl_uc_upper_n, cp);
    case TPL_UC_LOWER:
        return in_table(tpl_uc_lower, tpl_uc_lower_n, cp);
    case TPL_UC_TITLE:
        return in_table(tpl_uc_title, tpl_uc_title_n, cp);
    case TPL_UC_CASED:
        return in_table(tpl_uc_cased, tpl_uc_cased_n, cp);
    case TPL_UC_IGNORABLE:
        return in_table(tpl_uc_ignorable, tpl_uc_ignorable_n, cp);
    }
    return false;
}

int tpl_uc_decimal_value(uint32_t cp) {
    if (cp >= '0' && cp <= '9')
        return (int)(cp - '0');
    if (cp < 0x80 || !tpl_uc_is(TPL_UC_DECIMAL, cp))
        return -1;
    // Decimal digits come in runs of ten that start at zero; runs may touch, always on a run's
    // edge.
    const uint32_t *t = tpl_uc_decimal;
    size_t i = 0;
    while (i + 1 < tpl_uc_decimal_n && t[i + 1] <= cp)
        i++;
    return (int)((cp - t[i]) % 10);
}

struct case_tables {
    const struct tpl_uc_case *map;
    size_t n;
    const struct tpl_uc_special *special;
    size_t n_special;
};

static struct case_tables tables_for(enum tpl_uc_case_to to) {
    switch (to) {
    case TPL_UC_TO_UPPER:
        return (struct case_tables){tpl_uc_to_upper, tpl_uc_to_upper_n, tpl_uc_to_upper_special,
                                    tpl_uc_to_upper_special_n};
    case TPL_UC_TO_LOWER:
        return (struct case_tables){tpl_uc_to_lower, tpl_uc_to_lower_n, tpl_uc_to_lower_special,
                                    tpl_uc_to_lower_special_n};
    case TPL_UC_TO_TITLE:
        break;
    }
    return (struct case_tables){tpl_uc_to_title, tpl_uc_to_title_n, tpl_uc_to_title_special,
                                tpl_uc_to_title_special_n};
}

size_t tpl_uc_map(enum tpl_uc_case_to to, uint32_t cp, uint32_t out[3]) {
    out[0] = cp;
    if (cp < 0x80) {
        bool lower = cp >= 'a' && cp <= 'z', upper = cp >= 'A' && cp <= 'Z';
        if (to == TPL_UC_TO_LOWER ? upper : lower)
            out[0] = cp ^ 0x20;
        return 1;
    }
    struct case_tables t = tables_for(to);
    size_t lo = 0, hi = t.n;
    while (lo < hi) { // the first run whose end is not before cp
        size_t mid = lo + (hi - lo) / 2;
        if (t.map[mid].last < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < t.n) {
        const struct tpl_uc_case *r = &t.map[lo];
        if (cp >= r->first && (cp - r->first) % r->step == 0) {
            out[0] = (uint32_t)((int64_t)cp + r->delta);
            return 1;
        }
    }
    for (size_t i = 0; i < t.n_special; i++) {
        if (t.special[i].cp != cp)
            continue;
        size_t n = 0;
        while (n < 3 && t.special[i].to[n]) {
            out[n] = t.special[i].to[n];
            n++;
        }
        return n;
    }
    return 1;
}

size_t tpl_uc_next(const char *s, size_t n, uint32_t *cp) {
    int len = utf8_decode(s, n, cp);
    if (len > 0)
        return (size_t)len;
    *cp = 0xfffd;
    return 1;
}

size_t tpl_uc_prev(const char *s, size_t n, uint32_t *cp) {
    size_t at = n - 1;
    while (at > 0 && n - at < 4 && ((unsigned char)s[at] & 0xc0) == 0x80)
        at--;
    (void)tpl_uc_next(s + at, n - at, cp);
    return n - at;
}
