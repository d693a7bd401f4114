#include "points/tree.hpp"

#include <algorithm>
#include <vector>

namespace comet::points {

namespace {

using ot::Aes;
using ot::AesSchedule;

// The first 48 bytes of the fraction of π: nobody has chosen them.
constexpr u8 fixed_keys[3][16] = {
    {0x24, 0x3f, 0x6a, 0x88, 0x85, 0xa3, 0x08, 0xd3, 0x13, 0x19, 0x8a, 0x2e, 0x03, 0x70, 0x73, 0x44},
    {0xa4, 0x09, 0x38, 0x22, 0x29, 0x9f, 0x31, 0xd0, 0x08, 0x2e, 0xfa, 0x98, 0xec, 0x4e, 0x6c, 0x89},
    {0x45, 0x28, 0x21, 0xe6, 0x38, 0xd0, 0x13, 0x77, 0xbe, 0x54, 0x66, 0xcf, 0x34, 0xe9, 0x0c, 0x6c}};

constexpr size_t chunk = 64; // blocks that are encrypted at once

COMET_INLINE Block at(span<const u64> words, size_t i) { return {words[2 * i], words[2 * i + 1]}; }
COMET_INLINE u64 control(Block node) { return node.low & 1; }
COMET_INLINE Block seed(Block node) { return {node.low & ~u64{3}, node.high}; }
COMET_INLINE Block selected(Block value, u64 bit) { return {value.low & (0 - bit), value.high & (0 - bit)}; }

class Generator {
public:
    explicit Generator(Isa isa) : aes_(ot::aes(isa)) {
        for (size_t k = 0; k < 3; ++k) aes_.schedule(ot::AesKey(fixed_keys[k]), keys_[k]);
    }

    // left and right children of up to `chunk` seeds, not corrected; bit 1 is not cleared yet
    void children(span<const Block> seeds, Block *left, Block *right) const {
        const size_t n = seeds.size();
        std::copy_n(seeds.data(), n, left);
        std::copy_n(seeds.data(), n, right);
        aes_.encrypt(keys_[0], {left, n});
        aes_.encrypt(keys_[1], {right, n});
        for (size_t i = 0; i < n; ++i) {
            left[i] = left[i] ^ seeds[i];
            right[i] = right[i] ^ seeds[i];
        }
    }

    // blocks 0 … count-1 of the numbers of every seed, one seed after the other
    void numbers(span<const Block> seeds, size_t count, span<Block> in, span<Block> out) const {
        for (size_t i = 0, o = 0; i < seeds.size(); ++i)
            for (size_t b = 0; b < count; ++b, ++o) in[o] = out[o] = Block{seeds[i].low, seeds[i].high ^ b};
        aes_.encrypt(keys_[2], out);
        for (size_t o = 0; o < out.size(); ++o) out[o] = out[o] ^ in[o];
    }

private:
    const Aes &aes_;
    AesSchedule keys_[3];
};

// What a level's correction does to the children of a node with control bit t.
COMET_INLINE Block left_child(Block raw, Block correction, u64 t) {
    const Block seed_part = seed(raw) ^ selected(seed(correction), t);
    return {seed_part.low | (control(raw) ^ (t & control(correction))), seed_part.high};
}
COMET_INLINE Block right_child(Block raw, Block correction, u64 t) {
    const Block seed_part = seed(raw) ^ selected(seed(correction), t);
    return {seed_part.low | (control(raw) ^ (t & (correction.low >> 1))), seed_part.high};
}

COMET_INLINE Block root_node(Block root, bool server) {
    const Block s = seed(root);
    return {s.low | u64{server}, s.high};
}

// A party's whole tree, a row at a time.
class Tree {
public:
    Tree(const Shape &shape, Isa isa)
        : shape_(shape), generator_(isa), nodes_(size_t{1} << shape.levels()), next_(nodes_.size()),
          blocks_(shape.leaf_words() / 2), in_(chunk * blocks_), out_(chunk * blocks_) {}

    // use(first cell, the words of the leaves' cells) for all leaves, a few at a time; `last` is added where it must
    template <class Use> void walk(bool server, Block root, span<const u64> corrections, span<const u64> last, Use use) {
        nodes_[0] = root_node(root, server);
        for (unsigned level = 0; level < shape_.levels(); ++level) {
            expand(size_t{1} << level, at(corrections, level));
            std::swap(nodes_, next_);
        }
        Block seeds[chunk];
        for (size_t start = 0; start < nodes_.size(); start += chunk) {
            const size_t n = std::min(chunk, nodes_.size() - start);
            for (size_t i = 0; i < n; ++i) seeds[i] = seed(nodes_[start + i]);
            generator_.numbers({seeds, n}, blocks_, span(in_).first(n * blocks_), span(out_).first(n * blocks_));
            u64 *words = &out_[0].low;
            const size_t size = shape_.leaf_words();
            for (size_t i = 0; i < n; ++i) {
                const u64 t = 0 - control(nodes_[start + i]);
                for (size_t w = 0; w < size; ++w) words[i * size + w] += last[w] & t;
            }
            use(start << shape_.early, span<const u64>(words, n * size));
        }
    }

private:
    void expand(size_t count, Block correction) {
        Block seeds[chunk], left[chunk], right[chunk];
        for (size_t start = 0; start < count; start += chunk) {
            const size_t n = std::min(chunk, count - start);
            for (size_t i = 0; i < n; ++i) seeds[i] = seed(nodes_[start + i]);
            generator_.children({seeds, n}, left, right);
            for (size_t i = 0; i < n; ++i) {
                const u64 t = control(nodes_[start + i]);
                next_[2 * (start + i)] = left_child(left[i], correction, t);
                next_[2 * (start + i) + 1] = right_child(right[i], correction, t);
            }
        }
    }

    Shape shape_;
    Generator generator_;
    std::vector<Block> nodes_, next_;
    size_t blocks_;
    std::vector<Block> in_, out_;
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

} // namespace

void make_points(const Shape &shape, span<const u64> client_roots, span<const u64> server_roots,
                 span<const u64> places, span<const u64> payloads, span<u64> corrections, span<u64> last, Isa isa) {
    const Generator generator(isa);
    const size_t size = shape.leaf_words(), blocks = size / 2;
    std::vector<Block> in(2 * blocks), out(2 * blocks);
    for (size_t row = 0; row < places.size(); ++row) {
        const u64 place = places[row];
        Block nodes[2] = {root_node(at(client_roots, row), false), root_node(at(server_roots, row), true)};
        for (unsigned level = 0; level < shape.levels(); ++level) {
            const u64 right = (place >> (shape.index_bits - 1 - level)) & 1;
            const Block seeds[2] = {seed(nodes[0]), seed(nodes[1])};
            Block l[2], r[2];
            generator.children(seeds, l, r);
            const Block lost = selected(seed(l[0]) ^ seed(l[1]), right) ^ selected(seed(r[0]) ^ seed(r[1]), 1 - right);
            const u64 bit_l = control(l[0]) ^ control(l[1]) ^ right ^ 1, bit_r = control(r[0]) ^ control(r[1]) ^ right;
            const Block correction = {lost.low | bit_l | bit_r << 1, lost.high};
            corrections[2 * (row * shape.levels() + level)] = correction.low;
            corrections[2 * (row * shape.levels() + level) + 1] = correction.high;
            for (size_t p = 0; p < 2; ++p) {
                const u64 t = control(nodes[p]);
                nodes[p] = selected(left_child(l[p], correction, t), 1 - right) ^
                           selected(right_child(r[p], correction, t), right);
            }
        }
        const Block seeds[2] = {seed(nodes[0]), seed(nodes[1])};
        generator.numbers(seeds, blocks, in, out);
        const u64 *client = &out[0].low, *server = client + size;
        const u64 negative = 0 - control(nodes[1]), within = place & ((u64{1} << shape.early) - 1);
        for (size_t w = 0; w < size; ++w) {
            const u64 here = 0 - u64{w / shape.words == within};
            const u64 value = (payloads[row * shape.words + w % shape.words] & here) - client[w] + server[w];
            last[row * size + w] = (value ^ negative) - negative;
        }
    }
}

void evaluate_lines(const Shape &shape, bool server, span<const u64> roots, span<const u64> corrections,
                    span<const u64> last, const Lines &lines, span<u64> out, Isa isa) {
    Tree tree(shape, isa);
    const size_t period = size_t{1} << shape.index_bits, size = shape.leaf_words();
    std::vector<u64> sums(lines.columns);
    for (size_t row = 0; row < lines.starts.size(); ++row) {
        std::ranges::fill(sums, 0);
        tree.walk(server, at(roots, row), corrections.subspan(2 * row * shape.levels()), last.subspan(row * size, size),
                  [&](size_t first, span<const u64> cells) {
                      if (shape.words == 3) add_lines<3>(cells, first, period, lines, row, sums.data());
                      else add_lines<2>(cells, first, period, lines, row, sums.data());
                  });
        for (size_t q = 0; q < lines.columns; ++q) out[row * lines.columns + q] = server ? 0 - sums[q] : sums[q];
    }
}

void evaluate_all(const Shape &shape, bool server, span<const u64> roots, span<const u64> corrections,
                  span<const u64> last, span<u64> out, Isa isa) {
    Tree tree(shape, isa);
    const size_t size = shape.leaf_words(), whole = size << shape.levels(), rows = roots.size() / 2;
    for (size_t row = 0; row < rows; ++row)
        tree.walk(server, at(roots, row), corrections.subspan(2 * row * shape.levels()), last.subspan(row * size, size),
                  [&](size_t first, span<const u64> cells) {
                      u64 *to = out.data() + row * whole + first * shape.words;
                      for (size_t i = 0; i < cells.size(); ++i) to[i] = server ? 0 - cells[i] : cells[i];
                  });
}

} // namespace comet::points
