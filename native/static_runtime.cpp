// Only in builds with COMET_STATIC_RUNTIME. The static libstdc++ asks glibc >= 2.32 whether the process has one thread,
// to save atomic operations. Answered here with "no", the extension needs no newer glibc than 2.16.

extern "C" {
extern __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;
}
