/* The parts of a decoding step between its matrix products, for a few rows on a CPU: one call does what takes PyTorch a
 * dozen, each of which costs more than its arithmetic.
 *
 * `keep` stores new keys and values of a target, `look_up` sums the weighted values of a sequence, `sum_values` those
 * of an FFN, and `best_tokens` finds the likeliest next tokens. ReLU leaves most weights at zero, and a value whose
 * weight is zero is never read. attention.py, layers.py and search.py do the same in PyTorch; native.py calls all this.
 *
 * This is plain C that compilers vectorise: a copy of each loop for AVX-512, one for AVX2 and one for any CPU, chosen
 * when the library is loaded. Threads are PyTorch's own: OpenMP is not linked, but found where PyTorch has loaded it.
 * Tensors are contiguous, with S sources of `beam` rows each; only the rows of queries have a stride.
 */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__gnu_linux__) && (defined(__clang__) || __GNUC__ >= 12)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && defined(__gnu_linux__) /* older compilers do not know the levels */
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

const int step_version = 1; /* increase with any change of arguments below, together with VERSION in native.py */

enum { FLOAT, BFLOAT, BYTE }; /* types of stored keys and values: float32, bfloat16, int8 */
enum { BLOCK = 64 };          /* channels that are summed in registers */

INLINE float element(const void *x, int64_t i, int kind) {
    if (kind == BYTE) return ((const int8_t *)x)[i];
    if (kind == FLOAT) return ((const float *)x)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)x)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE void put(void *x, int64_t i, float value, int kind) {
    if (kind == FLOAT) {
        ((float *)x)[i] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16; /* ties to even */
    ((uint16_t *)x)[i] = value == value ? nearest : 0x7fc0;
}

INLINE float dot(const float *x, const void *y, int64_t at, int n, int kind) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * element(y, at + i, kind);
    return sum;
}

INLINE float largest_of(const float *x, int n) {
    float largest = -INFINITY;
    for (int i = 0; i < n; i++) largest = x[i] > largest ? x[i] : largest;
    return largest;
}

INLINE float exponential(float x) { /* for x <= 0: 2^whole by its bits, 2^rest by a polynomial */
    x = (x < -87 ? -87 : x) * 1.44269504f;
    float whole = floorf(x + 0.5f), rest = x - whole, value = 1.535336188e-4f;
    value = value * rest + 1.339887440e-3f;
    value = value * rest + 9.618437357e-3f;
    value = value * rest + 5.550332548e-2f;
    value = value * rest + 2.402264791e-1f;
    value = value * rest + 6.931472028e-1f;
    value = value * rest + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return value * power;
}

/* The RMS norm of one head; y may be x. */
INLINE void norm_head(const float *x, const float *gain, float eps, int n, float *y) {
    float factor = 1 / sqrtf(dot(x, x, 0, n, FLOAT) / n + eps);
    for (int i = 0; i < n; i++) y[i] = x[i] * factor * gain[i];
}

/* Write the places of weights that are not zero, and return how many there are. */
INLINE int active_of(const float *weights, int n, int *places) {
    int count = 0;
    for (int i = 0; i < n; i++) {
        places[count] = i;
        count += weights[i] != 0;
    }
    return count;
}

/* `n` channels from `first` on, at most BLOCK, of a weighted sum of rows of values. */
INLINE void sum_block(
    const float *weights, const int *places, int count, const void *values, int64_t width, int first, int n, int kind,
    float *sums
) {
    float sum[BLOCK] = {0};
    for (int i = 0; i < count; i++) {
        float weight = weights[places[i]];
        int64_t at = places[i] * width + first;
        for (int c = 0; c < n; c++) sum[c] += weight * element(values, at + c, kind);
    }
    memcpy(sums, sum, n * sizeof *sums);
}

/* Channels from `begin` to `end` of a weighted sum, written to the same channels of `sums`. */
INLINE void sum_active(
    const float *weights, int slots, int *places, const void *values, int64_t width, int begin, int end, int kind,
    float *sums
) {
    int count = active_of(weights, slots, places);
    for (; begin + BLOCK <= end; begin += BLOCK)
        sum_block(weights, places, count, values, width, begin, BLOCK, kind, sums + begin);
    if (begin < end) sum_block(weights, places, count, values, width, begin, end - begin, kind, sums + begin);
}

/* ---- An FFN's values --------------------------------------------------------------------------------------------- */

struct values {
    int rows, slots, width;
    const float *weights; /* (rows, slots) */
    const int8_t *values; /* (slots, width), in units of the column's scale */
    const float *scale, *bias, *stream; /* (width), (width), (rows, width) */
    float *out;
};

CLONES static void sum_part(const struct values *p, int first_row, int rows, int begin, int end) {
    int places[p->slots];
    for (int64_t row = first_row; row < rows; row++) {
        const float *stream = p->stream + row * p->width;
        float *out = p->out + row * p->width;
        sum_active(p->weights + row * p->slots, p->slots, places, p->values, p->width, begin, end, BYTE, out);
        for (int c = begin; c < end; c++) out[c] = stream[c] + (out[c] * p->scale[c] + p->bias[c]);
    }
}

/* out (rows, width) = stream + weights (scale * values) + bias. */
void sum_values(
    int threads, int rows, int slots, int width, const float *weights, const int8_t *values, const float *scale,
    const float *bias, const float *stream, float *out
) {
    struct values p = {rows, slots, width, weights, values, scale, bias, stream, out};
    int blocks = (width + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++) {
        if (rows >= threads) { /* threads divide the rows, or else the channels */
            sum_part(&p, rows * part / threads, rows * (part + 1) / threads, 0, width);
            continue;
        }
        int end = blocks * (part + 1) / threads * BLOCK;
        sum_part(&p, 0, rows, blocks * part / threads * BLOCK, end < width ? end : width);
    }
}

/* ---- Keys and values of a sequence ------------------------------------------------------------------------------- */

struct lookup {
    int beam, heads, keys, room, dim, power, counted, masks;
    float scale, factor, eps, least;
    int64_t q_stride;
    const float *q, *gain, *bias; /* (S * beam, heads, dim), (dim) of a norm, (heads); the last two may be NULL */
    const void *k, *v, *mask;     /* (S, heads, room, dim), likewise, (S, masks, room), 0 for hidden keys */
    float *scratch, *out; /* (S * heads, beam + 1, keys) for weights and places, (S * beam, heads, dim) */
};

INLINE void softmax(float *x, int n) {
    float top = largest_of(x, n), sum = 0;
    for (int i = 0; i < n; i++) {
        x[i] = x[i] == -INFINITY ? 0 : exponential(x[i] - top);
        sum += x[i];
    }
    for (int i = 0; i < n; i++) x[i] /= sum;
}

INLINE void rectify(float *x, int power, int n) {
    for (int i = 0; i < n; i++) x[i] = x[i] < 0 ? 0 : x[i]; /* NaN stays NaN */
    for (; power > 1; power /= 2)
        for (int i = 0; i < n; i++) x[i] *= x[i];
}

/* One head of one source: all rows of its beam look at a key while it is in cache. */
INLINE void look(const struct lookup *p, int64_t task, int kind) {
    int64_t head = task % p->heads, first = task / p->heads * p->beam, all = task * p->room * p->dim;
    float q[p->beam][p->dim], *weights = p->scratch + task * (p->beam + 1) * p->keys;
    int *places = (int *)(weights + (int64_t)p->beam * p->keys);
    for (int row = 0; row < p->beam; row++) {
        const float *query = p->q + (first + row) * p->q_stride + head * p->dim;
        if (p->gain)
            norm_head(query, p->gain, p->eps, p->dim, q[row]);
        else
            memcpy(q[row], query, p->dim * sizeof *query);
    }
    float bias = p->bias ? p->bias[head] : 0;
    for (int64_t j = 0; j < p->keys; j++)
        for (int row = 0; row < p->beam; row++) {
            int64_t seen = (task / p->heads * p->masks + (p->masks > 1 ? row : 0)) * p->room + j;
            int hidden = p->mask && element(p->mask, seen, kind) == 0;
            float score = hidden ? 0 : dot(q[row], p->k, all + j * p->dim, p->dim, kind) * p->scale + bias;
            weights[(int64_t)row * p->keys + j] = hidden ? -INFINITY : score * p->factor;
        }
    const char *values = (const char *)p->v + all * (kind == FLOAT ? 4 : 2);
    for (int row = 0; row < p->beam; row++, weights += p->keys) {
        float *out = p->out + ((first + row) * p->heads + head) * p->dim;
        if (p->power)
            rectify(weights, p->power, p->keys);
        else
            softmax(weights, p->keys);
        sum_active(weights, p->keys, places, values, p->dim, 0, p->dim, kind, out);
        if (p->counted) { /* the first channel of every value is 1, so that of a sum is the mass */
            float mass = out[0] > p->least ? out[0] : p->least;
            for (int c = 0; c < p->dim; c++) out[c] /= mass;
        }
    }
}

CLONES static void look_at_floats(const struct lookup *p, int64_t task) { look(p, task, FLOAT); }
CLONES static void look_at_bfloats(const struct lookup *p, int64_t task) { look(p, task, BFLOAT); }

/* Sums of values weighted by relu(factor * (scale * q.k + bias)) ** power, or by softmax where power is 0; divided by
 * their mass if they are counted. */
void look_up(
    int threads, int sources, int beam, int heads, int keys, int room, int dim, int kind, int power, int counted,
    int masks, float scale, float factor, float eps, float least, int64_t q_stride, const float *q, const float *gain,
    const float *bias, const void *k, const void *v, const void *mask, float *scratch, float *out
) {
    struct lookup p = {beam, heads, keys, room, dim, power, counted, masks, scale, factor, eps, least,
                       q_stride, q, gain, bias, k, v, mask, scratch, out};
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t task = 0; task < (int64_t)sources * heads; task++)
        if (kind == FLOAT)
            look_at_floats(&p, task);
        else
            look_at_bfloats(&p, task);
}

/* ---- New keys and values ----------------------------------------------------------------------------------------- */

/* Multiply pairs of adjacent channels, as complex numbers, by those of `turn`. */
INLINE void turn_head(float *x, const float *turn, int n) {
    for (int i = 0; i < n; i += 2) {
        float real = x[i], imaginary = x[i + 1];
        x[i] = real * turn[i] - imaginary * turn[i + 1];
        x[i + 1] = real * turn[i + 1] + imaginary * turn[i];
    }
}

struct entry {
    int beam, heads, room, dim, place, constant, folded, count;
    float eps;
    float *made;                      /* (S * beam, 3, heads, dim) */
    const float *gains, *turn, *first; /* (2, dim) of norms, (dim), (heads); any may be NULL, the last if !constant */
    float *sums;                      /* (S * beam, heads, dim) of a beam's keys, where scores are centred */
    void *k, *v;                      /* (S, heads, room, dim) */
};

INLINE void enter(const struct entry *p, int rows, int kind) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < p->heads; head++) {
            int64_t apart = (int64_t)p->heads * p->dim;
            float *q = p->made + row * 3 * apart + head * p->dim, *key = q + apart, *value = key + apart;
            if (p->gains) {
                norm_head(q, p->gains, p->eps, p->dim, q);
                norm_head(key, p->gains + p->dim, p->eps, p->dim, key);
            }
            if (p->turn) {
                turn_head(q, p->turn, p->dim);
                turn_head(key, p->turn, p->dim);
            }
            if (p->constant) {
                if (!p->folded) q[0] = 0, key[0] = 1;
                float mean = 0;
                if (p->sums) {
                    float *sum = p->sums + (row * p->heads + head) * p->dim;
                    for (int c = 0; c < p->dim; c++) sum[c] += key[c];
                    mean = dot(q, sum, 0, p->dim, FLOAT) / p->count;
                }
                q[0] = p->first[head] - mean;
            }
            int64_t at = ((row / p->beam * p->heads + head) * p->room + p->place + row % p->beam) * p->dim;
            for (int c = 0; c < p->dim; c++) put(p->k, at + c, key[c], kind);
            for (int c = 0; c < p->dim; c++) put(p->v, at + c, value[c], kind);
        }
}

CLONES static void enter_floats(const struct entry *p, int rows) { enter(p, rows, FLOAT); }
CLONES static void enter_bfloats(const struct entry *p, int rows) { enter(p, rows, BFLOAT); }

/* Norm and turn new queries and keys, let queries carry bias and mean as OwnAttention.complete does, and store keys and
 * values after those of their source. */
void keep(
    int sources, int beam, int heads, int room, int dim, int kind, int place, int constant, int folded, int count,
    float eps, float *made, const float *gains, const float *turn, const float *first, float *sums, void *k, void *v
) {
    struct entry p = {beam, heads, room, dim, place, constant, folded, count, eps, made, gains, turn, first, sums, k, v};
    if (kind == FLOAT)
        enter_floats(&p, sources * beam);
    else
        enter_bfloats(&p, sources * beam);
}

/* ---- The next token ---------------------------------------------------------------------------------------------- */

CLONES static void best_of_row(const float *logits, int vocabulary, int many, int never, float *best, int64_t *tokens) {
    float top = largest_of(logits, vocabulary), sum = 0;
    for (int i = 0; i < vocabulary; i++) sum += exponential(logits[i] - top);
    for (int i = 0; i < many; i++) best[i] = -INFINITY, tokens[i] = 0;
    for (int first = 0; first < vocabulary; first += BLOCK) { /* few blocks hold one of the best */
        int last = first + BLOCK < vocabulary ? first + BLOCK : vocabulary;
        if (!(largest_of(logits + first, last - first) > best[many - 1])) continue;
        for (int token = first; token < last; token++) {
            if (!(logits[token] > best[many - 1]) || token == never) continue;
            int place = many - 1;
            for (; place > 0 && logits[token] > best[place - 1]; place--)
                best[place] = best[place - 1], tokens[place] = tokens[place - 1];
            best[place] = logits[token], tokens[place] = token;
        }
    }
    for (int i = 0; i < many; i++) best[i] -= top + logf(sum);
}

/* Logarithms of the `many` largest probabilities of each row, best first, and their tokens, `never` excluded. */
void best_tokens(
    int threads, int rows, int vocabulary, int many, int never, const float *logits, float *best, int64_t *tokens
) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        best_of_row(logits + row * vocabulary, vocabulary, many, never, best + row * many, tokens + row * many);
}
