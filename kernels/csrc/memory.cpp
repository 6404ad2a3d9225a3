#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

namespace batchgen {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunk = size_t{32} << 20;

constexpr size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Memory::Memory(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    const bool large = bytes >= kHugePage;
    mapped_bytes_ = large ? bytes + kHugePage : bytes;
    mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    data_ = large ? reinterpret_cast<void*>(round_up(reinterpret_cast<uintptr_t>(mapped_), kHugePage)) : mapped_;
#if defined(MADV_HUGEPAGE)
    if (large) madvise(data_, bytes, MADV_HUGEPAGE);  // only advice: a refusal costs speed and nothing else
#endif
}

Memory::~Memory() {
    if (mapped_) munmap(mapped_, mapped_bytes_);
}

Memory::Memory(Memory&& other) noexcept
    : mapped_(std::exchange(other.mapped_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

void* Arena::take_bytes(size_t bytes) {
    if (chunks_.empty() || used_ + bytes > chunks_.back().bytes()) {
        chunks_.emplace_back(std::max(kChunk, bytes));
        used_ = 0;
    }
    char* data = chunks_.back().as<char>() + used_;
    used_ += round_up(bytes, kCacheLine);
    return data;
}

}  // namespace batchgen
