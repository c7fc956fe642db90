// SPDX-License-Identifier: Apache-2.0
// Evaluation of the tree: expressions, statements, loops and macros.
#pragma once
#include "model/template/ast.h"
#include "model/template/ctx.h"
#include "model/template/str.h"

enum tpl_jump { TPL_GO_ON, TPL_BREAK, TPL_CONTINUE };

enum err tpl_eval(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out);
enum err tpl_eval_args(struct tpl_ctx *c, const struct tpl_actuals *a, struct tpl_args *out);
// Runs statements in the current frame; *jump says whether a break or continue ended them.
enum err tpl_exec(struct tpl_ctx *c, const struct tpl_nodes *body, enum tpl_jump *jump);
// Sets a target in the current frame; sequences are unpacked.
enum err tpl_assign(struct tpl_ctx *c, const struct tpl_node *target, const struct tpl_val *v);

// A frame for a scope; its variables are loaded, parameters are absent.
enum err tpl_frame_new(struct tpl_ctx *c, const struct tpl_scope *scope, struct tpl_frame *outer,
                       struct tpl_frame **out);
enum err tpl_frame_load(struct tpl_ctx *c, const struct tpl_scope *scope, struct tpl_frame *f);

// The state of one running for loop, which is also the value of `loop`.
struct tpl_loop {
    const struct tpl_for *node;
    struct tpl_frame *outer, *test_frame;
    struct tpl_val iterable;
    struct tpl_iter *it;
    bool filtered; // elements have yet to pass the loop's condition
    int64_t index0, depth0;
    int64_t length;                        // -1 until it is asked for
    struct tpl_val current, before, after; // absent: none; after: looked at in advance
    struct tpl_val changed;                // the arguments of the last loop.changed()
};
enum err tpl_exec_for(struct tpl_ctx *c, const struct tpl_node *n, enum tpl_jump *jump);
enum err tpl_loop_attribute(struct tpl_ctx *c, struct tpl_loop *l, const struct tpl_str *name,
                            struct tpl_val *out, bool *found);
enum err tpl_loop_repr(struct tpl_sb *b, struct tpl_loop *l);
// loop(iterable) in a recursive loop: the body's text.
enum err tpl_loop_call(struct tpl_ctx *c, struct tpl_loop *l, const struct tpl_args *args,
                       struct tpl_val *out);

enum err tpl_exec_macro(struct tpl_ctx *c, const struct tpl_node *n);
enum err tpl_exec_call_block(struct tpl_ctx *c, const struct tpl_node *n);
enum err tpl_exec_generation(struct tpl_ctx *c, const struct tpl_node *n);
enum err tpl_call_macro(struct tpl_ctx *c, const struct tpl_macro *m, const struct tpl_args *args,
                        struct tpl_val *out);

// JSON to values, strings borrowed. The special tokens' texts are the operator's, not literal.
enum err tpl_vars_from_json(struct tpl_ctx *c, json_t *vars, struct tpl_dict **out);
