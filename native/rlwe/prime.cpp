#include "rlwe/prime.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "common/isa.hpp"

namespace comet::rlwe {

namespace {

bool is_prime(u32 n) {
    for (u32 d = 3; static_cast<u64>(d) * d <= n; d += 2)
        if (n % d == 0) return false;
    return n > 2 && n % 2 == 1;
}

size_t reversed(size_t x, unsigned bits) {
    size_t out = 0;
    for (unsigned i = 0; i < bits; ++i) out = out << 1 | (x >> i & 1);
    return out;
}

// Entry k of the usual table is psi^bitreverse(k); stage m, group g takes entry m + g. Here lane l takes the groups
// l·2^h … of stage m = 8·2^h, so a vector gathers one entry of each lane.
void fill(const Prime &p, u32 psi, std::vector<u32> &table, std::vector<u32> &companion) {
    std::vector<u32> powers(degree);
    u32 power = 1;
    for (size_t i = 0; i < degree; ++i, power = p.times(power, psi)) powers[i] = power;
    const auto entry = [&](size_t k) { return powers[reversed(k, 13)]; };
    table.assign(8 + (rows - 1) * lanes, 0);
    for (size_t k = 1; k < 8; ++k) table[k] = entry(k);
    for (size_t groups = 1; groups < rows; groups *= 2)
        for (size_t g = 0; g < groups; ++g)
            for (size_t lane = 0; lane < lanes; ++lane)
                table[8 + (groups - 1 + g) * lanes + lane] = entry(lanes * groups + lane * groups + g);
    companion.resize(table.size());
    for (size_t i = 0; i < table.size(); ++i) companion[i] = p.quotient(table[i]);
}

WideTwiddles widened(const Prime &p, span<const u32> table, u32 scale) {
    const auto entry = [&](u32 factor, u64 &w, u64 &companion) {
        w = factor;
        companion = static_cast<u64>((u128{w} << 52) / p.q);
    };
    WideTwiddles wide;
    for (size_t k = 0; k < lanes; ++k) {
        const u32 factor = k == 0 ? scale : k == 1 ? p.times(table[k], scale) : table[k];
        entry(factor, wide.lane.at[k], wide.lane_companion.at[k]);
    }
    wide.rows.resize(rows - 1);
    wide.companions.resize(rows - 1);
    for (size_t k = 0; k < (rows - 1) * lanes; ++k)
        entry(table[8 + k], wide.rows[k / lanes].at[k % lanes], wide.companions[k / lanes].at[k % lanes]);
    return wide;
}

std::unique_ptr<const Prime> make_prime(u32 q, size_t step) {
    if (q >= u32{1} << 30 || q % (2 * degree) != 1 || !is_prime(q))
        throw std::invalid_argument("not a prime below 2^30 that is 1 mod 2^14");
    auto made = std::make_unique<Prime>();
    Prime &p = *made;
    p.q = q;
    p.inverse = 1;
    for (int i = 0; i < 5; ++i) p.inverse *= 2 - q * p.inverse;
    p.barrett = static_cast<u64>((static_cast<u128>(1) << 64) / q);
    p.montgomery = static_cast<u32>((u64{1} << 32) % q);
    p.square = p.times(p.montgomery, p.montgomery);
    p.root = 0;
    for (u32 base = 2; p.root == 0; ++base) {
        const u32 candidate = p.power(base, (q - 1) / (2 * degree));
        if (p.power(candidate, degree) == q - 1) p.root = candidate;
    }
    p.scale = p.times(p.invert(static_cast<u32>(degree)), p.montgomery);
    const bool is_wide = isa_from_name("") >= Isa::avx512;
    fill(p, p.power(p.root, step), p.forward, p.forward_companion);
    if (is_wide) p.wide_forward = widened(p, p.forward, 1);
    if (step != 1) return made;
    fill(p, p.invert(p.root), p.backward, p.backward_companion);
    if (is_wide) p.wide_backward = widened(p, p.backward, p.times_montgomery(1, p.scale));
    return made;
}

} // namespace

u32 Prime::power(u32 x, u64 exponent) const {
    u32 out = 1;
    for (; exponent; exponent >>= 1, x = times(x, x))
        if (exponent & 1) out = times(out, x);
    return out;
}

const Prime &turned_prime(u32 q, size_t step) {
    static std::mutex mutex;
    static std::map<std::pair<u32, size_t>, std::unique_ptr<const Prime>> known;
    const std::lock_guard<std::mutex> guard(mutex);
    const std::pair name{q, step % (2 * degree)};
    auto &entry = known[name];
    if (!entry) {
        try {
            entry = make_prime(q, name.second);
        } catch (...) {
            known.erase(name);
            throw;
        }
    }
    return *entry;
}

const Prime &prime(u32 q) { return turned_prime(q, 1); }

} // namespace comet::rlwe
