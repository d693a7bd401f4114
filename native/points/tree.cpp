#include "points/tree.hpp"

#include <algorithm>
#include <vector>

namespace comet::points {

namespace {

using ot::Aes;
using ot::AesSchedule;

constexpr size_t chunk = 64; // blocks that are encrypted at once

COMET_INLINE Block at(span<const u64> words, size_t i) { return {words[2 * i], words[2 * i + 1]}; }
COMET_INLINE u64 control(Block node) { return node.low & 1; }
COMET_INLINE Block selected(Block value, u64 bit) { return {value.low & (0 - bit), value.high & (0 - bit)}; }
COMET_INLINE Block sigma(Block x) { return {x.high, x.low ^ x.high}; }

COMET_INLINE u64 plus(u64 a, u64 b, u64 modulus) {
    const u64 sum = a + b;
    return modulus != 0 && sum >= modulus ? sum - modulus : sum;
}
COMET_INLINE u64 minus(u64 a, u64 b, u64 modulus) { return modulus != 0 && a < b ? a + modulus - b : a - b; }

// ⌊block·M/2^128⌋
COMET_INLINE u64 spread(Block block, u64 modulus) {
    const u64 carry = static_cast<u64>((u128{block.low} * modulus) >> 64);
    return static_cast<u64>((u128{block.high} * modulus + carry) >> 64);
}

// π of one row and level after the other
class Hash {
public:
    Hash(Rows rows, Isa isa) : aes_(ot::aes(isa)), rows_(rows) {}

    void key(size_t row, unsigned level) {
        u8 key[16];
        const u64 number = rows_.numbers.empty() ? rows_.first + row : rows_.numbers[row], high = number << 8 | level;
        for (unsigned i = 0; i < 8; ++i) {
            key[i] = static_cast<u8>(rows_.table >> 8 * i);
            key[8 + i] = static_cast<u8>(high >> 8 * i);
        }
        aes_.schedule(ot::AesKey(key), key_);
    }

    // out[i] = H(nodes[i]) for at most `chunk` nodes
    void nodes(span<const Block> nodes, Block *out) const {
        for (size_t i = 0; i < nodes.size(); ++i) out[i] = sigma(nodes[i]);
        aes_.encrypt(key_, {out, nodes.size()});
        for (size_t i = 0; i < nodes.size(); ++i) out[i] = out[i] ^ sigma(nodes[i]);
    }

    // blocks 0 … count-1 of the numbers of every leaf, one leaf after the other
    void numbers(span<const Block> leaves, size_t count, span<Block> out) const {
        for (size_t i = 0, o = 0; i < leaves.size(); ++i)
            for (size_t b = 0; b < count; ++b, ++o) out[o] = sigma(leaves[i]) ^ Block{b, 0};
        aes_.encrypt(key_, out.first(leaves.size() * count));
        for (size_t i = 0, o = 0; i < leaves.size(); ++i)
            for (size_t b = 0; b < count; ++b, ++o) out[o] = out[o] ^ sigma(leaves[i]) ^ Block{b, 0};
    }

private:
    const Aes &aes_;
    Rows rows_;
    AesSchedule key_;
};

// A leaf's blocks as words of the payloads' ring.
void read_numbers(const Shape &shape, const Block *blocks, u64 *words) {
    const size_t size = shape.leaf_words();
    if (shape.modulus != 0)
        for (size_t w = 0; w < size; ++w) words[w] = spread(blocks[w], shape.modulus);
    else
        for (size_t w = 0; w < size; ++w) words[w] = w % 2 == 0 ? blocks[w / 2].low : blocks[w / 2].high;
}

// A party's whole tree, a row at a time.
class Tree {
public:
    Tree(const Shape &shape, const Keys &keys, Isa isa)
        : shape_(shape), keys_(keys), hash_(keys.rows, isa), nodes_(size_t{1} << shape.levels()), next_(nodes_.size()),
          numbers_(chunk * shape.leaf_blocks()), words_(chunk * shape.leaf_words()) {}

    // The nodes of a level; the corrections of those above it must be known.
    span<const Block> level(size_t row, unsigned level) {
        nodes_[0] = root();
        for (unsigned l = 0; l < level; ++l) {
            hash_.key(row, l);
            expand(size_t{1} << l, at(keys_.corrections, row * shape_.levels() + l));
            std::swap(nodes_, next_);
        }
        return span(nodes_).first(size_t{1} << level);
    }

    // ⊕ H over the nodes of a level
    Block sum(size_t row, unsigned level) {
        const span<const Block> nodes = this->level(row, level);
        hash_.key(row, level);
        Block hashed[chunk], total{0, 0};
        for (size_t start = 0; start < nodes.size(); start += chunk) {
            const size_t n = std::min(chunk, nodes.size() - start);
            hash_.nodes(nodes.subspan(start, n), hashed);
            for (size_t i = 0; i < n; ++i) total = total ^ hashed[i];
        }
        return total;
    }

    // use(first leaf, their nodes, their words) for all leaves, a few at a time, without the last correction
    template <class Use> void leaves(size_t row, Use use) {
        const span<const Block> nodes = level(row, shape_.levels());
        const size_t size = shape_.leaf_words(), blocks = shape_.leaf_blocks();
        hash_.key(row, shape_.levels());
        for (size_t start = 0; start < nodes.size(); start += chunk) {
            const size_t n = std::min(chunk, nodes.size() - start);
            hash_.numbers(nodes.subspan(start, n), blocks, numbers_);
            for (size_t i = 0; i < n; ++i) read_numbers(shape_, numbers_.data() + i * blocks, words_.data() + i * size);
            use(start, nodes.subspan(start, n), span(words_).first(n * size));
        }
    }

    // use(first cell, the words of the leaves' cells), the last correction added where it must
    template <class Use> void cells(size_t row, Use use) {
        const size_t size = shape_.leaf_words();
        const span<const u64> last = keys_.last.subspan(row * size, size);
        leaves(row, [&](size_t first, span<const Block> nodes, span<u64> words) {
            for (size_t i = 0; i < nodes.size(); ++i) {
                const u64 t = 0 - control(nodes[i]);
                for (size_t w = 0; w < size; ++w)
                    words[i * size + w] = plus(words[i * size + w], last[w] & t, shape_.modulus);
            }
            use(first << shape_.early, span<const u64>(words));
        });
    }

private:
    Block root() const {
        const Block root = at(keys_.root, 0);
        return {(root.low & ~u64{1}) | u64{keys_.server}, root.high};
    }

    void expand(size_t count, Block correction) {
        Block hashed[chunk];
        for (size_t start = 0; start < count; start += chunk) {
            const size_t n = std::min(chunk, count - start);
            hash_.nodes(span<const Block>(nodes_).subspan(start, n), hashed);
            for (size_t i = 0; i < n; ++i) {
                const Block node = nodes_[start + i], left = hashed[i] ^ selected(correction, control(node));
                next_[2 * (start + i)] = left;
                next_[2 * (start + i) + 1] = left ^ node;
            }
        }
    }

    Shape shape_;
    Keys keys_;
    Hash hash_;
    std::vector<Block> nodes_, next_, numbers_;
    std::vector<u64> words_;
};

template <unsigned words>
COMET_INLINE void add_lines(span<const u64> cells, size_t first, size_t period, const Lines &lines, size_t row,
                            u64 *sums) {
    const size_t start = lines.starts[row] + first, count = cells.size() / words;
    const u64 point = lines.points[row], factor = words == 3 ? lines.factors[row] : 0;
    for (size_t q = 0; q < lines.columns; ++q) {
        const u64 *a = lines.tables.data() + 4 * q * period + start, *b = a + 2 * period;
        u64 sum = 0;
        for (size_t j = 0; j < count; ++j) {
            const u64 *e = cells.data() + j * words;
            const u64 rest = words == 3 ? e[1] + factor * e[2] : e[1];
            sum += a[j] * e[0] + b[j] * (point * e[0] + rest);
        }
        sums[q] += sum;
    }
}

// A sum of products of words, in 192 bits.
struct Wide {
    u128 low = 0;
    u64 high = 0;

    COMET_INLINE void add(u64 a, u64 b) {
        const u128 product = u128{a} * b;
        low += product;
        high += low < product;
    }
    u64 modulo(u64 m) const {
        const u64 middle = static_cast<u64>(((u128{high % m} << 64) | static_cast<u64>(low >> 64)) % m);
        return static_cast<u64>(((u128{middle} << 64) | static_cast<u64>(low)) % m);
    }
};

// Of one column: Σ A·e_0 + B·e_1, and Σ B·e_0.
struct OddSums {
    Wide levels, slopes;
};

COMET_INLINE void add_odd_lines(span<const u64> cells, size_t first, size_t period, const Lines &lines, size_t row,
                                OddSums *sums) {
    const size_t start = lines.starts[row] + first, count = cells.size() / 2;
    for (size_t q = 0; q < lines.columns; ++q) {
        const u64 *a = lines.tables.data() + 4 * q * period + start, *b = a + 2 * period;
        OddSums sum = sums[q];
        for (size_t j = 0; j < count; ++j) {
            const u64 *e = cells.data() + 2 * j;
            sum.levels.add(a[j], e[0]);
            sum.levels.add(b[j], e[1]);
            sum.slopes.add(b[j], e[0]);
        }
        sums[q] = sum;
    }
}

void evaluate_odd_lines(const Shape &shape, const Keys &keys, const Lines &lines, span<u64> out, Isa isa) {
    Tree tree(shape, keys, isa);
    const size_t period = size_t{1} << shape.index_bits;
    const u64 m = shape.modulus;
    std::vector<OddSums> sums(lines.columns);
    for (size_t row = 0; row < lines.starts.size(); ++row) {
        std::ranges::fill(sums, OddSums{});
        tree.cells(row, [&](size_t first, span<const u64> cells) {
            add_odd_lines(cells, first, period, lines, row, sums.data());
        });
        for (size_t q = 0; q < lines.columns; ++q) {
            const u64 slope = static_cast<u64>(u128{sums[q].slopes.modulo(m)} * (lines.points[row] % m) % m);
            const u64 value = plus(sums[q].levels.modulo(m), slope, m);
            out[row * lines.columns + q] = keys.server ? minus(0, value, m) : value;
        }
    }
}

} // namespace

void make_points(const Shape &shape, Rows rows, span<const u64> client_root, span<const u64> server_root,
                 span<const u64> places, span<const u64> payloads, span<u64> corrections, span<u64> last, Isa isa) {
    Hash hash(rows, isa);
    const size_t size = shape.leaf_words(), blocks = shape.leaf_blocks();
    const u64 m = shape.modulus;
    std::vector<Block> numbers(2 * blocks);
    std::vector<u64> client(size), server(size);
    const Block roots[2] = {at(client_root, 0), at(server_root, 0)};
    for (size_t row = 0; row < places.size(); ++row) {
        const u64 place = places[row];
        Block nodes[2] = {{roots[0].low & ~u64{1}, roots[0].high}, {roots[1].low | 1, roots[1].high}};
        const Block delta = nodes[0] ^ nodes[1];
        for (unsigned level = 0; level < shape.levels(); ++level) {
            const u64 right = (place >> (shape.index_bits - 1 - level)) & 1;
            Block hashed[2];
            hash.key(row, level);
            hash.nodes(nodes, hashed);
            const Block correction = hashed[0] ^ hashed[1] ^ selected(delta, 1 - right);
            corrections[2 * (row * shape.levels() + level)] = correction.low;
            corrections[2 * (row * shape.levels() + level) + 1] = correction.high;
            for (size_t p = 0; p < 2; ++p)
                nodes[p] = hashed[p] ^ selected(correction, control(nodes[p])) ^ selected(nodes[p], right);
        }
        hash.key(row, shape.levels());
        hash.numbers(nodes, blocks, numbers);
        read_numbers(shape, numbers.data(), client.data());
        read_numbers(shape, numbers.data() + blocks, server.data());
        const u64 within = place & ((u64{1} << shape.early) - 1), negative = control(nodes[1]);
        for (size_t w = 0; w < size; ++w) {
            const u64 here = 0 - u64{w / shape.words == within}, wanted = payloads[row * shape.words + w % shape.words];
            const u64 value = plus(minus(wanted & here, client[w], m), server[w], m);
            last[row * size + w] = negative != 0 ? minus(0, value, m) : value;
        }
    }
}

void level_sums(const Shape &shape, const Keys &keys, unsigned level, span<u64> sums, Isa isa) {
    Tree tree(shape, keys, isa);
    for (size_t row = 0; row < sums.size() / 2; ++row) {
        const Block sum = tree.sum(row, level);
        sums[2 * row] = sum.low;
        sums[2 * row + 1] = sum.high;
    }
}

void leaf_sums(const Shape &shape, const Keys &keys, span<u64> sums, span<u64> controls, Isa isa) {
    Tree tree(shape, keys, isa);
    const size_t size = shape.leaf_words();
    std::ranges::fill(sums, 0);
    std::ranges::fill(controls, 0);
    for (size_t row = 0; row < controls.size(); ++row)
        tree.leaves(row, [&](size_t, span<const Block> nodes, span<const u64> words) {
            for (size_t i = 0; i < nodes.size(); ++i) {
                controls[row] += control(nodes[i]);
                for (size_t w = 0; w < size; ++w)
                    sums[row * size + w] = plus(sums[row * size + w], words[i * size + w], shape.modulus);
            }
        });
}

void evaluate_lines(const Shape &shape, const Keys &keys, const Lines &lines, span<u64> out, Isa isa) {
    if (shape.modulus != 0) return evaluate_odd_lines(shape, keys, lines, out, isa);
    Tree tree(shape, keys, isa);
    const size_t period = size_t{1} << shape.index_bits;
    std::vector<u64> sums(lines.columns);
    for (size_t row = 0; row < lines.starts.size(); ++row) {
        std::ranges::fill(sums, 0);
        tree.cells(row, [&](size_t first, span<const u64> cells) {
            if (shape.words == 3) add_lines<3>(cells, first, period, lines, row, sums.data());
            else add_lines<2>(cells, first, period, lines, row, sums.data());
        });
        for (size_t q = 0; q < lines.columns; ++q) out[row * lines.columns + q] = keys.server ? 0 - sums[q] : sums[q];
    }
}

void evaluate_all(const Shape &shape, const Keys &keys, span<u64> out, Isa isa) {
    Tree tree(shape, keys, isa);
    const size_t size = shape.leaf_words(), whole = size << shape.levels(), rows = out.size() / whole;
    for (size_t row = 0; row < rows; ++row)
        tree.cells(row, [&](size_t first, span<const u64> cells) {
            u64 *to = out.data() + row * whole + first * shape.words;
            for (size_t i = 0; i < cells.size(); ++i) to[i] = keys.server ? minus(0, cells[i], shape.modulus) : cells[i];
        });
}

} // namespace comet::points
