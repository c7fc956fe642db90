// SPDX-License-Identifier: Apache-2.0
// Clients for tests of the engine: a request with storage, what the plain run gives for it, and a
// consumer that compares every event with that.
#pragma once
#include "serving/engine.h"
#include "tests/serving/fake_forward.h"
#include <stdatomic.h>

enum { CLIENT_LEN = 512, CLIENT_CHOICES = 8 };

struct client_choice {
    int32_t tokens[CLIENT_LEN]; // expected
    struct kn_sample_out out[CLIENT_LEN];
    int32_t n;
    enum eng_finish finish;
    int32_t stop_id;
    // received
    int32_t got;
    int ends;
    enum eng_finish got_finish;
    enum err error;
    int64_t first_ns, last_ns; // when tokens were taken, on the test's clock
};

struct client {
    struct eng_request r;
    int32_t prompt[CLIENT_LEN];
    struct kn_token_bias bias[8];
    int32_t stop_ids[4];
    uint8_t score_mask[CLIENT_LEN];
    uint32_t token_mask[(FAKE_VOCAB + 31) / 32];
    struct client_choice choices[CLIENT_CHOICES];
    struct kn_sample_out scores[CLIENT_LEN]; // expected PROMPT events
    int32_t scored;                          // last position received
    struct eng_stream *stream;
    _Atomic int wakes;
    bool cancelled, stopped[CLIENT_CHOICES]; // asked for
    bool may_fail;                           // ERROR ends are expected
    const struct clock *clock;               // for first_ns and last_ns; may be NULL
};

struct client *client_new(void); // zeroed; free with mem_free
// A request with defaults: greedy, one choice, 16 tokens, no log-probabilities.
void client_init(struct client *c, const int32_t *prompt, int32_t n_prompt, int32_t max_tokens);
// A request with a bit of everything.
void client_random(struct client *c, uint64_t *rng);
// A new one whose choice ends by its length only.
struct client *client_of(const int32_t *prompt, int32_t n_prompt, int32_t max_tokens);
// Works out what must come; after the request is complete, before submit.
void client_expect(struct client *c, int32_t max_model_len);
enum err client_submit(struct client *c, struct eng *e, struct err_info *info);
void client_send(struct client *c, struct eng *e); // works out and submits; it must be accepted
struct client *client_ask(struct eng *e, const int32_t *prompt, int32_t n_prompt,
                          int32_t max_tokens); // client_of, sent
// Takes up to `most` events and compares them; the number taken.
int32_t client_take(struct client *c, int32_t most);
bool client_done(const struct client *c); // all ENDs came
void client_release(struct client *c);    // after client_done: everything that must come has come
void client_close(struct client *c);      // releases and frees one that must be done
void client_close_all(struct client *const *clients, int32_t n);
uint32_t client_rnd(uint64_t *rng, uint32_t n);

// An engine over a fake device; the device must outlive it.
struct eng_config client_config(struct kn_device *d);
struct eng *client_engine(const struct eng_config *cfg);
// Over a device that it initialises, with that configuration unchanged.
struct eng *client_engine_over(struct kn_device *d, int32_t blocks);
// Turns until nothing happens any more, consumers taking everything.
void client_run(struct eng *e, struct client *const *clients, int32_t n);
// One request alone, to its end.
void client_run_one(struct eng *e, struct client *c);
// n tokens that repeat nowhere, another row for each salt. Returns n.
int32_t client_prompt(int32_t *p, int32_t n, int32_t salt);
// Every invariant of the pool, with the engine's sequences.
void check_pool(const struct eng *e);
// Nothing of any request is left.
void check_empty(const struct eng *e);
