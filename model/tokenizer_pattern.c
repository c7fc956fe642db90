// SPDX-License-Identifier: Apache-2.0
// Split patterns. Hugging Face files write them for Oniguruma (Ruby syntax, Unicode 16); PCRE2
// reads most of it the same way. This translates what differs and refuses, by name and place, what
// the published byte-level patterns do not use, so that a pattern that compiles splits as the
// original does.
//
//  - \s is White_Space; PCRE2's also has U+180E, so the characters are listed.
//  - \p{L} and \p{N} follow PCRE2's own Unicode version, 14 in Debian 12: what Unicode 15 and 16
//  added is
//    listed after them. With a newer PCRE2 the list says nothing new.
#include "base/buf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "model/tokenizer_internal.h"
#include <string.h>

const char tok__pattern_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char tok__pattern_llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

struct range {
    uint32_t first, last;
};

static const struct range white_space[] = {
    {0x9, 0xd},       {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
    {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
};

// Letters (L) and numbers (N) of Unicode 15, 15.1 and 16.
static const struct range new_letters[] = {
    {0x1c89, 0x1c8a},   {0xa7cb, 0xa7cd},   {0xa7da, 0xa7dc},   {0x105c0, 0x105f3},
    {0x10d4a, 0x10d65}, {0x10d6f, 0x10d85}, {0x10ec2, 0x10ec4}, {0x1123f, 0x11240},
    {0x11380, 0x11389}, {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5},
    {0x113b7, 0x113b7}, {0x113d1, 0x113d1}, {0x113d3, 0x113d3}, {0x11bc0, 0x11be0},
    {0x11f02, 0x11f02}, {0x11f04, 0x11f10}, {0x11f12, 0x11f33}, {0x1342f, 0x1342f},
    {0x13441, 0x13446}, {0x13460, 0x143fa}, {0x16100, 0x1611d}, {0x16d40, 0x16d6c},
    {0x18cff, 0x18cff}, {0x1b132, 0x1b132}, {0x1b155, 0x1b155}, {0x1df25, 0x1df2a},
    {0x1e030, 0x1e06d}, {0x1e4d0, 0x1e4eb}, {0x1e5d0, 0x1e5ed}, {0x1e5f0, 0x1e5f0},
    {0x2b739, 0x2b739}, {0x2ebf0, 0x2ee5d}, {0x31350, 0x323af},
};
static const struct range new_numbers[] = {
    {0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9}, {0x11f50, 0x11f59},
    {0x16130, 0x16139}, {0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9}, {0x1d2c0, 0x1d2d3},
    {0x1e4f0, 0x1e4f9}, {0x1e5f1, 0x1e5fa},
};
// Word characters of Unicode 15 to 16 that are no letters: marks and digits.
static const struct range new_word_chars[] = {
    {0x897, 0x897},     {0xcf3, 0xcf3},     {0xece, 0xece},     {0x10d40, 0x10d49},
    {0x10d69, 0x10d6d}, {0x10efc, 0x10eff}, {0x11241, 0x11241}, {0x113b8, 0x113c0},
    {0x113c2, 0x113c2}, {0x113c5, 0x113c5}, {0x113c7, 0x113ca}, {0x113cc, 0x113d0},
    {0x113d2, 0x113d2}, {0x113e1, 0x113e2}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9},
    {0x11f00, 0x11f01}, {0x11f03, 0x11f03}, {0x11f34, 0x11f3a}, {0x11f3e, 0x11f42},
    {0x11f50, 0x11f5a}, {0x13440, 0x13440}, {0x13447, 0x13455}, {0x1611e, 0x16139},
    {0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9}, {0x1e08f, 0x1e08f}, {0x1e4ec, 0x1e4f9},
    {0x1e5ee, 0x1e5ef}, {0x1e5f1, 0x1e5fa}};
// Numbers of Unicode 17, which the Digits stage (Rust's is_numeric) knows and Oniguruma does not.
static const struct range newer_numbers[] = {{0x11de0, 0x11de9}, {0x16ff4, 0x16ff6}};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

bool tok__is_space(uint32_t cp) {
    for (size_t i = 0; i < COUNT(white_space); i++)
        if (cp >= white_space[i].first && cp <= white_space[i].last)
            return true;
    return false;
}

static void put_ranges(struct buf *out, const struct range *r, size_t n) {
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "\\x{%x}-\\x{%x}", r[i].first, r[i].last);
}

static void put_set(struct buf *out, char name) { // the inside of a class
    if (name == 's') {
        put_ranges(out, white_space, COUNT(white_space));
    } else if (name == 'L') {
        buf_puts(out, "\\p{L}");
        put_ranges(out, new_letters, COUNT(new_letters));
    } else {
        buf_puts(out, "\\p{N}");
        put_ranges(out, new_numbers, COUNT(new_numbers));
    }
}

struct translator {
    const char *p;
    size_t n, at;
    struct buf out;
    struct err_info *info;
};

static enum err refuse(const struct translator *x, const char *what) {
    return err_set(x->info, ERR_UNSUPPORTED, NULL,
                   "%s at byte %zu of the split pattern is not supported", what, x->at);
}

static bool looking_at(const struct translator *x, const char *s) {
    size_t n = strlen(s);
    return n <= x->n - x->at && memcmp(x->p + x->at, s, n) == 0;
}

static bool is_punctuation(char c) {
    return c > 0x20 && c < 0x7f && !strchr("0123456789", c) &&
           !((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'));
}

// Reads an escape at x->at. *set is the set's name ('s', 'L', 'N'), upper half `*negated`, or 0
// where the escape is one character, which then goes to the output as it is.
static enum err read_escape(struct translator *x, char *set, bool *negated) {
    static const struct {
        const char *text;
        char set;
        bool negated;
    } sets[] = {{"\\s", 's', false},    {"\\S", 's', true},    {"\\p{L}", 'L', false},
                {"\\p{N}", 'N', false}, {"\\P{L}", 'L', true}, {"\\P{N}", 'N', true}};
    for (size_t i = 0; i < COUNT(sets); i++) {
        if (looking_at(x, sets[i].text)) {
            *set = sets[i].set;
            *negated = sets[i].negated;
            x->at += strlen(sets[i].text);
            return ERR_OK;
        }
    }
    char c = x->n - x->at > 1 ? x->p[x->at + 1] : '\0';
    if (c == '\0' || (!strchr("rntfv", c) && !is_punctuation(c)))
        return refuse(x, "the escape");
    *set = 0;
    if (c == 'v')
        buf_puts(&x->out, "\\x0b"); // \v is a set in PCRE2
    else
        buf_append(&x->out, x->p + x->at, 2);
    x->at += 2;
    return ERR_OK;
}

static enum err translate_class(struct translator *x) {
    buf_putc(&x->out, '[');
    x->at++;
    if (looking_at(x, "^")) {
        buf_putc(&x->out, '^');
        x->at++;
    }
    if (looking_at(x, "]"))
        return refuse(x, "an empty class");
    bool range_open = false; // the text before is "a-"
    for (;;) {
        if (x->at >= x->n)
            return refuse(x, "a class without its end");
        if (looking_at(x, "[") || looking_at(x, "&&"))
            return refuse(x, "a class inside a class");
        char c = x->p[x->at];
        if (c == ']')
            break;
        if (c != '\\') {
            buf_putc(&x->out, c);
            x->at++;
            range_open = c == '-';
            continue;
        }
        char set = 0;
        bool negated = false;
        enum err e = read_escape(x, &set, &negated);
        if (e != ERR_OK)
            return e;
        if (negated)
            return refuse(x, "a negated set before this place inside a class,");
        if (set) {
            if (range_open || (looking_at(x, "-") && !looking_at(x, "-]")))
                return refuse(x, "a range from or to a set");
            put_set(&x->out, set);
        }
        range_open = false;
    }
    buf_putc(&x->out, ']');
    x->at++;
    return ERR_OK;
}

// {n}, {n,} or {n,m}; the other forms mean different things in the two syntaxes.
static enum err translate_count(struct translator *x) {
    size_t from = x->at++, digits = 0;
    while (x->at < x->n && x->p[x->at] >= '0' && x->p[x->at] <= '9') {
        x->at++;
        digits++;
    }
    if (digits == 0)
        return refuse(x, "a '{' that opens no count");
    if (looking_at(x, ","))
        x->at++;
    while (x->at < x->n && x->p[x->at] >= '0' && x->p[x->at] <= '9')
        x->at++;
    if (!looking_at(x, "}"))
        return refuse(x, "a '{' that opens no count");
    x->at++;
    if (looking_at(x, "?") || looking_at(x, "+") || looking_at(x, "*"))
        return refuse(x, "a mark after a count");
    buf_append(&x->out, x->p + from, x->at - from);
    return ERR_OK;
}

static enum err translate_group(struct translator *x) {
    static const char *const openers[] = {"(?:", "(?i:", "(?=", "(?!"};
    for (size_t i = 0; i < COUNT(openers); i++) {
        if (looking_at(x, openers[i])) {
            buf_puts(&x->out, openers[i]);
            x->at += strlen(openers[i]);
            return ERR_OK;
        }
    }
    if (looking_at(x, "(?") || looking_at(x, "(*"))
        return refuse(x, "this kind of group");
    buf_puts(&x->out, "(?:");
    x->at++;
    return ERR_OK;
}

static enum err translate(struct translator *x) {
    while (x->at < x->n) {
        char c = x->p[x->at];
        enum err e = ERR_OK;
        if (c == '\\') {
            char set = 0;
            bool negated = false;
            e = read_escape(x, &set, &negated);
            if (e == ERR_OK && set) {
                buf_puts(&x->out, negated ? "[^" : "[");
                put_set(&x->out, set);
                buf_putc(&x->out, ']');
            }
        } else if (c == '[') {
            e = translate_class(x);
        } else if (c == '(') {
            e = translate_group(x);
        } else if (c == '{') {
            e = translate_count(x);
        } else if (c == '.' || c == '^' || c == '$' || c == '\0') {
            e = refuse(x, "the character");
        } else {
            buf_putc(&x->out, c);
            x->at++;
        }
        if (e != ERR_OK)
            return e;
    }
    return buf_err(&x->out);
}

static void *pcre2_alloc(size_t n, void *unused) {
    (void)unused;
    return mem_alloc(n);
}

static void pcre2_release(void *p, void *unused) {
    (void)unused;
    mem_free(p);
}

pcre2_general_context *tok__pcre2_memory(void) {
    return pcre2_general_context_create(pcre2_alloc, pcre2_release, NULL);
}

static enum err compile(const char *pattern, size_t len, pcre2_code **out, struct err_info *info) {
    enum err e = ERR_NOMEM;
    int code = PCRE2_ERROR_NOMEMORY;
    PCRE2_SIZE at = 0;
    *out = NULL;
    pcre2_general_context *memory = tok__pcre2_memory();
    pcre2_compile_context *ctx = memory ? pcre2_compile_context_create(memory) : NULL;
    if (ctx) {
        *out = pcre2_compile((PCRE2_SPTR)pattern, len,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &at, ctx);
        e = *out ? ERR_OK : code == PCRE2_ERROR_NOMEMORY ? ERR_NOMEM : ERR_FORMAT;
        // PCRE2_ERROR_NOMEMORY is -48; its own compile-time code for the same is 121.
        if (!*out && code == 121)
            e = ERR_NOMEM;
    }
    if (e == ERR_FORMAT) {
        PCRE2_UCHAR text[128] = "";
        pcre2_get_error_message(code, text, sizeof(text));
        err_set(info, e, NULL, "the split pattern does not compile: %s", (const char *)text);
    } else if (e == ERR_NOMEM) {
        err_set(info, e, NULL, "out of memory for the split pattern");
    }
    pcre2_compile_context_free(ctx);
    pcre2_general_context_free(memory);
    return e;
}

enum err tok__pattern_compile(const char *pattern, size_t len, pcre2_code **out,
                              struct err_info *info) {
    *out = NULL;
    if (len == 0 || len > TOK__MAX_PATTERN)
        return err_set(info, ERR_LIMIT, NULL, "a split pattern has 1 to %d bytes, not %zu",
                       (int)TOK__MAX_PATTERN, len);
    if (!utf8_valid(pattern, len))
        return err_set(info, ERR_FORMAT, NULL, "the split pattern is not UTF-8");
    struct translator x = {.p = pattern, .n = len, .info = info};
    buf_init(&x.out, (size_t)1 << 20);
    enum err e = translate(&x);
    if (e == ERR_OK)
        e = compile(x.out.data, x.out.len, out, info);
    else if (e == ERR_NOMEM || e == ERR_LIMIT)
        err_set(info, e, NULL, "the split pattern: %s", err_text(e));
    buf_fini(&x.out);
    return e;
}

pcre2_code *tok__word_char_compile(void) {
    pcre2_code *code = NULL;
    struct buf pattern;
    buf_init(&pattern, 4096);
    buf_puts(&pattern, "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}");
    put_ranges(&pattern, new_letters, COUNT(new_letters));
    put_ranges(&pattern, new_word_chars, COUNT(new_word_chars));
    buf_putc(&pattern, ']');
    if (buf_err(&pattern) == ERR_OK)
        (void)compile(pattern.data, pattern.len, &code, NULL);
    buf_fini(&pattern);
    return code;
}

// Takes the code over. `pattern` is what the file says, for the digest.
static enum err push_stage(struct tokenizer *t, pcre2_code *code, const char *pattern, size_t len,
                           struct err_info *info) {
    struct tok__stage *s = &t->stages[t->n_stages];
    if (sha256(pattern, len, s->pattern)) {
        pcre2_code_free(code);
        return err_set(info, ERR_NOMEM, NULL, "out of memory for the split pattern");
    }
    // Without JIT (not built in, or no executable memory) the interpreter gives the same splits.
    bool jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
    s->code = code;
    s->jit = jit;
    t->n_stages++;
    return ERR_OK;
}

static enum err check_stages(const struct tokenizer *t, struct err_info *info) {
    if (t->n_stages < TOK__MAX_STAGES)
        return ERR_OK;
    return err_set(info, ERR_LIMIT, NULL, "more than %d split stages", (int)TOK__MAX_STAGES);
}

enum err tok__add_stage(struct tokenizer *t, const char *pattern, size_t len,
                        struct err_info *info) {
    pcre2_code *code;
    enum err e = check_stages(t, info);
    if (e == ERR_OK)
        e = tok__pattern_compile(pattern, len, &code, info);
    return e == ERR_OK ? push_stage(t, code, pattern, len, info) : e;
}

enum err tok__add_digits_stage(struct tokenizer *t, bool individual, struct err_info *info) {
    pcre2_code *code;
    struct buf pattern;
    buf_init(&pattern, 4096);
    buf_putc(&pattern, '[');
    put_set(&pattern, 'N');
    put_ranges(&pattern, newer_numbers, COUNT(newer_numbers));
    buf_puts(&pattern, individual ? "]" : "]+");
    enum err e = check_stages(t, info);
    if (e == ERR_OK && buf_err(&pattern) != ERR_OK)
        e = err_set(info, buf_err(&pattern), NULL, "out of memory for the split pattern");
    if (e == ERR_OK)
        e = compile(pattern.data, pattern.len, &code, info);
    buf_fini(&pattern);
    const char *name = individual ? "a digit" : "digits";
    return e == ERR_OK ? push_stage(t, code, name, strlen(name), info) : e;
}
