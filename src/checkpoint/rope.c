/* RoPE's inverse frequencies: plain, linear (Chen et al. 2023), YaRN (Peng et al. 2023, arXiv:2309.00071) and
 * llama3's scaling by wavelength. fp32 where the reference implementation computes in fp32, since the angle
 * at position p is wrong by p times the rounding error. */
#include "checkpoint/resolve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct rope {
    const char *type;
    double theta, factor, original; // original: tokens of the context before scaling
    bool original_given;
    double beta_fast, beta_slow;
    bool truncate;
    double attention_factor; // NAN: not given
    double mscale, mscale_all_dim;
    double low_frequency, high_frequency;
    double alpha;                // lifts the base; 0: nothing
    const json_t *short_factors; // longrope's, of each frequency
    double short_mscale;
    double part; // of a head that is rotated; 0: the family rotates whole ones
    bool part_given;
};

/* The object that describes the scaling: rope_scaling as on the hub, unless it is empty, else rope_parameters
 * as transformers 5 writes it, else NULL. */
static const json_t *scaling_object(cot_fields *fields)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    for (int k = 0; k < 2; k++) {
        const json_t *object = cot_fields_get(fields, keys[k]);
        if (!object || json_is_null(object)) continue;
        if (!json_is_object(object))
            cot_fields_mistyped(fields, keys[k], object, "an object or null");
        else if (k == 1 || json_object_size(object))
            return object;
    }
    return NULL;
}

/* A number that may be absent, null or zero, all of which mean `standard`. */
static double number_or(cot_fields *fields, const char *key, double standard)
{
    double value = cot_fields_has(fields, key) ? cot_fields_number(fields, key, 0) : 0;
    return value != 0 ? value : standard;
}

static double positive(cot_fields *fields, const char *key, double standard)
{
    double value = cot_fields_number(fields, key, standard);
    if (fields->status == COT_OK && !(value > 0)) {
        if (cot_fields_get(fields, key))
            cot_fields_refuse(fields, COT_MALFORMED, "'%s' of RoPE is %g, expected a number above 0", key,
                              value);
        else
            cot_fields_refuse(fields, COT_MALFORMED, "RoPE scaling lacks '%s'", key);
    }
    return value;
}

/* The part of a head that is rotated, where the family rotates a part. Of MLA it may be told, since it is that of a query. */
static void read_partial(struct rope *rope, const cot_config *config, cot_fields *fields)
{
    const char *key = "partial_rotary_factor";
    if (rope->part != 0 && cot_fields_get(fields, key)) rope->part = 1; // what null means
    if (!cot_fields_has(fields, key)) return;
    rope->part_given = true;
    const double part = cot_fields_number(fields, key, 1);
    const bool own =
        config->attention == COT_ATTENTION_MLA &&
        fabs(part * (double)(config->nope_dim + config->rope_dim) - (double)config->rope_dim) < 1e-6;
    if (own) return;
    if (rope->part == 0 && part != 1)
        cot_fields_refuse(fields, COT_UNSUPPORTED, "'%s' other than 1 is not supported", key);
    else if (!(part > 0) || part > 1)
        cot_fields_refuse(fields, COT_MALFORMED, "'%s' is %g, expected more than 0, and at most 1", key,
                          part);
    if (rope->part != 0) rope->part = part;
}

/* Of a head's numbers the first ones are rotated: so many as a part of them, or rotary_dim itself. */
static void cut_rotation(cot_config *config, cot_fields *fields, const struct rope *rope)
{
    const bool told = config->family->rotary_dim && cot_fields_has(fields, "rotary_dim");
    const char *key = told ? "rotary_dim" : "partial_rotary_factor";
    const int64_t whole = config->head_dim, part = (int64_t)((double)whole * rope->part),
                  width = told ? cot_fields_integer(fields, key, part, 0, INT32_MAX) : part;
    if (told && rope->part_given && width != part)
        cot_fields_refuse(
            fields, COT_MALFORMED,
            "'rotary_dim' is %lld, and 'partial_rotary_factor' rotates %lld of a head's numbers",
            (long long)width, (long long)part);
    if (width < 2 || width % 2 || width > whole)
        cot_fields_refuse(
            fields, COT_MALFORMED,
            "'%s' rotates %lld of a head's %lld numbers, expected an even number of them from 2 on", key,
            (long long)width, (long long)whole);
    config->rope_width = width;
}

static bool known_type(const char *type, const cot_family *family)
{
    return !strcmp(type, "default") || !strcmp(type, "linear") || !strcmp(type, "yarn") ||
           !strcmp(type, "llama3") || (family->longrope && !strcmp(type, "longrope")) ||
           (family->rope_alpha && !strcmp(type, "dynamic"));
}

/* Factors of each frequency, up to the context that the model had before; beyond it there would be others. */
static void read_longrope(struct rope *rope, cot_fields *top, cot_fields *in, double context)
{
    cot_fields *from = cot_fields_has(top, "original_max_position_embeddings") ? top : in;
    rope->original = positive(from, "original_max_position_embeddings", context);
    if (from->status == COT_OK && (rope->original < 1 || rope->original != floor(rope->original)))
        cot_fields_refuse(from, COT_MALFORMED,
                          "'original_max_position_embeddings' is %g, expected a whole number from 1 on",
                          rope->original);
    rope->short_factors = cot_fields_get(in, "short_factor");
    if (!rope->short_factors)
        cot_fields_refuse(in, COT_MALFORMED, "RoPE scaling lacks 'short_factor'");
    else if (!json_is_array(rope->short_factors))
        cot_fields_mistyped(in, "short_factor", rope->short_factors, "a list of numbers");
    const double longer = context / rope->original;
    rope->short_mscale =
        positive(in, "short_mscale", longer > 1 ? sqrt(1 + log(longer) / log(rope->original)) : 1);
}

static void read_scaling(struct rope *rope, const cot_config *config, cot_fields *top, cot_fields *in)
{
    const cot_family *family = config->family;
    const double context = (double)config->max_context;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)in->object, key, value) if (json_is_object(value))
        cot_fields_refuse(in, COT_UNSUPPORTED, "RoPE parameters by layer type ('%.40s') are not supported",
                          key);
    rope->type = cot_fields_text(in, "rope_type", cot_fields_text(in, "type", "default"));
    if (family->rope_alpha && !strcmp(rope->type, "dynamic") && !cot_fields_has(in, "alpha"))
        cot_fields_refuse(in, COT_UNSUPPORTED, "RoPE type 'dynamic' without 'alpha' is not supported");
    else if (!known_type(rope->type, family))
        cot_fields_refuse(in, COT_UNSUPPORTED,
                          "RoPE type '%.40s' is not supported (default, linear, llama3%s%s and yarn are)",
                          rope->type, family->longrope ? ", longrope" : "",
                          family->rope_alpha ? ", dynamic" : "");
    rope->theta = positive(in, "rope_theta", rope->theta);
    read_partial(rope, config, in);
    if (!strcmp(rope->type, "default")) return;
    if (!strcmp(rope->type, "longrope")) {
        read_longrope(rope, top, in, context);
        return;
    }
    if (!strcmp(rope->type, "dynamic")) {
        rope->alpha = positive(in, "alpha", 0);
        return;
    }

    bool yarn = !strcmp(rope->type, "yarn"), llama3 = !strcmp(rope->type, "llama3");
    if (yarn || llama3) { // a key beside the object wins over the one inside
        cot_fields *from = cot_fields_has(top, "original_max_position_embeddings") ? top : in;
        rope->original_given = cot_fields_has(from, "original_max_position_embeddings");
        rope->original =
            rope->original_given ? positive(from, "original_max_position_embeddings", 0) : context;
    }
    if (yarn && cot_fields_get(in, "factor") && !cot_fields_has(in, "factor"))
        rope->factor = context / rope->original;
    else
        rope->factor = positive(in, "factor", 0);
    rope->mscale_all_dim = number_or(in, "mscale_all_dim", 0); // scales MLA's scores whatever the type
    if (yarn) {
        rope->mscale = number_or(in, "mscale", 0);
        rope->beta_fast = number_or(in, "beta_fast", 32);
        rope->beta_slow = number_or(in, "beta_slow", 1);
        rope->truncate = cot_fields_switch(in, "truncate", true);
        if (cot_fields_has(in, "attention_factor"))
            rope->attention_factor = cot_fields_number(in, "attention_factor", 0);
        if (rope->beta_fast < 0 || rope->beta_slow < 0 || rope->theta == 1)
            cot_fields_refuse(in, COT_MALFORMED,
                              "YaRN with beta_fast %g, beta_slow %g, rope_theta %g is not defined",
                              rope->beta_fast, rope->beta_slow, rope->theta);
    }
    if (llama3) {
        rope->low_frequency = positive(in, "low_freq_factor", 0);
        rope->high_frequency = positive(in, "high_freq_factor", 0);
        if (rope->high_frequency <= rope->low_frequency)
            cot_fields_refuse(in, COT_MALFORMED,
                              "'high_freq_factor' is %g, expected more than low_freq_factor, %g",
                              rope->high_frequency, rope->low_frequency);
    }
}

/* 0.1 k ln(s) + 1, the temperature that YaRN recommends for a context s times as long. */
static double mscale(double s, double k)
{
    return s <= 1 ? 1 : 0.1 * k * log(s) + 1;
}

/* The i-th period over 2 pi, theta^(2i / width), as fp32 code computes it. */
static float period(const struct rope *rope, int64_t i, int64_t half)
{
    float exponent = (float)(2 * i) / (float)(2 * half);
    return (float)pow((float)rope->theta, exponent);
}

static void yarn(float *inverse, int64_t half, const struct rope *rope)
{
    double width = (double)(2 * half), spread = 2 * log(rope->theta);
    double low = width * log(rope->original / (rope->beta_fast * 2 * M_PI)) / spread;
    double high = width * log(rope->original / (rope->beta_slow * 2 * M_PI)) / spread;
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, width - 1);
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < half; i++) {
        float extended = 1 / ((float)rope->factor * period(rope, i, half));
        float ramp = ((float)i - (float)low) / (float)(high - low);
        float kept = 1 - fminf(fmaxf(ramp, 0), 1);
        inverse[i] = extended * (1 - kept) + inverse[i] * kept;
    }
}

static void llama3(float *inverse, int64_t half, const struct rope *rope)
{
    float low = (float)rope->low_frequency, high = (float)rope->high_frequency, factor = (float)rope->factor;
    float longest = (float)(rope->original / rope->low_frequency);
    float shortest = (float)(rope->original / rope->high_frequency);
    for (int64_t i = 0; i < half; i++) {
        float wavelength = 1 / inverse[i] * (float)(2 * M_PI);
        if (wavelength > longest) {
            inverse[i] /= factor;
        } else if (wavelength >= shortest) {
            float smooth = (1 / wavelength * (float)rope->original - low) / (high - low);
            inverse[i] = (1 - smooth) * inverse[i] / factor + smooth * inverse[i];
        }
    }
}

static void lengthen(cot_config *config, cot_fields *fields, const struct rope *rope)
{
    double context = floor(rope->original * rope->factor);
    if (!(context <= INT32_MAX))
        cot_fields_refuse(fields, COT_MALFORMED,
                          "RoPE stretches %g tokens by %g, expected a context of at most %d", rope->original,
                          rope->factor, INT32_MAX);
    else if (context > (double)config->max_context)
        config->max_context = (int64_t)context;
}

/* Each frequency by its own factor; the context ends where the factors do. */
static void stretch_each(cot_config *config, cot_fields *fields, const struct rope *rope, int64_t half)
{
    if ((int64_t)json_array_size(rope->short_factors) != half)
        cot_fields_refuse(fields, COT_MALFORMED, "'short_factor' has %zu numbers, expected %lld",
                          json_array_size(rope->short_factors), (long long)half);
    for (int64_t i = 0; i < half && fields->status == COT_OK; i++) {
        const json_t *item = json_array_get(rope->short_factors, (size_t)i);
        const double factor = json_number_value(item);
        if (!json_is_number(item))
            cot_fields_mistyped(fields, "short_factor", item, "numbers alone");
        else if (!(factor > 0))
            cot_fields_refuse(fields, COT_MALFORMED, "'short_factor' has %g, expected numbers above 0",
                              factor);
        config->inverse_frequency[i] = 1 / ((float)factor * period(rope, i, half));
    }
    config->rope_factor = (float)rope->short_mscale;
    if (rope->original >= (double)config->max_context) return;
    config->max_context = (int64_t)rope->original;
    config->context_field = "original_max_position_embeddings";
}

/* Queries grow with their position, from the context on that the model had before. */
static void scale_queries(cot_config *config, cot_fields *fields, const cot_fields *in, double original)
{
    if (!config->family->query_scaled || !cot_fields_has(in, "llama_4_scaling_beta")) return;
    cot_fields inside = *in;
    config->query_beta = cot_fields_number(&inside, "llama_4_scaling_beta", 0);
    config->query_tokens = original;
    if (fields->status == COT_OK) fields->status = inside.status;
    if (!(original >= 1) || !isfinite(config->query_beta))
        cot_fields_refuse(fields, COT_MALFORMED,
                          "'llama_4_scaling_beta' needs original_max_position_embeddings");
}

static void resolve_rope(cot_config *config, cot_fields *fields, const json_t *object)
{
    const cot_family *family = config->family;
    struct rope rope = {.type = "default", .attention_factor = NAN, .part = family->rotary};
    rope.theta = positive(fields, "rope_theta", family->rope_theta);
    read_partial(&rope, config, fields);
    if (object) {
        cot_fields in = {object, fields->name, fields->status, fields->error};
        read_scaling(&rope, config, fields, &in);
        if (fields->status == COT_OK) fields->status = in.status;
        scale_queries(config, fields, &in, rope.original);
    }
    if (rope.part != 0) cut_rotation(config, fields, &rope);
    if (fields->status != COT_OK) return;

    int64_t half = config->rope_width / 2;
    float *inverse = config->inverse_frequency = malloc((size_t)half * sizeof *inverse);
    if (!inverse) {
        cot_fields_refuse(fields, COT_OUT_OF_MEMORY, "out of memory");
        return;
    }
    if (rope.alpha != 0) { // NTK-aware: the longest period is alpha times as long
        const double width = (double)(2 * half);
        rope.theta *= pow(rope.alpha, width / (width - 2));
    }
    for (int64_t i = 0; i < half; i++) inverse[i] = 1 / period(&rope, i, half);
    config->rope_factor = 1;
    if (!strcmp(rope.type, "longrope")) {
        stretch_each(config, fields, &rope, half);
    } else if (!strcmp(rope.type, "linear")) {
        for (int64_t i = 0; i < half; i++) inverse[i] /= (float)rope.factor;
    } else if (!strcmp(rope.type, "llama3")) {
        llama3(inverse, half, &rope);
    } else if (!strcmp(rope.type, "yarn")) {
        yarn(inverse, half, &rope);
        bool both = rope.mscale != 0 && rope.mscale_all_dim != 0;
        config->rope_factor =
            (float)(!isnan(rope.attention_factor) ? rope.attention_factor
                    : both ? mscale(rope.factor, rope.mscale) / mscale(rope.factor, rope.mscale_all_dim)
                           : mscale(rope.factor, 1));
    }
    if (rope.original_given) lengthen(config, fields, &rope);
    if (config->attention == COT_ATTENTION_MLA && rope.mscale_all_dim != 0) {
        double m = mscale(rope.factor, rope.mscale_all_dim);
        config->softmax_scale = (float)(pow((double)(config->nope_dim + config->rope_dim), -0.5) * m * m);
    }
    bool finite =
        isfinite((float)rope.theta) && isfinite(config->rope_factor) && isfinite(config->softmax_scale);
    for (int64_t i = 0; i < half; i++) finite = finite && isfinite(inverse[i]);
    if (!finite)
        cot_fields_refuse(fields, COT_MALFORMED, "its RoPE parameters give numbers that are not finite");
}

void cot_resolve_rope(cot_config *config, cot_fields *fields)
{
    const char *standard = config->family->default_rope;
    const json_t *object = scaling_object(fields);
    json_t *own = standard && !object ? json_loads(standard, 0, NULL) : NULL;
    if (standard && !object && !own) cot_fields_refuse(fields, COT_OUT_OF_MEMORY, "out of memory");
    resolve_rope(config, fields, object ? object : own);
    json_decref(own);
}
