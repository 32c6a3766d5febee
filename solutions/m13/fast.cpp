// paged_forward of m13b_greedy.py as one call: every layer, attention through the block tables, and the argmax.
//
// fast.py builds this file, packs the weights and calls `forward`. A row is a token: prompts and decode steps differ
// only in how many rows share a block table, and a row attends to the positions up to its own, which are all in the
// pool by then. The threads are started once a call and meet at barriers, since a parallel region for each product
// costs more than the small ones take.
//
// Vectors are GCC's own (16 floats, whatever the machine has), so that this builds for any processor; the only
// instruction asked for by name is AVX-512's dot product of bfloat16 pairs, where there is one.

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <omp.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

namespace {

constexpr int PANEL = 32;  // columns of a packed panel of weights: two vectors
constexpr int TILE = 12;   // rows of a tile, at most: 2 x 12 accumulators and two vectors of weights fit 32 registers
constexpr int GROUP = 4;   // query heads that attend together, at most

using f32x16 = float __attribute__((vector_size(64)));
using i32x16 = int32_t __attribute__((vector_size(64)));
using u16x16 = uint16_t __attribute__((vector_size(32)));
using bf16 = uint16_t;

inline f32x16 load(const float* p) {
    f32x16 v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline f32x16 load(const bf16* p) {
    u16x16 v;
    std::memcpy(&v, p, sizeof v);
    return (f32x16)(__builtin_convertvector(v, i32x16) << 16);
}
inline void store(float* p, f32x16 v) { std::memcpy(p, &v, sizeof v); }
inline float to_float(float v) { return v; }
inline float to_float(bf16 v) {
    uint32_t bits = uint32_t(v) << 16;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}
inline void convert(float v, float& out) { out = v; }
inline void convert(float v, bf16& out) {  // to the nearest, ties to even, as PyTorch rounds
    uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    out = bf16((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
inline void fetch(const T* from, int count) {
    for (int i = 0; i < count; i += 64 / sizeof(T)) __builtin_prefetch(from + i);
}

inline f32x16 exp16(f32x16 x) {  // 2^n * e^r with |r| <= ln 2 / 2, e^r by its series; error below 2e-7 of the result
    x = x < -87.0f ? f32x16{} - 87.0f : x;
    x = x > 88.0f ? f32x16{} + 88.0f : x;
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    f32x16 n = (x * 1.44269504f + magic) - magic;
    f32x16 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    f32x16 p = r * (1.0f / 5040) + (1.0f / 720);
    p = p * r + (1.0f / 120);
    p = p * r + (1.0f / 24);
    p = p * r + (1.0f / 6);
    p = p * r + 0.5f;
    p = (p * r + 1.0f) * r + 1.0f;
    return p * (f32x16)((__builtin_convertvector(n, i32x16) + 127) << 23);
}

}  // namespace

extern "C" {

struct Layer {
    const float *attn_norm, *ffn_norm;
    const void *qkv, *wo, *gate_up, *down;  // packed, see fast.py
};

struct Model {
    int32_t dim, n_layers, n_heads, n_kv_heads, head_dim, hidden, vocab, is_bf16;
    float eps;
    const float *cos, *sin;  // (max_seq_len, head_dim / 2)
    const void* embedding;   // (vocab, dim), or null: it is the head's, packed
    const void* head;        // packed
    const float* norm;
    const Layer* layers;
};

struct Pool {
    int32_t num_blocks, block_size, value_dim;  // value_dim: head_dim, rounded up to 16
    void* keys;                                 // (n_layers, num_blocks, n_kv_heads, head_dim, block_size)
    void* values;                               // (n_layers, num_blocks, n_kv_heads, block_size, value_dim)
};

struct Batch {
    int32_t rows, width, wanted, threads;
    const int32_t *tokens, *positions, *table_of;  // (rows)
    const int32_t* tables;                         // (sequences, width)
    const int32_t* last;                           // (wanted): the rows whose next token is asked for
    int64_t* next;                                 // (wanted): where it goes
};
}

namespace {

// Rows to be multiplied, in tiles: within a tile the numbers of one column (bfloat16: of a pair of columns) of all its
// rows lie side by side, as the product reads them.
template <class T>
struct Rows {
    T* data;
    int depth, rows, tile, tiles;  // depth: columns, even for bfloat16; tile: rows of each tile but the last
    static constexpr int PAIR = sizeof(T) == 2 ? 2 : 1;

    Rows(T* data, int columns, int rows) : data(data), depth((columns + PAIR - 1) / PAIR * PAIR), rows(rows) {
        tiles = (rows + TILE - 1) / TILE;
        tile = tiles ? (rows + tiles - 1) / tiles : 1;
        tiles = (rows + tile - 1) / tile;
    }
    int height(int t) const { return t + 1 < tiles ? tile : rows - t * tile; }
    const T* at(int t) const { return data + size_t(t) * tile * depth; }
    void put(int row, int column, const float* from, int count) {  // at most 64, from an even column on
        const int t = tiles == 1 ? 0 : row / tile, h = height(t);
        T* to = data + size_t(t) * tile * depth + size_t(row - t * tile) * PAIR + size_t(column) * h;
        T piece[64 + PAIR] = {};
        for (int i = 0; i < count; ++i) convert(from[i], piece[i]);
        for (int i = 0; i < count; i += PAIR, to += size_t(h) * PAIR) std::memcpy(to, piece + i, PAIR * sizeof(T));
    }
};

// ---- products: a tile of rows times a panel of 32 columns

template <int H>
void multiply(const float* a, const float* w, int depth, float* out) {
    f32x16 sum[H][2] = {};
    for (int k = 0; k < depth; ++k, a += H, w += PANEL) {
        f32x16 w0 = load(w), w1 = load(w + 16);
        __builtin_prefetch(w + 1024);
        __builtin_prefetch(w + 1040);
#pragma GCC unroll 16
        for (int r = 0; r < H; ++r) {
            sum[r][0] += a[r] * w0;
            sum[r][1] += a[r] * w1;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < H; ++r) store(out + r * PANEL, sum[r][0]), store(out + r * PANEL + 16, sum[r][1]);
}

template <int H>
void multiply(const bf16* a, const bf16* w, int depth, float* out) {
    f32x16 sum[H][2] = {};
    for (int k = 0; k < depth; k += 2, a += 2 * H, w += 2 * PANEL) {
        i32x16 w0, w1;  // pairs: (w[k][n], w[k + 1][n]) for 16 columns n each
        std::memcpy(&w0, w, sizeof w0);
        std::memcpy(&w1, w + PANEL, sizeof w1);
        __builtin_prefetch(w + 2048);
        __builtin_prefetch(w + 2080);
#pragma GCC unroll 16
        for (int r = 0; r < H; ++r) {
            int32_t pair;
            std::memcpy(&pair, a + 2 * r, sizeof pair);
#ifdef __AVX512BF16__
            __m512bh rows = (__m512bh)_mm512_set1_epi32(pair);
            sum[r][0] = (f32x16)_mm512_dpbf16_ps((__m512)sum[r][0], rows, (__m512bh)w0);
            sum[r][1] = (f32x16)_mm512_dpbf16_ps((__m512)sum[r][1], rows, (__m512bh)w1);
#else
            float even = to_float(bf16(pair)), odd = to_float(bf16(uint32_t(pair) >> 16));
            const i32x16 high = i32x16{} + int32_t(0xffff0000);
            sum[r][0] += even * (f32x16)(w0 << 16) + odd * (f32x16)(w0 & high);
            sum[r][1] += even * (f32x16)(w1 << 16) + odd * (f32x16)(w1 & high);
#endif
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < H; ++r) store(out + r * PANEL, sum[r][0]), store(out + r * PANEL + 16, sum[r][1]);
}

template <class T>
using Multiply = void (*)(const T*, const T*, int, float*);
template <class T>
constexpr Multiply<T> by_height[TILE + 1] = {
    nullptr,     multiply<1>, multiply<2>, multiply<3>, multiply<4>,  multiply<5>,  multiply<6>,
    multiply<7>, multiply<8>, multiply<9>, multiply<10>, multiply<11>, multiply<12>,
};

// ---- attention of G query heads of one row, which share a key/value head

template <class T, int G>
void attend(const float* q, const T* keys, const T* values, const int32_t* table, int context, const Model& m,
            const Pool& pool, float* scores, float* out) {
    const int size = pool.block_size, blocks = (context + size - 1) / size, stride = (blocks * size + 15) / 16 * 16;
    const size_t key_block = size_t(m.n_kv_heads) * m.head_dim * size;
    const size_t value_block = size_t(m.n_kv_heads) * size * pool.value_dim;
    for (int b = 0; b < blocks; ++b) {
        const T* k = keys + table[b] * key_block;
        // Blocks lie anywhere, so the processor cannot guess the next one: fetch it and the values needed afterwards.
        if (b + 1 < blocks) fetch(keys + table[b + 1] * key_block, m.head_dim * size);
        fetch(values + table[b] * value_block, size * pool.value_dim);
        if (size % 16 == 0) {
            for (int s = 0; s < size; s += 16) {
                f32x16 sum[G][2] = {};
                for (int d = 0; d < m.head_dim; d += 2) {
                    f32x16 even = load(k + d * size + s), odd = load(k + (d + 1) * size + s);
                    for (int g = 0; g < G; ++g) {
                        sum[g][0] += q[g * m.head_dim + d] * even;
                        sum[g][1] += q[g * m.head_dim + d + 1] * odd;
                    }
                }
                for (int g = 0; g < G; ++g) store(scores + g * stride + b * size + s, sum[g][0] + sum[g][1]);
            }
        } else {
            for (int g = 0; g < G; ++g)
                for (int s = 0; s < size; ++s) {
                    float sum = 0;
                    for (int d = 0; d < m.head_dim; ++d) sum += q[g * m.head_dim + d] * to_float(k[d * size + s]);
                    scores[g * stride + b * size + s] = sum;
                }
        }
    }
    float scale[G];
    for (int g = 0; g < G; ++g) {
        float* s = scores + g * stride;
        for (int j = context; j < stride; ++j) s[j] = -INFINITY;  // the rest of the last block is not this row's
        f32x16 most = load(s), total = {};
        for (int j = 16; j < stride; j += 16) most = load(s + j) > most ? load(s + j) : most;
        float top = most[0];
        for (int i = 1; i < 16; ++i) top = most[i] > top ? most[i] : top;
        for (int j = 0; j < stride; j += 16) {
            f32x16 e = exp16(load(s + j) - top);
            store(s + j, e);
            if (j + 16 <= context)
                total += e;
            else
                for (int i = 0; j + i < context; ++i) total[i] += e[i];
        }
        float sum = 0;
        for (int i = 0; i < 16; ++i) sum += total[i];
        scale[g] = 1 / sum;
    }
    auto weigh = [&](int d, auto vectors) {  // the weighted sum of so many vectors of the values, from number d on
        constexpr int V = decltype(vectors)::value;
        f32x16 sum[G][V] = {};
        for (int b = 0, j = 0; b < blocks; ++b) {
            const T* v = values + table[b] * value_block + d;
            for (int end = j + size < context ? j + size : context; j < end; ++j, v += pool.value_dim)
                for (int i = 0; i < V; ++i) {
                    f32x16 row = load(v + 16 * i);
                    for (int g = 0; g < G; ++g) sum[g][i] += scores[g * stride + j] * row;
                }
        }
        for (int g = 0; g < G; ++g)
            for (int i = 0; i < V; ++i) store(out + g * pool.value_dim + d + 16 * i, sum[g][i] * scale[g]);
    };
    int d = 0;
    for (; d + 64 <= pool.value_dim; d += 64) weigh(d, std::integral_constant<int, 4>());
    for (; d < pool.value_dim; d += 16) weigh(d, std::integral_constant<int, 1>());
}

// ---- threads

struct Barrier {
    int threads;
    std::atomic<int> arrived{0}, generation{0};
    void wait() {
        int mine = generation.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);
            generation.store(mine + 1, std::memory_order_release);
            generation.notify_all();
            return;
        }
        for (int spins = 0; spins < 1000; ++spins) {
            if (generation.load(std::memory_order_acquire) != mine) return;
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#endif
        }
        generation.wait(mine, std::memory_order_acquire);  // whoever is late has lost its core to somebody else: sleep
    }
};

template <class T>
class Forward {
    const Model& m;
    const Pool& pool;
    const Batch& batch;
    const int q_dim, kv_dim, qkv_dim;
    std::vector<float> x, qkv;
    std::vector<T> a, b;
    Rows<T> normed, attended, gated, wanted;
    Barrier barrier{1};
    std::vector<std::atomic<int>> tickets;  // one counter for each phase: threads take the next piece of work
    std::vector<float> best;                // (threads, wanted)
    std::vector<int64_t> best_at;

   public:
    Forward(const Model& m, const Pool& pool, const Batch& batch)
        : m(m), pool(pool), batch(batch), q_dim(m.n_heads * m.head_dim), kv_dim(m.n_kv_heads * m.head_dim),
          qkv_dim(q_dim + 2 * kv_dim), x(size_t(batch.rows) * m.dim), qkv(size_t(batch.rows) * qkv_dim),
          a(size_t(batch.rows) * (m.dim + 1)),
          b(size_t(batch.rows) * ((q_dim > m.hidden ? q_dim : m.hidden) + 1)), normed(a.data(), m.dim, batch.rows),
          attended(b.data(), q_dim, batch.rows), gated(b.data(), m.hidden, batch.rows),
          wanted(a.data(), m.dim, batch.wanted), tickets(8 * m.n_layers + 2) {}

    void run() {
#pragma omp parallel num_threads(batch.threads)
        {
#pragma omp single  // an implicit barrier follows
            {
                barrier.threads = omp_get_num_threads();
                best.assign(size_t(barrier.threads) * batch.wanted, -INFINITY);
                best_at.assign(best.size(), 0);
            }
            work(omp_get_thread_num());
        }
        for (int i = 0; i < batch.wanted; ++i) {
            float top = -INFINITY;
            for (int t = 0; t < barrier.threads; ++t) {
                float value = best[size_t(t) * batch.wanted + i];
                int64_t at = best_at[size_t(t) * batch.wanted + i];
                if (value > top || (value == top && at < batch.next[i])) top = value, batch.next[i] = at;
            }
        }
    }

   private:
    // Runs `piece(i)` for i in [0, count), `step` of them at a time, on whichever thread is free; then all meet.
    template <class Piece>
    void share(int phase, int count, int step, Piece piece) {
        for (int i; (i = tickets[phase].fetch_add(step, std::memory_order_relaxed)) < count;)
            for (int end = i + step < count ? i + step : count; i < end; ++i) piece(i);
        if (barrier.threads > 1) barrier.wait();
    }

    // `each(row, panel, 32 numbers)` for all rows times all panels of a packed matrix.
    template <class Each>
    void product(int phase, const Rows<T>& rows, const void* packed, int panels, Each each) {
        const T* weights = static_cast<const T*>(packed);
        share(phase, panels, 1, [&](int panel) {
            float out[TILE * PANEL];
            for (int t = 0; t < rows.tiles; ++t) {
                int height = rows.height(t);
                by_height<T>[height](rows.at(t), weights + size_t(panel) * rows.depth * PANEL, rows.depth, out);
                for (int r = 0; r < height; ++r) each(t * rows.tile + r, panel, out + r * PANEL);
            }
        });
    }

    void norm(Rows<T>& to, int row, const float* from, const float* weight) {
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int i = 0; i < m.dim; ++i) squares += from[i] * from[i];
        const float scale = 1 / std::sqrt(squares / m.dim + m.eps);
        float piece[64];
        for (int i = 0; i < m.dim; i += 64) {
            int count = m.dim - i < 64 ? m.dim - i : 64;
            for (int j = 0; j < count; ++j) piece[j] = from[i + j] * scale * weight[i + j];
            to.put(row, i, piece, count);
        }
    }

    void embed(int row) {
        const T* table = static_cast<const T*>(m.embedding ? m.embedding : m.head);
        const int64_t token = batch.tokens[row];
        float* to = x.data() + size_t(row) * m.dim;
        if (m.embedding) {
            for (int i = 0; i < m.dim; ++i) to[i] = to_float(table[token * m.dim + i]);
        } else {
            constexpr int pair = Rows<T>::PAIR;
            const T* from = table + token / PANEL * PANEL * normed.depth + token % PANEL * pair;
            for (int i = 0; i < m.dim; ++i) to[i] = to_float(from[size_t(i / pair) * PANEL * pair + i % pair]);
        }
    }

    // The queries turned and scaled, the keys turned, keys and values written to their slot. Both halves of a head are
    // contiguous here: fast.py has sorted the rows of wq and wk so, and a dot product does not mind the order.
    void rotate_and_write(int layer, int row) {
        const int half = m.head_dim / 2, position = batch.positions[row], size = pool.block_size;
        const float *cos = m.cos + size_t(position) * half, *sin = m.sin + size_t(position) * half;
        const float scale = 1 / std::sqrt(float(m.head_dim));
        float* head = qkv.data() + size_t(row) * qkv_dim;
        for (int h = 0; h < m.n_heads + m.n_kv_heads; ++h, head += m.head_dim) {
            const float by = h < m.n_heads ? scale : 1;
#pragma omp simd
            for (int i = 0; i < half; ++i) {
                float even = head[i] * by, odd = head[i + half] * by;
                head[i] = even * cos[i] - odd * sin[i];
                head[i + half] = even * sin[i] + odd * cos[i];
            }
        }
        const float* k = qkv.data() + size_t(row) * qkv_dim + q_dim;
        const int32_t* table = batch.tables + size_t(batch.table_of[row]) * batch.width;
        const size_t block = size_t(layer) * pool.num_blocks + table[position / size];
        const int slot = position % size;
        T* keys = static_cast<T*>(pool.keys) + block * kv_dim * size + slot;
        T* values = static_cast<T*>(pool.values) + (block * m.n_kv_heads * size + slot) * pool.value_dim;
        for (int i = 0; i < kv_dim; ++i) convert(k[i], keys[size_t(i) * size]);
        for (int h = 0; h < m.n_kv_heads; ++h, values += size_t(size) * pool.value_dim)
            for (int d = 0; d < m.head_dim; ++d) convert(k[kv_dim + h * m.head_dim + d], values[d]);
    }

    void attention(int layer, int row, int kv_head) {
        thread_local std::vector<float> scores, out;
        const int context = batch.positions[row] + 1, group = m.n_heads / m.n_kv_heads, size = pool.block_size;
        scores.resize(size_t(GROUP) * (context + size + 16));
        out.resize(size_t(GROUP) * pool.value_dim);
        const size_t block = size_t(layer) * pool.num_blocks;
        const T* keys = static_cast<const T*>(pool.keys) + (block * kv_dim + size_t(kv_head) * m.head_dim) * size;
        const T* values =
            static_cast<const T*>(pool.values) + (block * m.n_kv_heads + kv_head) * size * pool.value_dim;
        const int32_t* table = batch.tables + size_t(batch.table_of[row]) * batch.width;
        for (int g = 0; g < group; g += GROUP) {
            const int first = kv_head * group + g, heads = group - g < GROUP ? group - g : GROUP;
            const float* q = qkv.data() + size_t(row) * qkv_dim + size_t(first) * m.head_dim;
            auto run = heads == 1 ? attend<T, 1> : heads == 2 ? attend<T, 2> : heads == 3 ? attend<T, 3> : attend<T, 4>;
            run(q, keys, values, table, context, m, pool, scores.data(), out.data());
            for (int h = 0; h < heads; ++h)
                for (int d = 0; d < m.head_dim; d += 64)
                    attended.put(row, (first + h) * m.head_dim + d, out.data() + size_t(h) * pool.value_dim + d,
                                 m.head_dim - d < 64 ? m.head_dim - d : 64);
        }
    }

    void work(int thread) {
        const int rows = batch.rows, dim_panels = (m.dim + PANEL - 1) / PANEL;
        auto add = [&](int row, int panel, const float* out) {  // to the residual stream
            float* to = x.data() + size_t(row) * m.dim + panel * PANEL;
            const int count = m.dim - panel * PANEL < PANEL ? m.dim - panel * PANEL : PANEL;
            for (int i = 0; i < count; ++i) to[i] += out[i];
        };
        int phase = 0;
        share(phase++, rows, 4, [&](int row) { embed(row); });
        for (int index = 0; index < m.n_layers; ++index) {
            const Layer& layer = m.layers[index];
            share(phase++, rows, 4, [&](int row) { norm(normed, row, x.data() + size_t(row) * m.dim, layer.attn_norm); });
            product(phase++, normed, layer.qkv, (qkv_dim + PANEL - 1) / PANEL, [&](int row, int panel, float* out) {
                const int count = qkv_dim - panel * PANEL < PANEL ? qkv_dim - panel * PANEL : PANEL;
                std::memcpy(qkv.data() + size_t(row) * qkv_dim + panel * PANEL, out, count * sizeof(float));
            });
            share(phase++, rows, 1, [&](int row) { rotate_and_write(index, row); });
            share(phase++, rows * m.n_kv_heads, 1, [&](int i) { attention(index, i % rows, i / rows); });
            product(phase++, attended, layer.wo, dim_panels, add);
            share(phase++, rows, 4, [&](int row) { norm(normed, row, x.data() + size_t(row) * m.dim, layer.ffn_norm); });
            // A panel is 16 columns of gate and the same 16 of up, so that they meet here.
            product(phase++, normed, layer.gate_up, (m.hidden + 15) / 16, [&](int row, int panel, float* out) {
                f32x16 gate = load(out), up = load(out + 16);
                store(out, gate / (1.0f + exp16(-gate)) * up);
                gated.put(row, panel * 16, out, m.hidden - panel * 16 < 16 ? m.hidden - panel * 16 : 16);
            });
            product(phase++, gated, layer.down, dim_panels, add);
        }
        for (int i = thread; i < batch.wanted; i += barrier.threads)
            norm(wanted, i, x.data() + size_t(batch.last[i]) * m.dim, m.norm);
        if (barrier.threads > 1) barrier.wait();
        float* top = best.data() + size_t(thread) * batch.wanted;
        int64_t* at = best_at.data() + size_t(thread) * batch.wanted;
        product(phase, wanted, m.head, (m.vocab + PANEL - 1) / PANEL, [&](int row, int panel, const float* out) {
            const int count = m.vocab - panel * PANEL < PANEL ? m.vocab - panel * PANEL : PANEL;
            for (int i = 0; i < count; ++i)
                if (out[i] > top[row]) top[row] = out[i], at[row] = panel * PANEL + i;
        });
    }
};

}  // namespace

extern "C" void forward(const Model* model, const Pool* pool, const Batch* batch) {
    if (model->is_bf16)
        Forward<bf16>(*model, *pool, *batch).run();
    else
        Forward<float>(*model, *pool, *batch).run();
}
