// SPDX-License-Identifier: Apache-2.0
#include "serving/batch_build.h"
#include "base/mem.h"
#include <assert.h>
#include <string.h>

enum err eng__batch_init(struct eng__batch *b, const struct mdl_forward_limits *l) {
    *b = (struct eng__batch){.limits = *l};
    size_t tokens = (size_t)l->max_tokens, seqs = (size_t)l->max_seqs, want = (size_t)l->max_want;
    size_t table;
    if (!mem_mul(seqs, (size_t)l->max_blocks, &table))
        return ERR_NOMEM;
    b->ids = mem_calloc(tokens, sizeof *b->ids);
    b->pos = mem_calloc(tokens, sizeof *b->pos);
    b->seq_start = mem_calloc(seqs + 1, sizeof *b->seq_start);
    b->kv_len = mem_calloc(seqs, sizeof *b->kv_len);
    b->table = mem_calloc(table, sizeof *b->table);
    b->slot = mem_calloc(seqs, sizeof *b->slot);
    b->want = mem_calloc(want, sizeof *b->want);
    b->rows = mem_calloc(want, sizeof *b->rows);
    b->entries = mem_calloc(seqs, sizeof *b->entries);
    b->copies = mem_calloc(seqs, sizeof *b->copies);
    return b->ids && b->pos && b->seq_start && b->kv_len && b->table && b->slot && b->want &&
                   b->rows && b->entries && b->copies
               ? ERR_OK
               : ERR_NOMEM;
}

void eng__batch_fini(struct eng__batch *b) {
    mem_free(b->ids);
    mem_free(b->pos);
    mem_free(b->seq_start);
    mem_free(b->kv_len);
    mem_free(b->table);
    mem_free(b->slot);
    mem_free(b->want);
    mem_free(b->rows);
    mem_free(b->entries);
    mem_free(b->copies);
    *b = (struct eng__batch){0};
}

void eng__batch_clear(struct eng__batch *b) {
    for (int32_t i = 0; i < b->b.n_seqs; i++)
        b->entries[i].seq->in_batch = false;
    b->b = (struct mdl_batch){0};
    b->n_copies = b->n_prefill = 0;
    b->shape = (struct eng__shape){0};
}

int32_t eng__batch_rows_left(const struct eng__batch *b) {
    return b->limits.max_want - b->b.n_want;
}

// Rows that the next token of a sequence's prompt makes, at index i.
static int32_t rows_at(const struct eng__seq *s, int32_t i) {
    int32_t rows = eng__req_scores(s->req, i + 1);
    if (!s->req->goal && i == s->n_tokens - 1)
        rows += s->req->forked ? 1 : s->req->r.n;
    return rows;
}

int32_t eng__batch_rows(const struct eng__seq *s, int32_t n) {
    int32_t rows = 0;
    for (int32_t i = 0; i < n; i++)
        rows += rows_at(s, s->kv.n_tokens + i);
    return rows;
}

int32_t eng__batch_fit(const struct eng__seq *s, int32_t n, int32_t rows) {
    for (int32_t i = 0; i < n; i++) {
        rows -= rows_at(s, s->kv.n_tokens + i);
        if (rows < 0)
            return i;
    }
    return n;
}

static struct mdl_want *want_row(struct eng__batch *b, struct eng__seq *s, int32_t choice,
                                 int32_t position) {
    assert(b->b.n_want < b->limits.max_want);
    int32_t i = b->b.n_want++;
    b->rows[i] = (struct eng__row){.seq = s, .choice = choice, .position = position};
    b->want[i] = (struct mdl_want){.row = b->b.n_tokens};
    return &b->want[i];
}

static void want_score(struct eng__batch *b, struct eng__seq *s, int32_t position) {
    const struct eng_request *r = &s->req->r;
    want_row(b, s, -1, position)->params = (struct kn_sample_row){
        .top_p = 1,
        .repetition = 1,
        .target = s->tokens[position],
        .n_logprobs = r->n_prompt_logprobs > 0 ? r->n_prompt_logprobs : 0,
    };
}

static void want_token(struct eng__batch *b, struct eng__seq *s, int32_t choice) {
    const struct eng__req *q = s->req;
    const struct eng_sampling *p = &q->r.sampling;
    struct mdl_want *w = want_row(b, s, choice, 0);
    w->params = (struct kn_sample_row){
        .seed = p->seed,
        .choice = (uint32_t)choice,
        .position = (uint32_t)s->n_tokens,
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .presence = p->presence,
        .frequency = p->frequency,
        .repetition = p->repetition,
        .target = -1,
        .n_logprobs = p->n_logprobs,
        // The bans of min_tokens stand behind the client's biases.
        .n_bias = s->n_generated < q->r.min_tokens ? q->n_bias_all : p->n_bias,
        .n_counts = s->counts.n,
    };
    w->bias = p->bias;
    w->counts = s->counts.list;
    w->mask = q->r.token_mask;
}

static void add_token(struct eng__batch *b, struct eng__seq *s, int32_t id) {
    const struct eng__req *q = s->req;
    int32_t i = s->kv.n_tokens + b->b.n_tokens - b->seq_start[b->b.n_seqs];
    b->ids[b->b.n_tokens] = id;
    b->pos[b->b.n_tokens] = i;
    if (eng__req_scores(q, i + 1))
        want_score(b, s, i + 1);
    if (!q->goal && i == s->n_tokens - 1) {
        if (q->forked)
            want_token(b, s, s->choice);
        for (int32_t c = 0; !q->forked && c < q->r.n; c++)
            want_token(b, s, c);
    }
    b->b.n_tokens++;
}

void eng__batch_add(struct eng__batch *b, struct eng__seq *s, int32_t n, uint64_t forward) {
    int32_t at = b->b.n_seqs;
    assert(at < b->limits.max_seqs && b->b.n_tokens + n <= b->limits.max_tokens);
    b->entries[at] = (struct eng__entry){.seq = s, .n = n};
    b->seq_start[at] = b->b.n_tokens;
    int32_t first = s->kv.n_tokens;
    b->kv_len[at] = first + n;
    b->slot[at] = s->req->r.adapter_slot;
    if (s->kv.n_blocks > b->b.max_blocks)
        b->b.max_blocks = s->kv.n_blocks;
    bool decode = s->state == ENG__DECODE;
    // The token that the last forward chose for this sequence is still on the device.
    bool on_device = decode && forward && s->out_forward == forward;
    for (int32_t i = 0; i < n; i++)
        add_token(b, s, on_device ? ~s->out_row : s->tokens[first + i]);
    int64_t reads = (int64_t)n * first + (int64_t)n * (n + 1) / 2;
    *(decode ? &b->shape.decode_reads : &b->shape.prefill_reads) += reads;
    b->shape.rows += n;
    b->n_prefill += !decode;
    s->in_batch = true;
    b->b.n_seqs++;
}

const struct mdl_batch *eng__batch_finish(struct eng__batch *b) {
    int32_t width = b->b.max_blocks;
    b->seq_start[b->b.n_seqs] = b->b.n_tokens;
    for (int32_t i = 0; i < b->b.n_seqs; i++) {
        const struct kv_seq *kv = &b->entries[i].seq->kv;
        int32_t *row = b->table + (size_t)i * (size_t)width;
        memcpy(row, kv->table, (size_t)kv->n_blocks * sizeof *row);
        memset(row + kv->n_blocks, 0, (size_t)(width - kv->n_blocks) * sizeof *row);
    }
    b->b.ids = b->ids;
    b->b.pos = b->pos;
    b->b.seq_start = b->seq_start;
    b->b.kv_len = b->kv_len;
    b->b.block_table = b->table;
    b->b.slot = b->slot;
    b->b.want = b->want;
    return &b->b;
}
