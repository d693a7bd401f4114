#pragma once

#include "ot/aes.hpp"

namespace comet::ot {

#if COMET_X86
void schedule_aesni(AesKey key, AesSchedule &out);
void encrypt_aesni(const AesSchedule &key, span<Block> blocks);
void counter_aesni(const AesSchedule &key, u64 first, span<Block> out);
void encrypt_vaes(const AesSchedule &key, span<Block> blocks);
void counter_vaes(const AesSchedule &key, u64 first, span<Block> out);
#endif

} // namespace comet::ot
