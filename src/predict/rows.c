/* Which row of the token tables an id has; a stranger's is that of the known id whose embedding is nearest. */
#include "predict/predictor.h"

#include "base/error.h"
#include "kernels/matmul.h"
#include "kernels/pack.h"

#include <math.h>
#include <stdlib.h>

static int32_t known_row(const cot_predictor *p, int32_t id)
{
    int64_t low = 0, high = p->n_tokens;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (p->token_ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < p->n_tokens && p->token_ids[low] == id ? (int32_t)low : -1;
}

void cot_predict_rows(int32_t *rows, const cot_predictor *p, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        rows[i] = ids[i] < 0 ? -1 : ids[i] < p->n_ids ? p->id_row[ids[i]] : known_row(p, ids[i]);
}

/* A row of length 1; false, and zeros, where that cannot be (an embedding of zeros, or one that is not finite). */
static bool normalise(float *out, const float *row, int64_t width)
{
    double squares = 0;
    for (int64_t i = 0; i < width; i++) squares += (double)row[i] * row[i];
    const double factor = squares > 0 && isfinite(squares) ? 1 / sqrt(squares) : 0;
    for (int64_t i = 0; i < width; i++) out[i] = factor > 0 ? (float)(row[i] * factor) : 0;
    return factor > 0;
}

/* Cosines come by matrix products: BLOCK strangers with all known ids at a time. */
enum { BLOCK = 64 };

typedef struct cosines {
    float *strangers, *packed, *product; // [BLOCK][H], [N][H] packed, [BLOCK][N]
    bool *known;                         // [N] whose embedding has a direction
} cosines;

static bool cosines_open(cosines *c, const cot_predict_embedding *embedding, const cot_predictor *p)
{
    const int64_t H = embedding->width, N = p->n_tokens;
    c->strangers = calloc((size_t)(BLOCK * H), sizeof(float));
    c->packed = aligned_alloc(64, (size_t)cot_packed_bytes(COT_FORMAT_FP32, H, N));
    c->product = calloc((size_t)(BLOCK * N), sizeof(float));
    c->known = calloc((size_t)N, sizeof *c->known);
    if (!c->strangers || !c->packed || !c->product || !c->known) return false;
    for (int64_t r = 0; r < N; r++) {
        const int32_t id = p->token_ids[r];
        c->known[r] = id < embedding->n_ids && normalise(c->strangers, embedding->row + id * H, H);
        cot_pack_columns(c->packed, COT_FORMAT_FP32, H, N, r, 1, c->strangers, COT_F32, H);
    }
    return true;
}

/* Rows of `n` <= BLOCK strangers. */
static void nearest(int32_t *id_row, const int32_t *ids, int64_t n, const cosines *c, const cot_training *t)
{
    const cot_predict_embedding *embedding = t->options->embedding;
    const int64_t H = embedding->width, N = t->predictor->n_tokens;
    bool fine[BLOCK];
    for (int64_t i = 0; i < n; i++) fine[i] = normalise(c->strangers + i * H, embedding->row + ids[i] * H, H);
    const cot_gemm gemm = {.type = COT_F32,
                           .m = n,
                           .n = N,
                           .k = H,
                           .a = c->strangers,
                           .a_stride = H,
                           .b = c->packed,
                           .b_panel_bytes = cot_panel_bytes(COT_FORMAT_FP32, H),
                           .c = c->product,
                           .c_stride = N};
    cot_matmul(t->predictor->kernels, t->pool, &gemm, 1);
    for (int64_t i = 0; i < n; i++) {
        const float *cosine = c->product + i * N;
        int64_t best = -1;
        for (int64_t r = 0; r < N && fine[i]; r++)
            if (c->known[r] && (best < 0 || cosine[r] > cosine[best])) best = r;
        id_row[ids[i]] = (int32_t)best;
    }
}

cot_status cot_train_neighbours(cot_training *t, cot_error *error)
{
    cot_predictor *p = t->predictor;
    const cot_predict_embedding *embedding = t->options->embedding;
    const int64_t V = embedding->n_ids;
    int32_t *id_row = cot_predictor_alloc(p, V, sizeof *id_row), ids[BLOCK];
    cosines c = {0};
    const bool fine = id_row && cosines_open(&c, embedding, p);
    for (int64_t id = 0, n = 0; id < V && fine; id++) {
        id_row[id] = known_row(p, (int32_t)id);
        if (id_row[id] < 0) ids[n++] = (int32_t)id;
        if (n == BLOCK || (n && id == V - 1)) {
            nearest(id_row, ids, n, &c, t);
            n = 0;
        }
    }
    free(c.strangers);
    free(c.packed);
    free(c.product);
    free(c.known);
    p->id_row = id_row;
    p->n_ids = V;
    return fine ? COT_OK
                : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the neighbours of %lld token ids",
                           (long long)V);
}
